//! The table of other holders ([`Residency`]) under a lock, and the life of each node that it
//! speaks of.

use crate::directory::{Answer, Asked, Local, Members, Residency, Route, Search};
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::collections::HashMap;
use std::sync::Mutex;

/// Which node holds which file, as far as this node knows. The lock of `lives` is taken before that
/// of `residency`.
#[derive(Debug, Default)]
pub(super) struct FileDirectory {
    residency: Mutex<Residency>,
    /// The life of each node that was last heard of.
    lives: Mutex<HashMap<u16, u64>>,
}

impl FileDirectory {
    /// Where this node gets a file of which it has no copy.
    pub(super) fn route(&self, file: &FileRef, view: &Members) -> Route {
        lock(&self.residency).route(file, view, &[], 0)
    }

    /// The next step of a search. `is_promised` says whether a node waits for the file here.
    pub(super) fn next(
        &self,
        search: &mut Search,
        file: &FileRef,
        view: &Members,
        is_promised: impl Fn(u16) -> bool,
    ) -> Route {
        search.next(file, &lock(&self.residency), view, is_promised)
    }

    /// The answer to a request for a file of which this node has `local`.
    pub(super) fn answer(&self, file: &FileRef, view: &Members, asked: &Asked, local: Local) -> Answer {
        lock(&self.residency).answer(file, view, asked, local)
    }

    /// Notes that a file goes out that had yet to come when it was asked for.
    pub(super) fn sent(&self, file: &FileRef, view: &Members, asked: &Asked) {
        lock(&self.residency).sent(file, view, asked);
    }

    /// Notes that a node does not hold a file.
    pub(super) fn not_held(&self, by: u16, file: &FileRef) {
        lock(&self.residency).not_held(by, file);
    }

    /// Notes files that a node holds, by index.
    pub(super) fn held(&self, by: u16, sets: Vec<([u8; 16], Vec<u32>)>) {
        let mut residency = lock(&self.residency);
        for (index, ids) in sets {
            // (The table goes by number; the hash of the path is of no use to it.)
            ids.into_iter().for_each(|id| residency.held(by, &FileRef { index, id, fp: 0 }));
        }
    }

    /// Notes the life of a node, and forgets what was known of an earlier one; `false` if
    /// `incarnation` is such an earlier life.
    pub(super) fn note_life(&self, node: u16, incarnation: u64) -> bool {
        let mut lives = lock(&self.lives);
        let known = lives.entry(node).or_insert(incarnation);
        if incarnation > *known {
            *known = incarnation;
            lock(&self.residency).forget_node(node);
        }
        incarnation == *known
    }

    /// Makes room for the files of an index.
    pub(super) fn add_index(&self, index: [u8; 16], files: u32) {
        lock(&self.residency).add_index(index, files);
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&self, index: &[u8; 16]) {
        lock(&self.residency).forget_index(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::NodeState;

    #[test]
    fn a_new_life_of_a_node_has_nothing_and_news_of_an_earlier_one_are_refused() {
        let (directory, file) = (FileDirectory::default(), FileRef { index: [7; 16], id: 1, fp: 9 });
        let mut view = Members::new("a");
        let b = view.add("b", NodeState::Up).unwrap();
        directory.add_index([7; 16], 2);
        assert!(directory.note_life(b, 5));
        directory.held(b, vec![([7; 16], vec![1])]);
        assert_eq!(directory.route(&file, &view), Route::Ask(b));
        assert!(directory.note_life(b, 5) && !directory.note_life(b, 4));
        assert_eq!(lock(&directory.residency).known(&file), Some(b));
        assert!(directory.note_life(b, 6) && !directory.note_life(b, 5));
        assert_eq!(lock(&directory.residency).known(&file), None);
    }
}
