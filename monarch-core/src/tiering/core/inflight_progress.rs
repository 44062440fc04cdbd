//! [`InflightProgress`]: progress of a copy, for the readers that wait for it. It is an entry of
//! the table in the control block.

use crate::engine::Marks;
use monarch_abi::control::ControlMap;
use monarch_abi::control::Inflight;
use monarch_policies::RequestSource;
use std::sync::atomic::{AtomicU32, Ordering};

/// A claimed entry of the table. Without a free entry readers see no progress.
pub(crate) struct InflightProgress {
    entry: Option<&'static Inflight>,
    demand: bool,
    /// PFS calls in flight: a large file may have several.
    calls: AtomicU32,
}

impl InflightProgress {
    /// Claims an entry for the file with this key.
    pub(crate) fn claim(ctl: &ControlMap<'static>, key: u64, source: RequestSource) -> Self {
        let entry = ctl.ctl.inflight.iter().find(|i| {
            i.file.load(Ordering::Relaxed) == 0
                && i.file.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        Self { entry, demand: source == RequestSource::Demand, calls: AtomicU32::new(0) }
    }

    /// Runs a call to the PFS, and shows readers that it is in flight.
    pub(crate) fn ask_pfs<T>(&self, ask: impl FnOnce() -> T) -> T {
        self.in_pfs(true);
        let answer = ask();
        self.in_pfs(false);
        self.progress();
        answer
    }
}

impl Marks for InflightProgress {
    fn in_pfs(&self, inside: bool) {
        let calls = if inside {
            self.calls.fetch_add(1, Ordering::Relaxed) + 1
        } else {
            self.calls.fetch_sub(1, Ordering::Relaxed) - 1
        };
        if let Some(e) = self.entry {
            e.in_pfs.store(calls, Ordering::Relaxed);
        }
    }
    fn progress(&self) {
        if let Some(e) = self.entry {
            e.progress.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn waited_for(&self) -> bool {
        self.demand
    }
}

impl Drop for InflightProgress {
    fn drop(&mut self) {
        if let Some(e) = self.entry {
            e.in_pfs.store(0, Ordering::Relaxed);
            e.file.store(0, Ordering::Release);
        }
    }
}
