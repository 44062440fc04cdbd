//! A file on its way from the PFS, call by call: to a tier, or to a reader that reads the PFS
//! itself. One call at a time, as both do for small files. (The agent has several reads of a large
//! file under way at once; here the second waits for the first.)

use super::model::{Calls, Pfs, Time};
use super::outcome::EpochFigures;

/// Destination of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// To a tier of the node.
    Tier,
    /// To a loader process, past the tiers.
    Worker(u32),
}

/// A file to be fetched, for a node or a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Errand {
    pub(super) file: u32,
    pub(super) node: u32,
    pub(super) to: Destination,
    pub(super) epoch: u32,
}

/// A transfer under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) file: u32,
    pub(super) node: u32,
    pub(super) to: Destination,
    /// The epoch that counts its calls, whenever they are made.
    pub(super) epoch: u32,
    pub(super) started: Time,
    /// Whether its first call is not answered yet.
    pub(super) opens: bool,
    before: u32,
    left: u64,
    after: u32,
    io: u64,
}

impl Transfer {
    /// All calls for a file of this size, beginning now.
    pub(super) fn new(what: Errand, size: u64, calls: Calls, io: u64, now: Time) -> Self {
        let Errand { file, node, to, epoch } = what;
        let (before, after) = (calls.before, calls.after);
        Self { file, node, to, epoch, started: now, opens: true, before, left: size, after, io: io.max(1) }
    }

    /// Makes the next call. The time of its answer, or `None` if there is nothing left to do.
    pub(super) fn step(&mut self, pfs: &mut Pfs<'_>, now: Time, counts: &mut EpochFigures) -> Option<Time> {
        if self.before > 0 {
            self.before -= 1;
        } else if self.left > 0 {
            let bytes = self.left.min(self.io);
            self.left -= bytes;
            counts.read_calls += 1;
            match self.to {
                Destination::Tier => counts.bytes_copied += bytes,
                Destination::Worker(_) => counts.bytes_direct += bytes,
            }
            return Some(pfs.read(now, self.node, bytes));
        } else if self.after > 0 {
            self.after -= 1;
        } else {
            return None;
        }
        counts.metadata_calls += 1;
        Some(pfs.call(now))
    }
}
