//! Calls that make a name at once, beside the removal of its directory by another process, which
//! takes its place in the order: the one sees the other, as on the PFS.
//!
//! Each says in a slot of the state file ([`Making`]) which directory it is about, then looks for
//! the other. The call that makes a name waits until a removal has looked at the directory, and
//! finds then that it is removed. A removal waits until such a call has ended, and finds what it
//! has made. Slots of processes that were killed are freed by the agent.
//!
//! In the same way a call that enters a name in the overlay sees a plain one that is about the same
//! name: it looks for that with the lock of the journal held ([`is_under_way`]), and the plain call
//! looks at the overlay once it has its slot.

use super::barrier;
use super::began;
use super::place::Place;
use super::roots::Root;
use super::tree::{self, Entry};
use core::sync::atomic::{Ordering, fence};
use monarch_abi::outputs::making::{Left, Making, REMOVAL, plain_call};
use monarch_guest::sys;

/// How often each looks for the other, a millisecond apart: longer than a PFS that answers needs
/// for one call. After that the call is made as if there were none.
const MAX_LOOKS: usize = 1000;

/// A call that is under way in a directory, until it is dropped.
pub struct UnderWay(&'static Making);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.free();
    }
}

impl UnderWay {
    /// Takes a slot, if one is free and has room for the path.
    fn begin(root: &Root, dir: &[u8]) -> Option<Self> {
        let pid = sys::pid();
        let began = began::ticks(pid);
        root.state().making.iter().find(|slot| slot.claim(pid, began, dir)).map(Self)
    }

    /// Whether another call is under way in a directory.
    fn has_other(&self, root: &Root, dir: &[u8], is_it: impl Fn(&Left) -> bool) -> bool {
        // (What this call has said comes before its look.)
        fence(Ordering::SeqCst);
        let mut others = root.state().making.iter().filter(|slot| !core::ptr::eq(*slot, self.0));
        others.any(|slot| slot.left().is_some_and(|left| left.dir() == dir && is_it(&left)))
    }
}

/// Before a plain call makes, or moves, the name of a place, whose directory is followed: keeps the
/// removal of that directory away until the call has ended, and calls that would enter the name.
/// Where the job has removed the directory since the call began, waits until that is published.
/// Until then the PFS still has the directory.
pub fn making(place: &Place) -> Option<UnderWay> {
    let (root, dir) = (&place.root, place.parent());
    if !root.map.may_be_overtaken() {
        return None;
    }
    let under_way = (0..MAX_LOOKS).find_map(|turn| {
        if turn > 0 {
            sys::sleep_ms(1);
        }
        let Some(own) = UnderWay::begin(root, dir) else { return Some(None) };
        own.0.begin(plain_call(place.name()));
        (!own.has_other(root, dir, |left| left.id == REMOVAL)).then_some(Some(own))
    });
    let under_way = under_way.flatten();
    if !dir.is_empty() && matches!(tree::read(root, dir), Ok(Entry::RemovedDir)) {
        drop(under_way);
        // (Where the PFS refuses that, it says so to the call.)
        let _ = barrier::wait_for_all(root);
        return None;
    }
    under_way
}

/// Before the removal of the directory at a place looks whether it is empty: keeps calls away that
/// make a name there, and waits for those that are under way.
pub fn removing(place: &Place) -> Option<UnderWay> {
    let (root, dir) = (&place.root, place.rel());
    let own = UnderWay::begin(root, dir)?;
    own.0.begin(REMOVAL);
    for _ in 0..MAX_LOOKS {
        if !own.has_other(root, dir, |left| left.id != REMOVAL) {
            break;
        }
        sys::sleep_ms(1);
    }
    Some(own)
}

/// Whether a plain call is under way that makes or moves the name of a place. With the lock of the
/// journal held.
pub fn is_under_way(place: &Place) -> bool {
    // (What this call has seen of the PFS comes before its look.)
    fence(Ordering::SeqCst);
    let state = place.root.state();
    let mut slots = state.making.iter().filter(|slot| slot.is_taken()).filter_map(Making::left);
    let call = plain_call(place.name());
    slots.any(|left| left.id == call && left.dir() == place.parent())
}

/// Waits for such a call. Whether there is none any more.
pub fn wait_for_plain_call(place: &Place) -> bool {
    (0..MAX_LOOKS).any(|turn| {
        if turn > 0 {
            sys::sleep_ms(1);
        }
        !is_under_way(place)
    })
}
