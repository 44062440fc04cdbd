//! The other nodes of the job, as copiers use them: none until they are known.
//!
//! A file that another node owns comes from there, checked on the way, instead of from the PFS.
//! Under `replicated` and `hybrid` its copy takes the room that is left, and is dropped for files
//! of this node's own; under `sharded` it passes through a part of each tier. Such copies are among
//! the transient ones: marked, not logged, the first to be dropped.

use crate::sharing::{FetchRequest, FileRef, Peers, RemoteFile};
use crate::tier::Sum;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::segments::{LiveSegment, Segments, parts};
use monarch_abi::segment::Entry;
use monarch_policies::RequestSource;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The other nodes, once they are known.
pub(crate) struct PeerLink {
    segments: Arc<Segments>,
    peers: OnceLock<Arc<dyn Peers>>,
}

impl PeerLink {
    pub(crate) fn new(segments: &Arc<Segments>) -> Self {
        Self { segments: segments.clone(), peers: OnceLock::new() }
    }

    /// The other nodes, if there are any.
    pub(crate) fn get(&self) -> Option<&Arc<dyn Peers>> {
        self.peers.get()
    }

    /// Where a claimed file comes from, if not from the PFS as ever.
    pub(crate) fn peer_file(&self, f: &ClaimedFile) -> Option<Arc<dyn RemoteFile>> {
        let peers = self.peers.get()?;
        let demand = f.source == RequestSource::Demand;
        peers.file(&FetchRequest {
            file: f.live.file_ref(&f.entry),
            rel: &f.rel,
            source: &f.live.source,
            chunked: f.live.segment.state.large(f.entry.master.id).is_some(),
            want: f.want,
            demand,
        })
    }

    /// Whether a file is fetched ahead by this node.
    pub(crate) fn is_for_us(&self, live: &LiveSegment, id: u32) -> bool {
        let Some(peers) = self.peers.get().filter(|p| !p.fetches_all()) else { return true };
        live.segment.by_id(id).is_none_or(|entry| peers.is_mine(&live.file_ref(&entry)))
    }

    /// Whether another node is asked for a file. Copiers do that: what peers send is none of the
    /// kernel's reads.
    pub(crate) fn comes_from_peer(&self, key: u64) -> bool {
        self.of_peers(key, |peers, file| peers.is_elsewhere(file))
    }

    /// Whether another node owns a file.
    pub(crate) fn is_guest(&self, key: u64) -> bool {
        self.of_peers(key, |peers, file| !peers.is_mine(file))
    }

    fn of_peers(&self, key: u64, ask: impl Fn(&Arc<dyn Peers>, &FileRef) -> bool) -> bool {
        let Some(peers) = self.peers.get() else { return false };
        let found = parts(key).and_then(|(number, id)| Some((self.segments.segment(number)?, id)));
        found.and_then(|(live, id)| Some(ask(peers, &live.file_ref(&live.segment.by_id(id)?)))).unwrap_or(false)
    }

    /// Tells the other nodes of a file that the job has changed.
    pub(crate) fn tell_changed(&self, live: &LiveSegment, entry: &Entry<'static>) {
        if let Some(peers) = self.peers.get() {
            peers.changed(&live.file_ref(entry));
        }
    }

    /// What a copy comes to, for the nodes that get it from here.
    pub(crate) fn tell_sum(&self, f: &ClaimedFile, sum: Sum) {
        if let Some(peers) = self.peers.get() {
            peers.is_there(&f.live.file_ref(&f.entry), sum, !f.passes());
        }
    }

    /// A fetch has ended.
    pub(crate) fn tell_over(&self, f: &ClaimedFile) {
        if let Some(peers) = self.peers.get() {
            peers.is_over(&f.live.file_ref(&f.entry));
        }
    }

    /// What a chunk of a copy comes to.
    pub(crate) fn tell_piece(&self, f: &ClaimedFile, part: &Range<u64>, sum: u64) {
        if let Some(peers) = self.peers.get() {
            peers.note_piece(&f.live.file_ref(&f.entry), (part.start, part.end - part.start), sum);
        }
    }

    /// The other nodes are known from now on.
    pub(crate) fn join(&self, peers: Arc<dyn Peers>) {
        let _ = self.peers.set(peers);
    }
}
