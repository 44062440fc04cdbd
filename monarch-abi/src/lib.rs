//! What the shim and the agent share: the layout of the shared memory, the names of copies, hashing
//! and the resolution of paths.
//!
//! The crate is `no_std` and never allocates, because it is linked into every process of a job.
//! Byte maps are in docs/FORMATS.md. All integers are little-endian; the crate refuses to build
//! elsewhere.
//!
//! | module | what it holds |
//! |---|---|
//! | [`hash`] | path fingerprints, names of copies, the stamp that says which file a descriptor is a copy of |
//! | [`word`] | the 32-bit state word of a file and its transitions |
//! | [`index`] | the immutable index of a namespace: records, directories, names |
//! | [`state`] | the writable companion: lookup table with the state words, demand bitmaps |
//! | [`bitmap`] | marks that any process sets and the agent takes |
//! | [`guard`] | what is looked at again when a file is opened |
//! | [`sum`] | checksums of copies |
//! | [`chunks`] | which parts of a large file are there while its copy is being made |
//! | [`credentials`] | what the agent says to a process of another namespace about that process |
//! | [`control`] | the control block: roots, tiers, segments, in-flight copies, counters |
//! | [`accesses`] | which files readers open |
//! | [`hint`] | hints of jobs |
//! | [`segment`] | an index and a state together: lookup, listing, path reconstruction |
//! | [`resolve`] | from a path as spelled to an entry, as the kernel would |
//! | [`early`] | changes made before there is an index |
//! | [`foreign_changes`] | reports of changes by processes that cannot open the control block |
//! | [`marks`], [`names`] | directories that the index does not hold: what changed there, questions about them |
//! | [`demand`] | asking for a file and waiting for it: two clocks, no spinning |
//! | [`outputs`] | what a job writes below output roots: staging directories, journal, overlay |
//! | [`raw_calls`] | marks in the system calls of a job whose changing calls are caught |
//! | [`mapping`] | whether a mapping waits for the copy of its file |
//! | [`sys`] | bare system calls, futexes |
//! | [`scratch`] | memory for paths, so that no call needs a large stack |
//! | [`mem`] | bounds-checked views of mapped memory, the only place with raw pointers |
#![no_std]

#[cfg(not(target_endian = "little"))]
compile_error!("the shared-memory layout is little-endian");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("the shared-memory layout needs 64-bit pointers");

pub mod absent;
pub mod accesses;
pub mod bitmap;
pub mod chunks;
pub mod control;
pub mod credentials;
pub mod deciding;
pub mod demand;
pub mod early;
pub mod foreign_changes;
pub mod guard;
pub mod hash;
pub mod hint;
pub mod index;
pub mod mapping;
pub mod marks;
pub mod mem;
pub mod names;
pub mod outputs;
pub mod raw_calls;
pub mod resolve;
pub mod scratch;
pub mod segment;
pub mod state;
pub mod stream;
pub mod sum;
mod sync;
pub mod sys;
pub mod word;
mod xxh3;

/// Version of the shared-memory layout. A shim that finds another one passes everything through.
pub const LAYOUT: u32 = 17;
/// Longest path the kernel takes, with its final NUL.
pub const PATH_MAX: usize = 4096;
/// Longest path of a copy, with its final NUL: short enough for a stack. Tiers with longer paths
/// are refused.
pub const COPY_PATH_MAX: usize = 640;
