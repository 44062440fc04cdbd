//! Periodic work of the agent: outside pressure on the disk, evicted files that were still open, second tries.

use super::driver::Driver;
use std::time::Duration;

/// How often it is done: `keep_free` is to be restored within a second.
pub const PERIOD: Duration = Duration::from_millis(500);

/// One round.
pub fn round(driver: &Driver) {
    for (at, tier) in driver.tiers.iter().enumerate() {
        tier.sweep();
        let short = tier.shortage();
        if short > 0 {
            let dropped = driver.shrink(at, short);
            if dropped > 0 {
                tracing::info!(tier = tier.name, dropped, bytes = short, "copies dropped to keep space free");
            }
        }
    }
    driver.second_tries();
}
