//! The files, the queue and the claims of a plan, changed together.

use super::claims::{ClaimKey, Claims};
use super::entry::{Entry, FormerName};
use super::expected::Expected;
use super::file::{CopyState, LeftName, PlannedFile, parent};
use super::place::{Guard, Place};
use super::queue::Queue;
use super::replay::Replay;
use super::step::{Claim, Created, Dropped, Expectation, Note};
use super::unlogged::Unlogged;
use monarch_abi::outputs::found;
use std::collections::{BTreeSet, HashMap};

/// What a plan knows.
///
/// Methods: 30, because each keeps files, queue, claims and expectations in step.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) files: HashMap<u64, PlannedFile>,
    pub(super) open: BTreeSet<u64>,
    /// Files that have left a name by a rename.
    pub(super) leaving: BTreeSet<u64>,
    pub(super) queue: Queue,
    pub(super) claims: Claims,
    pub(super) expected: Expected,
    pub(super) unlogged: Unlogged,
    pub(super) replay: Replay,
    pub(super) created: Vec<Created>,
    pub(super) dropped: Vec<Dropped>,
    pub(super) notes: Vec<Note>,
    /// The highest number of a staged file in the records.
    pub(super) max_id: u64,
}

impl Tables {
    /// All open files.
    pub(super) fn open_files(&self) -> impl Iterator<Item = &PlannedFile> {
        self.open.iter().filter_map(|id| self.files.get(id))
    }

    /// The overlay's entry of a name.
    pub(super) fn overlay(&self, name: &[u8]) -> Option<&Claim> {
        Some(self.claims.last(name)?.1)
    }

    /// What the PFS has at a name before a claim that is about to be made: as the record says, or
    /// what the last claim on the name expects. The job finds nothing where it has removed the
    /// name, though the PFS has it until the removal's turn. A claim that was logged before this
    /// record has had its turn, and a removed directory expects nothing: there the record is right.
    pub(super) fn expect(&mut self, name: &[u8], key: ClaimKey, found: u64) {
        let tells = |(key, claim): &(ClaimKey, &Claim)| match found {
            found::UNKNOWN => true,
            found::NOTHING => **claim != Claim::RemovedDir && !self.replay.logged.contains(key),
            _ => false,
        };
        let last = self.claims.last(name).filter(tells);
        self.expected.set(key, last.map_or(found, |(last, _)| self.expected.of(last)));
    }

    /// What the PFS may have at a name when the turn of a claim comes. Things of later claims
    /// count, too: an open file holds up no entry, so an earlier agent may have published those
    /// behind it.
    pub(super) fn expectation(&self, name: &[u8], key: ClaimKey) -> Expectation {
        Expectation { found: self.expected.of(key), own: self.unlogged.of(name) }
    }

    /// These names have changed: what may be there does not matter where nothing is pending.
    pub(super) fn forget_unlogged(&mut self, names: &[Vec<u8>]) {
        for name in names.iter().filter(|name| !self.claims.has(name)) {
            self.unlogged.forget(name);
        }
    }

    /// A file or a link gets a name. What this agent puts there is remembered when it begins to.
    pub(super) fn claim_thing(&mut self, name: &[u8], key: ClaimKey, claim: Claim) {
        if self.replay.is_running
            && let Some(thing) = claim.thing()
        {
            self.unlogged.add(name, key, thing);
        }
        self.claims.set(name, key, claim);
    }

    /// A name has this on the PFS since the turn of a claim: later claims on it find that, and this
    /// one if it has another turn.
    pub(super) fn found_after(&mut self, name: &[u8], key: ClaimKey, found: u64) {
        self.unlogged.logged(name, key, found != found::UNKNOWN);
        let formers = self.former_claims(name).filter(|former| *former > key);
        let claims: Vec<ClaimKey> = self.claims.since(name, key).chain(formers).collect();
        for claim in claims {
            self.expected.set(claim, found);
        }
    }

    /// A removal had its turn. One of a single thing leaves what else has the name.
    pub(super) fn removed(&mut self, name: &[u8], key: ClaimKey, guard: &Guard) {
        match guard {
            Guard::Any => self.found_after(name, key, found::NOTHING),
            Guard::File(_) | Guard::Symlink(_) => self.unlogged.forget_thing(name, guard),
            Guard::Nothing => {}
        }
    }

    /// Claims of files on a name that they have left since, and get in their turn.
    fn former_claims(&self, name: &[u8]) -> impl Iterator<Item = ClaimKey> {
        self.queue.formers().filter(move |former| former.name == name).map(|former| (former.bound, 0))
    }

    pub(super) fn set_place(&mut self, id: u64, place: Place) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if let Some(old) = file.place.replace(place) {
            self.queue.remove(old);
        }
        self.open.remove(&id);
        if file.copy == CopyState::Waiting {
            self.queue.want_copy(place);
        }
        self.queue.insert(place, Entry::File(id));
    }

    pub(super) fn clear_place(&mut self, id: u64) {
        let Some(place) = self.files.get_mut(&id).and_then(|file| file.place.take()) else { return };
        self.queue.remove(place);
    }

    /// A file that was renamed gets its former name first, at the place that it had.
    pub(super) fn publish_as_former(&mut self, id: u64, place: Place, former: FormerName) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.turns.push(place);
        if file.copy == CopyState::Waiting {
            self.queue.want_copy(place);
        }
        self.queue.insert(place, Entry::Former(id, former));
    }

    /// A file is published under its last name only.
    pub(super) fn forget_turns(&mut self, id: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        for place in std::mem::take(&mut file.turns) {
            self.queue.remove(place);
        }
    }

    /// The file is open: it has no place.
    pub(super) fn reopen(&mut self, id: u64, open_until: u64) {
        if self.files.get(&id).is_some_and(|file| file.is_covered && !file.in_flight) {
            return self.lose(id);
        }
        self.clear_place(id);
        // What it had then is not kept.
        self.forget_turns(id);
        if !self.replay.is_running && self.files.get(&id).is_some_and(|file| file.is_covered) {
            return self.unlink_left_since_begin(id);
        }
        self.open.insert(id);
        if let Some(file) = self.files.get_mut(&id) {
            file.open_until = file.open_until.max(open_until);
        }
    }

    /// Whether the PFS may have something of a name when the turn of a claim comes. What is removed
    /// right before is gone by then: a second removal would be that of what plain calls have put
    /// there since, of which no record tells.
    pub(super) fn may_have_below(&self, name: &[u8], key: ClaimKey) -> bool {
        let last = self.claims.before(name, key);
        !last.is_some_and(|last| self.is_removal(last)) && self.claims.has_below(name, key)
    }

    /// Whether a claim is that of an entry which removes whatever the PFS has of the name.
    pub(super) fn is_removal(&self, (key, claim): (ClaimKey, &Claim)) -> bool {
        let place = Place { seq: key.0, sub: key.1 };
        let entry = self.queue.get(place).or_else(|| self.queue.begun(place));
        *claim == Claim::Absent && matches!(entry, Some(Entry::Unlink(_, Guard::Any, _)))
    }

    pub(super) fn enqueue_unlink(&mut self, place: Place, path: &[u8], guard: Guard, time_ns: u64) {
        let claim = if guard == Guard::Nothing { Claim::Left } else { Claim::Absent };
        self.claims.set(path, (place.seq, place.sub), claim);
        self.queue.insert(place, Entry::Unlink(path.to_vec(), guard, time_ns));
    }

    /// Removes the names that a cancelled file has left behind, in the places of its renames: what
    /// has got them since stays. Gives the places.
    pub(super) fn unlink_left(&mut self, left: Vec<LeftName>, time_ns: u64) -> Vec<Place> {
        let unlink = |LeftName { seq, name, guard, .. }| {
            let place = self.queue.free_place(seq, 1);
            self.expected.copy((seq, 1), (place.seq, place.sub));
            self.enqueue_unlink(place, &name, guard, time_ns);
            place
        };
        left.into_iter().map(unlink).collect()
    }

    /// A file is done with when its publication is: removes the names that it has left since that
    /// was begun.
    fn unlink_left_since_begin(&mut self, id: u64) {
        let Some(begun) = self.queue.publishing_place(id) else { return };
        let Some(file) = self.files.get_mut(&id) else { return };
        let (left, since) = std::mem::take(&mut file.left).into_iter().partition(|left| left.seq <= begun.seq);
        file.left = left;
        self.unlink_left(since, 0);
    }

    /// The job removes a directory: what the PFS still has there of files that have left it, and
    /// are open, is removed before, and not with them.
    pub(super) fn unlink_left_in(&mut self, dir: &[u8], time_ns: u64) {
        let mut gone = Vec::new();
        for id in self.leaving.intersection(&self.open) {
            let Some(file) = self.files.get_mut(id) else { continue };
            let is_there = |left: &LeftName| parent(&left.name) == dir && left.guard != Guard::Nothing;
            let (there, rest) = std::mem::take(&mut file.left).into_iter().partition(is_there);
            file.left = rest;
            gone.extend::<Vec<_>>(there);
        }
        self.unlink_left(gone, time_ns);
    }

    /// Another thing gets the name: a file that had it and is still open is lost, as it would be on
    /// the PFS. A closed one keeps its place.
    pub(super) fn cover(&mut self, name: &[u8]) {
        let Some((_, Claim::File(file))) = self.claims.last(name) else { return };
        let id = file.id;
        if self.open.contains(&id) {
            self.lose(id);
        } else if let Some(file) = self.files.get_mut(&id) {
            file.is_covered = true;
        }
    }

    /// Cancels a file; what it has left behind is removed.
    pub(super) fn lose(&mut self, id: u64) {
        let Some(file) = self.files.get(&id) else { return };
        let (staged, name, bound) = (file.staged, file.name.clone(), file.bound);
        let is_in_flight = file.in_flight;
        self.cancel_with_left(id);
        if self.replay.is_running || is_in_flight {
            // It may be on the PFS, of an earlier agent that has not logged that or in a moment.
            let place = self.queue.free_place(bound, 1);
            self.expected.copy((bound, 0), (place.seq, place.sub));
            self.enqueue_unlink(place, &name, Guard::File(staged), 0);
            self.note_left_by(id, [place]);
        }
    }

    /// A plain call has given the name of a file to something else, before this record: the file is
    /// cancelled, and what has the name now stays.
    pub(super) fn taken(&mut self, id: u64, seq: u64) {
        let Some(file) = self.files.get(&id) else { return };
        let (staged, name, bound) = (file.staged, file.name.clone(), file.bound);
        // Its publication may come after that call.
        let guard = if file.in_flight { Guard::File(staged) } else { Guard::Nothing };
        // What files have left there is gone as well.
        self.replaced(&name, seq);
        self.cancel_with_left(id);
        // The shim may have been killed before it removed the link of the overlay. No claim: the
        // name is not hidden until then.
        let place = self.queue.free_place(bound, 1);
        self.queue.insert(place, Entry::Unlink(name, guard, 0));
    }

    fn cancel_with_left(&mut self, id: u64) {
        let left = self.files.get(&id).map(|file| file.left.clone()).unwrap_or_default();
        self.cancel(id);
        let places = self.unlink_left(left, 0);
        self.note_left_by(id, places);
    }

    fn note_left_by(&mut self, id: u64, places: impl IntoIterator<Item = Place>) {
        if self.replay.is_running {
            self.replay.left_by.extend(places.into_iter().map(|place| (place, id)));
        }
    }

    /// Forgets a file; its data and its part file are not needed.
    pub(super) fn cancel(&mut self, id: u64) {
        self.clear_place(id);
        self.forget_turns(id);
        self.open.remove(&id);
        self.leaving.remove(&id);
        let Some(file) = self.files.remove(&id) else { return };
        if let Some(removal) = file.removed_at {
            self.queue.forget_removal(removal);
        }
        self.claims.remove(&file.name, (file.bound, 0));
        for left in &file.left {
            self.claims.remove(&left.name, (left.seq, 1));
        }
        let part_dir = file.part_dir.clone();
        self.dropped.push(Dropped { staged: file.staged, part_dir, name: file.name });
    }

    /// Cancels a file that the next entry replaces; the names that it has left. What an earlier
    /// agent may have published under them is removed.
    pub(super) fn leave_out(&mut self, id: u64) -> Vec<Vec<u8>> {
        let left = self.files.get(&id).map(|file| file.left.clone()).unwrap_or_default();
        let names = left.iter().map(|left| left.name.clone()).collect();
        self.cancel(id);
        self.unlink_left(left.into_iter().filter(|left| left.guard != Guard::Nothing).collect(), 0);
        names
    }

    /// Removes a published file from the plan; names whose claims went with it.
    pub(super) fn forget(&mut self, id: u64) -> Vec<Vec<u8>> {
        self.leaving.remove(&id);
        self.forget_turns(id);
        let Some(file) = self.files.remove(&id) else { return Vec::new() };
        self.claims.remove(&file.name, (file.bound, 0));
        for left in &file.left {
            self.claims.remove(&left.name, (left.seq, 1));
        }
        file.left.into_iter().map(|left| left.name).chain([file.name]).collect()
    }

    /// Another thing, which got the name by record `bound`, is published under it, or that record's
    /// removal is: what earlier records left there is gone.
    pub(super) fn replaced(&mut self, name: &[u8], bound: u64) {
        let mut gone = Vec::new();
        for id in &self.leaving {
            let Some(file) = self.files.get_mut(id) else { continue };
            file.left.retain(|left| {
                let is_gone = left.name == name && left.seq < bound;
                if is_gone {
                    gone.push(left.seq);
                }
                !is_gone
            });
        }
        for seq in gone {
            self.claims.remove(name, (seq, 1));
        }
        self.forget_left_by_lost(name, bound);
    }

    /// The same, for names that files have left that are lost in a restart.
    fn forget_left_by_lost(&mut self, name: &[u8], bound: u64) {
        let is_of_name =
            |place: &Place| matches!(self.queue.get(*place), Some(Entry::Unlink(path, ..)) if path == name);
        let gone: Vec<Place> =
            self.replay.left_by.keys().copied().filter(|place| place.seq < bound && is_of_name(place)).collect();
        for place in gone {
            self.replay.left_by.remove(&place);
            self.queue.remove(place);
            self.replay.done.push((name.to_vec(), (place.seq, place.sub)));
        }
    }
}
