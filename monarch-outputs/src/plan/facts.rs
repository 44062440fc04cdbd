//! What is found out of staged files beside the journal.

use super::file::CopyState;
use super::place::{FOUND, Guard};
use super::step::Note;
use super::tables::Tables;

/// A lease of an open file was granted or refused just now, after all records so far were read.
/// `is_killed`: a process that opened the file ended without closing it.
pub(super) fn lease(tables: &mut Tables, id: u64, is_granted: bool, is_killed: bool, now_ns: u64) {
    if !tables.open.contains(&id) {
        return;
    }
    let last = tables.queue.last_seq();
    let Some(file) = tables.files.get_mut(&id) else { return };
    if !is_granted {
        file.open_until = last;
        return;
    }
    file.closed_ns = now_ns;
    file.openers.clear();
    file.partial = is_killed && file.supersedes;
    // It has its name only since its rename.
    let after = file.open_until.max(file.bound);
    if is_killed {
        let note = Note::Killed(file.target());
        tables.notes.push(note);
    }
    let place = tables.queue.free_place(after, FOUND);
    tables.set_place(id, place);
}

/// The copy of a file was made.
pub(super) fn copied(tables: &mut Tables, id: u64, generation: u64) {
    if let Some(file) = tables.files.get_mut(&id).filter(|file| file.generation == generation) {
        file.copy = CopyState::Done;
        for &place in file.turns.iter().chain(&file.place) {
            tables.queue.forget_copy(place);
        }
    }
}

/// No lease was granted for the copy, or it was broken: the file is open.
pub(super) fn copy_refused(tables: &mut Tables, id: u64, generation: u64) {
    let Some(file) = tables.files.get_mut(&id).filter(|file| file.generation == generation) else { return };
    file.copy = CopyState::Waiting;
    // It may have been closed again since: then a record of that is yet to come, or the file is
    // found closed right after the close that led to the copy.
    if let Some(place) = file.place {
        tables.reopen(id, place.seq);
    }
}

/// The copy of a file failed, or its part file was lost: it is to be made again.
pub(super) fn copy_failed(tables: &mut Tables, id: u64, generation: u64) {
    let Some(file) = tables.files.get_mut(&id).filter(|file| file.generation == generation) else { return };
    file.copy = CopyState::Waiting;
    for &place in file.turns.iter().chain(&file.place) {
        tables.queue.want_copy(place);
    }
}

/// The data of a staged file is gone: nothing can be published of it.
pub(super) fn lost(tables: &mut Tables, id: u64) {
    // One that was replaced may have been dropped before a restart.
    if let Some(file) = tables.files.get(&id).filter(|file| !file.is_covered) {
        tables.notes.push(Note::Lost(file.target()));
    }
    dropped(tables, id);
}

/// A staged file is not to be published.
pub(super) fn dropped(tables: &mut Tables, id: u64) {
    if let Some(file) = tables.files.get(&id) {
        let (name, bound) = (file.name.clone(), file.bound);
        tables.lose(id);
        // For the link of the overlay.
        let place = tables.queue.free_place(bound, 1);
        tables.expected.copy((bound, 0), (place.seq, place.sub));
        tables.enqueue_unlink(place, &name, Guard::Nothing, 0);
    }
}
