//! Plain calls that make, move or remove a name at once, give its file another one, or set modes,
//! owners and attributes, beside calls of other processes that take their place in the order: the
//! one sees the other, as on the PFS.
//!
//! Each plain call says in a slot of the state file ([`PlainCalls`]) which name it is about, then
//! looks for the others.
//!
//! - A call that enters the same name in the overlay ([`NameWatch`]) waits for the plain one, and
//!   asks the PFS after that. The plain call waits for one that enters the name just now, and finds
//!   it in the overlay.
//! - A call that makes a name waits until the removal of its directory has looked whether that is
//!   empty, and finds then that it is removed. A removal waits until such a call has ended, and
//!   finds what it has made.
//!
//! Slots of processes that were killed are freed by the agent.
//!
//! [`PlainCalls`]: monarch_abi::outputs::plain_calls::PlainCalls
//! [`NameWatch`]: super::name_watch::NameWatch

use super::barrier;
use super::began::{self, Began};
use super::journal::Journal;
use super::place::Place;
use super::roots::Root;
use super::tree::{self, Entry};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use monarch_abi::outputs::making::Making;
use monarch_abi::outputs::plain_calls::{Caller, PlainCall};
use monarch_guest::sys;

/// How often each looks for the other, a millisecond apart: longer than a PFS that answers needs
/// for one call. After that the call is made as if there were none.
const MAX_LOOKS: usize = 1000;
/// How often a plain call looks whether another process has entered the name, and how long apart:
/// others hold the lock of the journal for some 20 microseconds.
const ENTERING_LOOKS: usize = 20;
const ENTERING_PAUSE_US: i64 = 50;
/// How often it then tries to get that lock, for some 30 milliseconds each: the other process may
/// have no processor. If it was killed, the lock is free.
const LOCK_TRIES: usize = 30;

/// A call that is under way, until it is dropped.
pub struct UnderWay {
    slot: &'static PlainCall,
    /// Of changes of the name on the PFS.
    count: &'static AtomicU64,
}

impl UnderWay {
    fn of(slot: &'static PlainCall, place: &Place) -> Self {
        Self { slot, count: place.root.map.changes_of(place.rel()) }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.slot.free();
    }
}

/// Whether this process makes raw system calls for others.
static IS_HELPER: AtomicBool = AtomicBool::new(false);

/// This process makes raw system calls for others.
pub fn make_calls_for_others() {
    IS_HELPER.store(true, Ordering::Relaxed);
}

fn caller(root: &Root) -> Caller {
    let Began { pid, ticks } = began::this_process(&root.ctx);
    Caller { pid, began_ticks: ticks, is_helper: IS_HELPER.load(Ordering::Relaxed) }
}

/// Looks a number of times, a millisecond apart, until `is_so`. Whether that was.
fn wait_until(mut is_so: impl FnMut() -> bool) -> bool {
    (0..MAX_LOOKS).any(|turn| {
        if turn > 0 {
            sys::sleep_ms(1);
        }
        is_so()
    })
}

/// Before a plain call makes, moves or removes the name of a place, whose directory is followed:
/// keeps calls away that would enter the name, and the removal of its directory, until the call has
/// ended. What the caller reads of the overlay after that is right as long. `None` where all slots
/// are taken, or where the job has removed the directory since the call began: that is published
/// then. Until then the PFS still has the directory.
pub fn making(place: &Place) -> Option<UnderWay> {
    let (root, dir) = (&place.root, place.parent());
    let calls = root.map.plain_calls;
    let mut under_way = None;
    let caller = caller(root);
    let _ = wait_until(|| {
        // (A removal waits for this one, too.)
        drop(under_way.take());
        under_way = calls.begin(caller, dir, place.name()).map(|slot| UnderWay::of(slot, place));
        under_way.is_none() || !calls.is_being_removed(caller, dir)
    });
    if under_way.is_some() {
        wait_for_entering(place);
    }
    if !dir.is_empty() && root.map.may_be_overtaken() && matches!(tree::read(root, dir), Ok(Entry::RemovedDir)) {
        drop(under_way);
        // (Where the PFS refuses that, it says so to the call.)
        let _ = barrier::wait_for_all(root);
        return None;
    }
    under_way
}

/// Before a plain call gives the file of a place another name, or sets what a new version of it
/// keeps: keeps calls away that would enter the name, as [`making`] does. `None` where all slots
/// are taken.
pub fn changing(place: &Place) -> Option<UnderWay> {
    let slot = place.root.map.plain_calls.begin(caller(&place.root), place.parent(), place.name())?;
    let under_way = UnderWay::of(slot, place);
    wait_for_entering(place);
    Some(under_way)
}

/// Waits until no process is about to enter the name of a place.
fn wait_for_entering(place: &Place) {
    let is_entered = (0..ENTERING_LOOKS).any(|turn| {
        if turn > 0 {
            sys::sleep_us(ENTERING_PAUSE_US);
        }
        !place.root.map.plain_calls.is_entering(place.parent(), place.name())
    });
    if !is_entered {
        wait_for_lock(place);
    }
}

/// Waits until no process has the lock of the journal that enters the name of a place.
#[cold]
#[inline(never)]
fn wait_for_lock(place: &Place) {
    let calls = place.root.map.plain_calls;
    (0..LOCK_TRIES)
        .any(|_| !calls.is_entering(place.parent(), place.name()) || Journal::lock_soon(&place.root).is_ok());
}

/// Before the removal of the directory at a place looks whether it is empty: keeps calls away that
/// make a name there, and waits for those that are under way.
pub fn removing(place: &Place) -> Option<UnderWay> {
    let (root, dir) = (&place.root, place.rel());
    let (calls, caller) = (root.map.plain_calls, caller(root));
    let own = UnderWay::of(calls.begin_removal(caller, dir)?, place);
    let is_created_in = || root.state().making.iter().filter_map(Making::left).any(|left| left.dir() == dir);
    wait_until(|| !calls.is_any_in(caller, dir) && !is_created_in());
    Some(own)
}

/// Says that this process is about to enter the name of a place. Whether a plain call about it is
/// under way.
pub fn is_under_way(place: &Place, _lock: &Journal<'_>) -> bool {
    !place.root.map.plain_calls.enter(caller(&place.root), place.parent(), place.name())
}

/// Waits for plain calls about the name of a place. Whether there is none any more.
pub fn wait_for_plain_call(place: &Place) -> bool {
    let caller = caller(&place.root);
    wait_until(|| !place.root.map.plain_calls.is_under_way(caller, place.parent(), place.name()))
}
