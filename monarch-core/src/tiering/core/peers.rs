//! Files that other nodes own: fetched from them, and kept for as long as there is room to spare.
//!
//! A file that another node owns comes from there, checked on the way, instead of from the PFS.
//! Under `replicated` and `hybrid` its copy takes what room is left and makes way for files of this
//! node's own; under `sharded` it passes through a part of each tier. Such copies are among those
//! that were decoded: marked, not logged, the first to go.

use crate::engine::SourceFile;
use crate::tier::Sum;
use crate::tiering::core::file_ref::FileRef;
use crate::tiering::core::segments::LiveSegment;
use monarch_abi::hash::Identity;
use std::sync::Arc;

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
