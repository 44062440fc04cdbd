//! Libraries that are looked for while their root has no index yet.
//!
//! One that is mapped from the PFS then is remembered by its `struct link_map`. Once there is an
//! index, the agent hears of it, so that the next job finds a copy, and no second mapping of it is
//! made from its copy. Where the agent says that an index is only a moment away, it is waited for:
//! libraries that are mapped from the PFS are read page by page, for as long as the process lives.

use core::sync::atomic::Ordering;
use monarch_abi::control::{ControlMap, Counter};
use monarch_abi::demand::{self, Watch};
use monarch_guest::copy_open::Here;
use monarch_guest::ctx::Ctx;
use monarch_guest::sys;

/// Most libraries that are remembered.
const MOST: usize = 64;
/// Pause between two looks whether the index is there.
const LOOK_PAUSE_MS: i64 = 2;
/// Longest wait, whatever the control block says.
const LONGEST_WAIT_US: u64 = 5_000_000;

/// Addresses of libraries that were mapped without an index.
pub struct Early {
    maps: [usize; MOST],
    len: usize,
}

impl Early {
    /// None.
    #[must_use]
    pub const fn empty() -> Self {
        Self { maps: [0; MOST], len: 0 }
    }

    /// A library was mapped, and its root has no index.
    pub fn opened(&mut self, map: usize) {
        if let Some(place) = self.maps.get_mut(self.len) {
            *place = map;
            self.len += 1;
        }
    }

    /// A library is unmapped.
    pub fn closed(&mut self, map: usize) {
        for place in self.maps.iter_mut().take(self.len).filter(|place| **place == map) {
            *place = 0;
        }
    }

    /// Takes one out of those that are still mapped.
    pub fn take(&mut self) -> Option<usize> {
        while let Some(last) = self.len.checked_sub(1) {
            self.len = last;
            match self.maps.get(last) {
                Some(0) | None => {}
                Some(&map) => return Some(map),
            }
        }
        None
    }
}

/// Waits for the index of a root, if the agent says that it is a moment away. Whether it was waited
/// for.
#[cold]
#[must_use]
pub fn await_index(ctx: &Ctx, root: usize) -> bool {
    let bit = u32::try_from(root).ok().and_then(|root| 1u32.checked_shl(root)).unwrap_or(0);
    let start = Here.now_us();
    while is_held(ctx.map, bit, start) {
        sys::sleep_ms(LOOK_PAUSE_MS);
    }
    let waited = Here.now_us().saturating_sub(start);
    let has_waited = waited >= LOOK_PAUSE_MS as u64 * 1000;
    if has_waited {
        ctx.count(Counter::WaitMicros, waited);
    }
    has_waited
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
    fn those_that_are_still_mapped_are_taken_once() {
        let mut early = Early::empty();
        (1..=3).for_each(|map| early.opened(map));
        early.closed(2);
        assert_eq!([early.take(), early.take(), early.take()], [Some(3), Some(1), None]);
        (0..2 * MOST).for_each(|map| early.opened(map + 1));
        early.closed(MOST + 9);
        assert_eq!(core::iter::from_fn(|| early.take()).count(), MOST);
    }
}
