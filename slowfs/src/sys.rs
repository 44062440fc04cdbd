//! The few system calls that need `unsafe`: waiting for signals and the timer slack of a thread.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// The signals that ask for a clean unmount.
const STOP_SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn stop_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set it is given; `sigaddset` then works on an
    // initialised one.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in STOP_SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Blocks the stop signals in this thread and all that it starts, for [`wait_stop_signal`] to
/// collect.
pub(crate) fn block_stop_signals() {
    let set = stop_set();
    // SAFETY: the set is initialised and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits until one of the blocked stop signals is sent to the process.
pub(crate) fn wait_stop_signal() {
    let set = stop_set();
    let mut signal = 0;
    // SAFETY: both pointers are to live locals.
    unsafe { libc::sigwait(&raw const set, &raw mut signal) };
}

/// Makes timed waits of this thread end on time: the default slack of 50 us is as long as some
/// latencies asked for.
pub(crate) fn precise_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}
