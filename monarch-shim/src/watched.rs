//! Descriptors of which something is to be done when they are closed: a bit for each number, which
//! may be wrong.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Descriptors that have a bit: those below this number.
const MAX_WATCHED: usize = 4096;

static BITS: [AtomicU64; MAX_WATCHED / 64] = [const { AtomicU64::new(0) }; MAX_WATCHED / 64];
/// Bits that are set.
static WATCHED: AtomicU32 = AtomicU32::new(0);

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((BITS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether a descriptor has a bit.
#[must_use]
pub fn can_be(fd: c_int) -> bool {
    bit(fd).is_some()
}

/// Whether any descriptor of this process is watched.
#[inline]
#[must_use]
pub fn any() -> bool {
    WATCHED.load(Ordering::Relaxed) != 0
}

/// Whether a descriptor is watched.
#[inline]
#[must_use]
pub fn is(fd: c_int) -> bool {
    any() && bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Watches a descriptor.
pub fn begin(fd: c_int) {
    if let Some((word, bit)) = bit(fd)
        && word.fetch_or(bit, Ordering::AcqRel) & bit == 0
    {
        WATCHED.fetch_add(1, Ordering::AcqRel);
    }
}

/// Watches a descriptor no more.
pub fn end(fd: c_int) {
    if let Some((word, bit)) = bit(fd)
        && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    {
        WATCHED.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Calls `visit` for each watched descriptor from `first` to `last`.
pub fn each(first: c_int, last: c_int, mut visit: impl FnMut(c_int)) {
    if !any() {
        return;
    }
    let end = (MAX_WATCHED as c_int).min(last.saturating_add(1));
    (first.max(0)..end).filter(|&fd| is(fd)).for_each(&mut visit);
}
