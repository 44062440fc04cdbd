//! Periodic work of the agent: outside pressure on the disk, evicted files that were still open, second tries, copies that
//! somebody else damaged, what holds up prefetching.

use super::driver::Driver;
use crate::tier::TierDir;
use monarch_abi::control::ControlMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    driver.tend_fills();
    driver.second_tries();
    driver.audit();
    driver.wake_after_rest();
    driver.tell_ahead();
}

/// How often what was copied is synced: what is younger has to be verified after a power loss.
const SYNC: Duration = Duration::from_secs(60);

/// Syncs the tiers now and then until `stop`, on a thread of its own: it takes as long as the disk takes.
pub fn sync(driver: &Arc<Driver>, stop: Arc<AtomicBool>) {
    let driver = driver.clone();
    let work = move || {
        let mut last = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(PERIOD);
            if last.elapsed() >= SYNC {
                driver.tiers.iter().for_each(TierDir::sync);
                last = Instant::now();
            }
        }
    };
    let _ = std::thread::Builder::new().name("sync".to_owned()).stack_size(64 * 1024).spawn(work);
}

/// How often the agent says that it runs.
const PULSE: Duration = Duration::from_millis(250);

/// Says until `stop` that this process runs, which a lock cannot tell: it may be stopped.
pub fn pulse(ctl: ControlMap<'static>, stop: Arc<AtomicBool>) {
    let beat = move || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let ms = now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000;
        ctl.ctl.pulse_ms.store(ms, Ordering::Relaxed);
    };
    beat();
    let work = move || {
        while !stop.load(Ordering::Relaxed) {
            beat();
            std::thread::sleep(PULSE);
        }
    };
    if std::thread::Builder::new().name("pulse".to_owned()).stack_size(64 * 1024).spawn(work).is_err() {
        ctl.ctl.pulse_ms.store(0, Ordering::Relaxed);
    }
}
