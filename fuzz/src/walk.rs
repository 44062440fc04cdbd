//! Visits everything in an index and a segment, as shims and agents do.

use monarch_abi::PATH_MAX;
use monarch_abi::control::ControlMap;
use monarch_abi::demand::{self, Life, Watch};
use monarch_abi::hash::Stamp;
use monarch_abi::index::Index;
use monarch_abi::resolve::Found;
use monarch_abi::segment::{Entry, Segment};
use std::cell::Cell;

/// Visits every record of an index with everything that it refers to, and one number past the end.
pub(crate) fn index(index: &Index<'_>) {
    let mut path = [0; PATH_MAX];
    for id in (0..index.len() as u32 + 2).chain([u32::MAX]) {
        // (The parent has no meaning when the directories are not in order.)
        let _ = index.parent_of(id).and_then(|at| index.dir_at(at));
        let Some(record) = index.record(id) else { continue };
        assert!(index.path(id, &mut path).is_none_or(|len| len <= PATH_MAX));
        let _ = (record.identity(), record.d_type(), index.name(record), index.link_target(record));
        let _ = (index.owner(record), index.btime_ns(id));
        if let Some(dir) = index.dir(record) {
            for from in [0, dir.id, dir.end.wrapping_sub(1), u32::MAX] {
                let mut last = None;
                for (child, _) in index.children(dir, from) {
                    assert!(last.is_none_or(|last| last < child), "a listing goes backwards");
                    last = Some(child);
                }
            }
        }
    }
}

/// Visits every entry of a segment, by each way to find one.
pub(crate) fn segment(segment: &Segment<'_>) {
    index(&segment.index);
    let state = &segment.state;
    for id in (0..segment.index.len() as u32 + 1).chain([u32::MAX]) {
        if let Some(entry) = segment.by_id(id) {
            entry_of(segment, &entry);
        }
        let _ = (state.large(id), state.guard.sum(id), state.slot(id));
        if let Some(check) = state.guard.last_check(id) {
            check.passed(id);
            let _ = check.is_due(id.wrapping_mul(77));
        }
        state.touch(id);
        state.raise(id);
    }
    for entry in segment.files() {
        entry_of(segment, &entry);
        let name = segment.copy_name(&entry);
        let hash = monarch_abi::hash::PathHash { fp: entry.master.fp, check: entry.record.check };
        let _ = segment.by_stamp(name.stamp(hash), entry.record.size);
        let _ = state.large_with_ino(entry.record.ino);
    }
    for file in state.all_large() {
        let _ = (segment.large_entry(&file), file.count(), file.is_streamed());
        let size = file.chunk.saturating_mul(u64::from(file.head.chunks));
        for off in [0, 1, file.chunk, size / 2, size.wrapping_sub(1), size, u64::MAX >> 1, u64::MAX] {
            let chunk = file.at(off);
            let _ = (file.has(chunk), file.is_wanted(chunk), file.want(chunk));
            for end in [off, off.saturating_add(1 << 20), size.max(off), u64::MAX] {
                let to = file.present_until(off, end);
                assert!((off..=end).contains(&to), "{off}..{end}: {to}");
            }
        }
        file.arrived(3);
        file.count_drop();
        file.has_come_to(1, 0);
        file.take_wanted(|_| {});
    }
    for stamp in [0, 1, u64::MAX >> 4] {
        let _ = segment.by_stamp(Stamp(stamp), 1234);
    }
    let mut raised = 0u64;
    state.drain(|_| raised += 1);
    state.drain_touched(|_| raised += 1);
    let _ = (state.all().count(), state.buckets().len(), state.guard.which(), state.guard.is_on());
}

fn entry_of(segment: &Segment<'_>, entry: &Entry<'_>) {
    let word = entry.word();
    let _ = (word.tier(), word.generation(), word.refusal(), word.packed_in(), word.is_watched());
    let _ = (segment.copy_name(entry).rel_path(), segment.listed_dir(entry));
}

/// A fast clock and a dead agent: no reader waits.
pub(crate) struct Impatient(Cell<u64>);

impl Impatient {
    pub(crate) fn new() -> Self {
        Self(Cell::new(1))
    }
}

impl Watch for Impatient {
    fn now_us(&self) -> u64 {
        self.0.set(self.0.get() + 1_000_000);
        self.0.get()
    }
    fn agent(&self) -> Life {
        Life::Dead
    }
}

/// Demands an entry in each way, and changes its state word.
pub(crate) fn demands(ctl: &ControlMap<'_>, f: &Found<'_>) {
    let watch = Impatient::new();
    let _ = (demand::raise(ctl, f), demand::wait(ctl, f, &watch));
    if let Some(file) = f.segment.state.large(f.entry.id) {
        let seen = file.drop_snapshot(f.entry.word());
        for chunk in [0, file.head.chunks / 2, file.head.chunks.wrapping_sub(1), u32::MAX] {
            demand::want_chunks(ctl, f, &file, chunk, chunk.saturating_add(16));
            let _ = demand::wait_chunk(ctl, f, &file, seen, chunk, &watch);
        }
        let _ = demand::wait_complete(ctl, f, &file, true, &watch);
        let _ = seen.still_holds(&file, &f.entry.master.word);
    }
    demand::damaged(ctl, f, f.entry.word());
    demand::repeat_damaged(ctl, f, f.entry.word());
    demand::leave(ctl, f);
    demand::bypass(ctl, f);
    assert!(f.entry.word().is_changed());
}
