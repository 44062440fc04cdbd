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

/// The part of a file that a mapping of `mapped` of its `size` bytes will probably read.
/// `populates`: the kernel reads all of it at once.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_whole_by_one_process_and_in_fair_parts_by_several() {
        let of = |name: &[u8], mapped, populates| touched(Some(name), mapped, 1000, populates);
        assert_eq!(of(b"model.safetensors", 1000, false), Touched::ALL);
        assert_eq!(of(b"model.safetensors", 500, false), Touched(500));
        assert_eq!(of(b"train.parquet", 1000, false), Touched::SOME);
        assert_eq!(of(b"train.parquet", 4096, true), Touched::ALL);
        for (text, part) in [(&b"8"[..], 125), (b"1", 1000), (b"", 1000), (b"x", 1000), (b"99999999999999999999", 1000)]
        {
            set_ranks(text);
            assert_eq!(of(b"model.gguf", 1000, false), Touched(part), "{}", text.escape_ascii());
        }
        set_ranks(b"0");
        assert_eq!(touched(None, 1000, 0, false), Touched::SOME);
    }
}
