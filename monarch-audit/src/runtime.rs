//! The functions of the C library that this library and the compiler's own code call. They are
//! hidden: the loader sees the functions of [`crate::hooks`] only.
//!
//! The loops read and write through volatile pointers: otherwise the compiler would turn them into
//! calls of the functions that they define.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::AtomicI32;
use monarch_abi::sys::call;

core::arch::global_asm!(
    ".hidden memcpy",
    ".hidden memmove",
    ".hidden memset",
    ".hidden memcmp",
    ".hidden bcmp",
    ".hidden strlen",
    ".hidden strnlen",
    ".hidden clock_gettime",
    ".hidden __errno_location",
);

/// Copies upwards.
///
/// # Safety
/// That of memcpy, and also for memory that overlaps if `to` lies below `from`.
#[inline]
unsafe fn copy_up(to: *mut u8, from: *const u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by contract; the direction flag is clear, as the ABI wants.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") n => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..n {
        // SAFETY: by contract.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    // SAFETY: by contract of the C function.
    unsafe { copy_up(to, from, n) };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= n {
        // SAFETY: by contract of the C function; `to` lies below, or they do not overlap.
        unsafe { copy_up(to, from, n) };
        return to;
    }
    for at in (0..n).rev() {
        // SAFETY: by contract of the C function.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: c_int, n: usize) -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: by contract of the C function.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") n => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..n {
        // SAFETY: by contract of the C function.
        unsafe { to.add(at).write_volatile(byte as u8) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> c_int {
    for at in 0..n {
        // SAFETY: by contract of the C function.
        let (a, b) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if a != b {
            return c_int::from(a) - c_int::from(b);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> c_int {
    // SAFETY: by contract of the C function.
    unsafe { memcmp(a, b, n) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strnlen(text: *const c_char, n: usize) -> usize {
    let mut at = 0;
    // SAFETY: by contract of the C function.
    while at < n && unsafe { text.add(at).read_volatile() } != 0 {
        at += 1;
    }
    at
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const c_char) -> usize {
    // SAFETY: by contract of the C function.
    unsafe { strnlen(text, usize::MAX) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut c_void) -> c_int {
    // SAFETY: the kernel checks the pointer.
    unsafe { call(libc::SYS_clock_gettime, [clock as usize, time as usize, 0, 0, 0, 0]) as c_int }
}

/// The error number of this library, which no system call of it sets: that of the program lies in
/// the program's C library.
static ERRNO: AtomicI32 = AtomicI32::new(0);

#[unsafe(no_mangle)]
extern "C" fn __errno_location() -> *mut c_int {
    ERRNO.as_ptr()
}
