//! Changes of the state word of a file.

use monarch_abi::segment::Entry;
use monarch_abi::word::Word;
use std::sync::atomic::Ordering;

/// Changes the state word of an entry. Returns `false`, and changes nothing, if it is not `from`.
pub(crate) fn swap(entry: &Entry<'static>, from: Word, to: Word) -> bool {
    entry.master.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
}
