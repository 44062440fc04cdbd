//! Files that other nodes own: fetched from them, and kept for as long as there is room to spare.
//!
//! A file that another node owns comes from there, checked on the way, instead of from the PFS.
//! Under `replicated` and `hybrid` its copy takes what room is left and makes way for files of this
//! node's own; under `sharded` it passes through a part of each tier. Such copies are among those
//! that were decoded: marked, not logged, the first to go.

use super::outcome::{ClaimedFile, CopyOutcome};
use super::{LiveSegment, TieringEngine, parts};
use crate::engine::{CopyError, SourceFile};
use crate::sync::lock;
use crate::tier::{CopyFile, PartCopy, Sum};
use monarch_abi::hash::Identity;
use monarch_abi::segment::Entry;
use monarch_abi::word::{Refusal, State, Word};
use monarch_policies::RequestSource;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Pause when all room for copies of others' files is in use.
const RETRY: Duration = Duration::from_secs(1);

/// A file as its nodes know it: the same numbers on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileRef {
    /// Of the index.
    pub index: [u8; 16],
    /// Its entry there.
    pub id: u32,
    /// Hash of its path, the same in later jobs.
    pub fp: u64,
}

/// What is to be fetched.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Which file.
    pub file: FileRef,
    /// Its path below the root.
    pub rel: &'a [u8],
    /// The root.
    pub live: &'a LiveSegment,
    /// What it is to be.
    pub want: Identity,
    /// Whether somebody waits.
    pub demand: bool,
}

/// A file of another node. Where it cannot be had from any it comes from the PFS after all.
pub trait RemoteFile: SourceFile {
    /// It will be read in a moment: a peer may begin to answer.
    fn will_be_read(&self);
    /// After a failure: what it means.
    fn after_failure(&self) -> FailureAction;
    /// Whether a copy is kept as one of this node's own files, because their owner has no room.
    fn is_kept(&self) -> bool;
}

/// What the failure to read a [`RemoteFile`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// The PFS, which it came from in the end, failed.
    Failed,
    /// It is to be tried once more: this node is to keep it.
    Again,
    /// No node has room for it: readers get it from the PFS.
    Refused,
    /// It is not what was indexed any more.
    Changed,
}

/// The other nodes of a job, as the tiering engine sees them.
pub trait Peers: Send + Sync {
    /// A file that another node owns or holds; `None`: from the PFS as ever.
    fn file(&self, asked: &Asked<'_>) -> Option<Arc<dyn RemoteFile>>;
    /// Whether this node owns a file.
    fn is_mine(&self, file: &FileRef) -> bool;
    /// Whether another node is asked for a file before the PFS.
    fn is_elsewhere(&self, file: &FileRef) -> bool;
    /// Whether files that others own are fetched ahead, too.
    fn fetches_all(&self) -> bool;
    /// A copy is there, with this checksum; `kept`: it is none of those that make way first.
    fn is_there(&self, file: &FileRef, sum: Sum, kept: bool);
    /// A fetch has ended, with a copy or without.
    fn is_over(&self, file: &FileRef);
    /// A part of a copy is there (offset, length), with this checksum.
    fn note_piece(&self, file: &FileRef, part: (u64, u64), sum: u64);
    /// The job on this node has changed a file.
    fn changed(&self, file: &FileRef);
}

/// Copies of others' files that are looked at for room, and how long it is taken for granted that
/// there are none.
const GUESTS: usize = 256;
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Pause before a file is asked for again for which no node has room.
pub(super) const ELSEWHERE: Duration = Duration::from_secs(10);

/// What of a file's identity is the same for every client of the PFS, besides its size and time of
/// modification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityScope {
    /// Its inode number.
    pub ino: bool,
    /// The time of its last change.
    pub ctime: bool,
}

impl Default for IdentityScope {
    fn default() -> Self {
        Self { ino: true, ctime: true }
    }
}

impl LiveSegment {
    /// Whether a file is the one that was indexed, perhaps by another node.
    #[must_use]
    pub fn is_same(&self, now: &Identity, want: &Identity) -> bool {
        let IdentityScope { ino, ctime } = self.portable;
        let same = |portable: bool, equal: bool| equal || !portable;
        (now.size, now.mtime_ns) == (want.size, want.mtime_ns)
            && same(ino, now.ino == want.ino)
            && same(ctime, now.ctime_ns == want.ctime_ns)
    }

    /// Number of its root.
    #[must_use]
    pub const fn root(&self) -> usize {
        self.root
    }

    /// What the nodes of a job call one of its files.
    #[must_use]
    pub fn file_ref(&self, entry: &Entry<'static>) -> FileRef {
        FileRef { index: self.segment.index.header.uuid, id: entry.master.id, fp: entry.master.fp }
    }
}

impl ClaimedFile {
    /// Whether its copy is one of those that make way first.
    pub(super) fn passes(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_kept())
    }
}

impl TieringEngine {
    /// Where a claimed file comes from, if not from the PFS as ever.
    pub(super) fn peer_file(&self, f: &ClaimedFile) -> Option<Arc<dyn RemoteFile>> {
        let peers = self.peers.get()?;
        let demand = f.source == RequestSource::Demand;
        peers.file(&Asked { file: f.live.file_ref(&f.entry), rel: &f.rel, live: &f.live, want: f.want, demand })
    }

    /// Whether a file is fetched ahead by this node.
    pub(super) fn is_for_us(&self, live: &LiveSegment, id: u32) -> bool {
        let Some(peers) = self.peers.get().filter(|p| !p.fetches_all()) else { return true };
        live.segment.by_id(id).is_none_or(|entry| peers.is_mine(&live.file_ref(&entry)))
    }

    /// Whether another node is asked for a file. Copiers do that: what peers send is none of the
    /// kernel's reads.
    pub(super) fn comes_from_peer(&self, key: u64) -> bool {
        self.of_peers(key, |peers, file| peers.is_elsewhere(file))
    }

    /// Whether another node owns a file.
    fn is_guest(&self, key: u64) -> bool {
        self.of_peers(key, |peers, file| !peers.is_mine(file))
    }

    fn of_peers(&self, key: u64, ask: impl Fn(&Arc<dyn Peers>, &FileRef) -> bool) -> bool {
        let Some(peers) = self.peers.get() else { return false };
        let found = parts(key).and_then(|(number, id)| Some((self.segment(number)?, id)));
        found.and_then(|(live, id)| Some(ask(peers, &live.file_ref(&live.segment.by_id(id)?)))).unwrap_or(false)
    }

    /// What a failure means for a file; `None`: it is to be tried once more.
    pub(super) fn after_failure(&self, e: &CopyError, f: &ClaimedFile) -> Option<CopyOutcome> {
        let after = f.peer.as_ref().filter(|_| matches!(e, CopyError::Source(_))).map(|peer| peer.after_failure());
        match after {
            None | Some(FailureAction::Failed) => Some(self.failed(e, f)),
            Some(FailureAction::Again) => None,
            Some(FailureAction::Refused) => Some(CopyOutcome::Refused(Refusal::NoRoom, Some(ELSEWHERE))),
            Some(FailureAction::Changed) => Some(self.failed(&CopyError::Changed, f)),
        }
    }

    /// Room for a copy that makes way first.
    pub(super) fn passing_room(
        &self,
        f: &ClaimedFile,
    ) -> Result<(usize, CopyFile<'_>, super::transient_cache::TransientReservation), CopyOutcome> {
        let asked = f.source == RequestSource::Demand;
        let room = self.retry_until_room(asked, || self.file_above(self.tiers.len(), f.want.size, asked));
        room.ok_or_else(|| self.no_passing_room(f))
    }

    /// The same for a large file.
    pub(super) fn passing_part(
        &self,
        f: &ClaimedFile,
    ) -> Option<(usize, PartCopy, super::transient_cache::TransientReservation)> {
        let asked = f.source == RequestSource::Demand;
        self.retry_until_room(asked, || self.part_above(self.tiers.len(), f.want.size, asked))
    }

    pub(super) fn no_passing_room(&self, f: &ClaimedFile) -> CopyOutcome {
        match f.source {
            RequestSource::Prefetch => CopyOutcome::Stopped,
            RequestSource::Demand => CopyOutcome::Refused(Refusal::TierFailed, Some(RETRY)),
        }
    }

    /// Whether a tier's room for copies that make way first is whatever others leave.
    pub(super) fn is_elastic(&self) -> bool {
        self.options.elastic.is_some()
    }

    /// Tells the other nodes of a file that the job has changed.
    pub(super) fn tell_changed(&self, live: &LiveSegment, entry: &Entry<'static>) {
        if let Some(peers) = self.peers.get() {
            peers.changed(&live.file_ref(entry));
        }
    }

    /// What a copy comes to, for the nodes that get it from here.
    pub(super) fn tell_sum(&self, f: &ClaimedFile, sum: Sum) {
        if let Some(peers) = self.peers.get() {
            peers.is_there(&f.live.file_ref(&f.entry), sum, !f.passes());
        }
    }

    /// A fetch has ended.
    pub(super) fn tell_over(&self, f: &ClaimedFile) {
        if let Some(peers) = self.peers.get() {
            peers.is_over(&f.live.file_ref(&f.entry));
        }
    }

    /// What a chunk of a copy comes to.
    pub(super) fn tell_piece(&self, f: &ClaimedFile, part: &Range<u64>, sum: u64) {
        if let Some(peers) = self.peers.get() {
            peers.note_piece(&f.live.file_ref(&f.entry), (part.start, part.end - part.start), sum);
        }
    }

    /// Bytes of copies in a tier that make way for any other.
    pub(super) fn passing_bytes(&self, at: usize) -> u64 {
        self.transient.get(at).map_or(0, super::transient_cache::TransientCache::spare)
    }

    /// The segment of an index that is served now, and its number.
    #[must_use]
    pub fn segment_of(&self, index: [u8; 16]) -> Option<(usize, LiveSegment)> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let found = segments.iter().enumerate().filter_map(|(n, live)| Some((n, live.as_ref()?)));
        found.filter(|(_, live)| live.segment.index.header.uuid == index).map(|(n, live)| (n, live.clone())).next()
    }

    /// All segments that are served now.
    #[must_use]
    pub fn served(&self) -> Vec<(usize, LiveSegment)> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        segments.iter().enumerate().filter_map(|(n, live)| Some((n, live.clone()?))).collect()
    }

    /// The other nodes are known from now on.
    pub fn join(&self, peers: Arc<dyn Peers>) {
        let _ = self.peers.set(peers);
    }

    /// Makes room for a file of this node's own: copies of others' files, which were kept while
    /// those were away or had no room, make way, those placed last first. `false` if there is
    /// none to be made.
    pub(super) fn make_own_room(&self, f: &ClaimedFile) -> bool {
        let is_ours = |peers: &Arc<dyn Peers>| peers.is_mine(&f.live.file_ref(&f.entry));
        if !self.peers.get().is_some_and(is_ours) || lock(&self.no_guests).is_some_and(|t| t.elapsed() < LOOK_AGAIN) {
            return false;
        }
        let guests = lock(&self.catalog).last_of(|key| self.is_guest(key), GUESTS);
        let mut freed = false;
        for (at, tier) in self.tiers.iter().enumerate().filter(|(_, t)| !t.suspended()) {
            let (cost, mut bytes) = (tier.ledger.cost(f.want.size), 0);
            let here = |key: &u64| self.leaver(*key).filter(|l| l.word.tier() == at && !l.word.is_marked());
            for leaver in guests.iter().filter_map(here) {
                if bytes >= cost {
                    break;
                }
                self.tell_dropped(leaver.key);
                bytes += self.drop_for_now(at, &leaver).unwrap_or(0);
            }
            freed |= bytes > 0;
        }
        *lock(&self.no_guests) = (!freed).then(Instant::now);
        freed
    }

    /// Files are owned by others than before: what is this node's now is fetched ahead, and what
    /// found no room is asked for again.
    pub fn owners_changed(&self) {
        *lock(&self.no_guests) = None;
        for (_, live) in self.served() {
            let for_room = |word: Word| word.refusal() == Some(Refusal::NoRoom);
            for e in live.segment.files_that(for_room) {
                let word = e.word();
                if for_room(word) {
                    let to = word.next(State::Absent);
                    let _ = e.slot.word.compare_exchange(word.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        }
        if self.options.prefetch {
            lock(&self.work_queue).begin_all();
            self.wake_all();
        }
    }
}
