//! [`Waker`]: wakes the copiers and the rings.

use crate::sys::timespec;
use crate::tiering::core::context::Context;
use crate::tiering::core::lane::Lane;
use monarch_abi::sys::{futex_wait, futex_wake};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The word that idle rings sleep on. (Readers wake copiers, and the thread that they wake must not
/// be a ring.)
#[derive(Debug, Default)]
pub(crate) struct RingWaker(AtomicU32);

impl RingWaker {
    /// The count of wakes so far; read before looking for work.
    pub(crate) fn heard(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Sleeps until the next wake after `heard`, for `patience` at most.
    pub(crate) fn sleep(&self, heard: u32, patience: Option<Duration>) {
        futex_wait(&self.0, heard, patience.map(timespec));
    }

    /// Wakes all rings.
    pub(crate) fn ring(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.0, u32::MAX >> 1);
    }
}

/// Wakes the copiers and the rings.
pub(crate) struct Waker {
    cx: Arc<Context>,
    /// The word that idle rings sleep on.
    pub(crate) ring_waker: RingWaker,
}

impl Waker {
    pub(crate) fn new(cx: &Arc<Context>) -> Self {
        Self { cx: cx.clone(), ring_waker: RingWaker::default() }
    }

    /// Wakes a copier, or all rings.
    pub(crate) fn wake(&self, lane: Lane) {
        match lane {
            Lane::Threads => {
                self.cx.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
                futex_wake(&self.cx.ctl.ctl.demand, 1);
            }
            Lane::Rings => self.ring_waker.ring(),
        }
    }

    /// Wakes all copiers on call, and all rings.
    pub(crate) fn wake_all(&self) {
        self.cx.ctl.ctl.demand.fetch_add(1, Ordering::SeqCst);
        futex_wake(&self.cx.ctl.ctl.demand, u32::MAX >> 1);
        self.ring_waker.ring();
    }
}
