//! Pointers of the application.
//!
//! The kernel answers a bad pointer with EFAULT; the shim must not crash on it. A page that was
//! never seen is tested with a system call that reads (or writes) it and does nothing else; pages
//! that passed are remembered in a small table, so that the test is rare. The shim does not see
//! `munmap` inside the C library: a path in memory that was unmapped meanwhile is the one case that
//! still ends in a signal (docs/SEMANTICS.md).

use core::ffi::c_char;
use core::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
/// Pages in a group: as many as a slot has bits for.
const PAGES_PER_SLOT: usize = 32;
/// Groups remembered: together 128 MiB of memory for each kind of access.
const SLOTS: usize = 1024;

/// Pages that passed. A slot holds the number of a group of pages in its upper half, and a bit for
/// each page that passed.
type Pages = [AtomicU64; SLOTS];
static READABLE: Pages = [const { AtomicU64::new(0) }; SLOTS];
static WRITABLE: Pages = [const { AtomicU64::new(0) }; SLOTS];

/// Whether the page of `address` was seen in `table`; otherwise tests the eight bytes at `address`.
#[inline]
fn page_ok(table: &Pages, address: usize, test: fn(usize) -> bool) -> bool {
    is_seen(table, address) || test_page(table, address, test)
}

/// Whether the page of `address` was seen in `table`.
#[inline]
fn is_seen(table: &Pages, address: usize) -> bool {
    let (page, group) = (address / PAGE, address / PAGE / PAGES_PER_SLOT);
    let seen = table[group % SLOTS].load(Ordering::Relaxed);
    seen >> 32 == group as u64 && seen >> (page % PAGES_PER_SLOT) & 1 != 0
}

#[cold]
#[inline(never)]
fn test_page(table: &Pages, address: usize, test: fn(usize) -> bool) -> bool {
    let (group, bit) = ((address / PAGE / PAGES_PER_SLOT) as u64, 1 << (address / PAGE % PAGES_PER_SLOT));
    let slot = &table[group as usize % SLOTS];
    let seen = slot.load(Ordering::Relaxed);
    let ok = test(address);
    // Another group is replaced. Numbers above 2^32 (57-bit addresses) are tested each time.
    if ok && group <= u64::from(u32::MAX) {
        let others = if seen >> 32 == group { seen } else { group << 32 };
        // Lost against another thread: then it is tested again.
        let _ = slot.compare_exchange(seen, others | bit, Ordering::Relaxed, Ordering::Relaxed);
    }
    ok
}

/// Whether the page of an address can be read, as it is now.
#[cold]
#[must_use]
pub fn is_readable(address: usize) -> bool {
    const MADV_POPULATE_READ: usize = 22;
    let page = address / PAGE * PAGE;
    // Reads the page in and does nothing else. Kernels before 5.14 do not know it.
    // SAFETY: changes no memory.
    let done = unsafe { crate::sys::call(libc::SYS_madvise, [page, PAGE, MADV_POPULATE_READ, 0, 0, 0]) };
    if done != -libc::EINVAL as isize {
        return done == 0;
    }
    // Eight bytes within the page. `how` is invalid, so that the kernel reads the new mask and then
    // refuses it.
    sigprocmask(usize::MAX, address / PAGE * PAGE, 0) != -libc::EFAULT as isize
}

#[cold]
fn test_write(address: usize) -> bool {
    // No new mask: the old one is written to the address, which lies in the buffer that the caller
    // is about to overwrite.
    sigprocmask(0, 0, address) == 0
}

/// The bare system call `rt_sigprocmask` with a mask of eight bytes.
fn sigprocmask(how: usize, set: usize, old: usize) -> isize {
    // SAFETY: the kernel checks the addresses; `old` is memory that the caller may overwrite.
    unsafe { crate::sys::call(libc::SYS_rt_sigprocmask, [how, set, old, 8, 0, 0]) }
}

/// Whether an address may be the application's: the lowest page is never mapped, and addresses of
/// the kernel have the top bit, which makes them negative here.
#[inline]
const fn is_plausible(address: usize) -> bool {
    address.cast_signed() >= PAGE.cast_signed()
}

/// The bytes of a path, if the pointer is good and it is shorter than `PATH_MAX`.
///
/// # Safety
/// The memory must not be changed by another thread meanwhile (as for the C function).
#[inline]
#[must_use]
pub unsafe fn path<'a>(p: *const c_char) -> Option<&'a [u8]> {
    let start = p as usize;
    if !is_plausible(start) || !page_ok(&READABLE, start, is_readable) {
        return None;
    }
    let mut len = 0usize;
    loop {
        let room = PAGE - (start + len) % PAGE;
        // SAFETY: the page was tested; the end of a page is not crossed without testing the next
        // one.
        let n = unsafe { libc::strnlen(p.add(len), room) };
        len += n;
        if len >= monarch_abi::PATH_MAX {
            return None;
        }
        if n < room {
            // SAFETY: `len` bytes were just read.
            return Some(unsafe { core::slice::from_raw_parts(p.cast(), len) });
        }
        if !page_ok(&READABLE, start + len, is_readable) {
            return None;
        }
    }
}

/// The elements of an array, if their pages are good; at most a few pages of them.
///
/// # Safety
/// That of [`path`].
#[must_use]
pub unsafe fn slice<'a, T>(p: *const T, n: usize) -> Option<&'a [T]> {
    let start = p as usize;
    let len = n.checked_mul(size_of::<T>()).filter(|&len| len <= 8 * PAGE)?;
    if !is_plausible(start) || len == 0 || !start.is_multiple_of(align_of::<T>()) {
        return None;
    }
    let mut at = start;
    while at < start + len {
        if !page_ok(&READABLE, at, is_readable) {
            return None;
        }
        at = (at / PAGE + 1) * PAGE;
    }
    // SAFETY: aligned, and every page was tested.
    Some(unsafe { core::slice::from_raw_parts(p, n) })
}

/// Whether a result of type `T` (of at least eight bytes and at most a page) can be written to `p`.
/// The content of `*p` is lost.
#[inline]
#[must_use]
pub fn writable<T>(p: *mut T) -> bool {
    const { assert!(size_of::<T>() >= 8 && size_of::<T>() <= PAGE) };
    let (first, last) = (p as usize, (p as usize).wrapping_add(size_of::<T>() - 1));
    is_plausible(first)
        && last >= first
        && page_ok(&WRITABLE, first, test_write)
        && (first / PAGE == last / PAGE || page_ok(&WRITABLE, last, |last| test_write(last - 7)))
}

/// Whether `n` bytes, and not one more, can be written to `p`. What is there is lost.
#[must_use]
pub fn writable_bytes(p: *mut u8, n: usize) -> bool {
    // Fills exactly so many bytes, or says that it cannot.
    // SAFETY: memory that the caller may overwrite; the kernel checks the address.
    let done = unsafe { crate::sys::call(libc::SYS_getrandom, [p as usize, n, libc::GRND_NONBLOCK as usize, 0, 0, 0]) };
    usize::try_from(done) == Ok(n)
}

/// Forgets the pages of some memory that is unmapped or protected.
pub fn forget_pages(address: usize, len: usize) {
    let (first, last) = (address / PAGE / PAGES_PER_SLOT, address.saturating_add(len) / PAGE / PAGES_PER_SLOT);
    for group in first..=last.min(first + SLOTS - 1) {
        READABLE[group % SLOTS].store(0, Ordering::Relaxed);
        WRITABLE[group % SLOTS].store(0, Ordering::Relaxed);
    }
}

/// Forgets all pages.
pub fn forget_all() {
    for slot in READABLE.iter().chain(&WRITABLE) {
        slot.store(0, Ordering::Relaxed);
    }
}

/// How a path begins, compared with a text.
pub enum Beginning {
    /// With all of the text.
    Same,
    /// There it has another byte.
    Differs(usize, u8),
    /// Its page ends first, or the pointer is bad.
    Unknown,
}

/// Compares the beginning of a path with `stem` before its length is known.
///
/// # Safety
/// That of [`path`].
#[inline]
#[must_use]
pub unsafe fn compare(p: *const c_char, stem: &[u8]) -> Beginning {
    let start = p as usize;
    if !is_plausible(start) || start % PAGE + stem.len() > PAGE || !page_ok(&READABLE, start, is_readable) {
        return Beginning::Unknown;
    }
    // SAFETY: by contract; the page was tested.
    unsafe { compare_in_page(p, stem) }
}

/// [`compare`] that tests no page: of one that was not seen yet nothing is known.
///
/// # Safety
/// That of [`path`].
#[inline]
#[must_use]
pub unsafe fn compare_seen(p: *const c_char, stem: &[u8]) -> Beginning {
    let start = p as usize;
    // (The lowest page, and those of the kernel, are never seen.)
    if start % PAGE + stem.len() > PAGE || !is_seen(&READABLE, start) {
        return Beginning::Unknown;
    }
    // SAFETY: by contract; the page was tested.
    unsafe { compare_in_page(p, stem) }
}

/// # Safety
/// That of [`path`]; as many bytes as the stem has lie in a page that was tested.
#[inline]
unsafe fn compare_in_page(p: *const c_char, stem: &[u8]) -> Beginning {
    let (p, s) = (p.cast::<u8>(), stem.as_ptr());
    let mut at = 0;
    // SAFETY: the page was tested, and neither its end nor that of the stem is crossed.
    unsafe {
        if let Some(last) = stem.len().checked_sub(8) {
            loop {
                let word = p.add(at).cast::<u64>().read_unaligned();
                let other = s.add(at).cast::<u64>().read_unaligned();
                if word != other {
                    let n = (word ^ other).trailing_zeros() / 8;
                    return Beginning::Differs(at + n as usize, (word >> (n * 8)) as u8);
                }
                if at == last {
                    return Beginning::Same;
                }
                // The last word overlaps with what was compared already.
                at = last.min(at + 8);
            }
        }
        while at < stem.len() {
            let c = p.add(at).read();
            if c != s.add(at).read() {
                return Beginning::Differs(at, c);
            }
            at += 1;
        }
    }
    Beginning::Same
}

/// Whether a path that was not looked at begins as `/proc` and `/dev` do, or may do so because its
/// page ends there.
///
/// # Safety
/// That of [`path`].
#[must_use]
pub unsafe fn begins_like_descriptor(p: *const c_char) -> bool {
    let start = p as usize;
    // SAFETY: the page was tested.
    is_plausible(start) && page_ok(&READABLE, start, is_readable) && unsafe { begins_like_descriptor_in_page(p) }
}

/// [`begins_like_descriptor`] for a path whose page was tested.
///
/// # Safety
/// The page of `p` was tested: [`compare`] gave [`Beginning::Differs`] for it.
#[inline]
#[must_use]
pub unsafe fn begins_like_descriptor_in_page(p: *const c_char) -> bool {
    if p as usize % PAGE > PAGE - 4 {
        return true;
    }
    // SAFETY: the page was tested, and its end is not crossed.
    let front = unsafe { p.cast::<[u8; 4]>().read_unaligned() };
    front == *b"/pro" || front == *b"/dev"
}

/// Whether a path, the rest of one or all of it, has two dots in a row, as one that leads up has,
/// or may have because its page ends there.
///
/// # Safety
/// As for [`begins_like_descriptor_in_page`].
#[inline]
#[must_use]
pub unsafe fn may_lead_up_in_page(p: *const c_char) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    const DOTS: u64 = ONES * b'.' as u64;
    let room = PAGE - p as usize % PAGE;
    // SAFETY: the page was tested, and neither its end nor that of the string is crossed.
    unsafe {
        let len = libc::strnlen(p, room);
        if len == room {
            return true;
        }
        let p = p.cast::<u8>();
        let mut at = 0;
        if let Some(last) = len.checked_sub(8) {
            loop {
                // Zero where there is a dot; and where there is one behind that, too.
                let dots = p.add(at).cast::<u64>().read_unaligned() ^ DOTS;
                if has_zero(dots) && has_zero(dots | p.add(at + 1).cast::<u64>().read_unaligned() ^ DOTS) {
                    return true;
                }
                if at == last {
                    return false;
                }
                at = last.min(at + 8);
            }
        }
        while at < len {
            if p.add(at).cast::<[u8; 2]>().read_unaligned() == *b".." {
                return true;
            }
            at += 1;
        }
    }
    return false;

    const fn has_zero(word: u64) -> bool {
        word.wrapping_sub(ONES) & !word & (ONES << 7) != 0
    }
}

/// The bytes behind the first `len`, which [`compare`] has read: how many there are, if the string
/// ends in that page.
///
/// # Safety
/// [`compare`] gave [`Beginning::Same`] for `p` and a text of `len` bytes.
#[inline]
#[must_use]
pub unsafe fn rest_in_page<'a>(p: *const c_char, len: usize) -> Option<&'a [u8]> {
    let room = PAGE - (p as usize) % PAGE - len;
    // SAFETY: the page was tested; its end is not crossed.
    unsafe {
        let n = libc::strnlen(p.add(len), room);
        (n < room).then(|| core::slice::from_raw_parts(p.cast(), len + n))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    /// A string at the end of a page, and the page is all that may be read.
    fn at_the_end_of_a_page(text: &[u8]) -> *const c_char {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, of which the second page is given up.
        unsafe {
            let base = libc::mmap(core::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(base.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            forget_pages(base as usize, 2 * PAGE);
            let at = base.byte_add(PAGE - text.len() - 1).cast::<u8>();
            at.copy_from_nonoverlapping(text.as_ptr(), text.len());
            at.cast()
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn a_path_is_compared_with_stems_of_all_lengths_up_to_the_end_of_its_page() {
        let text: Vec<u8> = (0..40).map(|i| b'a' + i % 23).collect();
        for len in 0..=text.len() {
            let path = at_the_end_of_a_page(&text[..len]);
            // SAFETY: strings of this test.
            let compared = |stem: &[u8]| unsafe { (compare(path, stem), compare_seen(path, stem)) };
            // SAFETY: as above.
            let first = unsafe { compare_seen(path, &text[..len]) };
            assert!(matches!(first, Beginning::Unknown), "the page was not tested yet");
            assert!(matches!(compared(&text[..len]), (Beginning::Same, Beginning::Same)), "{len}");
            for at in 0..len {
                let mut stem = text[..len].to_vec();
                stem[at] = b'/';
                // A later difference does not hide the first.
                stem[len - 1] = b'/';
                let (Beginning::Differs(n, c), Beginning::Differs(n2, c2)) = compared(&stem) else {
                    panic!("{len}, {at}");
                };
                assert_eq!((n, c, n2, c2), (at, text[at], at, text[at]), "{len}");
            }
            assert!(matches!(compared(&[b'a'; PAGE]), (Beginning::Unknown, Beginning::Unknown)), "beyond the page");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn two_dots_are_found_wherever_they_stand_and_the_byte_behind_a_path_is_none_of_it() {
        for len in 1..40 {
            let plain: Vec<u8> = (0..len).map(|at| if at % 2 == 0 { b'.' } else { b'a' }).collect();
            let asked = |text: &[u8]| {
                let path = at_the_end_of_a_page(&[text, b"\0.."].concat());
                // SAFETY: a string of this test.
                unsafe { may_lead_up_in_page(path) }
            };
            assert!(!asked(&plain), "{len}");
            for at in 1..len {
                let mut dots = plain.clone();
                dots[at - 1..=at].fill(b'.');
                assert!(asked(&dots), "{len}, {at}");
            }
        }
    }

    #[test]
    fn null_the_lowest_page_and_addresses_of_the_kernel_are_not_read() {
        for address in [0, 1, PAGE - 1, usize::MAX, usize::MAX - PAGE, 1 << 63] {
            let path = address as *const c_char;
            // SAFETY: refused before they are read.
            let (bytes, known, seen) = unsafe { (super::path(path), compare(path, b""), compare_seen(path, b"")) };
            assert!(bytes.is_none(), "{address:x}");
            assert!(matches!((known, seen), (Beginning::Unknown, Beginning::Unknown)), "{address:x}");
        }
    }
}
