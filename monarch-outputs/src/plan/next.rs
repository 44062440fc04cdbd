//! What is to be copied and published next.

use super::entry::{Entry, FormerName};
use super::file::{CopyState, LeftName, PlannedFile};
use super::place::{Guard, Place};
use super::step::{Action, CopyRequest, FileStep, Step, Vacate};
use super::tables::Tables;

/// Takes up to `max` files to copy, in the order of publication. Versions that the next entry
/// replaces are left out, and files of which an older copy still runs (`is_busy`).
pub(super) fn take_copies(tables: &mut Tables, max: usize, is_busy: impl Fn(u64) -> bool) -> Vec<CopyRequest> {
    let mut out = Vec::new();
    for place in tables.queue.wanted_copies() {
        if out.len() == max {
            break;
        }
        let Some(id) = tables.queue.get(place).and_then(Entry::file) else { continue };
        if is_busy(id) || replaced_by(tables, place).is_some() {
            continue;
        }
        let Some(file) = tables.files.get(&id) else { continue };
        if out.iter().any(|request: &CopyRequest| request.staged.id == id) {
            continue;
        }
        out.push(CopyRequest {
            staged: file.staged,
            generation: file.generation,
            part_dir: file.part_dir.clone(),
            target: file.target(),
            former: file.former.iter().rev().cloned().collect(),
            owner_changed: file.owner_changed,
            extended_changed: file.extended_changed,
        });
    }
    for request in &out {
        let Some(file) = tables.files.get_mut(&request.staged.id) else { continue };
        file.copy = CopyState::Running;
        for &place in file.turns.iter().chain(&file.place) {
            tables.queue.forget_copy(place);
        }
    }
    out
}

/// The entry that replaces the file at a place, when nothing stands between: whether it is
/// ready.
fn replaced_by(tables: &Tables, place: Place) -> Option<bool> {
    let Some(Entry::File(id)) = tables.queue.get(place) else { return None };
    let target = tables.files.get(id)?.target();
    // What the file would leave behind has to be removed at its place. (What only an earlier
    // agent may have published is removed after it.)
    if tables.files.get(id)?.left.iter().any(LeftName::holds_its_place) {
        return None;
    }
    let mut replaced = None;
    let mut before = place;
    for (next, entry) in tables.queue.behind(place) {
        if tables.queue.others_wrote_between(std::mem::replace(&mut before, next), next) {
            break;
        }
        match entry {
            Entry::File(next) => match tables.files.get(next) {
                Some(next) if next.target() == target => replaced = Some(next.copy == CopyState::Done),
                _ => break,
            },
            Entry::Unlink(path, Guard::Any, _) if *path == target => return Some(true),
            _ => break,
        }
    }
    replaced
}

/// The next step of publication, if it is ready.
pub(super) fn next_step(tables: &Tables) -> Option<Step> {
    let (place, entry) = tables.queue.first()?;
    let is_unsure = |file: &PlannedFile| file.open_until < place.seq;
    if tables.open_files().any(is_unsure) {
        return None;
    }
    let action = match entry {
        Entry::File(id) => {
            let file = tables.files.get(id)?;
            match replaced_by(tables, place) {
                Some(true) => Action::Skip(file.staged),
                // Its copy is made when the entry that replaces it loses its place.
                _ if file.copy != CopyState::Done => return None,
                _ => Action::Publish(file_step(tables, file)),
            }
        }
        Entry::Former(id, former) => {
            let file = tables.files.get(id).filter(|file| file.copy == CopyState::Done)?;
            Action::Publish(former_step(tables, file, former))
        }
        Entry::Unlink(path, guard, _) => Action::Unlink(path.clone(), guard.clone()),
        Entry::Rmdir(path, _) => Action::Rmdir(path.clone()),
        Entry::Symlink(path, target, _) => Action::Symlink(path.clone(), target.clone()),
    };
    let key = match entry {
        Entry::File(id) => (tables.files.get(id)?.bound, 0),
        Entry::Former(_, former) => (former.bound, 0),
        _ => (place.seq, place.sub),
    };
    let name = match &action {
        Action::Publish(file) => file.target.as_slice(),
        Action::Unlink(path, _) | Action::Rmdir(path) | Action::Symlink(path, _) => path,
        Action::Skip(_) => b"",
    };
    let expected = tables.expectation(name, key);
    Some(Step { place, read: tables.queue.last_seq(), action, expected })
}

/// Names to remove after the publication of a file.
fn vacates(tables: &Tables, file: &PlannedFile) -> Vec<Vacate> {
    let mut vacates: Vec<Vacate> = Vec::new();
    for LeftName { seq, name, guard, .. } in &file.left {
        if *guard == Guard::Nothing || *name == file.name {
            continue;
        }
        let expected = tables.expectation(name, (*seq, 1));
        match vacates.iter_mut().find(|vacate| vacate.name == *name) {
            // The last time that it was left counts.
            Some(vacate) => (vacate.guard, vacate.expected) = (guard.clone(), expected),
            None => vacates.push(Vacate { name: name.clone(), guard: guard.clone(), expected }),
        }
    }
    vacates
}

/// The publication of a file under a name that it has left since.
fn former_step(tables: &Tables, file: &PlannedFile, former: &FormerName) -> FileStep {
    let at = file.left.iter().position(|left| left.name == former.name && left.seq > former.bound);
    let before = PlannedFile {
        name: former.name.clone(),
        left: file.left.get(..at.unwrap_or(0)).unwrap_or_default().to_vec(),
        partial: false,
        ..file.clone()
    };
    FileStep {
        staged: file.staged,
        target: former.name.clone(),
        part_dir: file.part_dir.clone(),
        former: file.former.iter().rev().filter(|name| **name != former.name).cloned().collect(),
        vacates: vacates(tables, &before),
        owner_changed: file.owner_changed,
        partial: false,
    }
}

fn file_step(tables: &Tables, file: &PlannedFile) -> FileStep {
    FileStep {
        staged: file.staged,
        target: file.target(),
        part_dir: file.part_dir.clone(),
        former: file.former.iter().rev().cloned().collect(),
        vacates: vacates(tables, file),
        owner_changed: file.owner_changed,
        partial: file.partial,
    }
}
