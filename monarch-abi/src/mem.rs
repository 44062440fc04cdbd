//! Bounds-checked views of mapped memory.
//!
//! A [`Map`] is an address and a length. Everything read from shared memory goes through [`Map::array`] or
//! [`Map::get`], which check bounds and alignment and give `None` otherwise, so that a truncated or foreign file leads
//! to a miss and never to a fault outside the mapping. The types handed out are plain old data or atomics
//! ([`Pod`]): any bit pattern is valid.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Types for which every bit pattern is valid and that have no padding.
///
/// # Safety
/// Implementors must be `repr(C)`, without padding, valid for every bit pattern, and either never written through
/// shared memory while mapped or made of atomics.
pub unsafe trait Pod {}
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
    /// The region must stay mapped readable for `'a` (and writable where atomics in it are written), be at least
    /// 64-byte aligned, and be changed by others only where [`Pod`] atomics lie.
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
        if end > self.len || !off.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: in bounds and aligned (base is page-aligned), every bit pattern is a valid T, lives for 'a.
        Some(unsafe { &*self.base.add(off).cast::<T>() })
    }

    /// `n` objects of type `T` from byte `off`, or `None` when they would not lie inside.
    #[must_use]
    #[inline]
    pub fn array<T: Pod>(&self, off: usize, n: usize) -> Option<&'a [T]> {
        let end = off.checked_add(n.checked_mul(size_of::<T>())?)?;
        if end > self.len || !off.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: in bounds and aligned, every bit pattern is a valid T, lives for 'a.
        Some(unsafe { core::slice::from_raw_parts(self.base.add(off).cast::<T>(), n) })
    }
}
