//! What others see of a drain.

use crate::backlog::Backlog;
use crate::plan::Note;
use crate::snapshot::Snapshot;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the drain tells others of its root.
#[derive(Debug, Default)]
pub struct DrainView {
    backlog: Mutex<Backlog>,
    /// Whether the PFS refuses something, and that does not pass by itself.
    pub is_refused: AtomicBool,
    /// Snapshots of open files that wait for their names.
    pub snapshots: Mutex<Vec<Snapshot>>,
    /// The last request to look at all open files.
    pub look_wanted: AtomicU64,
    /// The last one after which the drain found nothing more to do.
    pub look_done: AtomicU64,
    /// Whether the marker in the output root is there, or may be.
    pub has_marker: AtomicBool,
}

impl DrainView {
    /// The backlog.
    pub fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be reported of a note of the plan.
pub(super) fn note(note: &Note) -> Option<String> {
    match note {
        // Told when it is published, with the name that it gets.
        Note::Killed(_) => None,
        Note::Lost(path) => {
            Some(format!("the staged data of {} is gone: it is not published", String::from_utf8_lossy(path)))
        }
        Note::UnknownFile(id) => Some(format!("a record of the journal names file {id}, which no record has opened")),
    }
}
