//! Plain calls about names of an output root that are under way, and the name that a process is
//! about to enter in the overlay: each sees the other.
//!
//! A plain call says in a slot which name it is about, and looks at the overlay after that. A
//! process that enters a name says so with the lock of the journal held, and looks at the slots
//! after that. Whichever comes second waits for the other.

use crate::hash::path_hash;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use zerocopy::{FromBytes, IntoBytes};

/// Calls that are known at the same time.
pub const PLAIN_CALL_SLOTS: usize = 64;

/// Added to the hash of a name, so that none is 0 or that of a removal.
const NAME: u64 = 1 << 63;
/// [`PlainCall::name`] of the removal of the directory itself.
const REMOVAL: u64 = 1;

fn dir_hash(dir: &[u8]) -> u64 {
    path_hash(0, dir).fp
}

/// A plain call. All zero: the slot is free.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C)]
pub struct PlainCall {
    /// The process; 0: the slot is free.
    pid: AtomicU32,
    reserved: AtomicU32,
    /// When the process began, in ticks since the node was started; 0: not known.
    began_ticks: AtomicU64,
    /// Hash of the directory, below the output root.
    dir: AtomicU64,
    /// Hash of the name in it, or [`REMOVAL`]; 0: the call has not said it yet.
    name: AtomicU64,
}

impl PlainCall {
    /// The process that has the slot, and when it began in ticks; `None`: the slot is free.
    #[must_use]
    pub fn process(&self) -> Option<(u32, u64)> {
        let pid = self.pid.load(Ordering::Acquire);
        (pid != 0).then(|| (pid, self.began_ticks.load(Ordering::Acquire)))
    }

    /// Gives the slot back.
    pub fn free(&self) {
        self.name.store(0, Ordering::Release);
        self.pid.store(0, Ordering::Release);
    }

    fn claim(&self, (pid, began_ticks): (u32, u64), dir: u64, name: u64) -> bool {
        let is_free = self.pid.load(Ordering::Relaxed) == 0
            && self.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_free {
            self.began_ticks.store(began_ticks, Ordering::Relaxed);
            self.dir.store(dir, Ordering::Relaxed);
            self.name.store(name, Ordering::Release);
        }
        is_free
    }

    /// What a call that has said it is about: the directory, and the name in it.
    fn about(&self) -> Option<(u64, u64)> {
        let name = self.name.load(Ordering::Acquire);
        (name != 0).then(|| (self.dir.load(Ordering::Relaxed), name))
    }
}

/// The plain calls of all processes of a node, for one output root.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C, align(64))]
pub struct PlainCalls {
    /// Hashes of the paths that the process which has the lock of the journal is about to enter, at
    /// most two; 0: none.
    entering: [AtomicU64; 2],
    reserved: [AtomicU64; 6],
    calls: [PlainCall; PLAIN_CALL_SLOTS],
}
crate::mem::pod!(PlainCalls);

/// Hash of a path below the root, as [`PlainCalls::entering`] has it.
fn path(dir: &[u8], name: &[u8]) -> u64 {
    (dir_hash(dir).rotate_left(1) ^ path_hash(0, name).fp) | 1
}

impl PlainCalls {
    /// All slots.
    #[must_use]
    pub const fn slots(&self) -> &[PlainCall; PLAIN_CALL_SLOTS] {
        &self.calls
    }

    /// A process (its number, and the ticks when it began) says that it makes, moves or removes a
    /// name of a directory with a plain call. `None` if all slots are taken. What the process reads
    /// after that comes after it.
    #[must_use]
    pub fn begin(&self, process: (u32, u64), dir: &[u8], name: &[u8]) -> Option<&PlainCall> {
        self.begin_hashed(process, dir_hash(dir), path_hash(0, name).fp | NAME)
    }

    /// [`PlainCalls::begin`] of the removal of a directory.
    #[must_use]
    pub fn begin_removal(&self, process: (u32, u64), dir: &[u8]) -> Option<&PlainCall> {
        self.begin_hashed(process, dir_hash(dir), REMOVAL)
    }

    fn begin_hashed(&self, process: (u32, u64), dir: u64, name: u64) -> Option<&PlainCall> {
        let own = self.calls.iter().find(|call| call.claim(process, dir, name));
        fence(Ordering::SeqCst);
        own
    }

    /// Whether a removal of the directory of a call is under way.
    #[must_use]
    pub fn is_removed_beside(&self, own: &PlainCall) -> bool {
        let dir = own.dir.load(Ordering::Relaxed);
        self.calls.iter().any(|call| call.about() == Some((dir, REMOVAL)))
    }

    /// Whether a call about a name of a directory is under way.
    #[must_use]
    pub fn is_any_in(&self, dir: &[u8]) -> bool {
        let dir = dir_hash(dir);
        self.calls.iter().filter_map(PlainCall::about).any(|(at, name)| at == dir && name != REMOVAL)
    }

    /// Whether a call about this name is under way.
    #[must_use]
    pub fn is_under_way(&self, dir: &[u8], name: &[u8]) -> bool {
        fence(Ordering::SeqCst);
        let about = Some((dir_hash(dir), path_hash(0, name).fp | NAME));
        self.calls.iter().any(|call| call.about() == about)
    }

    /// The process that has the lock of the journal says that it is about to enter a name, or
    /// another one; whether no plain call about it is under way.
    #[must_use]
    pub fn enter(&self, dir: &[u8], name: &[u8]) -> bool {
        let [first, second] = &self.entering;
        let path = path(dir, name);
        let is_free = [0, path].contains(&first.load(Ordering::Relaxed));
        if is_free { first } else { second }.store(path, Ordering::Release);
        !self.is_under_way(dir, name)
    }

    /// It has entered all, and is about to give the lock back.
    pub fn end_entering(&self) {
        self.entering.iter().for_each(|word| word.store(0, Ordering::Release));
    }

    /// Whether a process is about to enter a name.
    #[must_use]
    pub fn is_entering(&self, dir: &[u8], name: &[u8]) -> bool {
        let path = path(dir, name);
        self.entering.iter().any(|word| word.load(Ordering::Acquire) == path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_call_and_a_process_that_enters_the_name_see_each_other() {
        let calls = PlainCalls::new_zeroed();
        let own = calls.begin((7, 99), b"run", b"name").unwrap();
        assert_eq!(own.process(), Some((7, 99)));
        assert!(calls.is_under_way(b"run", b"name") && calls.is_any_in(b"run"));
        assert!(!calls.is_under_way(b"run", b"other") && !calls.is_under_way(b"", b"name") && !calls.is_any_in(b""));
        assert!(!calls.enter(b"run", b"name"));
        calls.end_entering();
        assert!(calls.enter(b"run", b"other") && calls.enter(b"", b"second"), "those of a rename");
        assert!(calls.is_entering(b"run", b"other") && calls.is_entering(b"", b"second"));
        assert!(!calls.is_entering(b"run", b"name"));
        calls.end_entering();
        assert!(!calls.is_entering(b"run", b"other") && !calls.is_entering(b"", b"second"));
        own.free();
        assert!(calls.enter(b"run", b"name") && own.process().is_none());
    }

    #[test]
    fn a_removal_and_calls_in_its_directory_see_each_other() {
        let calls = PlainCalls::new_zeroed();
        let call = calls.begin((7, 99), b"run", b"name").unwrap();
        assert!(!calls.is_removed_beside(call));
        let removal = calls.begin_removal((8, 99), b"run").unwrap();
        assert!(calls.is_removed_beside(call) && calls.is_any_in(b"run"));
        call.free();
        assert!(!calls.is_any_in(b"run"), "a removal is none");
        removal.free();
    }

    #[test]
    fn no_slot_is_free_when_all_are_taken() {
        let calls = PlainCalls::new_zeroed();
        let all = [(); PLAIN_CALL_SLOTS].map(|()| calls.begin((1, 1), b"", b"name").unwrap());
        assert!(calls.begin((1, 1), b"", b"more").is_none());
        all[5].free();
        assert!(calls.begin((1, 1), b"", b"more").is_some());
    }
}
