//! Steps that are begun, fail, and are committed.

use super::entry::{Entry, FormerName};
use super::file::CopyState;
use super::place::{Guard, Place};
use super::step::{Action, Claim, Committed, Dropped, FileStep, Step};
use super::tables::Tables;
use monarch_abi::outputs::found;

/// Begins a step: it is the caller's now, until [`commit`] or [`fail`].
pub(super) fn begin(tables: &mut Tables, step: &Step) {
    let Some(entry) = tables.queue.begin(step.place) else { return };
    match &step.action {
        Action::Publish(file) => {
            let bound = match &entry {
                Entry::Former(_, former) => Some(former.bound),
                _ => tables.files.get(&file.staged.id).map(|planned| planned.bound),
            };
            let bound = bound.unwrap_or(0);
            tables.replaced(&file.target, bound);
            tables.unlogged.add(&file.target, (bound, 0), Guard::File(file.staged));
        }
        Action::Symlink(path, target) => {
            tables.replaced(path, step.place.seq);
            tables.unlogged.add(path, (step.place.seq, step.place.sub), Guard::Symlink(target.clone()));
        }
        Action::Unlink(path, Guard::Any) => tables.replaced(path, step.place.seq),
        _ => {}
    }
    if let Entry::Former(id, _) = &entry
        && let Some(file) = tables.files.get_mut(id)
    {
        file.turns.retain(|turn| *turn != step.place);
        file.in_flight = true;
    }
    if let Entry::File(id) = &entry
        && let Some(file) = tables.files.get_mut(id)
    {
        file.place = None;
        file.in_flight = true;
        file.begun_bound = file.bound;
        if let Some(removal) = file.removed_at.take() {
            tables.queue.forget_removal(removal);
        }
    }
}

/// A step failed: it is to be done again, at its place.
pub(super) fn fail(tables: &mut Tables, place: Place) {
    let Some(entry) = tables.queue.fail(place) else { return };
    if let Entry::Former(id, former) = entry {
        if let Some(file) = tables.files.get_mut(&id) {
            file.in_flight = false;
            if !tables.open.contains(&id) {
                tables.publish_as_former(id, place, former);
            }
        }
        return;
    }
    let Entry::File(id) = entry else {
        tables.queue.insert(place, entry);
        return;
    };
    let is_open = tables.open.contains(&id);
    let Some(file) = tables.files.get_mut(&id) else { return };
    file.in_flight = false;
    if file.place.is_none() && !is_open {
        return tables.set_place(id, place);
    }
    // It was renamed meanwhile, and not written.
    let is_same = file.copy == CopyState::Done && file.place.is_some();
    let bound = file.begun_bound;
    let name = file.left.iter().find(|left| left.seq > place.seq).map(|left| left.name.clone());
    if let Some(name) = name.filter(|_| is_same && tables.queue.stands_before_others(place)) {
        tables.publish_as_former(id, place, FormerName { name, bound });
    }
}

/// A step, which is about to be committed, has left this on the PFS.
pub(super) fn leaves(tables: &mut Tables, step: &Step, found: u64) {
    let key = match (&step.action, tables.queue.begun(step.place)) {
        (Action::Publish(_), Some(Entry::Former(_, former))) => (former.bound, 0),
        (Action::Publish(file), _) => match tables.files.get(&file.staged.id) {
            // It may have been renamed since.
            Some(planned) => (planned.bound.min(step.place.seq), 0),
            // Or removed.
            None => (step.place.seq, 0),
        },
        _ => (step.place.seq, step.place.sub),
    };
    match &step.action {
        Action::Publish(file) => {
            tables.found_after(&file.target, key, found);
            for vacate in &file.vacates {
                tables.removed(&vacate.name, (step.place.seq, 1), &vacate.guard);
            }
        }
        Action::Unlink(path, guard) => tables.removed(path, key, guard),
        Action::Rmdir(path) => tables.found_after(path, key, found::NOTHING),
        Action::Symlink(path, _) => tables.found_after(path, key, found::UNKNOWN),
        Action::Skip(_) => {}
    }
}

/// A step is done and logged. All records that were appended before the caller took the lock of
/// the journal have been read.
pub(super) fn commit(tables: &mut Tables, step: &Step) -> Committed {
    tables.queue.commit(step.place);
    let key = (step.place.seq, step.place.sub);
    let mut names: Vec<Vec<u8>> = step.touches().map(<[u8]>::to_vec).collect();
    match &step.action {
        Action::Publish(published) => {
            vacated(tables, published, step.place);
            let id = published.staged.id;
            let is_open = tables.open.contains(&id);
            // Written again meanwhile, and replaced: the same batch drops it.
            let is_again = tables.queue.publishing_place(id).is_some();
            let Some(file) = tables.files.get_mut(&id) else {
                return Committed { names, file: None, visible: false };
            };
            file.in_flight = is_again;
            file.was_published = true;
            if file.place.is_some() || !file.turns.is_empty() || is_open || is_again {
                // The part file has become the published file.
                return Committed { names, file: None, visible: false };
            }
            if file.is_covered && file.copy != CopyState::Done {
                // It was written again, and removed since: a second copy may have left a part file.
                let part_dir = file.part_dir.clone();
                tables.dropped.push(Dropped { staged: file.staged, part_dir, name: file.name.clone() });
            }
            let visible = tables.overlay(&published.target) == Some(&Claim::File(published.staged));
            names.extend(tables.forget(id));
            return Committed { names, file: Some(published.staged), visible };
        }
        Action::Skip(staged) => {
            names.extend(tables.leave_out(staged.id));
        }
        Action::Symlink(path, _) | Action::Unlink(path, _) | Action::Rmdir(path) => {
            tables.claims.remove(path, key);
        }
    }
    Committed { names, file: None, visible: false }
}

/// The names that a publication has removed and replaced are not to be removed again.
fn vacated(tables: &mut Tables, published: &FileStep, place: Place) {
    let Some(file) = tables.files.get_mut(&published.staged.id) else { return };
    for left in file.left.iter_mut().filter(|left| left.seq <= place.seq) {
        if published.vacates.iter().any(|vacate| vacate.name == left.name) {
            left.guard = Guard::Nothing;
        }
    }
}
