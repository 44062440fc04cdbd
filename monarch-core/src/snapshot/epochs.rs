//! Passes over the files of a root, and what was opened in its directories.

use super::percent::percent;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One pass over the files of a root, as the agent saw it. The fields are those of one JSON object,
/// which programs of users read: so they stay flat.
///
/// Fields: 14, one per key of the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Counted from 1, or as the job counts.
    pub number: u32,
    /// Whether the next one has begun.
    pub complete: bool,
    /// From the first open to the first one of the next epoch, or so far to the last one.
    pub seconds: f64,
    /// Opens.
    pub opens: u64,
    /// Bytes of the files that were opened.
    pub bytes: u64,
    /// Opens that found a copy.
    pub local: u64,
    /// Opens that waited for one.
    pub waited: u64,
    /// Opens of large files that were served in chunks.
    pub chunked: u64,
    /// Opens that went to the PFS.
    pub pfs: u64,
    /// Bytes of the files that those opened.
    pub pfs_bytes: u64,
    /// Seconds that readers waited for copies, all together.
    pub wait_s: f64,
    /// Files copied from the PFS meanwhile (all roots).
    pub copied: u64,
    /// Bytes copied from the PFS meanwhile (all roots).
    pub bytes_copied: u64,
    /// Why opens went to the PFS meanwhile (all roots; a process counts before the agent hears of
    /// an open, so that some are an epoch late or early).
    #[serde(default)]
    pub why: Why,
}

impl Epoch {
    /// Returns the epoch as it is when the job has `ended`, and its last epoch with it.
    #[must_use]
    pub fn when(&self, ended: bool) -> Self {
        Self { complete: self.complete || ended, ..*self }
    }

    /// Returns the share of opens that copies served, in percent. Opens that were served in chunks
    /// are neither local nor at the PFS, and left out. `None`: all were served in chunks.
    #[must_use]
    pub fn local_percent(&self) -> Option<String> {
        let (part, whole) = self.local_opens();
        (whole > 0 || self.opens == 0).then(|| percent(part, whole))
    }

    /// Returns the opens that copies served, and those that [`Epoch::local_percent`] is a share of.
    #[must_use]
    pub const fn local_opens(&self) -> (u64, u64) {
        (self.local + self.waited, self.opens.saturating_sub(self.chunked))
    }

    /// Adds the opens of `more`.
    pub const fn add(&mut self, more: &Self) {
        self.opens += more.opens;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.local += more.local;
        self.waited += more.waited;
        self.chunked += more.chunked;
        self.pfs += more.pfs;
        self.pfs_bytes = self.pfs_bytes.saturating_add(more.pfs_bytes);
    }
}

/// Why opens of indexed files went to the PFS, by the names of their counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Why {
    /// There was no index yet.
    pub absent: u64,
    /// The copy of a large file was not complete.
    pub large: u64,
    /// No copy is taken of it for a while.
    pub refused: u64,
    /// The tiers have no room.
    pub no_room: u64,
    /// Changed since the scan, or not readable.
    pub changed: u64,
    /// The job writes it.
    pub written: u64,
    /// A clock ran out.
    pub deadline: u64,
    /// The copy had gone.
    pub vanished: u64,
}

impl Why {
    /// Counts since an earlier one.
    #[must_use]
    pub const fn since(&self, b: &Self) -> Self {
        Self {
            absent: self.absent.saturating_sub(b.absent),
            large: self.large.saturating_sub(b.large),
            refused: self.refused.saturating_sub(b.refused),
            no_room: self.no_room.saturating_sub(b.no_room),
            changed: self.changed.saturating_sub(b.changed),
            written: self.written.saturating_sub(b.written),
            deadline: self.deadline.saturating_sub(b.deadline),
            vanished: self.vanished.saturating_sub(b.vanished),
        }
    }
}

/// Opens in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Directory {
    /// Below the root.
    #[serde(serialize_with = "crate::shown::serial::path")]
    pub path: PathBuf,
    /// Opens of its files.
    pub opens: u64,
    /// Bytes of the files that were opened.
    pub bytes: u64,
    /// Opens that went to the PFS.
    pub pfs: u64,
    /// Bytes of the files that those opened.
    pub pfs_bytes: u64,
}
