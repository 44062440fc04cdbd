//! Signals and descriptors as this process was started with, recorded before Rust's runtime changes
//! them, and restored for the job.
//!
//! * The runtime of the standard library ignores SIGPIPE, and opens `/dev/null` as whichever of the
//!   descriptors 0, 1 and 2 is closed. Both happen before `main`, so a function of `.init_array`
//!   looks first.
//! * `std::process` gives every child the default action for SIGPIPE and an empty signal mask, so
//!   [`restore`] runs between fork and exec, after that.
//!
//! Nothing changes the rest (process group, terminal, umask, working directory, priority, limits,
//! ignored signals); it stays through fork and exec.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// Bit N: descriptor N (0, 1, 2) was closed.
static CLOSED: AtomicI32 = AtomicI32::new(0);
/// Whether SIGPIPE was ignored.
static IGNORED_PIPES: AtomicBool = AtomicBool::new(false);
/// Whether the end of children was ignored.
static IGNORED_CHILDREN: AtomicBool = AtomicBool::new(false);

/// The signal mask, written once before `main`.
struct Mask(UnsafeCell<MaybeUninit<libc::sigset_t>>);
// SAFETY: written by `look` alone, while there is one thread and before anything reads it.
unsafe impl Sync for Mask {}
static MASK: Mask = Mask(UnsafeCell::new(MaybeUninit::zeroed()));

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Records signals and descriptors. The loader calls it before `main`.
extern "C" fn look() {
    // SAFETY: plain calls with buffers of ours; there is one thread.
    unsafe {
        for fd in 0..3 {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
            }
        }
        IGNORED_PIPES.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
        IGNORED_CHILDREN.store(is_ignored(libc::SIGCHLD), Ordering::Relaxed);
        libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), MASK.0.get().cast());
    }
}

/// Whether a signal is ignored.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: asks only; the buffer is ours.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Whether this descriptor (0, 1 or 2) was closed.
pub(crate) fn was_closed(fd: i32) -> bool {
    CLOSED.load(Ordering::Relaxed) & 1 << fd != 0
}

/// Restores what was recorded. The caller is between fork and exec: async-signal-safe.
pub(crate) fn restore() {
    let action = |ignored: &AtomicBool| if ignored.load(Ordering::Relaxed) { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: plain calls on this process, which is about to exec; the mask was written before
    // `main`.
    unsafe {
        libc::signal(libc::SIGPIPE, action(&IGNORED_PIPES));
        libc::signal(libc::SIGCHLD, action(&IGNORED_CHILDREN));
        libc::sigprocmask(libc::SIG_SETMASK, MASK.0.get().cast_const().cast(), std::ptr::null_mut());
        for fd in (0..3).filter(|fd| was_closed(*fd)) {
            libc::close(fd);
        }
    }
}
