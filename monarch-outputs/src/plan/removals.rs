//! Which removals cancel what they remove, and which come after it.

use super::entry::Entry;
use super::file::LeftName;
use super::place::{Guard, Place};
use super::step::Claim;
use super::tables::Tables;
use monarch_abi::outputs::found;
use monarch_abi::outputs::record::{Record, flag};
use std::collections::BTreeSet;

/// The record removes its first name, in a place.
pub(super) fn unlinked(tables: &mut Tables, record: &Record<'_>, here: Place) {
    let head = &record.header;
    // (What a renamed link's record tells is of its new name.)
    tables.expect(record.a, (here.seq, here.sub), if here.sub == 0 { head.found } else { found::UNKNOWN });
    let mut guard = (head.flags & flag::PUBLISHED != 0).then_some(Guard::Any);
    let top = tables.claims.last(record.a).map(|(key, claim)| (key, claim.clone()));
    let id = match (&top, head.id) {
        (Some((_, Claim::File(file))), 0) => file.id,
        (_, id) => id,
    };
    let mut left = Vec::new();
    if keeps_turn(tables, id) {
        // It is published in its turn, and removed in that of this record.
        guard = Some(Guard::Any);
        tables.open.remove(&id);
        if let Some(file) = tables.files.get_mut(&id) {
            file.is_covered = true;
            if file.place.is_some() {
                file.removed_at = Some(here);
                tables.queue.add_removal(here, id);
            }
        }
    } else if let Some(file) = tables.files.get(&id) {
        let below = tables.may_have_below(&file.name, (file.bound, 0));
        if file.in_flight || file.was_published || below {
            guard = Some(Guard::Any);
        } else if tables.replay.is_running {
            guard = guard.or(Some(Guard::File(file.staged)));
        }
        left.clone_from(&file.left);
        tables.cancel(id);
    } else if id != 0 {
        // It was published: the name is on the PFS.
        guard = Some(Guard::Any);
    } else if let Some((key, Claim::Symlink(target))) = top {
        let place = Place { seq: key.0, sub: key.1 };
        let target = target.clone();
        let keeps_turn = tables.queue.contains(place) && tables.queue.stands_before_others(place);
        let is_queued = !keeps_turn && tables.queue.remove(place).is_some();
        if !keeps_turn {
            tables.claims.remove(record.a, key);
        }
        if !is_queued || tables.claims.has(record.a) {
            guard = Some(Guard::Any);
        } else if tables.replay.is_running {
            guard = guard.or(Some(Guard::Symlink(target)));
        }
    } else if top.is_some() {
        guard = Some(Guard::Any);
    }
    // The shim may leave a whiteout, as the agent may be publishing something under the name
    // just then: an entry removes it.
    tables.enqueue_unlink(here, record.a, guard.unwrap_or(Guard::Nothing), head.time_ns);
    tables.unlink_left(left, head.time_ns);
    if tables.queue.removal(here).is_some() {
        cancel_removed(tables);
    }
}

/// Whether a pending file has to be published though the job removes it now: without it, the
/// entries after it would make a state of the PFS that the job never had.
fn keeps_turn(tables: &Tables, id: u64) -> bool {
    let Some(file) = tables.files.get(&id) else { return false };
    if !file.turns.is_empty() {
        return true;
    }
    let begun = || {
        let place = tables.queue.begun_place(id)?;
        // One that was renamed during its publication leaves a name behind, to be removed now.
        file.left.iter().all(|left| left.seq <= place.seq).then_some(place)
    };
    let place = if file.in_flight { file.place.or_else(begun) } else { file.place };
    // What it has left behind would go at an earlier place, where others may have been folded.
    let leaves = file.left.iter().any(LeftName::holds_its_place);
    place.is_some_and(|place| leaves || tables.queue.stands_before_others(place))
}

/// Whether the PFS has nothing of a file's names, now and before its place.
fn leaves_nothing(tables: &Tables, id: u64) -> bool {
    tables.files.get(&id).is_some_and(|file| {
        let is_new = !file.in_flight && !file.was_published && !file.replaces && file.turns.is_empty();
        let leaves = file.left.iter().any(|left| left.guard != Guard::Nothing);
        is_new && !leaves && !tables.claims.has_below(&file.name, (file.bound, 0))
    })
}

/// Cancels the files of the last entries if these do nothing but make and remove them.
fn cancel_removed(tables: &mut Tables) {
    let mut left: BTreeSet<u64> = BTreeSet::new();
    let mut made = Vec::new();
    for (place, entry) in tables.queue.last_first() {
        if tables.queue.others_wrote_since(place) {
            return;
        }
        match entry {
            Entry::Unlink(_, Guard::Nothing, _) => {}
            Entry::Unlink(..) => match tables.queue.removal(place) {
                Some(id) => drop(left.insert(id)),
                None => return,
            },
            Entry::File(id) if left.remove(id) && leaves_nothing(tables, *id) => {
                made.push(*id);
                if left.is_empty() {
                    break;
                }
            }
            _ => return,
        }
    }
    if left.is_empty() {
        for id in made {
            let left = tables.files.get(&id).map(|file| file.left.clone()).unwrap_or_default();
            tables.cancel(id);
            tables.unlink_left(left, 0);
        }
    }
}
