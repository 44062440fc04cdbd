//! What is remembered between two calls of the loader.

use crate::answer::Answer;
use crate::directories::Directories;
use crate::early::Early;
use crate::elf::Tiers;
use crate::mapped::Mapped;
use crate::origin::Origin;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use monarch_guest::ctx::{self, Ctx, rights};

/// All of it; zero is its value at the start.
pub struct State {
    /// What was answered last.
    pub answer: Answer,
    /// The libraries below roots.
    pub mapped: Mapped,
    /// Those that were mapped before their root had an index.
    pub early: Early,
    /// Where the loader remembers directories.
    pub origin: Origin,
    /// Where the loader remembers which directories of a search path are there.
    pub directories: Directories,
    /// Which tiers can be mapped for execution.
    pub tiers: Tiers,
    /// Whether `LD_LIBRARY_PATH` names directories.
    pub has_library_path: bool,
    /// Whether rights and mounts were compared since the loader began with a name.
    compared: bool,
}

struct Shared(UnsafeCell<State>);
// SAFETY: touched by the thread that has set `BUSY`.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(State {
    answer: Answer::empty(),
    mapped: Mapped::empty(),
    early: Early::empty(),
    origin: Origin::empty(),
    directories: Directories::empty(),
    tiers: Tiers::empty(),
    has_library_path: false,
    compared: false,
}));
/// Whether a call is under way. The loader's lock keeps other threads out; a signal handler that
/// interrupts a call is left alone.
static BUSY: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicBool = AtomicBool::new(false);

/// The state, for one call.
pub struct Guard(());

impl Deref for Guard {
    type Target = State;
    fn deref(&self) -> &State {
        // SAFETY: only one guard exists at a time.
        unsafe { &*STATE.0.get() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: only one guard exists at a time.
        unsafe { &mut *STATE.0.get() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

/// The state; `None` before the start, and in a signal handler that interrupts a call.
#[must_use]
pub fn enter() -> Option<Guard> {
    (is_started() && !BUSY.swap(true, Ordering::Acquire)).then_some(Guard(()))
}

/// By the constructor.
pub fn start(has_library_path: bool) {
    STARTED.store(true, Ordering::Release);
    if let Some(mut state) = enter() {
        state.has_library_path = has_library_path;
    }
}

/// Whether the constructor has found a job.
#[must_use]
pub fn is_started() -> bool {
    STARTED.load(Ordering::Acquire)
}

impl State {
    /// The loader begins with another name: what the process may read, and which mounts it sees,
    /// may have changed since the one before.
    pub const fn begin(&mut self) {
        self.compared = false;
    }

    /// A library was mapped whose root has no index. Beyond the room for these, no further library
    /// is mapped from its copy.
    pub fn remember_early(&mut self, map: usize) {
        if !self.early.opened(map) {
            self.mapped.overflow();
        }
    }

    /// The shared memory, if this process may be answered.
    pub fn ctx(&mut self) -> Option<Ctx> {
        if !self.compared {
            self.compared = true;
            rights::compare_again();
            ctx::places_compared();
        }
        ctx::get()
    }
}
