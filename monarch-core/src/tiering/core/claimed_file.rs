//! [`ClaimedFile`]: a file that a copier has claimed, until its copy is published or given up.

use crate::engine::SourceFile;
use crate::metrics::Origin;
use crate::sharing::RemoteFile;
use crate::tier::{PackedFile, Sum};
use crate::tiering::core::reservations::{CompressedReservation, TransientReservation};
use crate::tiering::core::segments::LiveSegment;
use monarch_abi::hash::{CopyName, Identity, PathHash, Stamp};
use monarch_abi::segment::Entry;
use monarch_abi::word::Word;
use monarch_policies::RequestSource;
use std::sync::Arc;
use std::time::Instant;

/// A file whose state word a copier has turned to Fetching: what it needs to copy the file.
///
/// Fields: 13, one per fact of the claim: the task, the publisher and peers read different ones.
#[derive(Clone)]
pub(crate) struct ClaimedFile {
    pub(crate) live: LiveSegment,
    pub(crate) entry: Entry<'static>,
    /// Path below the root.
    pub(crate) rel: Vec<u8>,
    pub(crate) key: u64,
    pub(crate) source: RequestSource,
    /// The state word during the copy.
    pub(crate) claim: Word,
    /// The identity that the index has for the file.
    pub(crate) want: Identity,
    pub(crate) name: CopyName,
    /// Time of the claim.
    pub(crate) start: Instant,
    /// The compressed copy that it is decompressed from, and its tier. `None`: it comes from a peer
    /// or from the PFS.
    pub(crate) packed: Option<(Arc<PackedFile>, usize)>,
    /// The peer's file that it comes from. `None`: it comes from a compressed copy or from the PFS.
    pub(crate) peer: Option<Arc<dyn RemoteFile>>,
    /// Space for its compressed copy in a slower tier.
    pub(crate) below: Option<Arc<CompressedReservation>>,
    /// The part that it takes of the space for transient copies.
    pub(crate) share: Option<Arc<TransientReservation>>,
}

impl ClaimedFile {
    /// Where its bytes come from, for metrics.
    pub(crate) const fn origin(&self) -> Origin {
        match (&self.packed, &self.peer) {
            (Some(_), _) => Origin::Packed,
            (None, Some(_)) => Origin::Node,
            (None, None) => Origin::Pfs,
        }
    }

    /// The file that its bytes are read from, if that is not on the PFS.
    pub(crate) fn open_source(&self) -> Option<Arc<dyn SourceFile>> {
        match (&self.packed, &self.peer) {
            (Some((packed, _)), _) => Some(packed.clone()),
            (None, Some(peer)) => Some(peer.clone()),
            (None, None) => None,
        }
    }

    /// The stamp of its copy.
    pub(crate) fn stamp(&self) -> Stamp {
        self.name.stamp(PathHash { fp: self.entry.master.fp, check: self.entry.record.check })
    }

    /// Notes the checksum of its copy for readers that verify it. Called before the copy gets its
    /// name.
    pub(crate) fn note_sum(&self, sum: Sum) {
        self.live.segment.state.guard.note_sum(self.entry.id, sum);
    }

    /// Whether its copy is transient: it comes from a peer, and is not kept here in the owner's
    /// place.
    pub(crate) fn passes(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_kept())
    }
}
