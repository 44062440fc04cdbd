//! The files that this node holds and other nodes had better get from here.

use super::fetch_tracker::FetchTracker;
use super::store::Store;
use crate::directory::fileset::FileSets;
use crate::directory::{Members, announcement_rules};
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::{State, Word};
use monarch_storage::sharing::FileRef;
use std::sync::Arc;

/// Reads what is held from the state words of the served indexes.
pub(super) struct Holdings {
    store: Arc<Store>,
    tracker: Arc<FetchTracker>,
}

impl Holdings {
    /// What `store` holds, and `tracker` is fetching from the PFS.
    pub(super) const fn new(store: Arc<Store>, tracker: Arc<FetchTracker>) -> Self {
        Self { store, tracker }
    }

    /// The held files of a segment, ascending: number and hash of the path. Transient copies are
    /// not among them, nor what comes from another node.
    pub(super) fn of(&self, segment: &Segment<'static>) -> impl Iterator<Item = (u32, u64)> + use<> {
        let is_coming = |word: Word| matches!(word.state(), State::Fetching | State::Partial);
        let may_be_held = move |word: Word| match word.state() {
            State::Resident => !word.is_marked() || word.packed_in().is_some(),
            State::Fetching | State::Partial => !word.is_marked(),
            _ => word.packed_in().is_some(),
        };
        let is_held = |e: &Entry<'static>| {
            // (Not a file that is claimed and yet to be asked another node for: if that node asked
            // back, it would wait for itself.)
            let word = e.word();
            may_be_held(word) && (!is_coming(word) || self.tracker.contains(&FileRef::of(segment, e)))
        };
        let found = segment.files_that(may_be_held).filter(is_held);
        let mut held: Vec<(u32, u64)> = found.map(|e| (e.master.id, e.master.fp)).collect();
        held.sort_unstable();
        held.into_iter()
    }

    /// The held files that a node answers for.
    pub(super) fn answered_by(&self, view: &Members, node: u16) -> FileSets {
        let mut sets = FileSets::default();
        for served in self.store.served() {
            let ids = announcement_rules::for_newcomer(view, node, self.of(&served.segment));
            sets.add_ids(served.segment.index.header.uuid, ids);
        }
        sets
    }

    /// The held files whose answerer is another node now, by that node.
    pub(super) fn moved(&self, before: &Members, now: &Members) -> Vec<(u16, [u8; 16], Vec<u32>)> {
        let mut moved = Vec::new();
        for served in self.store.served() {
            let index = served.segment.index.header.uuid;
            let telling = announcement_rules::announcements(before, now, self.of(&served.segment));
            moved.extend(telling.into_iter().map(|(to, ids)| (to, index, ids)));
        }
        moved
    }
}
