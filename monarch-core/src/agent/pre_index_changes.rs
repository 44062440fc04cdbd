//! Opens a segment to readers once the changes are entered that the job made before it appeared
//! (see `monarch_abi::early`).

use monarch_abi::control::ControlMap;
use monarch_abi::segment::{Entry, Segment};
use monarch_abi::state::OPENING;
use monarch_abi::word::{State, Word};
use std::sync::atomic::Ordering;

/// Keeps readers away; before the segment is published.
pub(super) fn close(segment: &Segment<'_>) {
    segment.state.header.bypassed.store(OPENING, Ordering::SeqCst);
}

/// Enters the changes that were left for this root and lets readers in; after the generation went
/// up.
pub(super) fn open(ctl: &ControlMap<'_>, root: usize, number: usize, segment: &Segment<'_>) {
    let mut left = 0u64;
    let complete = ctl.ctl.early.each(root, |rel, names| {
        left += 1;
        enter(ctl, number, segment, rel, names);
    });
    if !complete {
        let path = ctl.roots().get(root).map_or(&[][..], |r| ctl.str(&r.path));
        let path = String::from_utf8_lossy(path);
        tracing::warn!(root = %path, "too many changes below the root while it was scanned: it is read from the PFS");
    }
    if left > 0 {
        tracing::info!(left, "changes made during the scan entered");
    }
    let to = u32::from(!complete);
    let _ = segment.state.header.bypassed.compare_exchange(OPENING, to, Ordering::SeqCst, Ordering::SeqCst);
}

/// Bypasses one path, and, when names change, its directory's listing and what lies below it.
pub(super) fn enter(ctl: &ControlMap<'_>, number: usize, segment: &Segment<'_>, rel: &[u8], names: bool) {
    let known = segment.lookup(rel);
    match (&known, names) {
        (Some(_), _) => {}
        (None, false) => segment.state.marks.note_entry(rel),
        // It may be a directory that has moved, with all that lies below it.
        (None, true) => segment.state.marks.close(),
    }
    if let Some(e) = known {
        bypass(segment, &e);
        if names && let Some(d) = segment.index.dir(e.record) {
            let done = ctl.bypass_range(number as u32, d.id, d.end);
            if !done {
                segment.state.header.bypassed.store(1, Ordering::SeqCst);
            }
        }
    }
    if names {
        let parent = rel.iter().rposition(|&c| c == b'/').map_or(&[][..], |slash| &rel[..slash]);
        if let Some(e) = segment.lookup(parent) {
            bypass(segment, &e);
        }
    }
}

/// Turns the word of an entry, and so of all names of its inode, to Bypass.
pub(super) fn bypass(segment: &Segment<'_>, e: &Entry<'_>) {
    let word = &e.master.word;
    let changed = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |w| {
        let w = Word(w);
        (!w.is_changed()).then(|| w.next(State::Bypass).0)
    });
    if changed.is_ok() && e.record.is_file() {
        // A copy that an earlier run left is dropped.
        segment.state.raise(e.master.id);
    }
}
