//! [`MemoryPressure`]: tells the tiering engine how much of the time tasks of the job wait for
//! memory.

use crate::config::PressureWatch;
use crate::tiering::TieringEngine;
use std::time::{Duration, Instant};

/// How often the pressure is read: as often as the kernel computes its averages.
const READ_PERIOD: Duration = Duration::from_secs(2);

/// Reads the memory pressure now and then.
#[derive(Debug, Default)]
pub(super) struct MemoryPressure {
    watch: PressureWatch,
    read_at: Option<Instant>,
    /// When time under pressure was last counted.
    counted_at: Option<Instant>,
}

impl MemoryPressure {
    /// Does one round of maintenance.
    pub(super) fn round(&mut self, tiering: &TieringEngine) {
        let now = Instant::now();
        if let Some(before) = self.counted_at.replace(now) {
            tiering.count_memory_pressure(now.saturating_duration_since(before));
        }
        if self.read_at.is_none_or(|at| now.saturating_duration_since(at) >= READ_PERIOD) {
            self.read_at = Some(now);
            tiering.note_memory_pressure(self.watch.memory());
        }
    }
}
