//! Scratch memory for paths and blocks, so that no call of the application needs a large stack.
//!
//! A pool of blocks lies in memory of the process's own. A block belongs to the thread that wrote
//! its thread pointer into the block's tag, by one compare-and-swap: no lock, nothing to wait for,
//! and a signal handler that interrupts a call takes another block. When all blocks are taken,
//! fresh memory is mapped and unmapped again with the value. Nothing is ever allocated.
//!
//! * A child of `fork` has one thread: [`forked`] frees the blocks of all others.
//! * A call that is left by `siglongjmp` or by the end of its thread keeps its block. Then the pool
//!   is smaller, and calls map memory.
//! * When no memory can be had at all, a value has no room; [`has_failed`] remembers that.

use crate::sys::{self, call};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 8 << 10;
/// Blocks of the pool.
const BLOCKS: usize = 128;
/// [`Scratch::block`] of memory that is not the pool's.
const MAPPED: usize = usize::MAX;

/// Memory of the blocks. Unused pages take no memory.
#[repr(C, align(4096))]
struct Pool([UnsafeCell<MaybeUninit<[u8; BLOCK_BYTES]>>; BLOCKS]);
// SAFETY: a block is touched only by the thread that holds its tag.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool([const { UnsafeCell::new(MaybeUninit::uninit()) }; BLOCKS]);
/// Thread pointer of the holder of each block; 0: free.
static TAGS: [AtomicUsize; BLOCKS] = [const { AtomicUsize::new(0) }; BLOCKS];
static FAILED: AtomicBool = AtomicBool::new(false);

/// A block of [`BLOCK_BYTES`] bytes, not cleared; given back when dropped.
#[derive(Debug)]
pub struct Scratch {
    /// Null when there was no memory.
    base: *mut u8,
    block: usize,
}

impl Scratch {
    /// Takes a block.
    #[must_use]
    pub fn take() -> Self {
        let me = sys::thread_pointer().max(1);
        // Threads begin at different places, so that they seldom want the same block.
        let first = (me >> 6 ^ me >> 12) % BLOCKS;
        for turn in 0..BLOCKS {
            let block = (first + turn) % BLOCKS;
            let (Some(tag), Some(bytes)) = (TAGS.get(block), POOL.0.get(block)) else { break };
            if tag.load(Ordering::Relaxed) == 0
                && tag.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Self { base: bytes.get().cast(), block };
            }
        }
        Self::map()
    }

    #[cold]
    #[inline(never)]
    fn map() -> Self {
        // SAFETY: fresh memory at an address that the kernel picks.
        let p = unsafe { call(sys::SYS_MMAP, [0, BLOCK_BYTES, 0b11, 0x22, usize::MAX, 0]) };
        if (-4095..0).contains(&p) {
            FAILED.store(true, Ordering::Relaxed);
            return Self { base: core::ptr::null_mut(), block: MAPPED };
        }
        Self { base: p as *mut u8, block: MAPPED }
    }

    /// The block; `None` when there was no memory.
    #[must_use]
    pub fn bytes(&mut self) -> Option<&mut MaybeUninit<[u8; BLOCK_BYTES]>> {
        // SAFETY: null, or memory of this length that belongs to this value; any content is valid.
        unsafe { self.base.cast::<MaybeUninit<[u8; BLOCK_BYTES]>>().as_mut() }
    }

    /// Where the block begins; null when there was no memory.
    #[must_use]
    #[inline]
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes of the block; 0 when there was no memory.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        if self.base.is_null() { 0 } else { BLOCK_BYTES }
    }

    /// Whether there was no memory.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.base.is_null()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(tag) = TAGS.get(self.block) {
            tag.store(0, Ordering::Release);
        } else if !self.base.is_null() {
            // SAFETY: mapped by `map`, and not used any more.
            unsafe { call(sys::SYS_MUNMAP, [self.base as usize, BLOCK_BYTES, 0, 0, 0, 0]) };
        }
    }
}

/// In a child of `fork`: frees the blocks of the threads that it does not have.
pub fn forked() {
    let me = sys::thread_pointer().max(1);
    for tag in &TAGS {
        if tag.load(Ordering::Relaxed) != me {
            tag.store(0, Ordering::Relaxed);
        }
    }
}

/// Whether there was no memory for a block at some time: what was to be found with it was not.
#[must_use]
#[inline]
pub fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// Blocks of the pool that are taken: for tests.
#[must_use]
pub fn taken() -> usize {
    TAGS.iter().filter(|t| t.load(Ordering::Relaxed) != 0).count()
}
