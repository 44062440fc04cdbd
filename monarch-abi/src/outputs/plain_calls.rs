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

/// The variable of the environment by which a process is the helper that makes raw system calls of
/// the job for their callers.
pub const HELPER_VARIABLE: &str = "MONARCH_RAW_CALLS_HELPER";

/// A process that makes calls.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// Its number.
    pub pid: u32,
    /// When it began, in ticks since the node was started; 0: not known.
    pub began_ticks: u64,
    /// Whether it makes calls for others. A plain call of the job waits in the kernel until the
    /// helper has made it, and has a slot meanwhile: the helper heeds the slots of helpers alone.
    pub is_helper: bool,
}

/// A plain call. All zero: the slot is free.
#[derive(Debug, IntoBytes, FromBytes)]
#[repr(C)]
pub struct PlainCall {
    /// The process; 0: the slot is free.
    pid: AtomicU32,
    /// 1: it is a helper.
    is_helper: AtomicU32,
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

    fn claim(&self, caller: Caller, dir: u64, name: u64) -> bool {
        let is_free = self.pid.load(Ordering::Relaxed) == 0
            && self.pid.compare_exchange(0, caller.pid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_free {
            self.began_ticks.store(caller.began_ticks, Ordering::Relaxed);
            self.is_helper.store(u32::from(caller.is_helper), Ordering::Relaxed);
            self.dir.store(dir, Ordering::Relaxed);
            self.name.store(name, Ordering::Release);
        }
        is_free
    }

    /// What a call that has said it is about: the directory, and the name in it. `None`, too, if it
    /// does not concern `caller`.
    fn about(&self, caller: Caller) -> Option<(u64, u64)> {
        let name = self.name.load(Ordering::Acquire);
        let concerns = name != 0 && (!caller.is_helper || self.is_helper.load(Ordering::Relaxed) != 0);
        concerns.then(|| (self.dir.load(Ordering::Relaxed), name))
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

    /// A process says that it makes, moves or removes a name of a directory with a plain call.
    /// `None` if all slots are taken. What the process reads after that comes after it.
    #[must_use]
    pub fn begin(&self, caller: Caller, dir: &[u8], name: &[u8]) -> Option<&PlainCall> {
        self.begin_hashed(caller, dir_hash(dir), path_hash(0, name).fp | NAME)
    }

    /// [`PlainCalls::begin`] of the removal of a directory.
    #[must_use]
    pub fn begin_removal(&self, caller: Caller, dir: &[u8]) -> Option<&PlainCall> {
        self.begin_hashed(caller, dir_hash(dir), REMOVAL)
    }

    fn begin_hashed(&self, caller: Caller, dir: u64, name: u64) -> Option<&PlainCall> {
        let own = self.calls.iter().find(|call| call.claim(caller, dir, name));
        fence(Ordering::SeqCst);
        own
    }

    /// What the calls under way that concern a process are about.
    fn about(&self, caller: Caller) -> impl Iterator<Item = (u64, u64)> {
        self.calls.iter().filter_map(move |call| call.about(caller))
    }

    /// Whether a removal of a directory is under way.
    #[must_use]
    pub fn is_being_removed(&self, caller: Caller, dir: &[u8]) -> bool {
        let removal = (dir_hash(dir), REMOVAL);
        self.about(caller).any(|about| about == removal)
    }

    /// Whether a call about a name of a directory is under way.
    #[must_use]
    pub fn is_any_in(&self, caller: Caller, dir: &[u8]) -> bool {
        let dir = dir_hash(dir);
        self.about(caller).any(|(at, name)| at == dir && name != REMOVAL)
    }

    /// Whether a call about this name is under way.
    #[must_use]
    pub fn is_under_way(&self, caller: Caller, dir: &[u8], name: &[u8]) -> bool {
        fence(Ordering::SeqCst);
        let this = (dir_hash(dir), path_hash(0, name).fp | NAME);
        self.about(caller).any(|about| about == this)
    }

    /// The process that has the lock of the journal says that it is about to enter a name, or
    /// another one; whether no plain call about it is under way.
    #[must_use]
    pub fn enter(&self, caller: Caller, dir: &[u8], name: &[u8]) -> bool {
        let [first, second] = &self.entering;
        let path = path(dir, name);
        let is_free = [0, path].contains(&first.load(Ordering::Relaxed));
        if is_free { first } else { second }.store(path, Ordering::Release);
        !self.is_under_way(caller, dir, name)
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

    const CALLER: Caller = Caller { pid: 7, began_ticks: 99, is_helper: false };
    const HELPER: Caller = Caller { pid: 9, began_ticks: 99, is_helper: true };

    #[test]
    fn a_call_and_a_process_that_enters_the_name_see_each_other() {
        let calls = PlainCalls::new_zeroed();
        let own = calls.begin(CALLER, b"run", b"name").unwrap();
        assert_eq!(own.process(), Some((7, 99)));
        let is_under_way = |dir: &[u8], name: &[u8]| calls.is_under_way(CALLER, dir, name);
        assert!(is_under_way(b"run", b"name") && calls.is_any_in(CALLER, b"run"));
        assert!(!is_under_way(b"run", b"other") && !is_under_way(b"", b"name") && !calls.is_any_in(CALLER, b""));
        assert!(!calls.enter(CALLER, b"run", b"name"));
        calls.end_entering();
        assert!(calls.enter(CALLER, b"run", b"other") && calls.enter(CALLER, b"", b"second"), "those of a rename");
        assert!(calls.is_entering(b"run", b"other") && calls.is_entering(b"", b"second"));
        assert!(!calls.is_entering(b"run", b"name"));
        calls.end_entering();
        assert!(!calls.is_entering(b"run", b"other") && !calls.is_entering(b"", b"second"));
        own.free();
        assert!(calls.enter(CALLER, b"run", b"name") && own.process().is_none());
    }

    #[test]
    fn a_removal_and_calls_in_its_directory_see_each_other() {
        let calls = PlainCalls::new_zeroed();
        let call = calls.begin(CALLER, b"run", b"name").unwrap();
        assert!(!calls.is_being_removed(CALLER, b"run"));
        let removal = calls.begin_removal(CALLER, b"run").unwrap();
        assert!(calls.is_being_removed(CALLER, b"run") && calls.is_any_in(CALLER, b"run"));
        call.free();
        assert!(!calls.is_any_in(CALLER, b"run"), "a removal is none");
        removal.free();
    }

    #[test]
    fn a_helper_does_not_wait_for_the_call_that_it_makes() {
        let calls = PlainCalls::new_zeroed();
        let waiting = calls.begin(CALLER, b"run", b"name").unwrap();
        assert!(!calls.is_under_way(HELPER, b"run", b"name") && !calls.is_any_in(HELPER, b"run"));
        let made = calls.begin(HELPER, b"run", b"name").unwrap();
        assert!(calls.is_under_way(HELPER, b"run", b"name") && calls.is_under_way(CALLER, b"run", b"name"));
        waiting.free();
        assert!(calls.is_under_way(CALLER, b"run", b"name"), "it is made");
        made.free();
        assert!(!calls.is_under_way(CALLER, b"run", b"name"));
    }

    #[test]
    fn no_slot_is_free_when_all_are_taken() {
        let calls = PlainCalls::new_zeroed();
        let all = [(); PLAIN_CALL_SLOTS].map(|()| calls.begin(CALLER, b"", b"name").unwrap());
        assert!(calls.begin(CALLER, b"", b"more").is_none());
        all[5].free();
        assert!(calls.begin(CALLER, b"", b"more").is_some());
    }
}
