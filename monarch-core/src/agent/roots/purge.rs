//! Warns of files that the site will soon remove, because no job reads them on the PFS: served from
//! copies, they look unused there. Nothing is done about it: to touch them would be to get round
//! the site's rules.

use super::Roots;
use std::time::{Duration, Instant};

/// Least time between two warnings about a root.
const WARN_PERIOD: Duration = Duration::from_hours(24);

impl Roots {
    /// Warns of each root once a day.
    pub fn warn_of_purges(&self) {
        for r in self.list().iter_mut() {
            if r.warned.is_some_and(|at| at.elapsed() < WARN_PERIOD) {
                continue;
            }
            let Some(near) = r.segment.and_then(|n| self.tiering.source_facts.near_purge(n)) else { continue };
            tracing::warn!(root = %r.path.display(), "{near}");
            r.warned = Some(Instant::now());
        }
    }
}
