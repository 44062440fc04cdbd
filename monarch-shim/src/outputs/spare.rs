//! Descriptors of the shim in a process that has none left: numbers beyond its soft limit, for
//! which that is raised to the hard one while one call opens a file.

use super::kernel::{self, Errno, SignalsBlocked};
use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_guest::sys::{self, Fd};

/// Whether a thread has raised the limit: 0, [`CLAIMED`], or the soft limit before and one more.
static RAISED: AtomicU64 = AtomicU64::new(0);
/// A thread is about to.
const CLAIMED: u64 = u64::MAX;
/// How often a thread looks whether another one has done; the limit is raised for microseconds.
const TRIES: usize = 10_000;

/// [`kernel::open`] for a descriptor that the application never sees: also where it has none left.
pub fn open_own(path: &CStr, flags: c_int) -> Result<Fd, Errno> {
    open_own_at(libc::AT_FDCWD, path, flags)
}

/// The same, relative to an open directory.
pub fn open_own_at(dirfd: c_int, path: &CStr, flags: c_int) -> Result<Fd, Errno> {
    let open = || kernel::open_at(dirfd, path, flags | libc::O_CLOEXEC, 0);
    match open() {
        Err(libc::EMFILE) => beyond_limit(open),
        opened => opened,
    }
}

/// Calls `open` with all numbers of descriptors that the kernel lets this process have. Another
/// thread that opens a file just then may succeed, too.
#[cold]
#[inline(never)]
fn beyond_limit<T>(open: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let _signals = SignalsBlocked::begin();
    let claim = || RAISED.compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let is_claimed = (0..TRIES).any(|turn| {
        if turn > 0 {
            sys::pause();
        }
        claim()
    });
    let limit = if is_claimed { limit() } else { None };
    let opened = match limit {
        Some(limit) if limit.rlim_cur < limit.rlim_max => {
            RAISED.store(limit.rlim_cur.saturating_add(1), Ordering::Release);
            set(&libc::rlimit64 { rlim_cur: limit.rlim_max, ..limit });
            let opened = open();
            lower(limit.rlim_cur);
            opened
        }
        _ => Err(libc::EMFILE),
    };
    if is_claimed {
        RAISED.store(0, Ordering::Release);
    }
    opened
}

/// In a child of `fork`: the thread that has raised the limit is not there.
pub fn forked() {
    let raised = RAISED.swap(0, Ordering::AcqRel);
    if raised != 0 && raised != CLAIMED {
        lower(raised - 1);
    }
}

/// The soft limit is again what it was, unless the application has set another one meanwhile.
fn lower(to: u64) {
    if let Some(limit) = limit().filter(|limit| limit.rlim_cur == limit.rlim_max) {
        set(&libc::rlimit64 { rlim_cur: to.min(limit.rlim_max), ..limit });
    }
}

fn limit() -> Option<libc::rlimit64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let args = [0, libc::RLIMIT_NOFILE as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: a buffer of that type.
    let got = unsafe { sys::call(libc::SYS_prlimit64, args) };
    (got == 0).then_some(limit)
}

fn set(limit: &libc::rlimit64) {
    let args = [0, libc::RLIMIT_NOFILE as usize, core::ptr::from_ref(limit) as usize, 0, 0, 0];
    // SAFETY: a limit of that type.
    unsafe { sys::call(libc::SYS_prlimit64, args) };
}
