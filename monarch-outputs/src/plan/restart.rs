//! An old journal and the log of what was published are taken in.

use super::entry::Entry;
use super::file::CopyState;
use super::place::{Guard, Place};
use super::tables::Tables;
use monarch_abi::outputs::found;

/// An earlier agent has logged a step: the published file is this on the PFS.
pub(super) fn replay_leaves(tables: &mut Tables, place: Place, id: u64, found: u64) {
    if let Some(Entry::Unlink(path, guard, _)) = tables.queue.get(place) {
        let (path, guard) = (path.clone(), guard.clone());
        return tables.removed(&path, (place.seq, place.sub), &guard);
    }
    let (name, key, found) = match (tables.queue.get(place), tables.files.get(&id)) {
        (Some(Entry::Former(_, former)), _) => (former.name.clone(), (former.bound, 0), found),
        (Some(Entry::Rmdir(path, _)), _) => (path.clone(), (place.seq, place.sub), found::NOTHING),
        (Some(Entry::Symlink(path, ..)), _) => (path.clone(), (place.seq, place.sub), found::UNKNOWN),
        (_, Some(file)) if file.bound <= place.seq => (file.target(), (file.bound, 0), found),
        _ => return,
    };
    tables.found_after(&name, key, found);
}

/// An earlier agent has logged a step. All records that it had read when it began the step were
/// taken in.
pub(super) fn replay_done(tables: &mut Tables, place: Place, id: u64, is_skip: bool) {
    if !is_skip {
        left_names_are_gone(tables, id, place);
    }
    while let Some((before, other)) = first_before(tables, place, id) {
        match other {
            // It lost its place: it was still open.
            Some(other) => tables.reopen(other, 0),
            None => replay_other(tables, before),
        }
    }
    let is_former = tables.files.get(&id).is_some_and(|file| file.bound > place.seq);
    if let Some(file) = tables.files.get(&id) {
        let left = file.left.iter().filter(|left| left.seq <= place.seq);
        tables.replay.logged.extend(left.map(|left| (left.seq, 1)).chain((!is_former).then_some((file.bound, 0))));
    }
    tables.replay.logged.insert((place.seq, place.sub));
    if id == 0 {
        replay_other(tables, place);
    } else if is_skip {
        tables.leave_out(id);
    } else if is_former {
        former_was_published(tables, id, place);
    } else if tables.files.contains_key(&id) {
        tables.clear_place(id);
        tables.open.remove(&id);
        if let Some((name, bound)) = tables.files.get(&id).map(|file| (file.name.clone(), file.bound)) {
            tables.replaced(&name, bound);
        }
        if let Some(file) = tables.files.get_mut(&id) {
            file.in_flight = true;
            file.was_published = true;
            file.copy = CopyState::Waiting;
        }
    }
}

/// An earlier agent has published a file under a name that it has left since.
fn former_was_published(tables: &mut Tables, id: u64, place: Place) {
    tables.queue.remove(place);
    let Some(file) = tables.files.get_mut(&id) else { return };
    file.turns.retain(|turn| *turn != place);
    file.was_published = true;
    let mut name = None;
    for left in &mut file.left {
        if left.seq > place.seq {
            (left.guard, left.is_mergeable) = (Guard::Any, false);
            name = Some(left.name.clone());
            break;
        }
        left.guard = Guard::Nothing;
    }
    if let Some(name) = name {
        tables.replaced(&name, place.seq);
    }
}

/// An earlier agent has published a file that is lost now: the names that it had left were removed
/// with that.
fn left_names_are_gone(tables: &mut Tables, id: u64, published: Place) {
    let is_its = |(&place, &lost): (&Place, &u64)| (lost == id).then_some(place);
    let places: Vec<Place> = tables.replay.left_by.range(..published).filter_map(is_its).collect();
    for place in places {
        replay_other(tables, place);
    }
}

/// The first entry before a place, but the file `id` and what lost files leave: its place, and its
/// file.
fn first_before(tables: &Tables, place: Place, id: u64) -> Option<(Place, Option<u64>)> {
    let mut before = tables.queue.before(place).map(|(place, entry)| match entry {
        Entry::File(other) | Entry::Former(other, _) => (place, Some(*other)),
        _ => (place, None),
    });
    before.find(|(place, other)| *other != Some(id) && !tables.replay.left_by.contains_key(place))
}

fn replay_other(tables: &mut Tables, place: Place) {
    let key = (place.seq, place.sub);
    let path = match tables.queue.get(place) {
        Some(Entry::Unlink(path, ..) | Entry::Rmdir(path, _) | Entry::Symlink(path, ..)) => path.clone(),
        _ => return,
    };
    if let Some(Entry::Symlink(..) | Entry::Unlink(_, Guard::Any, _)) = tables.queue.remove(place) {
        tables.replaced(&path, place.seq);
    }
    tables.replay.left_by.remove(&place);
    tables.replay.done.push((path, key));
}

/// Ends the old journal: files that were published and not touched since are done with. Their
/// numbers.
pub(super) fn end_replay(tables: &mut Tables) -> Vec<u64> {
    tables.replay.is_running = false;
    tables.replay.logged.clear();
    tables.replay.left_by.clear();
    for (path, key) in std::mem::take(&mut tables.replay.done) {
        tables.claims.remove(&path, key);
    }
    let mut done = Vec::new();
    let ids: Vec<u64> = tables.files.keys().copied().collect();
    for id in ids {
        let is_open = tables.open.contains(&id);
        let Some(file) = tables.files.get_mut(&id) else { continue };
        if !std::mem::take(&mut file.in_flight) || file.place.is_some() || is_open {
            continue;
        }
        tables.forget(id);
        done.push(id);
    }
    let Tables { unlogged, claims, .. } = tables;
    unlogged.retain(|name| claims.has(name));
    done
}
