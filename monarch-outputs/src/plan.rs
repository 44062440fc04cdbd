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
//! * A restart begins with the last checkpoint, if there is one. It feeds the journal again, and
//!   between its records the entries of the log of what was published.

mod asked;
mod checkpoint;
mod claims;
mod entry;
mod expected;
mod facts;
mod file;
#[cfg(test)]
mod model_tests;
mod next;
mod opener;
mod others;
mod place;
mod progress;
mod queue;
mod records;
mod removals;
mod replay;
mod restart;
mod step;
mod tables;
#[cfg(test)]
mod tests;
mod unlogged;

pub use entry::{Entry, FormerName};
pub use file::{CopyState, LeftName, PlannedFile, join, parent};
pub use opener::Opener;
pub use place::{FOUND, Guard, Place};
pub use step::{Action, Claim, Committed, CopyRequest, Created, Dropped, Expectation, FileStep, Note, Step, Vacate};

use monarch_abi::outputs::question::Subject;
use monarch_abi::outputs::record::Record;
use queue::Queue;
use tables::Tables;

/// The plan of one output root.
///
/// Methods: 43, because it is the whole interface of the plan: each hands its tables to a room.
#[derive(Debug, Default)]
pub struct Planner {
    tables: Tables,
}

impl Planner {
    /// A plan of a journal whose records up to `seq` are done with.
    #[must_use]
    pub fn after(seq: u64) -> Self {
        Self { tables: Tables { queue: Queue::after(seq), ..Tables::default() } }
    }

    // --- records and facts ---

    /// Takes in a record. Records that were taken in before are ignored.
    pub fn record(&mut self, record: &Record<'_>) {
        records::record(&mut self.tables, record);
    }

    /// A lease of an open file was granted or refused just now, after all records so far were read.
    /// `is_killed`: a process that opened the file ended without closing it.
    pub fn lease(&mut self, id: u64, is_granted: bool, is_killed: bool, now_ns: u64) {
        facts::lease(&mut self.tables, id, is_granted, is_killed, now_ns);
    }

    /// The copy of a file was made.
    pub fn copied(&mut self, id: u64, generation: u64) {
        facts::copied(&mut self.tables, id, generation);
    }

    /// No lease was granted for the copy, or it was broken: the file is open.
    pub fn copy_refused(&mut self, id: u64, generation: u64) {
        facts::copy_refused(&mut self.tables, id, generation);
    }

    /// The copy of a file failed, or its part file was lost: it is to be made again.
    pub fn copy_failed(&mut self, id: u64, generation: u64) {
        facts::copy_failed(&mut self.tables, id, generation);
    }

    /// The data of a staged file is gone: nothing can be published of it.
    pub fn lost(&mut self, id: u64) {
        facts::lost(&mut self.tables, id);
    }

    /// A staged file is kept apart: it is not to be published, as the PFS has something newer.
    pub fn kept_apart(&mut self, id: u64) {
        facts::dropped(&mut self.tables, id);
    }

    // --- copies and publications ---

    /// Takes up to `max` files to copy, in the order of publication. Versions that the next entry
    /// replaces are left out, and files of which an older copy still runs (`is_busy`).
    pub fn take_copies(&mut self, max: usize, is_busy: impl Fn(u64) -> bool) -> Vec<CopyRequest> {
        next::take_copies(&mut self.tables, max, is_busy)
    }

    /// The next step of publication, if it is ready.
    #[must_use]
    pub fn next_step(&self) -> Option<Step> {
        next::next_step(&self.tables)
    }

    /// Begins a step: it is the caller's now, until [`Self::commit`] or [`Self::fail`].
    pub fn begin(&mut self, step: &Step) {
        progress::begin(&mut self.tables, step);
    }

    /// A step, which is about to be committed, has left this on the PFS
    /// ([`monarch_abi::outputs::found`]): claims on the name whose turns come later expect that.
    pub fn leaves(&mut self, step: &Step, found: u64) {
        progress::leaves(&mut self.tables, step, found);
    }

    /// A step failed: it is to be done again, at its place.
    pub fn fail(&mut self, place: Place) {
        progress::fail(&mut self.tables, place);
    }

    /// A step is done and logged. All records that were appended before the caller took the lock of
    /// the journal have been read.
    pub fn commit(&mut self, step: &Step) -> Committed {
        let committed = progress::commit(&mut self.tables, step);
        self.tables.forget_unlogged(&committed.names);
        committed
    }

    // --- names ---

    /// The overlay's entry of a name.
    #[must_use]
    pub fn overlay(&self, name: &[u8]) -> Option<&Claim> {
        self.tables.overlay(name)
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
        self.tables.claims.names()
    }

    // --- questions ---

    /// Open files that were not tried since the last record.
    #[must_use]
    pub fn to_probe(&self) -> Vec<u64> {
        let is_due = |id: &&u64| self.tables.files.get(id).is_some_and(|file| file.open_until < self.last_seq());
        self.tables.open.iter().filter(is_due).copied().collect()
    }

    /// Whether a staged file is open.
    #[must_use]
    pub fn is_open(&self, id: u64) -> bool {
        self.tables.open.contains(&id)
    }

    /// All open files.
    pub fn open_files(&self) -> impl Iterator<Item = &PlannedFile> {
        self.tables.open_files()
    }

    /// All records up to this one are published, cancelled, or merged into later ones.
    #[must_use]
    pub fn published(&self) -> u64 {
        let first = self.tables.queue.first_pending().map(|place| place.seq.saturating_sub(1));
        let unsure = self.open_files().map(|file| file.open_until).min();
        [first, unsure].into_iter().flatten().min().unwrap_or(self.last_seq()).min(self.last_seq())
    }

    /// The last record that was read.
    #[must_use]
    pub const fn last_seq(&self) -> u64 {
        self.tables.queue.last_seq()
    }

    /// The news of other nodes that the last record had.
    #[must_use]
    pub const fn last_news(&self) -> u32 {
        self.tables.queue.others().last_news
    }

    /// The highest number of a staged file in the records.
    #[must_use]
    pub const fn max_id(&self) -> u64 {
        self.tables.max_id
    }

    /// Whether nothing is pending and no staged file is open.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.tables.files.is_empty() && self.is_drained()
    }

    /// Whether nothing but open files is pending.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.tables.queue.pending_len() == 0
    }

    /// The entries that are not published, in order.
    pub fn pending(&self) -> impl Iterator<Item = (Place, &Entry)> {
        self.tables.queue.pending()
    }

    /// The place of the first of them; after all records where there is none.
    #[must_use]
    pub fn first_place(&self) -> Place {
        self.tables.queue.first_place()
    }

    /// The place of the last of them.
    #[must_use]
    pub fn last_place(&self) -> Option<Place> {
        self.tables.queue.last_place()
    }

    /// The last place at which something of a path is published. Files that are open have none.
    #[must_use]
    pub fn place_of(&self, subject: Subject, path: &[u8]) -> Option<Place> {
        asked::place_of(&self.tables, subject, path)
    }

    /// How many they are.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.tables.queue.pending_len()
    }

    /// A staged file.
    #[must_use]
    pub fn file(&self, id: u64) -> Option<&PlannedFile> {
        self.tables.files.get(&id)
    }

    /// All staged files that are open or pending.
    pub fn files(&self) -> impl Iterator<Item = &PlannedFile> {
        self.tables.files.values()
    }

    /// Takes the files that were created since the last call.
    pub fn take_created(&mut self) -> Vec<Created> {
        std::mem::take(&mut self.tables.created)
    }

    /// Takes the files that are not needed any more.
    pub fn take_dropped(&mut self) -> Vec<Dropped> {
        std::mem::take(&mut self.tables.dropped)
    }

    /// Takes what is to be reported.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.tables.notes)
    }

    // --- restart ---

    /// What the plan knows, to go on from without the records so far; `None` while a step is done.
    /// `leftovers`: files that were dropped, and of which something is still there.
    pub fn checkpoint(&mut self, leftovers: &[Dropped]) -> Option<Vec<u8>> {
        checkpoint::encode(&mut self.tables, leftovers)
    }

    /// Whether bytes are a [`Self::checkpoint`] of a newer version.
    #[must_use]
    pub fn is_newer_checkpoint(bytes: &[u8]) -> bool {
        checkpoint::is_of_newer_version(bytes)
    }

    /// The plan of a [`Self::checkpoint`]; `None` if it is none.
    #[must_use]
    pub fn of_checkpoint(bytes: &[u8]) -> Option<Self> {
        checkpoint::decode(bytes).map(|tables| Self { tables })
    }

    /// Begins to take in an old journal.
    pub const fn begin_replay(&mut self) {
        self.tables.replay.is_running = true;
    }

    /// An earlier agent has logged a step, which is handed to [`Self::replay_done`] next: the
    /// published file is this on the PFS ([`monarch_abi::outputs::found`]).
    pub fn replay_leaves(&mut self, place: Place, id: u64, found: u64) {
        restart::replay_leaves(&mut self.tables, place, id, found);
    }

    /// An earlier agent has logged a step. All records that it had read when it began the step were
    /// taken in.
    pub fn replay_done(&mut self, place: Place, id: u64, is_skip: bool) {
        restart::replay_done(&mut self.tables, place, id, is_skip);
    }

    /// Ends the old journal: files that were published and not touched since are done with. Their
    /// numbers.
    pub fn end_replay(&mut self) -> Vec<u64> {
        restart::end_replay(&mut self.tables)
    }
}
