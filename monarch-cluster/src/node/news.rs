//! What the threads of this node have for the other nodes, until the announcer takes it.

use crate::directory::announcement_rules::Telling;
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::sync::Mutex;

/// Copies and changes that other nodes are to know of.
#[derive(Debug, Default)]
pub(super) struct News {
    /// Complete copies, each with the node that is to know of it.
    complete: Mutex<Vec<(u16, FileRef)>>,
    /// Files that the job on this node has changed.
    changed: Mutex<Vec<FileRef>>,
}

impl News {
    /// Adds a complete copy for a node.
    pub(super) fn add_complete(&self, to: u16, file: FileRef) {
        lock(&self.complete).push((to, file));
    }

    /// Adds complete copies of one index, by node.
    pub(super) fn add_all_complete(&self, index: [u8; 16], telling: Telling) {
        let of = |(to, ids): (u16, Vec<u32>)| ids.into_iter().map(move |id| (to, FileRef { index, id, fp: 0 }));
        lock(&self.complete).extend(telling.into_iter().flat_map(of));
    }

    /// Adds files that the job has changed.
    pub(super) fn add_changed(&self, files: impl IntoIterator<Item = FileRef>) {
        lock(&self.changed).extend(files);
    }

    /// Takes the complete copies.
    pub(super) fn take_complete(&self) -> Vec<(u16, FileRef)> {
        std::mem::take(&mut *lock(&self.complete))
    }

    /// Takes the changed files.
    pub(super) fn take_changed(&self) -> Vec<FileRef> {
        std::mem::take(&mut *lock(&self.changed))
    }

    /// Forgets complete copies of an index that is not served any more.
    pub(super) fn forget_index(&self, index: &[u8; 16]) {
        lock(&self.complete).retain(|(_, f)| f.index != *index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_taken_once_and_copies_go_with_their_index() {
        let (news, file) = (News::default(), |index, id| FileRef { index: [index; 16], id, fp: 0 });
        news.add_complete(1, file(1, 7));
        news.add_all_complete([2; 16], Telling::from([(3, vec![4, 5])]));
        news.add_changed([file(1, 1), file(2, 2)]);
        news.forget_index(&[1; 16]);
        assert_eq!(news.take_complete(), [(3, file(2, 4)), (3, file(2, 5))]);
        assert_eq!(news.take_changed(), [file(1, 1), file(2, 2)], "a change holds for whatever index comes");
        assert!(news.take_complete().is_empty() && news.take_changed().is_empty());
    }
}
