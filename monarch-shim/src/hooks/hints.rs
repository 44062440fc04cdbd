//! The functions of `monarch.h`, which a job may look for and call.

use crate::hints::{fails, is_active, residency, tell};
use core::ffi::{c_char, c_int, c_long};
use monarch_abi::hint::Kind;
use monarch_guest::user;

/// What `user::slice` tests at a time, in bytes.
const SLICE_TEST_BYTES: usize = 32 << 10;

/// The `n` elements at `p`, or errno.
unsafe fn elements<'a, T>(p: *const T, n: usize) -> Result<&'a [T], c_int> {
    if n == 0 {
        return Ok(&[]);
    }
    let fits = n.checked_mul(size_of::<T>()).is_some_and(|bytes| bytes <= isize::MAX as usize);
    if p.is_null() || !fits {
        return Err(libc::EINVAL);
    }
    let each = SLICE_TEST_BYTES / size_of::<T>();
    let mut at = 0;
    while at < n {
        // SAFETY: only tested.
        if unsafe { user::slice(p.wrapping_add(at), each.min(n - at)) }.is_none() {
            return Err(libc::EFAULT);
        }
        at += each;
    }
    // SAFETY: neither null nor too long; aligned, and all of its pages were tested.
    Ok(unsafe { core::slice::from_raw_parts(p, n) })
}

/// Gives a hint about paths in an array; `paths` should point to `n` C strings.
unsafe fn tell_each(kind: Kind, paths: *const *const c_char, n: usize) -> c_long {
    // SAFETY: tested before it is read.
    match unsafe { elements(paths, n) } {
        // SAFETY: tested before it is read; what is no path is passed over.
        Ok(paths) => tell(kind, 0, paths.iter().filter_map(|p| unsafe { user::path(*p) })) as c_long,
        Err(e) => fails(e) as c_long,
    }
}

/// Gives a hint about paths that stand one behind the other, each but the last followed by a NUL.
unsafe fn tell_list(kind: Kind, paths: *const c_char, bytes: usize) -> c_long {
    // SAFETY: tested before it is read.
    match unsafe { elements(paths.cast::<u8>(), bytes) } {
        Ok(text) => tell(kind, 0, text.split(|&c| c == 0).filter(|p| !p.is_empty())) as c_long,
        Err(e) => fails(e) as c_long,
    }
}

/// A path, or errno.
unsafe fn path<'a>(p: *const c_char) -> Result<&'a [u8], c_int> {
    // SAFETY: tested before it is read.
    unsafe { user::path(p) }.ok_or(if p.is_null() { libc::EINVAL } else { libc::EFAULT })
}

#[unsafe(no_mangle)]
extern "C" fn monarch_active() -> c_int {
    c_int::from(is_active())
}

// SAFETY: callers keep the contract of monarch.h.
#[unsafe(no_mangle)]
unsafe extern "C" fn monarch_announce(paths: *const *const c_char, n: usize) -> c_long {
    // SAFETY: the contract of monarch.h.
    unsafe { tell_each(Kind::Order, paths, n) }
}

// SAFETY: callers keep the contract of monarch.h.
#[unsafe(no_mangle)]
unsafe extern "C" fn monarch_announce_list(paths: *const c_char, bytes: usize) -> c_long {
    // SAFETY: the contract of monarch.h.
    unsafe { tell_list(Kind::Order, paths, bytes) }
}

// SAFETY: callers keep the contract of monarch.h.
#[unsafe(no_mangle)]
unsafe extern "C" fn monarch_prefetch(paths: *const *const c_char, n: usize) -> c_long {
    // SAFETY: the contract of monarch.h.
    unsafe { tell_each(Kind::Prefetch, paths, n) }
}

// SAFETY: callers keep the contract of monarch.h.
#[unsafe(no_mangle)]
unsafe extern "C" fn monarch_prefetch_list(paths: *const c_char, bytes: usize) -> c_long {
    // SAFETY: the contract of monarch.h.
    unsafe { tell_list(Kind::Prefetch, paths, bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn monarch_epoch_begin(number: c_long) -> c_int {
    if number < -1 || number > c_long::from(u32::MAX) {
        return fails(libc::EINVAL) as c_int;
    }
    (tell(Kind::EpochBegin, number, core::iter::empty()) as c_int).min(0)
}

#[unsafe(no_mangle)]
extern "C" fn monarch_epoch_end() -> c_int {
    (tell(Kind::EpochEnd, 0, core::iter::empty()) as c_int).min(0)
}

// SAFETY: callers keep the contract of monarch.h.
#[unsafe(no_mangle)]
unsafe extern "C" fn monarch_priority(p: *const c_char, priority: c_int) -> c_int {
    // SAFETY: the contract of monarch.h; tested before it is read.
    match unsafe { path(p) } {
        Ok(path) => match tell(Kind::Priority, i64::from(priority), core::iter::once(path)) {
            0 => fails(libc::ENOENT) as c_int,
            told => (told as c_int).min(0),
        },
        Err(e) => fails(e) as c_int,
    }
}

// SAFETY: callers keep the contract of monarch.h.
#[unsafe(no_mangle)]
unsafe extern "C" fn monarch_residency(p: *const c_char) -> c_int {
    // SAFETY: the contract of monarch.h; tested before it is read.
    match unsafe { path(p) } {
        Ok(path) => residency(path),
        Err(e) => fails(e) as c_int,
    }
}
