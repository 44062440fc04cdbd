//! Values that are written once, and never dropped.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// A cell that is written once, before a flag says so.
pub struct Once<T>(pub UnsafeCell<MaybeUninit<T>>);
// SAFETY: written once by the thread that claimed it, read only after a release store of its flag.
unsafe impl<T: Sync> Sync for Once<T> {}
