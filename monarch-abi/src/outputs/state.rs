//! The mapped file of a staging directory.
//!
//! It outlives agents and control blocks. What it says of the journal (its end, the last number) is
//! right while processes run; after a reboot the agent reads the journal and writes it again.

use super::making::{MAKING_SLOTS, Making};
use super::plain_calls::PlainCalls;
use super::record::Op;
use crate::mem::{Area, Map};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// First bytes of a state file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MOUTPUT1");
/// Bytes of the file.
pub const LEN: usize = PLAIN_CALLS_OFF + size_of::<PlainCalls>();
/// Where the names that are not staged begin.
const PATTERNS_OFF: usize = 4096;
/// Where the counts of changes of names on the PFS begin.
const CHANGES_OFF: usize = PLAIN_CALLS_OFF - CHANGE_COUNTS * size_of::<AtomicU64>();
/// Where the plain calls that are under way begin.
const PLAIN_CALLS_OFF: usize = 8192;
/// How many there are: names with the same hash share one.
const CHANGE_COUNTS: usize = 128;
/// Most bytes of the names that are not staged, each with a final NUL.
pub const MAX_PATTERNS: usize = CHANGES_OFF - PATTERNS_OFF;

/// Most files that the agent publishes together.
pub const MAX_PUBLISHING: usize = 64;

/// Bits of [`State::flags`].
pub mod flag {
    /// `fsync` returns when what is before it is published.
    pub const FSYNC_PUBLISHES: u32 = 1;
    /// Entries are ordered with those of other nodes: a call that appends one returns when their
    /// place in that order is fixed ([`super::State::keyed`]).
    pub const NODES_ORDER: u32 = 2;
}

/// Values of [`State::closed`].
pub mod closed {
    /// Files are staged.
    pub const OPEN: u32 = 0;
    /// Files go through to the PFS; what is pending is still the journal's.
    pub const THROUGH: u32 = 1;
    /// The staging directory was removed: all calls are plain.
    pub const GONE: u32 = 2;
}

/// Words of [`State::written_through`].
const WRITTEN_WORDS: usize = 15;

/// The counters. Fields: 43, because this is the byte map of the file.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C, align(128))]
pub struct State {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Number of this staging directory, random: in the names of part files.
    pub instance: AtomicU64,
    /// Bits of [`flag`].
    pub flags: AtomicU32,
    /// Bytes of the names that are not staged.
    pub patterns_len: AtomicU32,
    /// Bytes that files may still be charged before the agent has to find more space.
    pub room: AtomicU64,
    /// The error that creating a file gives, as the PFS gave it when the agent published the last
    /// one; 0: none.
    pub held_errno: AtomicU32,
    /// One of [`closed`].
    pub closed: AtomicU32,
    /// The boot of the node in which the agent runs, as a number that is not 0: for records.
    pub boot: AtomicU32,
    /// 1 once a process has made a call plainly because there was no agent: what is pending may be
    /// older than what the PFS has.
    pub is_overtaken: AtomicU32,
    /// Directories that were seen to have no default access list, as hashes of their paths and of
    /// the time; 0: none.
    pub without_default_acl: [AtomicU64; 8],
    /// Zero.
    pub reserved: [AtomicU64; 2],

    /// The number of the next staged file.
    pub next_id: AtomicU64,
    /// Number of the last record of the journal.
    pub seq: AtomicU64,
    /// Bytes of the journal.
    pub tail: AtomicU64,
    /// Number of times the journal was begun again.
    pub generation: AtomicU64,
    /// Entries of the tree that are not clean. 0: nothing is pending.
    pub pending: AtomicU64,
    /// Entries of the tree. 0: there is nothing to look up.
    pub entries: AtomicU64,
    /// Goes up with each record; the agent sleeps on it.
    pub appended: AtomicU32,
    /// How many threads of the agent sleep.
    pub sleepers: AtomicU32,
    /// Number of the last record that has a place in the order: all but opens. What is above
    /// [`State::published`] is pending.
    pub last_entry: AtomicU64,
    /// The staged file that the last record but barriers has opened or closed, or 0.
    pub last_closed: AtomicU64,
    /// How many of [`State::publishing`] count.
    pub publishing_len: AtomicU64,
    /// The clock of the order of the nodes: the agent's, kept for the next one.
    pub clock: AtomicU64,
    /// [`State::node_news`] when the last record was written.
    pub last_news: AtomicU64,
    /// The tick of the kernel's clock before [`State::pending`] last became 1, in nanoseconds since
    /// 1970: files that are changed from then on have no earlier times.
    pub pending_since_ns: AtomicU64,
    /// 1 once a process has not been let make the journal longer: from then on the agent does,
    /// ahead of its end.
    pub is_limited: AtomicU64,
    /// Zero.
    pub reserved2: [AtomicU64; 2],

    /// All records up to this one are published, cancelled or merged into later ones.
    pub published: AtomicU64,
    /// Goes up with each publication, and when the agent has found space; processes wait on it.
    pub done: AtomicU32,
    /// How many of them wait.
    pub waiters: AtomicU32,
    /// Bytes that creators wait for, which the agent is to find.
    pub wanted_room: AtomicU64,
    /// All entries up to this record have their place in the order of the nodes.
    pub keyed: AtomicU64,
    /// How many other nodes may have something that is not published.
    pub holding_nodes: AtomicU32,
    /// Goes up when another node tells of something new that it has not published.
    pub node_news: AtomicU32,
    /// Device of the output root, where the agent has opened another directory of its path since it
    /// started; 0: the root is that of the control block.
    pub root_dev: AtomicU64,
    /// Its inode number.
    pub root_ino: AtomicU64,
    /// Goes up when a process makes the output root, or moves a directory there.
    pub root_changes: AtomicU64,
    /// [`State::root_changes`] when the agent last opened the root.
    pub root_seen: AtomicU64,
    /// Zero.
    pub reserved3: [AtomicU64; 7],

    /// Part files that are being made.
    pub making: [Making; MAKING_SLOTS],

    /// The staged files that the agent is publishing: set and cleared under the lock.
    pub publishing: [AtomicU64; MAX_PUBLISHING],
    /// 1 if a process waits for one of them, to open it for writing.
    pub is_waited_for: AtomicU64,
    /// A Bloom filter of the names of files that processes have opened for writing on the PFS
    /// itself.
    pub written_through: [AtomicU64; WRITTEN_WORDS],
}
crate::mem::pod!(State);

impl State {
    /// A record was written, and is to be appended: before that, so that a process that is killed
    /// in between leaves no record of which this does not tell. With the lock of the journal held.
    pub fn appended(&self, op: Op, id: u64, node_news: u32) {
        // (A barrier changes no file.)
        if op != Op::Barrier {
            let closed = if matches!(op, Op::Open | Op::Close) { id } else { 0 };
            self.last_closed.store(closed, Ordering::Release);
            self.last_news.store(u64::from(node_news), Ordering::Release);
        }
    }

    /// Whether nothing was entered since this staged file was closed, here or on another node: no
    /// other entry needs what it holds.
    #[must_use]
    pub fn is_last_closed(&self, id: u64) -> bool {
        self.last_closed.load(Ordering::Acquire) == id
            && self.last_news.load(Ordering::Acquire) == u64::from(self.node_news.load(Ordering::Acquire))
    }

    /// The agent publishes this staged file from now on, as the `nth` entry of a batch; 0: no file.
    pub fn begin_publishing(&self, nth: usize, id: u64) {
        if let Some(slot) = self.publishing.get(nth) {
            slot.store(id, Ordering::Release);
            self.publishing_len.store(nth as u64 + 1, Ordering::Release);
        }
    }

    /// A process opens a file of this name for writing on the PFS itself.
    pub fn note_written_through(&self, name: &[u8]) {
        for (word, bit) in filter_bits(name) {
            if let Some(word) = self.written_through.get(word) {
                word.fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    /// Whether a process may have opened a file of this name for writing on the PFS itself.
    #[must_use]
    pub fn may_be_written_through(&self, name: &[u8]) -> bool {
        let is_set = |(word, bit): (usize, u64)| {
            self.written_through.get(word).is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
        };
        filter_bits(name).into_iter().all(is_set)
    }

    /// The agent publishes nothing.
    pub fn end_publishing(&self) {
        self.publishing_len.store(0, Ordering::Release);
        self.is_waited_for.store(0, Ordering::Release);
    }

    /// Whether the agent is publishing this staged file.
    #[must_use]
    pub fn is_publishing(&self, id: u64) -> bool {
        let len = self.publishing_len.load(Ordering::Acquire) as usize;
        self.publishing.iter().take(len).any(|slot| slot.load(Ordering::Acquire) == id)
    }
}
/// The two bits of a name in [`State::written_through`], each with its word.
fn filter_bits(name: &[u8]) -> [(usize, u64); 2] {
    let hash = crate::hash::path_hash(0, name).fp;
    [hash, hash >> 32].map(|h| {
        let bit = h as u32 as usize % (WRITTEN_WORDS * 64);
        (bit / 64, 1 << (bit % 64))
    })
}

const _: () = assert!(core::mem::offset_of!(State, next_id) == 128, "a cache line of its own");
const _: () = assert!(core::mem::offset_of!(State, published) == 256, "a cache line of its own");
const _: () = assert!(size_of::<State>() <= PATTERNS_OFF);

/// How often names of each hash were changed on the PFS.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C)]
struct Changes([AtomicU64; CHANGE_COUNTS]);
crate::mem::pod!(Changes);

/// A mapped state file.
#[derive(Clone, Copy, Debug)]
pub struct StateMap<'a> {
    /// The counters.
    pub state: &'a State,
    /// Plain calls that are under way.
    pub plain_calls: &'a PlainCalls,
    changes: &'a Changes,
    patterns: Area<'a>,
}

impl<'a> StateMap<'a> {
    /// Checks magic and length.
    #[must_use]
    pub fn open(map: Map<'a>) -> Option<Self> {
        let state: &State = map.get(0)?;
        if state.magic.load(Ordering::Acquire) != MAGIC || map.len() != LEN {
            return None;
        }
        let (changes, plain_calls) = (map.get(CHANGES_OFF)?, map.get(PLAIN_CALLS_OFF)?);
        Some(Self { state, plain_calls, changes, patterns: map.area(PATTERNS_OFF, MAX_PATTERNS)? })
    }

    /// The count that goes up before the overlay ceases to tell of something that was published at
    /// a path below the root, and before a plain call about the path ends. A process that has asked
    /// the PFS for a name, and finds nothing in the overlay afterwards, sees by it whether the name
    /// was made or removed in between.
    #[must_use]
    pub fn changes_of(&self, rel: &[u8]) -> &'a AtomicU64 {
        let at = crate::hash::path_hash(0, rel).fp as usize % CHANGE_COUNTS;
        // (There is one for each remainder.)
        self.changes.0.get(at).unwrap_or(&self.changes.0[0])
    }

    /// Where the names that are not staged begin in the file.
    #[must_use]
    pub const fn patterns_off() -> usize {
        PATTERNS_OFF
    }

    /// The names that are not staged: glob patterns.
    pub fn patterns(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let len = self.state.patterns_len.load(Ordering::Acquire) as usize;
        self.patterns.get(0, len).split(|&c| c == 0).filter(|pattern| !pattern.is_empty())
    }

    /// Whether something that has a place in the order is not published yet.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.state.published.load(Ordering::Acquire) < self.state.last_entry.load(Ordering::Acquire)
    }

    /// Whether a call may overtake something: what is pending, or a staged file that only seems to
    /// be open. A child that has inherited its descriptor closes it without a record.
    #[must_use]
    pub fn may_be_overtaken(&self) -> bool {
        self.state.pending.load(Ordering::Acquire) != 0 || self.is_pending()
    }

    /// Takes `bytes` of the room for a file; whether there was as much.
    #[must_use]
    pub fn take_room(&self, bytes: u64) -> bool {
        let take = |room: u64| room.checked_sub(bytes);
        self.state.room.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).is_ok()
    }

    /// Tells the agent that a record was appended.
    pub fn notify_agent(&self) {
        self.state.appended.fetch_add(1, Ordering::AcqRel);
        if self.state.sleepers.load(Ordering::Acquire) != 0 {
            crate::sys::futex_wake(&self.state.appended, u32::MAX >> 1);
        }
    }

    /// Tells processes that something was published, or that there is room.
    pub fn notify_processes(&self) {
        self.state.done.fetch_add(1, Ordering::AcqRel);
        if self.state.waiters.load(Ordering::Acquire) != 0 {
            crate::sys::futex_wake(&self.state.done, u32::MAX >> 1);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;
    use zerocopy::FromZeros;

    #[test]
    fn what_a_file_holds_is_needed_once_anything_came_after_its_close() {
        let state = State::new_zeroed();
        state.appended(Op::Close, 7, 1);
        state.node_news.store(1, Ordering::Release);
        assert!(state.is_last_closed(7) && !state.is_last_closed(8));
        state.appended(Op::Barrier, 0, 1);
        assert!(state.is_last_closed(7), "a barrier changes no file");
        state.node_news.store(2, Ordering::Release);
        assert!(!state.is_last_closed(7), "another node may have written something");
        state.appended(Op::Open, 7, 2);
        assert!(state.is_last_closed(7));
        // Between the close and the rename there may be others.
        for op in [Op::Rename, Op::Unlink, Op::Rmdir, Op::Symlink, Op::Attributes, Op::RenameLink] {
            state.appended(Op::Close, 7, 2);
            state.appended(op, 7, 2);
            assert!(!state.is_last_closed(7), "{op:?}");
        }
    }

    #[test]
    fn names_that_go_through_are_known_again_and_few_others_are_taken_for_them() {
        let state = State::new_zeroed();
        let name = |n: usize| n.to_string().into_bytes();
        (0..50).for_each(|n| state.note_written_through(&name(n)));
        assert!((0..50).all(|n| state.may_be_written_through(&name(n))));
        let wrong = (50..1050).filter(|&n| state.may_be_written_through(&name(n))).count();
        assert!(wrong < 50, "{wrong} of 1,000 names");
    }

    #[test]
    fn all_files_that_are_published_together_are_known() {
        let state = State::new_zeroed();
        (0..MAX_PUBLISHING).for_each(|nth| state.begin_publishing(nth, 100 + nth as u64));
        assert!(state.is_publishing(100) && state.is_publishing(163) && !state.is_publishing(164));
        state.is_waited_for.store(1, Ordering::Release);
        state.end_publishing();
        assert!(!state.is_publishing(100) && state.is_waited_for.load(Ordering::Acquire) == 0);
    }
}
