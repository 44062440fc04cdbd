//! What a process probably reads of a file that it maps, as far as the shim can know.

use core::sync::atomic::{AtomicU64, Ordering};
use monarch_abi::mapping::{Touched, is_weights};

/// Processes of this job on the node, as its launcher says; 0 when it does not.
static RANKS: AtomicU64 = AtomicU64::new(0);

/// By the constructor: the value of `LOCAL_WORLD_SIZE`, or of `WORLD_SIZE`.
pub fn set_ranks(text: &[u8]) {
    let digit = |sum: u64, c: &u8| Some(sum.checked_mul(10)?.saturating_add(u64::from(c.checked_sub(b'0')?)));
    let ranks = if text.iter().all(u8::is_ascii_digit) { text.iter().try_fold(0, digit) } else { None };
    RANKS.store(ranks.unwrap_or(0), Ordering::Relaxed);
}

/// The part of a file that a mapping of `mapped` of its `size` bytes will probably read. `populates`:
/// the kernel reads all of it at once.
#[must_use]
pub fn touched(name: Option<&[u8]>, mapped: u64, size: u64, populates: bool) -> Touched {
    let of_mapping = if populates {
        Touched::ALL
    } else if name.is_some_and(is_weights) {
        Touched::shared(RANKS.load(Ordering::Relaxed))
    } else {
        Touched::SOME
    };
    let part = u128::from(of_mapping.0) * u128::from(mapped.min(size));
    Touched(part.checked_div(u128::from(size)).and_then(|part| u64::try_from(part).ok()).unwrap_or(of_mapping.0))
}
