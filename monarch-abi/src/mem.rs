//! Bounds-checked views of mapped memory.
//!
//! A [`Map`] is an address and a length. Everything read from shared memory goes through
//! [`Map::array`] or [`Map::get`], which check bounds and alignment and give `None` otherwise, so
//! that a truncated or foreign file leads to a miss and never to a fault outside the mapping. The
//! types handed out are plain old data or atomics ([`Pod`]): any bit pattern is valid, and the
//! compiler shows that there is no padding.
//!
//! Bytes that are appended while other processes map them are an [`Area`]: no reference covers what
//! is yet to be written.

use crate::scratch::Scratch;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of a huge page, and multiples at which large mappings begin, so that the kernel can use
/// huge pages for them.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes of a file from which on its mappings do.
pub const MIN_HUGE_BYTES: usize = 32 << 20;

/// Types for which every bit pattern is valid and that have no padding.
///
/// # Safety
/// Implementors must be `repr(C)`, without padding, valid for every bit pattern, and either never
/// written through shared memory while mapped or made of atomics.
pub unsafe trait Pod {}

/// Makes a type [`Pod`] whose fields are atomics, or are never written through shared memory while
/// they are mapped. That it has no padding and is valid for every bit pattern is shown by what it
/// derives of zerocopy.
macro_rules! pod {
    ($t:ty) => {
        const _: () = {
            const fn without_padding<T: zerocopy::IntoBytes + zerocopy::FromBytes>() {}
            without_padding::<$t>();
        };
        // SAFETY: no padding and any bit pattern, as the compiler has just seen; written as the
        // macro demands.
        unsafe impl crate::mem::Pod for $t {}
    };
}
pub(crate) use pod;

// SAFETY: integers and atomics of fixed width fulfil the contract.
unsafe impl Pod for u8 {}
// SAFETY: as above.
unsafe impl Pod for u32 {}
// SAFETY: as above.
unsafe impl Pod for i64 {}
// SAFETY: as above.
unsafe impl Pod for u64 {}
// SAFETY: as above.
unsafe impl Pod for AtomicU32 {}
// SAFETY: as above.
unsafe impl Pod for AtomicU64 {}

/// A mapped region that outlives `'a` (the shim never unmaps what it published).
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    base: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: a Map only hands out shared references to plain data and atomics.
unsafe impl Send for Map<'_> {}
// SAFETY: as above.
unsafe impl Sync for Map<'_> {}

impl<'a> Map<'a> {
    /// A view of `len` bytes at `base`.
    ///
    /// # Safety
    /// The region must stay mapped readable for `'a` (and writable where atomics in it are
    /// written), and be changed by others only where [`Pod`] atomics lie.
    #[must_use]
    pub const unsafe fn new(base: *const u8, len: usize) -> Self {
        Self { base, len, life: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The object of type `T` at byte `off`, or `None` when it would not lie inside.
    #[must_use]
    #[inline]
    pub fn get<T: Pod>(&self, off: usize) -> Option<&'a T> {
        let end = off.checked_add(size_of::<T>())?;
        if end > self.len || !self.base.addr().wrapping_add(off).is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: in bounds and aligned, every bit pattern is a valid T, lives for 'a.
        Some(unsafe { &*self.base.add(off).cast::<T>() })
    }

    /// `n` bytes from byte `off`, to which the agent may append.
    #[must_use]
    pub fn area(&self, off: usize, n: usize) -> Option<Area<'a>> {
        let end = off.checked_add(n)?;
        // SAFETY: in bounds.
        (end <= self.len).then(|| Area { base: unsafe { self.base.add(off) }, len: n, life: PhantomData })
    }

    /// `n` objects of type `T` from byte `off`, or `None` when they would not lie inside.
    #[must_use]
    #[inline]
    pub fn array<T: Pod>(&self, off: usize, n: usize) -> Option<&'a [T]> {
        let end = off.checked_add(n.checked_mul(size_of::<T>())?)?;
        if end > self.len || !self.base.addr().wrapping_add(off).is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: in bounds and aligned, every bit pattern is a valid T, lives for 'a.
        Some(unsafe { core::slice::from_raw_parts(self.base.add(off).cast::<T>(), n) })
    }
}

/// Bytes to which the agent appends while other processes map them.
///
/// A slice of all of it would claim that no process writes there, which is not so. What was
/// appended never changes again, and is published only afterwards (by the count of a table, which
/// is stored with Release and loaded with Acquire): a slice of just that is sound.
#[derive(Clone, Copy, Debug)]
pub struct Area<'a> {
    base: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: an Area only hands out shared references to bytes that do not change any more.
unsafe impl Send for Area<'_> {}
// SAFETY: as above.
unsafe impl Sync for Area<'_> {}

impl<'a> Area<'a> {
    /// Bytes that were appended, at the place that the agent has published; none if they would not
    /// lie inside.
    #[must_use]
    #[inline]
    pub fn get(&self, off: usize, n: usize) -> &'a [u8] {
        match self.part(off, n) {
            Some(bytes) => bytes,
            None => outside(),
        }
    }

    /// [`Area::get`]; `None` if the bytes would not lie inside.
    #[must_use]
    #[inline]
    pub fn part(&self, off: usize, n: usize) -> Option<&'a [u8]> {
        if off.checked_add(n)? > self.len {
            return None;
        }
        // SAFETY: in bounds, for 'a. What was published was written before and is not written
        // again; no reader asks for what was not published.
        Some(unsafe { core::slice::from_raw_parts(self.base.add(off), n) })
    }
}

/// No bytes: of places beyond an area. Out of line, so that the other case is straight code.
#[cold]
#[inline(never)]
const fn outside() -> &'static [u8] {
    &[]
}

/// Length of the common prefix of two strings, eight bytes at a time.
#[must_use]
#[inline]
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let end = a.len().min(b.len());
    // SAFETY: eight bytes from `at` lie inside both.
    let differ = |at: usize| unsafe {
        a.as_ptr().add(at).cast::<u64>().read_unaligned() ^ b.as_ptr().add(at).cast::<u64>().read_unaligned()
    };
    let mut at = 0;
    while at < end {
        if at + 8 > end {
            if end < 8 {
                // SAFETY: `at` stays below both lengths.
                while at < end && unsafe { a.get_unchecked(at) == b.get_unchecked(at) } {
                    at += 1;
                }
                return at;
            }
            // The last word overlaps with what was compared already.
            at = end - 8;
        }
        let d = differ(at);
        if d != 0 {
            return at + (d.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    end
}

/// Bytes of a path in scratch memory. When there is no memory nothing fits.
#[derive(Debug)]
pub struct PathBuffer {
    room: Scratch,
    /// `start..end` of the room is written.
    start: usize,
    end: usize,
}

impl PathBuffer {
    /// Empty, to be filled from the front.
    #[must_use]
    #[inline]
    pub fn front() -> Self {
        Self { room: Scratch::take(), start: 0, end: 0 }
    }

    /// Empty, to be filled from the back.
    #[must_use]
    #[inline]
    pub fn back() -> Self {
        let room = Scratch::take();
        let end = room.len().min(crate::PATH_MAX);
        Self { room, start: end, end }
    }

    /// Bytes that fit.
    fn size(&self) -> usize {
        self.room.len().min(crate::PATH_MAX)
    }

    /// What was written.
    #[must_use]
    #[inline]
    pub const fn get(&self) -> &[u8] {
        if self.room.is_empty() {
            return &[];
        }
        // SAFETY: start <= end <= PATH_MAX, which is less than the room, and everything between is
        // written.
        unsafe { core::slice::from_raw_parts(self.room.base().add(self.start), self.end - self.start) }
    }

    /// Puts text behind; `None` when it does not fit.
    #[must_use]
    #[inline]
    pub fn append(&mut self, text: &[u8]) -> Option<()> {
        let end = self.end.checked_add(text.len())?;
        if end > self.size() {
            return None;
        }
        // SAFETY: fits, as just checked; a borrowed slice cannot overlap with the room.
        unsafe {
            core::ptr::copy_nonoverlapping(text.as_ptr(), self.room.base().add(self.end), text.len());
        }
        self.end = end;
        Some(())
    }

    /// Puts text in front; `None` when it does not fit.
    #[must_use]
    #[inline]
    pub fn prepend(&mut self, text: &[u8]) -> Option<()> {
        if self.room.is_empty() {
            return None;
        }
        let start = self.start.checked_sub(text.len())?;
        // SAFETY: fits, as just checked; a borrowed slice cannot overlap with the room.
        unsafe {
            core::ptr::copy_nonoverlapping(text.as_ptr(), self.room.base().add(start), text.len());
        }
        self.start = start;
        Some(())
    }

    /// Keeps the first `len` bytes.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start.saturating_add(len));
    }

    /// Drops the first `n` bytes.
    #[inline]
    pub fn skip(&mut self, n: usize) {
        self.start = self.end.min(self.start.saturating_add(n));
    }

    /// Lets `fill` write from the front; it says how many bytes it wrote.
    ///
    /// # Safety
    /// `fill` must have written as many bytes as it says.
    #[must_use]
    pub unsafe fn fill(
        &mut self,
        fill: impl FnOnce(&mut core::mem::MaybeUninit<[u8; crate::PATH_MAX]>) -> Option<usize>,
    ) -> Option<()> {
        let room = self.room.base().cast::<core::mem::MaybeUninit<[u8; crate::PATH_MAX]>>();
        // SAFETY: null, or room for more than that; it belongs to this value.
        let n = fill(unsafe { room.as_mut() }?)?;
        self.start = 0;
        self.end = n.min(crate::PATH_MAX);
        Some(())
    }

    /// What was written as a C string; `None` when there is no room for its end, or a NUL in it.
    #[must_use]
    pub fn c_str(&mut self) -> Option<&core::ffi::CStr> {
        self.append(b"\0")?;
        self.end -= 1;
        // SAFETY: the NUL was just written behind the text.
        let with_nul =
            unsafe { core::slice::from_raw_parts(self.room.base().add(self.start), self.end + 1 - self.start) };
        core::ffi::CStr::from_bytes_with_nul(with_nul).ok()
    }
}
