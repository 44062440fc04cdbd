//! What is to be published, in its order.

use super::entry::{Entry, FormerName};
use super::others::OtherNodes;
use super::place::{Guard, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The entries by place, and what other nodes may have written between them.
///
/// Methods: 37, because all that asks for the order asks it here.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<Place, Entry>,
    in_flight: BTreeMap<Place, Entry>,
    /// Places of the waiting [`Entry::Former`].
    formers: BTreeSet<Place>,
    /// Places of files whose copy is to be begun.
    to_copy: BTreeSet<Place>,
    /// Files that are published in their turn although the job has removed them, by the place of
    /// the removal.
    removals: BTreeMap<Place, u64>,
    others: OtherNodes,
    last_seq: u64,
}

impl Queue {
    /// A queue of a journal whose records up to `seq` are done with.
    pub(super) fn after(seq: u64) -> Self {
        Self { last_seq: seq, ..Self::default() }
    }

    // --- records ---

    /// A record was read.
    pub(super) fn record(&mut self, seq: u64, node_news: u32) {
        self.last_seq = seq;
        self.others.record(seq, node_news);
    }

    /// The last record that was read.
    pub(super) const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    // --- entries ---

    /// Adds an entry.
    pub(super) fn insert(&mut self, place: Place, entry: Entry) {
        if let Entry::Former(..) = entry {
            self.formers.insert(place);
        } else {
            self.formers.remove(&place);
        }
        self.waiting.insert(place, entry);
    }

    /// Takes an entry away that waits, and the wish for its copy; it.
    pub(super) fn remove(&mut self, place: Place) -> Option<Entry> {
        self.to_copy.remove(&place);
        self.formers.remove(&place);
        self.waiting.remove(&place)
    }

    /// Whether an entry waits at a place.
    pub(super) fn contains(&self, place: Place) -> bool {
        self.waiting.contains_key(&place)
    }

    /// The entry that waits at a place.
    pub(super) fn get(&self, place: Place) -> Option<&Entry> {
        self.waiting.get(&place)
    }

    /// The names that files have left since and get first.
    pub(super) fn formers(&self) -> impl Iterator<Item = &FormerName> {
        self.formers.iter().filter_map(|place| match self.waiting.get(place) {
            Some(Entry::Former(_, former)) => Some(former),
            _ => None,
        })
    }

    /// The first entry that waits.
    pub(super) fn first(&self) -> Option<(Place, &Entry)> {
        self.waiting.first_key_value().map(|(&place, entry)| (place, entry))
    }

    /// The entries that wait before a place.
    pub(super) fn before(&self, place: Place) -> impl Iterator<Item = (Place, &Entry)> {
        self.waiting.range(..place).map(|(&place, entry)| (place, entry))
    }

    /// The entries that wait behind a place.
    pub(super) fn behind(&self, place: Place) -> impl Iterator<Item = (Place, &Entry)> {
        let behind = (Bound::Excluded(place), Bound::Unbounded);
        self.waiting.range(behind).map(|(&place, entry)| (place, entry))
    }

    /// The entries that wait, the last one first.
    pub(super) fn last_first(&self) -> impl Iterator<Item = (Place, &Entry)> {
        self.waiting.iter().rev().map(|(&place, entry)| (place, entry))
    }

    /// The first place of a record that has no entry, from `from` on.
    pub(super) fn free_place(&self, seq: u64, from: u32) -> Place {
        let mut place = Place { seq, sub: from };
        while self.waiting.contains_key(&place) || self.in_flight.contains_key(&place) {
            place.sub += 1;
        }
        place
    }

    // --- publications ---

    /// The publication of an entry begins; it.
    pub(super) fn begin(&mut self, place: Place) -> Option<Entry> {
        let entry = self.remove(place)?;
        self.in_flight.insert(place, entry.clone());
        Some(entry)
    }

    /// The publication of an entry has failed; it.
    pub(super) fn fail(&mut self, place: Place) -> Option<Entry> {
        self.in_flight.remove(&place)
    }

    /// The entry at a place whose publication was begun.
    pub(super) fn begun(&self, place: Place) -> Option<&Entry> {
        self.in_flight.get(&place)
    }

    /// Whether no entry is being published.
    pub(super) fn is_at_rest(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// An entry is published.
    pub(super) fn commit(&mut self, place: Place) {
        self.in_flight.remove(&place);
        self.others.forget_before(self.first_place().seq);
    }

    /// The last place at which a file is being published, under whichever name.
    pub(super) fn publishing_place(&self, id: u64) -> Option<Place> {
        self.in_flight.iter().rev().find(|(_, entry)| entry.file() == Some(id)).map(|(&place, _)| place)
    }

    /// The last place at which a file is being published under its last name: a batch may publish
    /// it twice.
    pub(super) fn begun_place(&self, id: u64) -> Option<Place> {
        self.in_flight.iter().rev().find(|(_, entry)| **entry == Entry::File(id)).map(|(&place, _)| place)
    }

    // --- copies ---

    /// The file at a place is to be copied.
    pub(super) fn want_copy(&mut self, place: Place) {
        self.to_copy.insert(place);
    }

    /// The file at a place is copied, or is being copied.
    pub(super) fn forget_copy(&mut self, place: Place) {
        self.to_copy.remove(&place);
    }

    /// Places of files that are to be copied, in order.
    pub(super) fn wanted_copies(&self) -> impl Iterator<Item = Place> {
        self.to_copy.iter().copied()
    }

    // --- removals ---

    /// A file is published in its turn although the job has removed it, at a place.
    pub(super) fn add_removal(&mut self, place: Place, id: u64) {
        self.removals.insert(place, id);
    }

    /// The file is published, or is not to be.
    pub(super) fn forget_removal(&mut self, place: Place) {
        self.removals.remove(&place);
    }

    /// All such files, by the places of their removals.
    pub(super) fn removals(&self) -> impl Iterator<Item = (Place, u64)> {
        self.removals.iter().map(|(place, id)| (*place, *id))
    }

    /// The file that the job has removed at a place and that is published in its turn.
    pub(super) fn removal(&self, place: Place) -> Option<u64> {
        self.removals.get(&place).copied()
    }

    // --- questions ---

    /// Whether an entry that changes the PFS stands behind a place, here or on another node.
    pub(super) fn stands_before_others(&self, place: Place) -> bool {
        if self.others_wrote_since(place) {
            return true;
        }
        // (What an earlier agent may have published changes nothing if it has not.)
        let changes_nothing = |entry: &Entry| matches!(entry, Entry::Unlink(_, guard, _) if *guard != Guard::Any);
        let behind = (Bound::Excluded(place), Bound::Unbounded);
        let mut entries = self.in_flight.range(behind).chain(self.waiting.range(behind));
        entries.any(|(_, entry)| !changes_nothing(entry))
    }

    /// What other nodes may have written between the records.
    pub(super) const fn others(&self) -> &OtherNodes {
        &self.others
    }

    /// A queue that an earlier agent has kept, without its entries.
    pub(super) fn kept(last_seq: u64, others: OtherNodes) -> Self {
        Self { last_seq, others, ..Self::default() }
    }

    /// Whether other nodes may have written something after a place.
    pub(super) fn others_wrote_since(&self, place: Place) -> bool {
        self.others.wrote_between(place.seq, self.last_seq)
    }

    /// Whether other nodes may have written something between two places.
    pub(super) fn others_wrote_between(&self, from: Place, to: Place) -> bool {
        self.others.wrote_between(from.seq, to.seq)
    }

    /// The entries that are not published, in order.
    pub(super) fn pending(&self) -> impl Iterator<Item = (Place, &Entry)> {
        self.in_flight.iter().chain(&self.waiting).map(|(place, entry)| (*place, entry))
    }

    /// How many they are.
    pub(super) fn pending_len(&self) -> usize {
        self.in_flight.len() + self.waiting.len()
    }

    /// The place of the first of them.
    pub(super) fn first_pending(&self) -> Option<Place> {
        let first = [self.waiting.first_key_value(), self.in_flight.first_key_value()];
        first.into_iter().flatten().map(|(&place, _)| place).min()
    }

    /// The place of the first of them; after all records where there is none.
    pub(super) fn first_place(&self) -> Place {
        self.first_pending().unwrap_or(Place { seq: self.last_seq + 1, sub: 0 })
    }

    /// The place of the last of them.
    pub(super) fn last_place(&self) -> Option<Place> {
        let last = [self.waiting.last_key_value(), self.in_flight.last_key_value()];
        last.into_iter().flatten().map(|(&place, _)| place).max()
    }
}
