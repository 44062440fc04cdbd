//! [`PeerLink`]: the peers (other nodes of the job) as copiers use them. It has none until the
//! agent has joined the job.
//!
//! A file that a peer owns comes from that peer, verified on the way, instead of from the PFS.
//! Under `replicated` and `hybrid` its copy takes the space that is left, and is dropped for files
//! that this node owns. Under `sharded` it takes a part of each tier. Such copies are transient:
//! marked, not logged, the first to be dropped.

use crate::sharing::{BatchFile, FetchRequest, FileRef, MAX_BATCHED_FILE_BYTES, Peers, RemoteFile};
use crate::tier::Sum;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::segments::{LiveSegment, Segments, parts};
use monarch_abi::segment::Entry;
use monarch_abi::word::State;
use monarch_policies::RequestSource;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The peers, once they are known.
pub(crate) struct PeerLink {
    segments: Arc<Segments>,
    peers: OnceLock<Arc<dyn Peers>>,
}

impl PeerLink {
    pub(crate) fn new(segments: &Arc<Segments>) -> Self {
        Self { segments: segments.clone(), peers: OnceLock::new() }
    }

    /// The peers, if there are any.
    pub(crate) fn get(&self) -> Option<&Arc<dyn Peers>> {
        self.peers.get()
    }

    /// The peer's file that a claimed file is copied from; `None` if it comes from the PFS. Its
    /// bytes may have `arrived` with those of others.
    pub(crate) fn peer_file(&self, f: &ClaimedFile, arrived: Option<&Arc<[u8]>>) -> Option<Arc<dyn RemoteFile>> {
        let peers = self.peers.get()?;
        let demand = f.source == RequestSource::Demand;
        peers.file(&FetchRequest {
            file: f.live.file_ref(&f.entry),
            rel: &f.rel,
            source: &f.live.source,
            chunked: f.live.segment.state.large(f.entry.master.id).is_some(),
            want: f.want,
            demand,
            arrived,
        })
    }

    /// Most files that are fetched together; 1: each by itself.
    pub(crate) fn batch_files(&self) -> usize {
        self.peers.get().map_or(1, |peers| peers.batch_files())
    }

    /// The peer that a file can be requested from together with others, and its size. `None` where
    /// it is not small, is there or on its way, or comes from the PFS.
    pub(crate) fn batched(&self, key: u64) -> Option<(u16, u64)> {
        let peers = self.peers.get()?;
        let (number, id) = parts(key)?;
        let live = self.segments.segment(number)?;
        let (entry, size) = (live.segment.by_id(id)?, live.segment.index.record(id)?.size);
        let is_small = entry.record.is_file() && (1..=MAX_BATCHED_FILE_BYTES).contains(&size);
        let word = entry.word();
        let is_absent = word.state() == State::Absent && word.packed_in().is_none();
        // (The word of a further name of an inode is that of the first one.)
        let is_copied = entry.master.id == id && live.segment.state.large(id).is_none();
        if !is_small || !is_absent || !is_copied {
            return None;
        }
        Some((peers.source(&live.file_ref(&entry))?, size))
    }

    /// Requests files of one segment from a peer, together, and hands those that come to `take`:
    /// each by its place, and its bytes. `take` says whether to go on.
    pub(crate) fn fetch_batch(&self, from: u16, keys: &[u64], take: &mut dyn FnMut(usize, Arc<[u8]>) -> bool) {
        let file = |key: &u64| {
            let (number, id) = parts(*key)?;
            let live = self.segments.segment(number)?;
            let entry = live.segment.by_id(id)?;
            Some(BatchFile { file: live.file_ref(&entry), size: entry.record.size })
        };
        let files: Option<Vec<BatchFile>> = keys.iter().map(file).collect();
        if let (Some(peers), Some(files)) = (self.peers.get(), files) {
            peers.fetch_batch(from, &files, take);
        }
    }

    /// Whether this node prefetches a file.
    pub(crate) fn is_for_us(&self, live: &LiveSegment, id: u32) -> bool {
        let Some(peers) = self.peers.get().filter(|p| !p.fetches_all()) else { return true };
        live.segment.by_id(id).is_none_or(|entry| peers.is_mine(&live.file_ref(&entry)))
    }

    /// Whether a file is requested from a peer. Copiers do that and rings do not: data from peers
    /// is not read through the kernel's file calls.
    pub(crate) fn comes_from_peer(&self, key: u64) -> bool {
        self.of_peers(key, |peers, file| peers.source(file).is_some())
    }

    /// Whether a peer owns a file.
    pub(crate) fn is_guest(&self, key: u64) -> bool {
        self.of_peers(key, |peers, file| !peers.is_mine(file))
    }

    fn of_peers(&self, key: u64, ask: impl Fn(&Arc<dyn Peers>, &FileRef) -> bool) -> bool {
        let Some(peers) = self.peers.get() else { return false };
        let found = parts(key).and_then(|(number, id)| Some((self.segments.segment(number)?, id)));
        found.and_then(|(live, id)| Some(ask(peers, &live.file_ref(&live.segment.by_id(id)?)))).unwrap_or(false)
    }

    /// Notifies the peers that the job has changed a file.
    pub(crate) fn notify_changed(&self, live: &LiveSegment, entry: &Entry<'static>) {
        if let Some(peers) = self.peers.get() {
            peers.note_changed(&live.file_ref(entry));
        }
    }

    /// Notifies the peers that get this file from here that its copy is there; with its checksum.
    pub(crate) fn notify_copied(&self, f: &ClaimedFile, sum: Sum) {
        if let Some(peers) = self.peers.get() {
            peers.note_copied(&f.live.file_ref(&f.entry), sum, !f.passes());
        }
    }

    /// Notifies the peers that a fetch has ended.
    pub(crate) fn notify_ended(&self, f: &ClaimedFile) {
        if let Some(peers) = self.peers.get() {
            peers.note_fetch_ended(&f.live.file_ref(&f.entry));
        }
    }

    /// Notifies the peers of the checksum of a chunk.
    pub(crate) fn notify_chunk(&self, f: &ClaimedFile, part: &Range<u64>, sum: u64) {
        if let Some(peers) = self.peers.get() {
            peers.note_chunk(&f.live.file_ref(&f.entry), (part.start, part.end - part.start), sum);
        }
    }

    /// Sets the peers, once.
    pub(crate) fn join(&self, peers: Arc<dyn Peers>) {
        let _ = self.peers.set(peers);
    }
}
