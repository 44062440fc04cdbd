//! A file that a copier has claimed: what is known of it until its copy is there, or is not to be.

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

/// A claimed file.
#[derive(Clone)]
pub(crate) struct ClaimedFile {
    pub(crate) live: LiveSegment,
    pub(crate) entry: Entry<'static>,
    /// Path below the root.
    pub(crate) rel: Vec<u8>,
    pub(crate) key: u64,
    pub(crate) source: RequestSource,
    /// Its word while it is being copied.
    pub(crate) claim: Word,
    /// What it is to be.
    pub(crate) want: Identity,
    pub(crate) name: CopyName,
    /// When it was claimed.
    pub(crate) start: Instant,
    /// The packed copy that it is decoded from, and its tier; otherwise it comes from the PFS.
    pub(crate) packed: Option<(Arc<PackedFile>, usize)>,
    /// The node that it comes from, where that is not the PFS.
    pub(crate) peer: Option<Arc<dyn RemoteFile>>,
    /// Where it is to be packed.
    pub(crate) below: Option<Arc<CompressedReservation>>,
    /// The room for decoded copies that it takes.
    pub(crate) share: Option<Arc<TransientReservation>>,
}

impl ClaimedFile {
    /// Where its bytes come from.
    pub(crate) const fn origin(&self) -> Origin {
        match (&self.packed, &self.peer) {
            (Some(_), _) => Origin::Packed,
            (None, Some(_)) => Origin::Node,
            (None, None) => Origin::Pfs,
        }
    }

    /// What its bytes are read from, where that is not a file on the PFS.
    pub(crate) fn given(&self) -> Option<Arc<dyn SourceFile>> {
        match (&self.packed, &self.peer) {
            (Some((packed, _)), _) => Some(packed.clone()),
            (None, Some(peer)) => Some(peer.clone()),
            (None, None) => None,
        }
    }

    /// What marks its copy.
    pub(crate) fn stamp(&self) -> Stamp {
        self.name.stamp(PathHash { fp: self.entry.master.fp, check: self.entry.record.check })
    }

    /// Takes note of what its copy comes to, for readers who verify it; before it gets its name.
    pub(crate) fn note_sum(&self, sum: Sum) {
        self.live.segment.state.guard.note_sum(self.entry.id, sum);
    }

    /// Whether its copy is one of those that make way first.
    pub(crate) fn passes(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| !peer.is_kept())
    }
}
