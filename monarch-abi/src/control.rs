//! The control block: one small file per agent that every process of its jobs maps.
//!
//! It names the roots with all their spellings, the tiers, the segments, and holds what changes
//! while processes run. Entries of a table are written first, then its count, then the generation
//! goes up; readers check the generation word at each lookup and take over what is new. Nothing is
//! ever moved or rewritten while it is live.

mod map;

pub use map::{ControlMap, Hidden, Match, Start};

use crate::word::{Refusal, State, Word};
use core::sync::atomic::{AtomicU32, AtomicU64};
use zerocopy::{FromBytes, IntoBytes};

/// Capabilities by which a process reads what modes forbid: `CAP_DAC_OVERRIDE` and
/// `CAP_DAC_READ_SEARCH`.
pub const READS_ALL: u64 = 1 << 1 | 1 << 2;

/// First bytes of a control block.
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"MONCTRL1");
/// Most roots of an agent.
pub const MAX_ROOTS: usize = 32;
/// Most spellings of all roots.
pub const MAX_SPELLINGS: usize = 128;
/// Most tiers; four bits in the state word.
pub const MAX_TIERS: usize = 16;
/// Most output roots of an agent.
pub const MAX_OUTPUTS: usize = 8;
/// Most segments over the life of an agent.
pub const MAX_SEGMENTS: usize = 256;
const _: () = assert!((MAX_SEGMENTS as u64) < crate::accesses::HINT, "segments must not look like hints");
/// Most bypassed ranges; beyond, the whole segment is bypassed.
pub const MAX_RANGES: usize = 256;
/// Most copies under way that readers can see.
pub const MAX_INFLIGHT: usize = 1024;
/// Entries of the ring that gives demands an order.
pub const RING: usize = 1024;
/// Most slots of the window of streamed files.
pub const MAX_STREAM_SLOTS: usize = 256;
/// Stripes of counters in a group.
pub const STRIPES: usize = 32;
/// Groups of counters: one for each job that is attached, and group 0 for processes whose job is
/// not known, or is one too many.
pub const COUNTER_GROUPS: usize = 16;
/// Bytes for strings.
pub const STRINGS: usize = 64 * 1024;
/// The longest time that a clock of shared memory may show, in milliseconds: what a configuration
/// can ask for. A longer time was not written by the agent, and is taken for this.
pub const MAX_CLOCK_MS: u32 = 3_600_000;

/// A string in the string area.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Str {
    /// Offset in the string area.
    pub off: AtomicU32,
    /// Length in bytes.
    pub len: AtomicU32,
}

/// A root: a directory on the PFS whose files are tiered.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Root {
    /// Its real path.
    pub path: Str,
    /// st_dev as seen by the agent.
    pub dev: AtomicU64,
    /// st_ino as seen by the agent.
    pub ino: AtomicU64,
    /// st_blksize to report.
    pub blksize: AtomicU32,
    /// Not zero: this root is bypassed everywhere.
    pub bypassed: AtomicU32,
    /// Opens below this root, for the warning that a root saw none.
    pub opens: AtomicU64,
}

/// A way to write the path of a root: real path, as configured, aliases.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Spelling {
    /// The path, absolute, without trailing slash.
    pub path: Str,
    /// Where below the root it leads, relative; empty for the root itself.
    pub sub: Str,
    /// Which root it leads to, or [`NO_ROOT`].
    pub root: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
}

/// [`Spelling::root`] of one that leads nowhere any more: the kernel knows where.
pub const NO_ROOT: u32 = u32::MAX;

/// An output root: a directory on the PFS below which what the job writes is staged.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Output {
    /// Its real path.
    pub path: Str,
    /// Its path as it was given, if that is another one; otherwise empty.
    pub spelling: Str,
    /// Its staging directory, absolute.
    pub staging: Str,
    /// st_dev of the root.
    pub dev: AtomicU64,
    /// st_ino of the root.
    pub ino: AtomicU64,
    /// st_dev of the staging directory.
    pub staging_dev: AtomicU64,
    /// st_ino of the staging directory.
    pub staging_ino: AtomicU64,
    /// Not zero while it is in use.
    pub is_on: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
}

/// A tier: a directory for copies.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Tier {
    /// Its absolute path.
    pub path: Str,
    /// st_dev of its file system.
    pub dev: AtomicU64,
    /// st_ino of its directory.
    pub ino: AtomicU64,
}

/// A segment: names of an index file and a state file beside the control block.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C)]
pub struct SegmentRef {
    /// 0 free, 1 live, 2 retired.
    pub status: AtomicU32,
    /// Which root it describes.
    pub root: AtomicU32,
    /// UUID of the index (file `<hex>.idx`), two halves.
    pub uuid: [AtomicU64; 2],
    /// UUID of the state (file `<hex>.st`), two halves.
    pub state_uuid: [AtomicU64; 2],
}

/// [`SegmentRef::status`] of a segment in use.
pub const SEGMENT_LIVE: u32 = 1;
/// [`SegmentRef::status`] of a segment that was superseded.
pub const SEGMENT_RETIRED: u32 = 2;

/// A subtree that a job renamed or moved: ids `from..end` of a segment are bypassed.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Range {
    /// Segment number plus one; 0 while the entry is being written.
    pub segment: AtomicU32,
    /// First id.
    pub from: AtomicU32,
    /// First id behind the range.
    pub end: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
}

/// A copy under way.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Inflight {
    /// Segment number + 1 in the upper half, id in the lower; 0 when free.
    pub file: AtomicU64,
    /// Goes up whenever something was achieved.
    pub progress: AtomicU32,
    /// Not zero while the copier is inside a PFS call.
    pub in_pfs: AtomicU32,
}

/// The window of streamed files: see [`crate::stream`].
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C)]
pub struct Stream {
    /// Name of its file, as a number of a partial copy; 0 when there is no window.
    pub number: AtomicU64,
    /// Bytes of a slot.
    pub slot_bytes: AtomicU64,
    /// Number of slots.
    pub slots: AtomicU64,
    /// Zero.
    pub reserved: [AtomicU64; 13],
    /// By slot: which chunk it holds, 0 for none.
    pub tags: [AtomicU64; MAX_STREAM_SLOTS],
}

/// What is counted, by position in a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Opens served by a copy.
    Hits = 0,
    /// Bytes of the files opened as hits.
    HitBytes = 1,
    /// Opens that waited for a demand and then got the copy.
    Waited = 2,
    /// Opens below a root that went to the PFS because there was no copy yet.
    Absent = 3,
    /// ... because the agent takes no copy of it for a while: it was changed a moment ago, the PFS
    /// or a tier failed, its copy had to go.
    Refused = 4,
    /// ... because the file was changed since the scan, or the agent may not read it.
    Changed = 5,
    /// ... because a clock ran out or the agent was down.
    Deadline = 6,
    /// ... because the path is not in the index.
    Unknown = 7,
    /// ... because of its flags (write, create, O_DIRECT, ...).
    Flags = 8,
    /// ... because the copy was not there when it was opened.
    Vanished = 9,
    /// stat, statx, access answered from shared memory.
    Stats = 10,
    /// Directories listed from shared memory.
    Lists = 11,
    /// stat, access, opendir below a root that asked the kernel.
    MetaKernel = 12,
    /// Bytes of the files that went to the PFS.
    MissBytes = 13,
    /// Time spent waiting for demands, microseconds.
    WaitMicros = 14,
    /// ... because the file is large and its copy was not complete in time for a reader past
    /// us.
    Large = 15,
    /// Reads of large files served through the descriptor of the PFS from what was there of a copy.
    ChunkReads = 16,
    /// Their bytes.
    ChunkBytes = 17,
    /// Reads of large files that went to the PFS.
    ChunkMisses = 18,
    /// Their bytes.
    ChunkMissBytes = 19,
    /// Opens of large files whose copy was not complete: their reads are counted one by one.
    Chunked = 20,
    /// How often the PFS was asked whether an entry is still what was indexed.
    Checks = 21,
    /// Opens below a root's path that went where they lead because another mount lies there for
    /// this process.
    OtherMount = 22,
    /// ... because the tiers have no room for it, or keep what is worth more.
    NoRoom = 23,
    /// ... because the job writes it, or has.
    Written = 24,
    /// Bytes of mappings and streams of complete copies of large files: how much of them was read
    /// is not known.
    MappedBytes = 25,
    /// Calls about names that are not there, answered from the listing of their directory.
    AbsentHits = 26,
    /// How often the PFS was asked whether such a directory is still what was listed.
    AbsentChecks = 27,
}

impl Counter {
    /// Why an open goes to the PFS that finds this word, which speaks of no copy.
    #[must_use]
    pub const fn of_miss(word: Word) -> Self {
        match (word.state(), word.refusal()) {
            (State::Bypass, _) if word.is_changed() => Self::Written,
            (State::Bypass, _) => Self::Changed,
            (_, Some(Refusal::NoRoom | Refusal::Streamable | Refusal::Replaced)) => Self::NoRoom,
            (_, Some(_)) => Self::Refused,
            _ => Self::Absent,
        }
    }
}

/// Number of counters.
pub const COUNTERS: usize = 28;

/// Counters of some of the processes: four cache lines.
#[derive(Debug, Default, IntoBytes, FromBytes)]
#[repr(C, align(128))]
pub struct Stripe {
    /// Values, by [`Counter`].
    pub values: [AtomicU64; COUNTERS],
    /// Zero.
    pub reserved: [AtomicU64; 32 - COUNTERS],
}

/// The control block. Fields: 57, because this is the byte map of that block.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C, align(128))]
pub struct Control {
    /// [`CONTROL_MAGIC`].
    pub magic: u64,
    /// [`crate::LAYOUT`].
    pub layout: u32,
    /// Effective user that the agent runs as; other users are not served.
    pub uid: u32,
    /// Whole length.
    pub len: u64,
    /// Inode of the agent's mount namespace, 0 when unknown.
    pub mnt_ns: u64,
    /// st_dev of the agent's `/`.
    pub slash_dev: u64,
    /// st_ino of the agent's `/`.
    pub slash_ino: u64,
    /// [`crate::hash::hash_groups`] of the agent; processes with other groups are not served.
    pub groups: u64,
    /// Which of [`READS_ALL`] the agent has (bit mask of capabilities): it may read files that
    /// their modes forbid to it.
    pub caps: u64,
    /// Inode of the agent's user namespace, 0 when unknown.
    pub user_ns: u64,
    /// Inode of the agent's PID namespace, 0 when unknown.
    pub pid_ns: u64,
    /// Zero.
    pub reserved: [u64; 6],

    /// Goes up with every change of the tables below.
    pub generation: AtomicU32,
    /// Goes up with every start of an agent on this block.
    pub incarnation: AtomicU32,
    /// The incarnation that a process found dead; demands are not raised while it equals
    /// `incarnation`.
    pub dead: AtomicU32,
    /// Not zero: all calls go to the PFS.
    pub bypassed: AtomicU32,
    /// Clock 1: longest time until a demand is picked up, ms.
    pub pickup_ms: AtomicU32,
    /// Clock 2: longest time without progress, ms.
    pub stall_ms: AtomicU32,
    /// Longest wait of all, ms.
    pub max_wait_ms: AtomicU32,
    /// Number of roots.
    pub roots_len: AtomicU32,
    /// Number of spellings.
    pub spellings_len: AtomicU32,
    /// Number of tiers.
    pub tiers_len: AtomicU32,
    /// Number of segments.
    pub segments_len: AtomicU32,
    /// Number of ranges claimed.
    pub ranges_len: AtomicU32,
    /// Bytes of strings used.
    pub strings_len: AtomicU32,
    /// Not zero: the audit library leaves shared libraries to the PFS.
    pub libraries_off: AtomicU32,
    /// When the agent last said that it runs: milliseconds of the monotonic clock, 0 when it never
    /// did.
    pub pulse_ms: AtomicU64,
    /// Longest wait for a large file to be complete, where single chunks are of no use, ms.
    pub complete_ms: AtomicU32,
    /// Goes up with every hint of a job; the agent sleeps on it.
    pub hinted: AtomicU32,
    /// Bytes a second at which large files were copied lately.
    pub rate: AtomicU64,
    /// Goes up when a process of a job has mounted or unmounted something in mounts of its own.
    pub mount_events: AtomicU32,
    /// Not zero: the site has switched Monarch off, and programs that start from now on read the
    /// PFS.
    pub site_off: AtomicU32,
    /// How long the PFS took to answer an open lately, microseconds; 0 when that is not known.
    pub pfs_latency_us: AtomicU64,
    /// Bytes a second that one reader gets from the PFS by page faults, as far as the agent knows;
    /// 0 when it does not.
    pub fault_rate: AtomicU64,
    /// Longest wait of a mapping for the copy of its file, ms.
    pub map_ms: AtomicU32,
    /// One bit for each root: the agent cannot see there which pages of a file the page cache
    /// holds, or its reads do not go through it.
    pub unpaged_roots: AtomicU32,
    /// One bit for each root: nodes share its copies.
    pub shared_roots: AtomicU32,
    /// One bit for each root: its index is about to be ready, and the audit library waits for it.
    pub held_roots: AtomicU32,
    /// Until when it waits: milliseconds of the monotonic clock.
    pub held_until_ms: AtomicU64,

    /// Futex word of the copiers: goes up with every demand.
    pub demand: AtomicU32,
    /// How many copiers sleep on it.
    pub sleepers: AtomicU32,
    /// Next position of the ring.
    pub ring_head: AtomicU64,
    /// Number of output roots.
    pub outputs_len: AtomicU32,
    /// Goes up with every demand that a copier has taken: the line moves.
    pub taken: AtomicU32,
    /// Zero.
    pub reserved3: [AtomicU64; 13],

    /// The roots.
    pub roots: [Root; MAX_ROOTS],
    /// Their spellings.
    pub spellings: [Spelling; MAX_SPELLINGS],
    /// The output roots.
    pub outputs: [Output; MAX_OUTPUTS],
    /// The tiers, fastest first.
    pub tiers: [Tier; MAX_TIERS],
    /// The segments.
    pub segments: [SegmentRef; MAX_SEGMENTS],
    /// Bypassed subtrees.
    pub ranges: [Range; MAX_RANGES],
    /// Copies under way.
    pub inflight: [Inflight; MAX_INFLIGHT],
    /// Order of demands, segment + 1 and id as in [`Inflight::file`]; entries may get lost.
    pub ring: [AtomicU64; RING],
    /// The window of streamed files.
    pub stream: Stream,
    /// Counters, by group.
    pub counters: [[Stripe; STRIPES]; COUNTER_GROUPS],
    /// Changes made below roots that have no index yet.
    pub early: crate::early::Early,
    /// Files that readers opened.
    pub accesses: crate::accesses::Accesses,
}
// (The plain fields are written before the file gets its name.)
crate::mem::pod!(Control);
const _: () = assert!(core::mem::offset_of!(Control, generation) == 128, "a cache line of its own");
const _: () = assert!(core::mem::offset_of!(Control, demand) == 256, "a cache line of its own");

/// Offset of the string area.
pub const STRINGS_OFF: usize = size_of::<Control>();
/// Length of the whole file.
pub const CONTROL_LEN: usize = (STRINGS_OFF + STRINGS).next_multiple_of(4096);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_an_open_goes_to_the_pfs_follows_from_the_word() {
        let why = Counter::of_miss;
        let w = Word::new(State::Absent);
        for (refusal, counter) in [
            (Refusal::NoRoom, Counter::NoRoom),
            (Refusal::Streamable, Counter::NoRoom),
            (Refusal::Replaced, Counter::NoRoom),
            (Refusal::RecentlyModified, Counter::Refused),
            (Refusal::PfsFailed, Counter::Refused),
            (Refusal::TierFailed, Counter::Refused),
            (Refusal::Dropped, Counter::Refused),
            (Refusal::Damaged, Counter::Refused),
        ] {
            assert_eq!(why(w.refused(refusal)), counter, "{refusal:?}");
        }
        assert_eq!(why(w.next(State::Bypass)), Counter::Written);
        assert_eq!(why(w.left()), Counter::Changed);
        assert_eq!(why(w), Counter::Absent);
        assert_eq!(why(w.partial(1)), Counter::Absent);
    }
}
