//! The order of publication: records of the journal and facts go in, what to do next comes out.
//! No input or output, no clock.
//!
//! * The *queue* holds what is to be published, by [`Place`]: a file at its last close or rename,
//!   anything else at its record. Only its first entry may be published.
//! * A file that is open has no place and holds up no entry. It gets one by its next close, or when
//!   it is found closed: right after the last record that was made while it was open.
//! * Before an entry is published, every open file is tried once more after the entry's record was
//!   read, so that a file closed without a record does not come too late.
//! * *Claims* say what each name is for the job. They rebuild the overlay, and tell which entries
//!   hide others.
//! * A removal or a rename is merged into the publication of its file only where that makes no
//!   state of the PFS that the job never had: where nothing else stands between. Else the file is
//!   published at its place, with the name that it had there ([`Entry::Former`]).
//! * A step is begun, done, and committed. What records say of its file in between decides at the
//!   commit whether the file is finished or has to be published again.
//! * A restart feeds the journal again, and between its records the entries of the log of what was
//!   published.

mod asked;
mod claims;
mod file;
#[cfg(test)]
mod model_tests;
mod others;
mod place;
mod step;
#[cfg(test)]
mod tests;

pub use asked::place_of;
use claims::{ClaimKey, Claims};
use file::renamed_dirs;
pub use file::{CopyState, LeftName, PlannedFile, join, parent};
use others::OtherNodes;
pub use place::{FOUND, Guard, Place};
pub use step::{Action, Claim, Committed, CopyRequest, Created, Dropped, FileStep, Note, Step, Vacate};

use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::record::{Op, Record, flag};
use monarch_abi::outputs::through::is_temporary;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

/// An entry of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The staged file of that number.
    File(u64),
    /// The staged file of that number under a name that it has left since: something else came
    /// between that name and the rename.
    Former(u64, FormerName),
    /// A removal of a name, and when it was made, nanoseconds since 1970.
    Unlink(Vec<u8>, Guard, u64),
    /// A removal of a directory.
    Rmdir(Vec<u8>, u64),
    /// A symbolic link and its target.
    Symlink(Vec<u8>, Vec<u8>, u64),
}

/// A name that a file has left by a rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerName {
    /// The name.
    pub name: Vec<u8>,
    /// The record that gave it to the file.
    pub bound: u64,
}

impl Entry {
    /// The staged file that it publishes.
    #[must_use]
    pub const fn file(&self) -> Option<u64> {
        match self {
            Self::File(id) | Self::Former(id, _) => Some(*id),
            _ => None,
        }
    }
}

/// The plan of one output root.
///
/// Methods: 69, because facts, questions and the rules between them share all of its maps.
/// Fields: 17, for the same reason.
#[derive(Debug, Default)]
pub struct Planner {
    files: HashMap<u64, PlannedFile>,
    queue: BTreeMap<Place, Entry>,
    in_flight: BTreeMap<Place, Entry>,
    claims: Claims,
    open: BTreeSet<u64>,
    to_copy: BTreeSet<Place>,
    leaving: BTreeSet<u64>,
    created: Vec<Created>,
    dropped: Vec<Dropped>,
    notes: Vec<Note>,
    /// Files that are published in their turn although the job has removed them, by the place of
    /// the removal.
    removals: BTreeMap<Place, u64>,
    last_seq: u64,
    others: OtherNodes,
    max_id: u64,
    is_replaying: bool,
    /// Claims of steps that were logged: they count until the old journal is read.
    replayed: Vec<(Vec<u8>, ClaimKey)>,
    /// Claims of steps and files that were logged. (The agent that did these steps had forgotten
    /// most of them when it decided about later records.)
    logged: BTreeSet<ClaimKey>,
}

impl Planner {
    /// A plan of a journal whose records up to `seq` are done with.
    #[must_use]
    pub fn after(seq: u64) -> Self {
        Self { last_seq: seq, ..Self::default() }
    }

    // --- records ---

    /// Takes in a record. Records that were taken in before are ignored.
    pub fn record(&mut self, record: &Record<'_>) {
        let (head, seq) = (&record.header, record.header.seq);
        if seq <= self.last_seq {
            return;
        }
        self.last_seq = seq;
        self.max_id = self.max_id.max(head.id);
        self.others.record(seq, head.node_news);
        match record.op {
            Op::Open => self.opened(record),
            Op::Close => self.closed(head.id, seq, head.pid, head.time_ns),
            Op::Rename => self.renamed(record),
            Op::Unlink => self.unlinked(record, Place { seq, sub: 0 }),
            Op::Rmdir => {
                self.claims.set(record.a, (seq, 0), Claim::RemovedDir);
                self.queue.insert(Place { seq, sub: 0 }, Entry::Rmdir(record.a.to_vec(), head.time_ns));
            }
            Op::Symlink => self.linked(record.a, record.b, seq, head.time_ns),
            Op::RenameLink => self.link_renamed(record),
            Op::Attributes => self.attributes_changed(head.id, seq, head.flags, head.time_ns),
            // It has its number, and no entry: open files are tried after it was read.
            Op::Barrier => {}
        }
    }

    fn opened(&mut self, record: &Record<'_>) {
        let (head, seq) = (&record.header, record.header.seq);
        let is_watched = head.flags & flag::UNWATCHED == 0;
        if let Some(file) = self.files.get_mut(&head.id) {
            file.generation += 1;
            file.copy = CopyState::Waiting;
            if is_watched {
                file.openers.push(head.pid);
            }
            self.reopen(head.id, seq);
            return;
        }
        let Some(staged) = Staged::parse(record.b).filter(|staged| staged.id == head.id) else {
            self.notes.push(Note::UnknownFile(head.id));
            return;
        };
        let replaces = head.flags & flag::PUBLISHED != 0;
        let supersedes = replaces && !matches!(self.overlay(record.a), Some(Claim::Absent | Claim::Left));
        self.cover(record.a);
        self.claims.set(record.a, (seq, 0), Claim::File(staged));
        self.open.insert(head.id);
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
            was_published: false,
            openers: if is_watched { vec![head.pid] } else { Vec::new() },
            opened_ns: head.time_ns,
            closed_ns: 0,
            owner_changed: false,
            extended_changed: false,
        };
        self.files.insert(head.id, file);
        self.created.push(Created { staged, name: record.a.to_vec() });
    }

    fn closed(&mut self, id: u64, seq: u64, pid: u32, time_ns: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        // The shim appends the close of the last descriptor that a process has of the file.
        file.openers.retain(|opener| *opener != pid);
        if file.is_covered {
            return;
        }
        file.closed_ns = time_ns;
        self.set_place(id, Place { seq, sub: 0 });
    }

    fn renamed(&mut self, record: &Record<'_>) {
        let (head, seq) = (&record.header, record.header.seq);
        if record.a == record.b {
            return;
        }
        let Some(file) = self.files.get(&head.id) else {
            self.notes.push(Note::UnknownFile(head.id));
            return;
        };
        if head.flags & flag::PARENT != 0 {
            return self.moved(record);
        }
        let (old, bound, staged) = (file.name.clone(), file.bound, file.staged);
        self.cover(record.b);
        let Some(file) = self.files.get(&head.id) else { return };
        let was_on_pfs = head.flags & flag::PUBLISHED != 0 || file.replaces || file.in_flight || file.was_published;
        let keeps_turn = file.place.filter(|place| !is_temporary(&old, record.b) && self.stands_before_others(*place));
        let is_mergeable =
            keeps_turn.is_none() && !was_on_pfs && !self.claims.has_below_but(&old, (bound, 0), &self.logged);
        let guard = if !is_mergeable || self.claims.has_below(&old, (bound, 0)) {
            Guard::Any
        } else if self.is_replaying {
            Guard::File(staged)
        } else {
            Guard::Nothing
        };
        self.claims.remove(&old, (bound, 0));
        self.claims.set(record.b, (seq, 0), Claim::File(staged));
        self.claims.set(&old, (seq, 1), if guard == Guard::Any { Claim::Absent } else { Claim::Left });
        self.leaving.insert(head.id);
        let Some(file) = self.files.get_mut(&head.id) else { return };
        file.left.push(LeftName { seq, name: old.clone(), guard, is_mergeable });
        file.former.push(old.clone());
        file.name = record.b.to_vec();
        file.bound = seq;
        (file.replaces, file.supersedes) = (false, false);
        let is_open = self.open.contains(&head.id);
        if !is_open {
            self.set_place(head.id, Place { seq, sub: 0 });
        }
        if let Some(place) = keeps_turn {
            self.publish_as_former(head.id, place, FormerName { name: old, bound });
        }
    }

    /// A file that was renamed gets its former name first, at the place that it had.
    fn publish_as_former(&mut self, id: u64, place: Place, former: FormerName) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.turns.push(place);
        if file.copy == CopyState::Waiting {
            self.to_copy.insert(place);
        }
        self.queue.insert(place, Entry::Former(id, former));
    }

    /// A file is published under its last name only.
    fn forget_turns(&mut self, id: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        for place in std::mem::take(&mut file.turns) {
            self.queue.remove(&place);
            self.to_copy.remove(&place);
        }
    }

    /// A directory above a file was renamed, on the PFS too.
    fn moved(&mut self, record: &Record<'_>) {
        let Some(file) = self.files.get_mut(&record.header.id) else { return };
        let (from, to) = renamed_dirs(record.a, record.b);
        let (old, bound, staged) = (file.name.clone(), file.bound, file.staged);
        let before = file.left.clone();
        file.moved(from, to);
        let after = file.left.clone();
        file.name = record.b.to_vec();
        self.claims.remove(&old, (bound, 0));
        self.claims.set(record.b, (bound, 0), Claim::File(staged));
        for (before, after) in before.iter().zip(after) {
            let key = (before.seq, 1);
            if let Some(claim) = self.claims.remove(&before.name, key) {
                self.claims.set(&after.name, key, claim);
            }
        }
    }

    fn linked(&mut self, name: &[u8], target: &[u8], seq: u64, time_ns: u64) {
        self.cover(name);
        self.claims.set(name, (seq, 0), Claim::Symlink(target.to_vec()));
        self.queue.insert(Place { seq, sub: 0 }, Entry::Symlink(name.to_vec(), target.to_vec(), time_ns));
    }

    /// The new name gets the link, then the old one is removed.
    fn link_renamed(&mut self, record: &Record<'_>) {
        let (head, seq) = (&record.header, record.header.seq);
        if let Some((to, target)) = record.renamed_link() {
            self.linked(to, target, seq, head.time_ns);
            self.unlinked(record, Place { seq, sub: 1 });
        }
    }

    /// The record removes its first name, in a place.
    fn unlinked(&mut self, record: &Record<'_>, here: Place) {
        let head = &record.header;
        let mut guard = (head.flags & flag::PUBLISHED != 0).then_some(Guard::Any);
        let top = self.claims.last(record.a).map(|(key, claim)| (key, claim.clone()));
        let id = match (&top, head.id) {
            (Some((_, Claim::File(file))), 0) => file.id,
            (_, id) => id,
        };
        let mut left = Vec::new();
        if self.keeps_turn(id) {
            // It is published in its turn, and removed in that of this record.
            guard = Some(Guard::Any);
            self.open.remove(&id);
            if let Some(file) = self.files.get_mut(&id) {
                file.is_covered = true;
                if file.place.is_some() {
                    file.removed_at = Some(here);
                    self.removals.insert(here, id);
                }
            }
        } else if let Some(file) = self.files.get(&id) {
            let below = self.claims.has_below(&file.name, (file.bound, 0));
            if file.in_flight || file.was_published || file.replaces || below {
                guard = Some(Guard::Any);
            } else if self.is_replaying {
                guard = guard.or(Some(Guard::File(file.staged)));
            }
            left.clone_from(&file.left);
            self.cancel(id);
        } else if id != 0 {
            // It was published: the name is on the PFS.
            guard = Some(Guard::Any);
        } else if let Some((key, Claim::Symlink(target))) = top {
            let place = Place { seq: key.0, sub: key.1 };
            let target = target.clone();
            let keeps_turn = self.queue.contains_key(&place) && self.stands_before_others(place);
            let is_queued = !keeps_turn && self.queue.remove(&place).is_some();
            if !keeps_turn {
                self.claims.remove(record.a, key);
            }
            if !is_queued || self.claims.has(record.a) {
                guard = Some(Guard::Any);
            } else if self.is_replaying {
                guard = guard.or(Some(Guard::Symlink(target)));
            }
        } else if top.is_some() {
            guard = Some(Guard::Any);
        }
        // The shim may leave a whiteout, as the agent may be publishing something under the name
        // just then: an entry removes it.
        self.enqueue_unlink(here, record.a, guard.unwrap_or(Guard::Nothing), head.time_ns);
        self.unlink_left(left, head.time_ns);
        if self.removals.contains_key(&here) {
            self.cancel_removed();
        }
    }

    /// Whether a pending file has to be published though the job removes it now: without it, the
    /// entries after it would make a state of the PFS that the job never had.
    fn keeps_turn(&self, id: u64) -> bool {
        let Some(file) = self.files.get(&id) else { return false };
        if !file.turns.is_empty() {
            return true;
        }
        let begun = || {
            let (place, _) = self.in_flight.iter().find(|(_, entry)| **entry == Entry::File(id))?;
            // One that was renamed during its publication leaves a name behind, to be removed now.
            file.left.iter().all(|left| left.seq <= place.seq).then_some(*place)
        };
        let place = if file.in_flight { file.place.or_else(begun) } else { file.place };
        // What it has left behind would go at an earlier place, where others may have been folded.
        let leaves = file.left.iter().any(LeftName::holds_its_place);
        place.is_some_and(|place| leaves || self.stands_before_others(place))
    }

    /// Whether an entry that changes the PFS stands behind a place, here or on another node.
    fn stands_before_others(&self, place: Place) -> bool {
        if self.others.wrote_between(place.seq, self.last_seq) {
            return true;
        }
        // (What an earlier agent may have published changes nothing if it has not.)
        let changes_nothing = |entry: &Entry| matches!(entry, Entry::Unlink(_, guard, _) if *guard != Guard::Any);
        let behind = (Bound::Excluded(place), Bound::Unbounded);
        let mut entries = self.in_flight.range(behind).chain(self.queue.range(behind));
        entries.any(|(_, entry)| !changes_nothing(entry))
    }

    /// Whether the PFS has nothing of a file's names, now and before its place.
    fn leaves_nothing(&self, id: u64) -> bool {
        self.files.get(&id).is_some_and(|file| {
            let is_new = !file.in_flight && !file.was_published && !file.replaces && file.turns.is_empty();
            let leaves = file.left.iter().any(|left| left.guard != Guard::Nothing);
            is_new && !leaves && !self.claims.has_below(&file.name, (file.bound, 0))
        })
    }

    /// Cancels the files of the last entries if these do nothing but make and remove them.
    fn cancel_removed(&mut self) {
        let mut left: BTreeSet<u64> = BTreeSet::new();
        let mut made = Vec::new();
        for (place, entry) in self.queue.iter().rev() {
            if self.others.wrote_between(place.seq, self.last_seq) {
                return;
            }
            match entry {
                Entry::Unlink(_, Guard::Nothing, _) => {}
                Entry::Unlink(..) => match self.removals.get(place) {
                    Some(id) => drop(left.insert(*id)),
                    None => return,
                },
                Entry::File(id) if left.remove(id) && self.leaves_nothing(*id) => {
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
                let left = self.files.get(&id).map(|file| file.left.clone()).unwrap_or_default();
                self.cancel(id);
                self.unlink_left(left, 0);
            }
        }
    }

    /// Removes the names that a cancelled file has left behind, in the places of its renames: what
    /// has got them since stays.
    fn unlink_left(&mut self, left: Vec<LeftName>, time_ns: u64) {
        for LeftName { seq, name, guard, .. } in left {
            let place = self.free_place(seq, 1);
            self.enqueue_unlink(place, &name, guard, time_ns);
        }
    }

    fn enqueue_unlink(&mut self, place: Place, path: &[u8], guard: Guard, time_ns: u64) {
        let claim = if guard == Guard::Nothing { Claim::Left } else { Claim::Absent };
        self.claims.set(path, (place.seq, place.sub), claim);
        self.queue.insert(place, Entry::Unlink(path.to_vec(), guard, time_ns));
    }

    fn attributes_changed(&mut self, id: u64, seq: u64, flags: u16, time_ns: u64) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if flags & flag::BY_AGENT != 0 {
            // A snapshot of it has its name.
            file.was_published = true;
            return;
        }
        file.owner_changed |= flags & flag::OWNER != 0;
        if flags & flag::EXTENDED != 0 {
            // The copy has to be made with them.
            file.extended_changed = true;
            file.generation += 1;
            file.copy = CopyState::Waiting;
            if let Some(place) = file.place {
                self.to_copy.insert(place);
            }
        }
        // A publication that was begun may have missed them: it is done once more.
        if file.in_flight && file.place.is_none() && !self.open.contains(&id) {
            file.closed_ns = time_ns;
            self.set_place(id, Place { seq, sub: 0 });
        }
    }

    // --- names ---

    /// Another thing gets the name: a file that had it and is still open is lost, as it would be on
    /// the PFS. A closed one keeps its place.
    fn cover(&mut self, name: &[u8]) {
        let Some((_, Claim::File(file))) = self.claims.last(name) else { return };
        let id = file.id;
        if self.open.contains(&id) {
            self.lose(id);
        } else if let Some(file) = self.files.get_mut(&id) {
            file.is_covered = true;
        }
    }

    /// Cancels a file; what it has left behind is removed.
    fn lose(&mut self, id: u64) {
        let Some(file) = self.files.get(&id) else { return };
        let (staged, name, bound, left) = (file.staged, file.name.clone(), file.bound, file.left.clone());
        let is_in_flight = file.in_flight;
        self.cancel(id);
        self.unlink_left(left, 0);
        if self.is_replaying || is_in_flight {
            // It may be on the PFS, of an earlier agent that has not logged that or in a moment.
            let place = self.free_place(bound, 1);
            self.enqueue_unlink(place, &name, Guard::File(staged), 0);
        }
    }

    /// The overlay's entry of a name.
    #[must_use]
    pub fn overlay(&self, name: &[u8]) -> Option<&Claim> {
        Some(self.claims.last(name)?.1)
    }

    /// The name that a step makes, if the job sees nothing of that name any more.
    #[must_use]
    pub fn hidden_by_job<'s>(&self, step: &'s Step) -> Option<&'s [u8]> {
        let name = match &step.action {
            Action::Publish(file) => file.target.as_slice(),
            Action::Symlink(path, _) => path,
            _ => return None,
        };
        matches!(self.overlay(name), Some(Claim::Absent | Claim::Left)).then_some(name)
    }

    /// All names of the overlay.
    pub fn names(&self) -> impl Iterator<Item = (&[u8], &Claim)> {
        self.claims.names()
    }

    // --- places ---

    fn set_place(&mut self, id: u64, place: Place) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if let Some(old) = file.place.replace(place) {
            self.queue.remove(&old);
            self.to_copy.remove(&old);
        }
        self.open.remove(&id);
        if file.copy == CopyState::Waiting {
            self.to_copy.insert(place);
        }
        self.queue.insert(place, Entry::File(id));
    }

    fn clear_place(&mut self, id: u64) {
        let Some(place) = self.files.get_mut(&id).and_then(|file| file.place.take()) else { return };
        self.queue.remove(&place);
        self.to_copy.remove(&place);
    }

    fn free_place(&self, seq: u64, from: u32) -> Place {
        let mut place = Place { seq, sub: from };
        while self.queue.contains_key(&place) || self.in_flight.contains_key(&place) {
            place.sub += 1;
        }
        place
    }

    /// The file is open: it has no place.
    fn reopen(&mut self, id: u64, open_until: u64) {
        if self.files.get(&id).is_some_and(|file| file.is_covered && !file.in_flight) {
            return self.lose(id);
        }
        self.clear_place(id);
        // What it had then is not kept.
        self.forget_turns(id);
        self.open.insert(id);
        if let Some(file) = self.files.get_mut(&id) {
            file.open_until = file.open_until.max(open_until);
        }
    }

    /// Forgets a file; its data and its part file are not needed.
    fn cancel(&mut self, id: u64) {
        self.clear_place(id);
        self.forget_turns(id);
        self.open.remove(&id);
        self.leaving.remove(&id);
        let Some(file) = self.files.remove(&id) else { return };
        if let Some(removal) = file.removed_at {
            self.removals.remove(&removal);
        }
        self.claims.remove(&file.name, (file.bound, 0));
        for left in &file.left {
            self.claims.remove(&left.name, (left.seq, 1));
        }
        let part_dir = file.part_dir.clone();
        self.dropped.push(Dropped { staged: file.staged, part_dir, name: file.name });
    }

    // --- facts ---

    /// A lease of an open file was granted or refused just now, after all records so far were read.
    /// `is_killed`: a process that opened the file ended without closing it.
    pub fn lease(&mut self, id: u64, is_granted: bool, is_killed: bool, now_ns: u64) {
        if !self.open.contains(&id) {
            return;
        }
        let last = self.last_seq;
        let Some(file) = self.files.get_mut(&id) else { return };
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
            self.notes.push(note);
        }
        let place = self.free_place(after, FOUND);
        self.set_place(id, place);
    }

    /// The copy of a file was made.
    pub fn copied(&mut self, id: u64, generation: u64) {
        if let Some(file) = self.files.get_mut(&id).filter(|file| file.generation == generation) {
            file.copy = CopyState::Done;
            for place in file.turns.iter().chain(&file.place) {
                self.to_copy.remove(place);
            }
        }
    }

    /// No lease was granted for the copy, or it was broken: the file is open.
    pub fn copy_refused(&mut self, id: u64, generation: u64) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.generation == generation) else { return };
        file.copy = CopyState::Waiting;
        // It may have been closed again since: then a record of that is yet to come, or the file is
        // found closed right after the close that led to the copy.
        if let Some(place) = file.place {
            self.reopen(id, place.seq);
        }
    }

    /// The copy of a file failed, or its part file was lost: it is to be made again.
    pub fn copy_failed(&mut self, id: u64, generation: u64) {
        let Some(file) = self.files.get_mut(&id).filter(|file| file.generation == generation) else { return };
        file.copy = CopyState::Waiting;
        self.to_copy.extend(file.turns.iter().chain(&file.place));
    }

    /// The data of a staged file is gone: nothing can be published of it.
    pub fn lost(&mut self, id: u64) {
        if let Some(file) = self.files.get(&id) {
            let (name, bound) = (file.name.clone(), file.bound);
            // One that was replaced may have been dropped before a restart.
            if !file.is_covered {
                self.notes.push(Note::Lost(file.target()));
            }
            self.lose(id);
            // For the link of the overlay.
            let place = self.free_place(bound, 1);
            self.enqueue_unlink(place, &name, Guard::Nothing, 0);
        }
    }

    /// Begins a step: it is the caller's now, until [`Self::commit`] or [`Self::fail`].
    pub fn begin(&mut self, step: &Step) {
        let Some(entry) = self.queue.remove(&step.place) else { return };
        self.to_copy.remove(&step.place);
        match &step.action {
            Action::Publish(file) => {
                let bound = match &entry {
                    Entry::Former(_, former) => Some(former.bound),
                    _ => self.files.get(&file.staged.id).map(|planned| planned.bound),
                };
                self.replaced(&file.target, bound.unwrap_or(0));
            }
            Action::Symlink(path, _) => self.replaced(path, step.place.seq),
            _ => {}
        }
        if let Entry::Former(id, _) = &entry
            && let Some(file) = self.files.get_mut(id)
        {
            file.turns.retain(|turn| *turn != step.place);
            file.in_flight = true;
        }
        if let Entry::File(id) = &entry
            && let Some(file) = self.files.get_mut(id)
        {
            file.place = None;
            file.in_flight = true;
            if let Some(removal) = file.removed_at.take() {
                self.removals.remove(&removal);
            }
        }
        self.in_flight.insert(step.place, entry);
    }

    /// A step failed: it is to be done again, at its place.
    pub fn fail(&mut self, place: Place) {
        let Some(entry) = self.in_flight.remove(&place) else { return };
        if let Entry::Former(id, former) = entry {
            if let Some(file) = self.files.get_mut(&id) {
                file.in_flight = false;
                if !self.open.contains(&id) {
                    self.publish_as_former(id, place, former);
                }
            }
            return;
        }
        let Entry::File(id) = entry else {
            self.queue.insert(place, entry);
            return;
        };
        let is_open = self.open.contains(&id);
        let Some(file) = self.files.get_mut(&id) else { return };
        file.in_flight = false;
        if file.place.is_none() && !is_open {
            return self.set_place(id, place);
        }
        // It was renamed meanwhile, and not written.
        let is_same = file.copy == CopyState::Done && file.place.is_some();
        let name = file.left.iter().find(|left| left.seq > place.seq).map(|left| left.name.clone());
        if let Some(name) = name.filter(|_| is_same && self.stands_before_others(place)) {
            self.publish_as_former(id, place, FormerName { name, bound: place.seq });
        }
    }

    /// A step is done and logged. All records that were appended before the caller took the lock of
    /// the journal have been read.
    pub fn commit(&mut self, step: &Step) -> Committed {
        let entry = self.in_flight.remove(&step.place);
        self.others.forget_before(self.first_place().seq);
        let key = (step.place.seq, step.place.sub);
        let mut names: Vec<Vec<u8>> = step.touches().map(<[u8]>::to_vec).collect();
        match &step.action {
            Action::Publish(published) => {
                self.vacated(published, step.place);
                let id = published.staged.id;
                let is_open = self.open.contains(&id);
                // Written again meanwhile, and replaced: the same batch drops it.
                let is_again = self.in_flight.values().any(|entry| entry.file() == Some(id));
                let Some(file) = self.files.get_mut(&id) else {
                    return Committed { names, file: None, visible: false };
                };
                file.in_flight = is_again;
                file.was_published = true;
                if file.place.is_some() || !file.turns.is_empty() || is_open || is_again {
                    // The part file has become the published file.
                    return Committed { names, file: None, visible: false };
                }
                let visible = self.overlay(&published.target) == Some(&Claim::File(published.staged));
                names.extend(self.forget(id));
                return Committed { names, file: Some(published.staged), visible };
            }
            Action::Skip(staged) => {
                names.extend(self.leave_out(staged.id));
            }
            Action::Symlink(path, _) | Action::Unlink(path, _) | Action::Rmdir(path) => {
                self.claims.remove(path, key);
            }
        }
        drop(entry);
        Committed { names, file: None, visible: false }
    }

    /// Cancels a file that the next entry replaces; the names that it has left. What an earlier
    /// agent may have published under them is removed.
    fn leave_out(&mut self, id: u64) -> Vec<Vec<u8>> {
        let left = self.files.get(&id).map(|file| file.left.clone()).unwrap_or_default();
        let names = left.iter().map(|left| left.name.clone()).collect();
        self.cancel(id);
        self.unlink_left(left.into_iter().filter(|left| left.guard != Guard::Nothing).collect(), 0);
        names
    }

    /// Removes a published file from the plan; names whose claims went with it.
    fn forget(&mut self, id: u64) -> Vec<Vec<u8>> {
        self.leaving.remove(&id);
        self.forget_turns(id);
        let Some(file) = self.files.remove(&id) else { return Vec::new() };
        self.claims.remove(&file.name, (file.bound, 0));
        for left in &file.left {
            self.claims.remove(&left.name, (left.seq, 1));
        }
        file.left.into_iter().map(|left| left.name).chain([file.name]).collect()
    }

    /// The names that a publication has removed and replaced are not to be removed again.
    fn vacated(&mut self, published: &FileStep, place: Place) {
        let Some(file) = self.files.get_mut(&published.staged.id) else { return };
        for left in file.left.iter_mut().filter(|left| left.seq <= place.seq) {
            if published.vacates.iter().any(|vacate| vacate.name == left.name) {
                left.guard = Guard::Nothing;
            }
        }
    }

    /// Another thing, which got the name by record `bound`, is published under it: what earlier
    /// records left there is gone.
    fn replaced(&mut self, name: &[u8], bound: u64) {
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
    }

    // --- questions ---

    /// Open files that were not tried since the last record.
    #[must_use]
    pub fn to_probe(&self) -> Vec<u64> {
        let is_due = |id: &&u64| self.files.get(id).is_some_and(|file| file.open_until < self.last_seq);
        self.open.iter().filter(is_due).copied().collect()
    }

    /// Whether a staged file is open.
    #[must_use]
    pub fn is_open(&self, id: u64) -> bool {
        self.open.contains(&id)
    }

    /// All open files.
    pub fn open_files(&self) -> impl Iterator<Item = &PlannedFile> {
        self.open.iter().filter_map(|id| self.files.get(id))
    }

    /// Takes up to `max` files to copy, in the order of publication. Versions that the next entry
    /// replaces are left out, and files of which an older copy still runs (`is_busy`).
    pub fn take_copies(&mut self, max: usize, is_busy: impl Fn(u64) -> bool) -> Vec<CopyRequest> {
        let mut out = Vec::new();
        for place in &self.to_copy {
            if out.len() == max {
                break;
            }
            let Some(id) = self.queue.get(place).and_then(Entry::file) else { continue };
            if is_busy(id) || self.replaced_by(*place).is_some() {
                continue;
            }
            let Some(file) = self.files.get(&id) else { continue };
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
            let Some(file) = self.files.get_mut(&request.staged.id) else { continue };
            file.copy = CopyState::Running;
            for place in file.turns.iter().chain(&file.place) {
                self.to_copy.remove(place);
            }
        }
        out
    }

    /// The entry that replaces the file at a place, when nothing stands between: whether it is
    /// ready.
    fn replaced_by(&self, place: Place) -> Option<bool> {
        let Some(Entry::File(id)) = self.queue.get(&place) else { return None };
        let target = self.files.get(id)?.target();
        // What the file would leave behind has to be removed at its place. (What only an earlier
        // agent may have published is removed after it.)
        if self.files.get(id)?.left.iter().any(LeftName::holds_its_place) {
            return None;
        }
        let mut replaced = None;
        let mut before = place;
        for (&next, entry) in self.queue.range(place..).skip(1) {
            if self.others.wrote_between(std::mem::replace(&mut before, next).seq, next.seq) {
                break;
            }
            match entry {
                Entry::File(next) => match self.files.get(next) {
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
    #[must_use]
    pub fn next_step(&self) -> Option<Step> {
        let (&place, entry) = self.queue.first_key_value()?;
        let is_unsure = |file: &PlannedFile| file.open_until < place.seq;
        if self.open_files().any(is_unsure) {
            return None;
        }
        let action = match entry {
            Entry::File(id) => {
                let file = self.files.get(id)?;
                match self.replaced_by(place) {
                    Some(true) => Action::Skip(file.staged),
                    // Its copy is made when the entry that replaces it loses its place.
                    _ if file.copy != CopyState::Done => return None,
                    _ => Action::Publish(self.file_step(file)),
                }
            }
            Entry::Former(id, former) => {
                let file = self.files.get(id).filter(|file| file.copy == CopyState::Done)?;
                Action::Publish(Self::former_step(file, former))
            }
            Entry::Unlink(path, guard, _) => Action::Unlink(path.clone(), guard.clone()),
            Entry::Rmdir(path, _) => Action::Rmdir(path.clone()),
            Entry::Symlink(path, target, _) => Action::Symlink(path.clone(), target.clone()),
        };
        Some(Step { place, read: self.last_seq, action })
    }

    /// Names to remove after the publication of a file.
    fn vacates(file: &PlannedFile) -> Vec<Vacate> {
        let mut vacates: Vec<Vacate> = Vec::new();
        for LeftName { name, guard, .. } in &file.left {
            if *guard == Guard::Nothing || *name == file.name {
                continue;
            }
            match vacates.iter_mut().find(|vacate| vacate.name == *name) {
                // The last time that it was left counts.
                Some(vacate) => vacate.guard.clone_from(guard),
                None => vacates.push(Vacate { name: name.clone(), guard: guard.clone() }),
            }
        }
        vacates
    }

    /// The publication of a file under a name that it has left since.
    fn former_step(file: &PlannedFile, former: &FormerName) -> FileStep {
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
            vacates: Self::vacates(&before),
            owner_changed: file.owner_changed,
            partial: false,
        }
    }

    fn file_step(&self, file: &PlannedFile) -> FileStep {
        FileStep {
            staged: file.staged,
            target: file.target(),
            part_dir: file.part_dir.clone(),
            former: file.former.iter().rev().cloned().collect(),
            vacates: Self::vacates(file),
            owner_changed: file.owner_changed,
            partial: file.partial,
        }
    }

    /// All records up to this one are published, cancelled, or merged into later ones.
    #[must_use]
    pub fn published(&self) -> u64 {
        let first = [self.queue.first_key_value(), self.in_flight.first_key_value()];
        let first = first.into_iter().flatten().map(|(place, _)| place.seq.saturating_sub(1)).min();
        let unsure = self.open_files().map(|file| file.open_until).min();
        [first, unsure].into_iter().flatten().min().unwrap_or(self.last_seq).min(self.last_seq)
    }

    /// The last record that was read.
    #[must_use]
    pub const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// The highest number of a staged file in the records.
    #[must_use]
    pub const fn max_id(&self) -> u64 {
        self.max_id
    }

    /// Whether nothing is pending and no staged file is open.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.files.is_empty() && self.queue.is_empty() && self.in_flight.is_empty()
    }

    /// Whether nothing but open files is pending.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty()
    }

    /// The entries that are not published, in order.
    pub fn pending(&self) -> impl Iterator<Item = (Place, &Entry)> {
        self.in_flight.iter().chain(&self.queue).map(|(place, entry)| (*place, entry))
    }

    /// The place of the first of them; after all records where there is none.
    #[must_use]
    pub fn first_place(&self) -> Place {
        let first = [self.queue.first_key_value(), self.in_flight.first_key_value()];
        let first = first.into_iter().flatten().map(|(&place, _)| place).min();
        first.unwrap_or(Place { seq: self.last_seq + 1, sub: 0 })
    }

    /// The place of the last of them.
    #[must_use]
    pub fn last_place(&self) -> Option<Place> {
        let last = [self.queue.last_key_value(), self.in_flight.last_key_value()];
        last.into_iter().flatten().map(|(&place, _)| place).max()
    }

    /// How many they are.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.in_flight.len() + self.queue.len()
    }

    /// A staged file.
    #[must_use]
    pub fn file(&self, id: u64) -> Option<&PlannedFile> {
        self.files.get(&id)
    }

    /// All staged files that are open or pending.
    pub fn files(&self) -> impl Iterator<Item = &PlannedFile> {
        self.files.values()
    }

    /// Takes the files that were created since the last call.
    pub fn take_created(&mut self) -> Vec<Created> {
        std::mem::take(&mut self.created)
    }

    /// Takes the files that are not needed any more.
    pub fn take_dropped(&mut self) -> Vec<Dropped> {
        std::mem::take(&mut self.dropped)
    }

    /// Takes what is to be reported.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    // --- restart ---

    /// Begins to take in an old journal.
    pub const fn begin_replay(&mut self) {
        self.is_replaying = true;
    }

    /// An earlier agent has logged a step. All records that it had read when it began the step were
    /// taken in.
    pub fn replay_done(&mut self, place: Place, id: u64, is_skip: bool) {
        // What a file that is lost leaves to do was done, too.
        while let Some((before, other)) = self.first_before(place, id) {
            match other {
                // It lost its place: it was still open.
                Some(other) => self.reopen(other, 0),
                None => self.replay_other(before),
            }
        }
        let is_former = self.files.get(&id).is_some_and(|file| file.bound > place.seq);
        if let Some(file) = self.files.get(&id) {
            let left = file.left.iter().filter(|left| left.seq <= place.seq);
            self.logged.extend(left.map(|left| (left.seq, 1)).chain((!is_former).then_some((file.bound, 0))));
        }
        self.logged.insert((place.seq, place.sub));
        if id == 0 {
            self.replay_other(place);
        } else if is_skip {
            self.leave_out(id);
        } else if is_former {
            self.former_was_published(id, place);
        } else if self.files.contains_key(&id) {
            self.clear_place(id);
            self.open.remove(&id);
            if let Some((name, bound)) = self.files.get(&id).map(|file| (file.name.clone(), file.bound)) {
                self.replaced(&name, bound);
            }
            if let Some(file) = self.files.get_mut(&id) {
                file.in_flight = true;
                file.was_published = true;
                file.copy = CopyState::Waiting;
            }
        }
    }

    /// An earlier agent has published a file under a name that it has left since.
    fn former_was_published(&mut self, id: u64, place: Place) {
        self.queue.remove(&place);
        self.to_copy.remove(&place);
        let Some(file) = self.files.get_mut(&id) else { return };
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
            self.replaced(&name, place.seq);
        }
    }

    /// The first entry before a place, but the file `id`: its place, and its file.
    fn first_before(&self, place: Place, id: u64) -> Option<(Place, Option<u64>)> {
        let mut before = self.queue.range(..place).map(|(place, entry)| match entry {
            Entry::File(other) | Entry::Former(other, _) => (*place, Some(*other)),
            _ => (*place, None),
        });
        before.find(|(_, other)| *other != Some(id))
    }

    fn replay_other(&mut self, place: Place) {
        let key = (place.seq, place.sub);
        let path = match self.queue.get(&place) {
            Some(Entry::Unlink(path, ..) | Entry::Rmdir(path, _) | Entry::Symlink(path, ..)) => path.clone(),
            _ => return,
        };
        if let Some(Entry::Symlink(..)) = self.queue.remove(&place) {
            self.replaced(&path, place.seq);
        }
        self.replayed.push((path, key));
    }

    /// Ends the old journal: files that were published and not touched since are done with. Their
    /// numbers.
    pub fn end_replay(&mut self) -> Vec<u64> {
        self.is_replaying = false;
        self.logged.clear();
        for (path, key) in std::mem::take(&mut self.replayed) {
            self.claims.remove(&path, key);
        }
        let mut done = Vec::new();
        let ids: Vec<u64> = self.files.keys().copied().collect();
        for id in ids {
            let is_open = self.open.contains(&id);
            let Some(file) = self.files.get_mut(&id) else { continue };
            if !std::mem::take(&mut file.in_flight) || file.place.is_some() || is_open {
                continue;
            }
            self.forget(id);
            done.push(id);
        }
        done
    }
}
