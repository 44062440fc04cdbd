//! Another node that holds a file, as far as this one knows: two bytes a file.
//!
//! The table is kept by the node that answers for the file. One other holder is enough: it takes
//! readers off a node that is busy, holds what its owner has no room for, and is known to a node
//! that comes up late. A wrong entry costs one request that comes back and then clears it. 1.28
//! million files take 2.6 MB on each node, whatever the number of nodes.

use super::{File, Members, Uuid};
use std::collections::HashMap;

/// Entry of a file without another holder.
const NO_NODE: u16 = u16::MAX;

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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::directory::NodeState;

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
