//! What the records of the journal change.

use super::entry::{Entry, FormerName};
use super::file::{CopyState, LeftName, PlannedFile, exchanged_path, moved_path, parent, renamed_dirs};
use super::opener::Opener;
use super::place::{Guard, Place};
use super::removals::unlinked;
use super::step::{Claim, Created, Note};
use super::tables::Tables;
use monarch_abi::outputs::found;
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::{Op, Record, flag};
use monarch_abi::outputs::through::is_temporary;

/// Takes in a record. Records that were taken in before are ignored.
pub(super) fn record(tables: &mut Tables, record: &Record<'_>) {
    let (head, seq) = (&record.header, record.header.seq);
    if seq <= tables.queue.last_seq() {
        return;
    }
    tables.max_id = tables.max_id.max(head.id);
    tables.queue.record(seq, head.node_news);
    match record.op {
        Op::Open => opened(tables, record),
        Op::Close => closed(tables, record),
        Op::Rename => renamed(tables, record),
        Op::Unlink => unlinked(tables, record, Place { seq, sub: 0 }),
        Op::Rmdir => {
            tables.unlink_left_in(record.a, head.time_ns);
            tables.claims.set(record.a, (seq, 0), Claim::RemovedDir);
            tables.queue.insert(Place { seq, sub: 0 }, Entry::Rmdir(record.a.to_vec(), head.time_ns));
        }
        Op::Symlink => linked(tables, record, record.a, record.b),
        Op::RenameLink => link_renamed(tables, record),
        Op::Attributes => attributes_changed(tables, head.id, seq, head.flags, head.time_ns),
        // It has its number, and no entry: open files are tried after it was read.
        Op::Barrier => {}
    }
}

fn opened(tables: &mut Tables, record: &Record<'_>) {
    let (head, seq) = (&record.header, record.header.seq);
    let is_watched = head.flags & flag::UNWATCHED == 0;
    if let Some(file) = tables.files.get_mut(&head.id) {
        file.generation += 1;
        file.copy = CopyState::Waiting;
        if is_watched {
            file.openers.push(Opener::of(head));
        }
        tables.reopen(head.id, seq);
        return;
    }
    let Some(staged) = Staged::parse(record.b).filter(|staged| staged.id == head.id) else {
        tables.notes.push(Note::UnknownFile(head.id));
        return;
    };
    let is_there = head.flags & flag::PUBLISHED != 0;
    let supersedes = is_there && !matches!(tables.overlay(record.a), Some(Claim::Absent | Claim::Left));
    // (What is about to be removed is gone when the turn of the file comes.)
    let replaces = is_there && !tables.claims.last(record.a).is_some_and(|last| tables.is_removal(last));
    tables.expect(record.a, (seq, 0), head.found);
    tables.cover(record.a);
    tables.claim_thing(record.a, (seq, 0), Claim::File(staged));
    tables.open.insert(head.id);
    let file = PlannedFile {
        staged,
        name: record.a.to_vec(),
        former: Vec::new(),
        part_dir: parent(record.a).to_vec(),
        left: Vec::new(),
        bound: seq,
        place: None,
        open_until: seq,
        generation: 0,
        copy: CopyState::Waiting,
        replaces,
        supersedes,
        partial: false,
        is_covered: false,
        removed_at: None,
        turns: Vec::new(),
        in_flight: false,
        begun_bound: 0,
        was_published: false,
        openers: if is_watched { vec![Opener::of(head)] } else { Vec::new() },
        opened_ns: head.time_ns,
        closed_ns: 0,
        owner_changed: false,
        extended_changed: false,
    };
    tables.files.insert(head.id, file);
    tables.created.push(Created { staged, name: record.a.to_vec() });
}

fn closed(tables: &mut Tables, record: &Record<'_>) {
    let head = &record.header;
    let Some(file) = tables.files.get_mut(&head.id) else { return };
    // The shim appends the close of the last descriptor that a process has of the file.
    let closer = Opener::of(head);
    file.openers.retain(|opener| !opener.is(&closer));
    if file.is_covered {
        return;
    }
    file.closed_ns = head.time_ns;
    if head.flags & flag::TAKEN != 0 {
        return tables.taken(head.id, head.seq);
    }
    tables.set_place(head.id, Place { seq: head.seq, sub: 0 });
}

fn renamed(tables: &mut Tables, record: &Record<'_>) {
    let (head, seq) = (&record.header, record.header.seq);
    if record.a == record.b {
        return;
    }
    if head.id == 0 && head.flags & flag::EXCHANGE != 0 {
        tables.unlogged.move_names(|path| exchanged_path(path, record.a, record.b));
        return places_changed(tables, |file| file.exchanged(record.a, record.b));
    }
    if head.id == 0 && head.flags & flag::PARENT != 0 {
        tables.unlogged.move_names(|path| moved_path(path, record.a, record.b));
        return places_changed(tables, |file| file.moved(record.a, record.b));
    }
    let Some(file) = tables.files.get(&head.id) else {
        tables.notes.push(Note::UnknownFile(head.id));
        return;
    };
    if head.flags & flag::PARENT != 0 {
        return moved(tables, record);
    }
    let (old, bound, staged) = (file.name.clone(), file.bound, file.staged);
    tables.expect(record.b, (seq, 0), head.found);
    let at_old = tables.expected.of((bound, 0));
    tables.expected.set((seq, 1), at_old);
    tables.cover(record.b);
    let Some(file) = tables.files.get(&head.id) else { return };
    // (What the PFS had when the file was created may be gone by now: the shim has looked again.)
    let was_on_pfs = head.flags & flag::PUBLISHED != 0 || file.in_flight || file.was_published;
    let keeps_turn =
        file.place.filter(|place| !is_temporary(&old, record.b) && tables.queue.stands_before_others(*place));
    let is_mergeable =
        keeps_turn.is_none() && !was_on_pfs && !tables.claims.has_below_but(&old, (bound, 0), &tables.replay.logged);
    let guard = if keeps_turn.is_some() || was_on_pfs || tables.may_have_below(&old, (bound, 0)) {
        Guard::Any
    } else if tables.replay.is_running {
        Guard::File(staged)
    } else {
        Guard::Nothing
    };
    tables.claims.remove(&old, (bound, 0));
    tables.claim_thing(record.b, (seq, 0), Claim::File(staged));
    tables.claims.set(&old, (seq, 1), if guard == Guard::Any { Claim::Absent } else { Claim::Left });
    tables.leaving.insert(head.id);
    let Some(file) = tables.files.get_mut(&head.id) else { return };
    file.left.push(LeftName { seq, name: old.clone(), guard, is_mergeable });
    file.former.push(old.clone());
    file.name = record.b.to_vec();
    file.bound = seq;
    (file.replaces, file.supersedes) = (false, false);
    let is_open = tables.open.contains(&head.id);
    if !is_open {
        tables.set_place(head.id, Place { seq, sub: 0 });
    }
    if let Some(place) = keeps_turn {
        tables.publish_as_former(head.id, place, FormerName { name: old, bound });
    }
}

/// A directory above a file was renamed, on the PFS too.
fn moved(tables: &mut Tables, record: &Record<'_>) {
    let Some(file) = tables.files.get_mut(&record.header.id) else { return };
    let (from, to) = renamed_dirs(record.a, record.b);
    let (old, bound, staged) = (file.name.clone(), file.bound, file.staged);
    let before = file.left.clone();
    file.moved(from, to);
    let after = file.left.clone();
    file.name = record.b.to_vec();
    tables.claims.remove(&old, (bound, 0));
    tables.claims.set(record.b, (bound, 0), Claim::File(staged));
    for (before, after) in before.iter().zip(after) {
        let key = (before.seq, 1);
        if let Some(claim) = tables.claims.remove(&before.name, key) {
            tables.claims.set(&after.name, key, claim);
        }
    }
}

/// A directory was renamed, or two names were exchanged, on the PFS too: part files, and names that
/// files have left, lie elsewhere now. (After a rename, files below it have records of their own
/// before this one.)
fn places_changed(tables: &mut Tables, change: impl Fn(&mut PlannedFile)) {
    let mut moved = Vec::new();
    for file in tables.files.values_mut() {
        let (name, left) = (file.name.clone(), file.left.clone());
        change(file);
        moved.push(((file.bound, 0), name, file.name.clone()));
        moved.extend(left.into_iter().zip(&file.left).map(|(old, new)| ((old.seq, 1), old.name, new.name.clone())));
    }
    moved.retain(|(_, old, new)| old != new);
    let taken = moved.into_iter().map(|(key, old, new)| (key, new, tables.claims.remove(&old, key)));
    for (key, new, claim) in taken.collect::<Vec<_>>() {
        if let Some(claim) = claim {
            tables.claims.set(&new, key, claim);
        }
    }
}

fn linked(tables: &mut Tables, record: &Record<'_>, name: &[u8], target: &[u8]) {
    let (seq, time_ns) = (record.header.seq, record.header.time_ns);
    tables.expect(name, (seq, 0), record.header.found);
    tables.cover(name);
    tables.claim_thing(name, (seq, 0), Claim::Symlink(target.to_vec()));
    tables.queue.insert(Place { seq, sub: 0 }, Entry::Symlink(name.to_vec(), target.to_vec(), time_ns));
}

/// The new name gets the link, then the old one is removed.
fn link_renamed(tables: &mut Tables, record: &Record<'_>) {
    let seq = record.header.seq;
    if let Some((to, target)) = record.renamed_link() {
        linked(tables, record, to, target);
        unlinked(tables, record, Place { seq, sub: 1 });
    }
}

fn attributes_changed(tables: &mut Tables, id: u64, seq: u64, flags: u16, time_ns: u64) {
    let Some(file) = tables.files.get_mut(&id) else { return };
    if flags & flag::BY_AGENT != 0 {
        // A snapshot of it has its name, or was about to: nothing is expected there.
        file.was_published = true;
        let bound = file.bound;
        tables.expected.set((bound, 0), found::UNKNOWN);
        return;
    }
    file.owner_changed |= flags & flag::OWNER != 0;
    if flags & flag::EXTENDED != 0 {
        // The copy has to be made with them.
        file.extended_changed = true;
        file.generation += 1;
        file.copy = CopyState::Waiting;
        if let Some(place) = file.place {
            tables.queue.want_copy(place);
        }
    }
    // A publication that was begun may have missed them: it is done once more.
    if file.in_flight && file.place.is_none() && !tables.open.contains(&id) {
        file.closed_ns = time_ns;
        tables.set_place(id, Place { seq, sub: 0 });
    }
}
