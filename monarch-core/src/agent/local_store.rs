//! The tiering engine as the cluster's store of local copies.

use crate::sharing::{LocalStore, ServedIndex};
use crate::tier::{CopyName, OpenCopy};
use crate::tiering::{LiveSegment, TieringEngine};
use monarch_abi::control::ControlMap;
use monarch_abi::demand::file_key;
use monarch_abi::segment::Entry;
use monarch_abi::word::Word;
use rustix::fd::OwnedFd;

fn served((number, live): (usize, LiveSegment)) -> ServedIndex {
    ServedIndex { number, root: live.root(), segment: live.segment }
}

/// The segment of an index, as long as the tiering engine serves it.
fn live(tiering: &TieringEngine, index: &ServedIndex) -> Option<LiveSegment> {
    let live = tiering.shared.segments.segment(index.number)?;
    (live.segment.index.header.uuid == index.segment.index.header.uuid).then_some(live)
}

impl LocalStore for TieringEngine {
    fn control(&self) -> &ControlMap<'static> {
        &self.shared.cx.ctl
    }

    fn served(&self) -> Vec<ServedIndex> {
        self.shared.segments.served().into_iter().map(served).collect()
    }

    fn served_index(&self, index: &[u8; 16]) -> Option<ServedIndex> {
        self.shared.segments.segment_of(*index).map(served)
    }

    fn usage(&self) -> (u64, u64) {
        self.shared
            .cx
            .tiers
            .iter()
            .map(|tier| tier.space.ledger.usage())
            .fold((0, 0), |(c, u), of| (c + of.capacity, u + of.used))
    }

    fn open_copy(&self, tier: usize, name: CopyName) -> Option<OpenCopy> {
        self.shared.cx.tiers.get(tier)?.copies.open_shared(name).ok()
    }

    fn open_part(&self, tier: usize, part: u64) -> Option<OwnedFd> {
        self.shared.cx.tiers.get(tier)?.parts.read(part).ok()
    }

    fn is_as_logged(&self, index: &ServedIndex, entry: &Entry<'static>) -> Option<bool> {
        self.shared.cx.is_as_logged(&live(self, index)?, entry)
    }

    fn drop_damaged(&self, index: &ServedIndex, entry: &Entry<'static>, seen: Word) -> bool {
        let Some(live) = live(self, index) else { return false };
        self.residency.scrubber.drop_found_damaged(file_key(index.number, entry.master.id), &live, entry, seen)
    }

    fn fetch_again(&self, index: &ServedIndex, entry: &Entry<'static>) {
        self.queue.refetch.refetch(file_key(index.number, entry.master.id));
    }

    fn before_pfs_call(&self, bytes: u64, demand: bool) {
        self.shared.cx.limits.before_call(bytes, demand);
    }

    fn owners_changed(&self) {
        Self::owners_changed(self);
    }
}
