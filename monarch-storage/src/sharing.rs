//! What the tiering engine and the cluster ask of each other: plain types, and a trait for each
//! direction.
//!
//! [`Peers`] is the job's other nodes as the tiering engine sees them. [`LocalStore`] is this
//! node's store of copies as the cluster sees it. [`OutputPeers`] and [`LocalOutputs`] are the same
//! for what jobs write, and [`LocalNames`] for directories that the index does not hold. Each side
//! knows these traits alone; the agent wires them.

use crate::engine::{Source, SourceFile};
use crate::tier::{CopyName, OpenCopy, Sum};
use monarch_abi::control::ControlMap;
use monarch_abi::hash::Identity;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::word::Word;
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A file as the nodes of a job know it: the same numbers on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileRef {
    /// Identifier of its index.
    pub index: [u8; 16],
    /// Number of its entry in the index.
    pub id: u32,
    /// Hash of its path: the same on all nodes and in later jobs, so that copies that were kept are
    /// where they are looked for.
    pub fp: u64,
}

impl FileRef {
    /// The file of an entry of a segment.
    #[must_use]
    pub fn of(segment: &Segment<'static>, entry: &Entry<'static>) -> Self {
        Self { index: segment.index.header.uuid, id: entry.master.id, fp: entry.master.fp }
    }
}

/// A file that the tiering engine is about to fetch.
#[derive(Clone, Copy)]
pub struct FetchRequest<'a> {
    /// Which file.
    pub file: FileRef,
    /// Its path below the root.
    pub rel: &'a [u8],
    /// Where the file is if no node sends it: the root on the PFS.
    pub source: &'a Arc<dyn Source>,
    /// Whether it is copied in chunks.
    pub chunked: bool,
    /// The identity that its index has recorded.
    pub want: Identity,
    /// Whether a reader waits for it.
    pub demand: bool,
    /// All of its bytes, if [`Peers::fetch_batch`] has brought them.
    pub arrived: Option<&'a Arc<[u8]>>,
}

/// Most bytes of a file that is fetched together with others.
pub const MAX_BATCHED_FILE_BYTES: u64 = 256 << 10;
/// Most bytes of files that are fetched together: few enough that neither node waits long for them.
pub const MAX_BATCH_BYTES: u64 = 1 << 20;

/// A small file that is fetched together with others.
#[derive(Clone, Copy, Debug)]
pub struct BatchFile {
    /// Which file.
    pub file: FileRef,
    /// Its size in bytes, from 1 to [`MAX_BATCHED_FILE_BYTES`].
    pub size: u64,
}

/// A file of another node. Where no node can send it, it comes from the PFS after all.
pub trait RemoteFile: SourceFile {
    /// Announces a read of the whole file: a peer may begin to answer.
    fn will_be_read(&self);
    /// What the last failed read means.
    fn after_failure(&self) -> FailureAction;
    /// Whether a copy is kept as one of this node's own files, because their owner has no room.
    fn is_kept(&self) -> bool;
}

/// What the failure to read a [`RemoteFile`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// The PFS, which was read in the end, failed.
    Failed,
    /// The file is to be tried once more: this node is to keep it.
    Again,
    /// No node has room for it: readers get it from the PFS.
    Refused,
    /// It is no longer the file that was indexed.
    Changed,
}

/// The other nodes of a job, as the tiering engine sees them.
pub trait Peers: Send + Sync {
    /// A file that another node owns or holds; `None`: it is read from the PFS.
    fn file(&self, request: &FetchRequest<'_>) -> Option<Arc<dyn RemoteFile>>;
    /// Whether this node owns a file.
    fn is_mine(&self, file: &FileRef) -> bool;
    /// The node that is asked for a file before the PFS; `None`: the PFS.
    fn source(&self, file: &FileRef) -> Option<u16>;
    /// Most files that are fetched together; 1: each by itself.
    fn batch_files(&self) -> usize;
    /// Requests files of one index from the node `from`, together, and hands those that it has to
    /// `take`, in order and verified: each by its place in `files` and its bytes, until `take` says
    /// `false`. Others may come when they are requested by themselves. Blocks.
    fn fetch_batch(&self, from: u16, files: &[BatchFile], take: &mut dyn FnMut(usize, Arc<[u8]>) -> bool);
    /// Whether files that other nodes own are prefetched too.
    fn fetches_all(&self) -> bool;
    /// Notes a copy that is there, with its checksum; `kept`: it is none of the transient copies.
    fn note_copied(&self, file: &FileRef, sum: Sum, kept: bool);
    /// Notes that a fetch has ended, with a copy or without.
    fn note_fetch_ended(&self, file: &FileRef);
    /// Notes the checksum of a part (offset, length) of a copy.
    fn note_chunk(&self, file: &FileRef, part: (u64, u64), sum: u64);
    /// Notes a file that the job on this node has changed.
    fn note_changed(&self, file: &FileRef);
}

/// An index that this node serves.
#[derive(Clone)]
pub struct ServedIndex {
    /// Number of its segment in the control block.
    pub number: usize,
    /// Number of its root.
    pub root: usize,
    /// Index and state.
    pub segment: Segment<'static>,
}

/// This node's copies, as the cluster sees them.
pub trait LocalStore: Send + Sync {
    /// The control block, through which files are demanded as a reader demands them.
    fn control(&self) -> &ControlMap<'static>;
    /// All indexes that are served now.
    fn served(&self) -> Vec<ServedIndex>;
    /// The served index with this identifier.
    fn served_index(&self, index: &[u8; 16]) -> Option<ServedIndex>;
    /// Bytes that all tiers may hold, and bytes that they hold.
    fn usage(&self) -> (u64, u64);
    /// Opens a complete copy in a tier, or gives one that is open; `None` if it has gone.
    fn open_copy(&self, tier: usize, name: CopyName) -> Option<OpenCopy>;
    /// Opens the partial copy with this number in a tier; `None` if it has gone.
    fn open_part(&self, tier: usize, part: u64) -> Option<OwnedFd>;
    /// Whether a copy is what the log of its tier says; `None` if the log says nothing of it.
    /// Reads the whole copy.
    fn is_as_logged(&self, index: &ServedIndex, entry: &Entry<'static>) -> Option<bool>;
    /// Drops a copy that was found damaged while its word was `seen`; `false` if it is another one
    /// by now.
    fn drop_damaged(&self, index: &ServedIndex, entry: &Entry<'static>, seen: Word) -> bool;
    /// Has a file fetched again whose copy was dropped.
    fn fetch_again(&self, index: &ServedIndex, entry: &Entry<'static>);
    /// Blocks until a call to the PFS that reads `bytes` is within the configured limits.
    fn before_pfs_call(&self, bytes: u64, demand: bool);
    /// Notes that files have other owners than before.
    fn owners_changed(&self);
}

/// Whether another node may have something to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputPeerState {
    /// It belongs to the job, and was not seen yet.
    Expected,
    /// It answers.
    Up,
    /// It was up, and does not answer.
    Silent,
    /// It has left, or never came.
    Absent,
}

/// Another node, as output roots see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPeer {
    /// Its number: the same on all nodes.
    pub number: u64,
    /// Its name.
    pub name: Arc<str>,
    /// Whether it may have something to publish.
    pub state: OutputPeerState,
}

/// The other nodes of a job, as its output roots see them. Questions and answers are a few bytes,
/// which output roots alone understand.
pub trait OutputPeers: Send + Sync {
    /// The number of this node.
    fn me(&self) -> u64;
    /// The other nodes.
    fn nodes(&self) -> Vec<OutputPeer>;
    /// Asks a node about an output root, a hash of its path. Blocks for about `timeout` at most.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionRefused`] where no agent listens; anything else where the node
    /// may be there.
    fn ask(&self, node: u64, root: u64, question: &[u8], timeout: Duration) -> io::Result<Vec<u8>>;
}

/// This node's output roots, as the other nodes see them.
pub trait LocalOutputs: Send + Sync {
    /// Answers a node about an output root; `None`: not now, or not such a question.
    fn answer(&self, from: u64, root: u64, question: &[u8]) -> Option<Vec<u8>>;
}

/// Directories that this node holds and the index does not, as the other nodes see them.
pub trait LocalNames: Send + Sync {
    /// The directory with this path relative to the root of an index, as a message
    /// ([`crate::index::Directory::encode`]); `None` if it is to be left to the PFS. Blocks while
    /// the directory is read.
    fn directory(&self, index: &[u8; 16], rel: &[u8]) -> Option<Vec<u8>>;
}
