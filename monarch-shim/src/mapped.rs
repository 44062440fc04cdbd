//! Mappings of large files on the PFS whose readers the agent follows: so that madvise(2) of a
//! range can ask for its chunks. A table of the last ones, without a promise: an entry may be lost,
//! or be about memory that is something else by now. Then chunks are asked for that no process
//! reads, or none.

use crate::large;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use monarch_abi::demand;
use monarch_abi::word::State;
use monarch_guest::ctx;

/// Mappings that are remembered.
const MAX_MAPPINGS: usize = 64;

/// A mapping: its addresses, where it begins in the file, and the hint of the file. `start` is 0
/// while the entry is empty, or being written.
struct Mapping {
    start: AtomicUsize,
    len: AtomicUsize,
    offset: AtomicU64,
    hint: AtomicU64,
}

static MAPPINGS: [Mapping; MAX_MAPPINGS] = [const {
    Mapping { start: AtomicUsize::new(0), len: AtomicUsize::new(0), offset: AtomicU64::new(0), hint: AtomicU64::new(0) }
}; MAX_MAPPINGS];
/// Mappings that were noted so far.
static NOTED: AtomicUsize = AtomicUsize::new(0);

/// Notes a mapping of the file with this hint, from `offset` on.
pub fn note(start: usize, len: usize, offset: u64, hint: u64) {
    let at = NOTED.fetch_add(1, Ordering::AcqRel) % MAX_MAPPINGS;
    let Some(m) = MAPPINGS.get(at) else { return };
    m.start.store(0, Ordering::Release);
    m.len.store(len, Ordering::Relaxed);
    m.offset.store(offset, Ordering::Relaxed);
    m.hint.store(hint, Ordering::Relaxed);
    m.start.store(start, Ordering::Release);
}

/// Whether any mapping was noted.
#[inline]
#[must_use]
pub fn any() -> bool {
    NOTED.load(Ordering::Relaxed) != 0
}

/// A process will read these addresses: the chunks behind them are asked for.
#[cold]
#[inline(never)]
pub fn will_read(start: usize, len: usize) {
    let Some(ctx) = ctx::get() else { return };
    for m in &MAPPINGS {
        let from = m.start.load(Ordering::Acquire);
        let end = from.saturating_add(m.len.load(Ordering::Relaxed));
        let (first, last) = (start.max(from), start.saturating_add(len).min(end));
        if from == 0 || first >= last {
            continue;
        }
        let Some(known) = large::hinted(&ctx, m.hint.load(Ordering::Relaxed)) else { continue };
        let at = m.offset.load(Ordering::Relaxed).saturating_add((first - from) as u64);
        let to = at.saturating_add((last - first) as u64).min(known.f.entry.record.size);
        let comes = matches!(known.f.entry.word().state(), State::Requested | State::Fetching | State::Partial);
        if comes && !known.large.is_streamed() && at < to && demand::agent_up(ctx.map.ctl) {
            let behind = known.large.at(to - 1).saturating_add(1);
            demand::want_chunks(ctx.map, &known.f, &known.large, known.large.at(at), behind);
        }
    }
}
