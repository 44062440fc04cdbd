//! Pointers of the application.
//!
//! The kernel answers a bad pointer with EFAULT; we must not die of it. A page that was never seen is tested with a system
//! call that reads (or writes) it and does nothing else; pages that passed are remembered in a small table, so that the test
//! is rare. `munmap` inside the C library is invisible to us: a path in memory that was given back meanwhile is the one case
//! that still ends in a signal (see SEMANTICS.md).

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const SEEN: usize = 64;

static READABLE: [AtomicUsize; SEEN] = [const { AtomicUsize::new(0) }; SEEN];
static WRITABLE: [AtomicUsize; SEEN] = [const { AtomicUsize::new(0) }; SEEN];

/// Sets errno.
#[inline]
pub fn set_errno(e: c_int) {
    // SAFETY: always a valid pointer in a process with a C library.
    unsafe { *libc::__errno_location() = e };
}

/// Reads errno.
#[inline]
#[must_use]
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Whether the page of `address` was seen in `table`; otherwise tests the eight bytes at `address`.
#[inline]
fn page_ok(table: &[AtomicUsize; SEEN], address: usize, test: fn(usize) -> bool) -> bool {
    let page = address / PAGE;
    let slot = &table[page % SEEN];
    slot.load(Ordering::Relaxed) == page || {
        let ok = test(address);
        if ok {
            slot.store(page, Ordering::Relaxed);
        }
        ok
    }
}

#[cold]
fn test_read(address: usize) -> bool {
    // Eight bytes within the page. `how` is invalid, so that the kernel reads the new mask and then refuses it.
    sigprocmask(usize::MAX, address / PAGE * PAGE, 0) != -libc::EFAULT as isize
}

#[cold]
fn test_write(address: usize) -> bool {
    // No new mask: the old one is written to the address, which lies in the buffer that the caller is about to overwrite.
    sigprocmask(0, 0, address) == 0
}

/// The bare system call `rt_sigprocmask` with a mask of eight bytes.
fn sigprocmask(how: usize, set: usize, old: usize) -> isize {
    // SAFETY: the kernel checks the addresses; `old` is memory that the caller may overwrite.
    unsafe { crate::sys::call(libc::SYS_rt_sigprocmask, [how, set, old, 8, 0, 0]) }
}

/// The bytes of a path, if the pointer is good and it is shorter than `PATH_MAX`.
///
/// # Safety
/// The memory must not be changed by another thread meanwhile (as for the C function).
#[inline]
#[must_use]
pub unsafe fn path<'a>(p: *const c_char) -> Option<&'a [u8]> {
    let start = p as usize;
    // The lowest pages are never mapped; addresses of the kernel have the top bit.
    if start < PAGE || start >> 63 != 0 || !page_ok(&READABLE, start, test_read) {
        return None;
    }
    let mut len = 0usize;
    loop {
        let room = PAGE - (start + len) % PAGE;
        // SAFETY: the page was tested; the end of a page is not crossed without testing the next one.
        let n = unsafe { libc::strnlen(p.add(len), room) };
        len += n;
        if len >= monarch_abi::PATH_MAX {
            return None;
        }
        if n < room {
            // SAFETY: `len` bytes were just read.
            return Some(unsafe { core::slice::from_raw_parts(p.cast(), len) });
        }
        if !page_ok(&READABLE, start + len, test_read) {
            return None;
        }
    }
}

/// Whether a result of type `T` (of at least eight bytes and at most a page) can be written to `p`. The content of `*p` is lost.
#[inline]
#[must_use]
pub fn writable<T>(p: *mut T) -> bool {
    const { assert!(size_of::<T>() >= 8 && size_of::<T>() <= PAGE) };
    let (first, last) = (p as usize, (p as usize).wrapping_add(size_of::<T>() - 1));
    first >= PAGE
        && first >> 63 == 0
        && last >= first
        && page_ok(&WRITABLE, first, test_write)
        && (first / PAGE == last / PAGE || page_ok(&WRITABLE, last, |last| test_write(last - 7)))
}

/// Forgets all pages: memory was unmapped or protected.
pub fn forget_pages() {
    for t in READABLE.iter().chain(&WRITABLE) {
        t.store(0, Ordering::Relaxed);
    }
}
