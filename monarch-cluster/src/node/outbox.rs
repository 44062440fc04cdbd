//! Letters to the other nodes: copies that they should know of, files that the job has changed.
//!
//! A letter that could not be sent is sent again, after a pause, until it is confirmed or its node
//! has gone. A node that comes up, or up again, gets all changes so far: what it was sent while it
//! was away is lost.

use super::peer_pool::MAX_NODES_AT_A_TIME;
use crate::directory::Members;
use crate::directory::fileset::FileSets;
use crate::directory::members::ME;
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pause after a letter could not be sent.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// News for one node.
#[derive(Debug, Default)]
pub(super) struct Letter {
    /// Files that this node holds.
    pub(super) held: FileSets,
    /// Files that the job on this node has changed.
    pub(super) changed: FileSets,
    /// What it has changed in directories that no index holds: numbers of marks.
    pub(super) marks: FileSets,
    /// When it may be sent again.
    pub(super) not_before: Option<Instant>,
}

impl Letter {
    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.changed.is_empty() && self.marks.is_empty()
    }
}

/// Letters that threads have not got rid of; empty ones where all was sent.
pub(super) type Returned = Arc<Mutex<Vec<(u16, Letter)>>>;

/// Letters that are still to be sent. Nothing here asks a node.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    letters: HashMap<u16, Letter>,
    /// All that the job has changed.
    changed: FileSets,
    /// The same of directories that no index holds.
    marks: FileSets,
    /// Nodes whose letters have had all changes.
    informed: HashSet<u16>,
    /// Nodes that a letter is being sent to, each by a thread of its own.
    sending: HashSet<u16>,
    returned: Returned,
}

impl Outbox {
    /// Adds files that are held here to the letter for a node.
    pub(super) fn add_held(&mut self, to: u16, index: [u8; 16], ids: impl IntoIterator<Item = u32>) {
        self.letters.entry(to).or_default().held.add_ids(index, ids);
    }

    /// The same of several indexes.
    pub(super) fn merge_held(&mut self, to: u16, held: FileSets) {
        self.letters.entry(to).or_default().held.merge(held);
    }

    /// Drops the letter for a node that takes part no more.
    pub(super) fn drop_letter(&mut self, node: u16) {
        self.letters.remove(&node);
    }

    /// Forgets that a node has had all changes: it gets them again when it is up.
    pub(super) fn forget_informed(&mut self, node: u16) {
        self.informed.remove(&node);
    }

    /// Adds new marks to the letters for the nodes that are up. [`Outbox::add_news`] follows: it
    /// notes which nodes have had all.
    pub(super) fn add_marks(&mut self, marks: &[FileRef], view: &Members) {
        marks.iter().for_each(|mark| self.marks.add(*mark));
        if self.marks.is_empty() {
            return;
        }
        for (node, _) in view.iter().skip(1).filter(|(node, _)| view.is_up(*node)) {
            let letter = self.letters.entry(node).or_default();
            match self.informed.contains(&node) {
                false => letter.marks.merge(self.marks.clone()),
                true => marks.iter().for_each(|mark| letter.marks.add(*mark)),
            }
        }
    }

    /// Adds new changes, and complete copies with the node that is to know of each, to the letters
    /// for the nodes that are up.
    pub(super) fn add_news(&mut self, complete: Vec<(u16, FileRef)>, changed: &[FileRef], view: &Members) {
        for (to, file) in complete {
            self.letters.entry(to).or_default().held.add(file);
        }
        changed.iter().for_each(|file| self.changed.add(*file));
        for (node, _) in view.iter().skip(1).filter(|(node, _)| view.is_up(*node)) {
            let first = self.informed.insert(node);
            let letter = self.letters.entry(node).or_default();
            match first {
                true => letter.changed.merge(self.changed.clone()),
                false => changed.iter().for_each(|file| letter.changed.add(*file)),
            }
        }
        self.letters.retain(|node, l| *node != ME && !l.is_empty());
    }

    /// Puts returned letters back, and takes those that are due, for [`MAX_NODES_AT_A_TIME`] nodes
    /// at most together with those that are being sent. A slow node delays its own letter alone.
    pub(super) fn take_due(&mut self, view: &Members, now: Instant) -> Vec<(u16, Letter)> {
        for (node, letter) in std::mem::take(&mut *lock(&self.returned)) {
            self.sending.remove(&node);
            if letter.is_empty() || view.get(node).is_none_or(|m| !m.standing.takes_part()) {
                continue;
            }
            let again = self.letters.entry(node).or_default();
            again.held.merge(letter.held);
            again.changed.merge(letter.changed);
            again.marks.merge(letter.marks);
            again.not_before = letter.not_before;
        }
        let is_due = |node: u16, l: &Letter| view.is_up(node) && l.not_before.is_none_or(|t| t <= now);
        let due = self.letters.iter().filter(|(n, l)| !self.sending.contains(n) && is_due(**n, l));
        let free = MAX_NODES_AT_A_TIME.saturating_sub(self.sending.len());
        let due: Vec<u16> = due.take(free).map(|(n, _)| *n).collect();
        let taken = due.into_iter().filter_map(|node| Some((node, self.letters.remove(&node)?)));
        let taken: Vec<(u16, Letter)> = taken.collect();
        self.sending.extend(taken.iter().map(|(node, _)| *node));
        taken
    }

    /// Where a thread puts what is left of a letter that [`Outbox::take_due`] has taken.
    pub(super) fn returned(&self) -> Returned {
        self.returned.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::NodeState;

    fn file(id: u32) -> FileRef {
        FileRef { index: [1; 16], id, fp: 0 }
    }

    fn view() -> (Members, u16, u16) {
        let mut view = Members::new("a");
        let (b, c) = (view.add("b", NodeState::Up).unwrap(), view.add("c", NodeState::Expected).unwrap());
        (view, b, c)
    }

    #[test]
    fn a_node_that_comes_up_gets_all_changes_so_far() {
        let ((mut view, b, c), mut outbox, now) = (view(), Outbox::default(), Instant::now());
        outbox.add_news(Vec::new(), &[file(1)], &view);
        let sent = outbox.take_due(&view, now);
        assert_eq!(sent.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [b]);
        lock(&outbox.returned()).push((b, Letter::default()));
        view.set(c, NodeState::Up);
        outbox.add_news(Vec::new(), &[file(2)], &view);
        let sent: HashMap<u16, Letter> = outbox.take_due(&view, now).into_iter().collect();
        let mut both = FileSets::default();
        both.add(file(2));
        assert_eq!(sent[&b].changed, both);
        both.add(file(1));
        assert_eq!(sent[&c].changed, both);
    }

    #[test]
    fn a_letter_that_was_not_sent_waits_for_its_pause_and_goes_with_what_is_new() {
        let ((view, b, _), mut outbox, now) = (view(), Outbox::default(), Instant::now());
        outbox.add_held(b, [1; 16], [1]);
        let (_, mut letter) = outbox.take_due(&view, now).remove(0);
        outbox.add_held(b, [1; 16], [2]);
        assert!(outbox.take_due(&view, now).is_empty(), "one is being sent");
        letter.not_before = Some(now + RETRY_PAUSE);
        lock(&outbox.returned()).push((b, letter));
        assert!(outbox.take_due(&view, now).is_empty());
        let again = outbox.take_due(&view, now + RETRY_PAUSE);
        let mut all = FileSets::default();
        all.add_ids([1; 16], [1, 2]);
        assert_eq!((again.len(), &again[0].1.held), (1, &all));
    }

    #[test]
    fn marks_go_to_nodes_that_are_up_and_all_of_them_to_one_that_comes_up() {
        let ((mut view, b, c), mut outbox, now) = (view(), Outbox::default(), Instant::now());
        let round = |outbox: &mut Outbox, marks: &[FileRef], view: &Members| {
            outbox.add_marks(marks, view);
            outbox.add_news(Vec::new(), &[], view);
            let sent: HashMap<u16, Letter> = outbox.take_due(view, now).into_iter().collect();
            lock(&outbox.returned()).extend(sent.keys().map(|node| (*node, Letter::default())));
            sent
        };
        let of = |ids: &[u32]| {
            let mut all = FileSets::default();
            all.add_ids([1; 16], ids.iter().copied());
            all
        };
        let sent = round(&mut outbox, &[file(1)], &view);
        assert_eq!((sent.len(), &sent[&b].marks), (1, &of(&[1])));
        assert!(round(&mut outbox, &[], &view).is_empty(), "they are sent once");
        view.set(c, NodeState::Up);
        let sent = round(&mut outbox, &[file(2)], &view);
        assert_eq!((&sent[&b].marks, &sent[&c].marks), (&of(&[2]), &of(&[1, 2])));
    }

    #[test]
    fn nothing_is_kept_for_a_node_that_has_gone() {
        let ((mut view, b, _), mut outbox, now) = (view(), Outbox::default(), Instant::now());
        outbox.add_held(b, [1; 16], [1]);
        let taken = outbox.take_due(&view, now);
        view.set(b, NodeState::Gone);
        lock(&outbox.returned()).extend(taken);
        view.set(b, NodeState::Gone);
        assert!(outbox.take_due(&view, now).is_empty() && outbox.letters.is_empty());
    }
}
