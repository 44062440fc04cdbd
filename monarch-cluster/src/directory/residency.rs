//! Another node that holds a file, as far as this one knows, and what follows for a request.
//!
//! The table has two bytes a file: 1.28 million files take 2.6 MB on each node, whatever the number
//! of nodes. It is kept by the node that answers for the file. One other holder is enough: it takes
//! readers off a node that is busy, holds what its owner has no room for, and is known to a node
//! that comes up late. A wrong entry costs one request that comes back and then clears it.
//!
//! A node that is asked for a file serves what it has or is fetching. Otherwise the node that
//! answers for the file fetches it, or names the other holder; any other node names the one that
//! answers. No node names the asker, and none names another one for a request that has used up its
//! hops.

use super::answer::{Answer, Asked, Local};
use super::members::ME;
use super::{File, MAX_HOPS, Members, Uuid};
use std::collections::HashMap;

/// Entry of a file without another holder.
const NO_NODE: u16 = u16::MAX;

/// Where a file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The PFS.
    Pfs,
    /// Another node.
    Ask(u16),
}

/// The other holder of each file, by index.
#[derive(Clone, Debug, Default)]
pub struct Residency {
    second: HashMap<Uuid, Vec<u16>>,
}

impl Residency {
    /// A table without indexes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for the files of an index. An index that is there already keeps its entries.
    pub fn add_index(&mut self, index: Uuid, files: u32) {
        self.second.entry(index).or_insert_with(|| vec![NO_NODE; files as usize]);
    }

    /// Forgets an index and gives back its memory.
    pub fn forget_index(&mut self, index: &Uuid) {
        self.second.remove(index);
    }

    /// How many files an index has; `None`: it is not known here.
    pub fn files(&self, index: &Uuid) -> Option<u32> {
        self.second.get(index).map(|files| files.len() as u32)
    }

    /// Notes that a node holds a file, or is fetching it. Nothing is noted of an index or a file
    /// that is not known.
    pub fn held(&mut self, by: u16, file: &File) {
        if let Some(slot) = self.slot(file) {
            *slot = by;
        }
    }

    /// Notes that a node does not hold a file after all.
    pub fn not_held(&mut self, by: u16, file: &File) {
        if let Some(slot) = self.slot(file).filter(|slot| **slot == by) {
            *slot = NO_NODE;
        }
    }

    /// Forgets what a node holds: it left for good, or came up again without its copies.
    pub fn forget_node(&mut self, node: u16) {
        for slot in self.second.values_mut().flatten().filter(|slot| **slot == node) {
            *slot = NO_NODE;
        }
    }

    /// The other holder of a file, if there is one that can be asked.
    pub fn second(&self, file: &File, view: &Members) -> Option<u16> {
        self.known(file).filter(|node| view.is_up(*node))
    }

    /// The other holder of a file, up or not.
    pub fn known(&self, file: &File) -> Option<u16> {
        let slot = *self.second.get(&file.index)?.get(file.id as usize)?;
        (slot != NO_NODE).then_some(slot)
    }

    fn slot(&mut self, file: &File) -> Option<&mut u16> {
        self.second.get_mut(&file.index)?.get_mut(file.id as usize)
    }

    /// Where a node gets a file of which it has no copy. `tried` did not answer; `hops` is the
    /// count of the request that made it look, 0 for a reader of its own: with [`MAX_HOPS`] nothing
    /// is passed on.
    pub fn route(&self, file: &File, view: &Members, tried: &[u16], hops: u8) -> Route {
        if hops >= MAX_HOPS {
            return Route::Pfs;
        }
        let first = view.order(file.fp).find(|node| !tried.contains(node));
        match first.unwrap_or(ME) {
            ME => match self.second(file, view).filter(|n| *n != ME && !tried.contains(n)) {
                Some(holder) => Route::Ask(holder),
                None => Route::Pfs,
            },
            node => Route::Ask(node),
        }
    }

    /// Answers a request. Notes which node will hold the file after it, unless the file has yet to
    /// come: then [`Residency::sent`] does.
    pub fn answer(&mut self, file: &File, view: &Members, asked: &Asked, local: Local) -> Answer {
        let mine = view.answerer(file.fp) == ME;
        if mine && asked.hops >= MAX_HOPS {
            // The request comes back from the holder that it was sent to, or its asker could not
            // reach that one.
            self.drop_second(file);
        }
        let answer = match local {
            Local::Changed => Answer::Changed,
            // Two nodes that wait for each other: the one that answers for the file has the other
            // read it, and waits for that.
            Local::Coming(Some(source)) if asked.from == Some(source) && view.answerer(file.fp) != source => {
                Answer::Delegate
            }
            Local::Resident if mine && asked.busy => {
                self.other(file, view, asked).map_or(Answer::Serve, Answer::Redirect)
            }
            Local::Resident | Local::Coming(_) => Answer::Serve,
            Local::Absent | Local::NoRoom if mine => self.as_first(file, view, asked, local),
            Local::Absent | Local::NoRoom => Self::as_other(file, view, asked, local),
        };
        match answer {
            Answer::Delegate => self.note(file, view, asked),
            Answer::Serve if local == Local::Resident => self.sent(file, view, asked),
            _ => {}
        }
        answer
    }

    /// Notes that a file that had yet to come when it was asked for is there and goes out. Not
    /// before: this node would take an asker that waits for it for a holder, and both would read
    /// the PFS.
    pub fn sent(&mut self, file: &File, view: &Members, asked: &Asked) {
        if asked.keeps {
            self.note(file, view, asked);
        }
    }

    /// Notes that the asker is going to hold the file, if this node answers for it.
    fn note(&mut self, file: &File, view: &Members, asked: &Asked) {
        if let Some(from) = asked.from.filter(|_| view.answerer(file.fp) == ME) {
            self.held(from, file);
        }
    }

    fn as_first(&self, file: &File, view: &Members, asked: &Asked, local: Local) -> Answer {
        match self.other(file, view, asked) {
            Some(holder) => Answer::Redirect(holder),
            None if local == Local::NoRoom => no_room(asked),
            None => Answer::FetchAndServe,
        }
    }

    fn as_other(file: &File, view: &Members, asked: &Asked, local: Local) -> Answer {
        let first = view.answerer(file.fp);
        if asked.from == Some(first) {
            // It took this node for the other holder; the copy is better where it belongs.
            Answer::Delegate
        } else if asked.hops < MAX_HOPS {
            Answer::Redirect(first)
        } else if local == Local::NoRoom {
            no_room(asked)
        } else {
            Answer::FetchAndServe
        }
    }

    /// The other holder, for an asker that can be sent there.
    fn other(&self, file: &File, view: &Members, asked: &Asked) -> Option<u16> {
        self.second(file, view).filter(|holder| asked.hops < MAX_HOPS && *holder != ME && asked.from != Some(*holder))
    }

    fn drop_second(&mut self, file: &File) {
        if let Some(holder) = self.known(file) {
            self.not_held(holder, file);
        }
    }
}

/// The asker has to read the file; if it keeps the copy, the next asker is sent to it.
fn no_room(asked: &Asked) -> Answer {
    if asked.keeps && asked.from.is_some() { Answer::Delegate } else { Answer::Refuse }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod answer_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::NodeState;

    #[test]
    fn an_entry_is_cleared_only_for_the_node_that_it_names() {
        let (mut known, file) = (Residency::new(), File { index: [7; 16], id: 1, fp: 9 });
        let mut view = Members::new("a");
        let b = view.add("b", NodeState::Up).unwrap();
        known.held(b, &file);
        assert_eq!(known.known(&file), None, "of an index that is not known nothing is noted");
        known.add_index([7; 16], 2);
        known.held(b, &file);
        known.held(b, &File { id: 2, ..file });
        known.not_held(5, &file);
        assert_eq!((known.second(&file, &view), known.files(&[7; 16])), (Some(b), Some(2)));
        view.set(b, NodeState::Suspect);
        assert_eq!((known.second(&file, &view), known.known(&file)), (None, Some(b)));
        known.add_index([7; 16], 2);
        known.forget_node(b);
        assert_eq!(known.known(&file), None);
        known.forget_index(&[7; 16]);
        assert_eq!(known.files(&[7; 16]), None);
    }
}
