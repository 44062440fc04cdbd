//! Libraries that are looked for while their root has no index yet.
//!
//! One that is mapped from the PFS then is remembered by its `struct link_map`. Once there is an
//! index, the agent hears of it, so that the next job finds a copy, and no second mapping of it is
//! made from its copy. Where the agent says that an index is only a moment away, it is waited for:
//! libraries that are mapped from the PFS are read page by page, for as long as the process lives.

use core::ffi::CStr;
use core::sync::atomic::Ordering;
use monarch_abi::control::{ControlMap, Counter};
use monarch_abi::demand::{self, Watch};
use monarch_guest::copy_open::Here;
use monarch_guest::ctx::Ctx;
use monarch_guest::sys;

/// Libraries that are remembered.
const MAX_EARLY: usize = 256;
/// Pause between two looks whether the index is there.
const LOOK_PAUSE_MS: i64 = 2;
/// Longest wait, whatever the control block says.
const LONGEST_WAIT_US: u64 = 5_000_000;
/// Smaller libraries are mapped from the PFS at once: what a short job needs is not worth a wait,
/// and the few faults of these end soon.
const MIN_HELD_BYTES: i64 = 4 << 20;

/// Addresses of libraries that were mapped without an index, in that order; 0 for one that was
/// unmapped.
pub struct Early {
    maps: [usize; MAX_EARLY],
    len: usize,
}

impl Early {
    /// None.
    #[must_use]
    pub const fn empty() -> Self {
        Self { maps: [0; MAX_EARLY], len: 0 }
    }

    /// A library was mapped, and its root has no index. Returns whether there was room for it.
    #[must_use]
    pub fn opened(&mut self, map: usize) -> bool {
        let place = self.maps.get_mut(self.len);
        let has_room = place.is_some();
        if let Some(place) = place {
            *place = map;
            self.len += 1;
        }
        has_room
    }

    /// A library is unmapped.
    pub fn closed(&mut self, map: usize) {
        for place in self.maps.iter_mut().take(self.len).filter(|place| **place == map) {
            *place = 0;
        }
    }

    /// Takes all that are still mapped.
    pub fn take_all(&mut self) -> impl Iterator<Item = usize> + use<> {
        let all = core::mem::replace(self, Self::empty());
        all.maps.into_iter().take(all.len).filter(|map| *map != 0)
    }
}

/// Waits for the index of a root in which a library lies, if the agent says that the index is a
/// moment away.
#[cold]
pub fn await_index(ctx: &Ctx, root: usize, library: &CStr) {
    let bit = u32::try_from(root).ok().and_then(|root| 1u32.checked_shl(root)).unwrap_or(0);
    if ctx.map.ctl.held_roots.load(Ordering::Relaxed) & bit == 0 {
        return;
    }
    let start = Here.now_us();
    let is_large = || sys::stat_at(libc::AT_FDCWD, library, 0).is_some_and(|st| st.st_size >= MIN_HELD_BYTES);
    if !is_held(ctx.map, bit, start) || !is_large() {
        return;
    }
    while is_held(ctx.map, bit, start) {
        sys::sleep_ms(LOOK_PAUSE_MS);
    }
    ctx.count(Counter::WaitMicros, Here.now_us().saturating_sub(start));
}

fn is_held(map: &ControlMap<'_>, bit: u32, start_us: u64) -> bool {
    let ctl = map.ctl;
    if ctl.held_roots.load(Ordering::Acquire) & bit == 0 {
        return false;
    }
    let now_us = Here.now_us();
    now_us < ctl.held_until_ms.load(Ordering::Relaxed).saturating_mul(1000)
        && now_us.saturating_sub(start_us) < LONGEST_WAIT_US
        && demand::agent_up(ctl)
        && !demand::is_silent(ctl, now_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_still_mapped_are_taken_once_and_in_order() {
        let mut early = Early::empty();
        assert!((1..=3).all(|map| early.opened(map)));
        early.closed(2);
        assert_eq!(early.take_all().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(early.take_all().count(), 0);
        assert!((1..=MAX_EARLY).all(|map| early.opened(map)) && !early.opened(99));
        assert_eq!(early.take_all().count(), MAX_EARLY);
    }
}
