//! Which node waits for which: files that come from other nodes, and nodes that were promised files
//! that are yet to come.
//!
//! Two nodes may want the same file of each other at the same time. Both waits are noted under one
//! lock, so that of two nodes that would wait for each other one knows. A node that has promised a
//! file does not ask the node that it was promised to, and a node that asks for a file promises
//! nothing to the node that it asks (see
//! [`Residency::answer`](crate::directory::Residency::answer)).

use super::file_directory::FileDirectory;
use crate::directory::{Answer, Asked, Local, Members, Route, Search};
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// All waits of this node. The lock of `waits` is taken before those of the directory.
pub(super) struct WaitGraph {
    waits: Mutex<Waits>,
    directory: Arc<FileDirectory>,
}

/// The waits under the lock.
#[derive(Debug, Default)]
pub(super) struct Waits {
    /// The node that was asked last for a file, and how many requests for it are under way.
    coming: HashMap<FileRef, (u16, u32)>,
    /// Requests of a node for a file that are answered when it is there.
    promised: HashMap<(FileRef, u16), u32>,
}

impl Waits {
    /// The node that a file comes from.
    pub(super) fn source(&self, file: &FileRef) -> Option<u16> {
        self.coming.get(file).map(|(from, _)| *from)
    }

    fn begin_coming(&mut self, file: FileRef, from: u16) {
        let (node, requests) = self.coming.entry(file).or_insert((from, 0));
        (*node, *requests) = (from, *requests + 1);
    }

    fn end_coming(&mut self, file: &FileRef) {
        if let Some((_, requests)) = self.coming.get_mut(file) {
            *requests -= 1;
            if *requests == 0 {
                self.coming.remove(file);
            }
        }
    }

    fn promise(&mut self, file: FileRef, to: u16) {
        *self.promised.entry((file, to)).or_default() += 1;
    }

    fn is_promised(&self, file: &FileRef, to: u16) -> bool {
        self.promised.contains_key(&(*file, to))
    }

    fn end_promise(&mut self, file: FileRef, to: u16) {
        if let Some(requests) = self.promised.get_mut(&(file, to)) {
            *requests -= 1;
            if *requests == 0 {
                self.promised.remove(&(file, to));
            }
        }
    }
}

/// A file that is being fetched from another node, for as long as this lives.
pub(super) struct Coming {
    graph: Arc<WaitGraph>,
    file: FileRef,
}

impl Drop for Coming {
    fn drop(&mut self) {
        lock(&self.graph.waits).end_coming(&self.file);
    }
}

/// A file that another node waits for here, for as long as this lives.
pub(super) struct Promise<'a> {
    graph: &'a WaitGraph,
    file: FileRef,
    to: u16,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        lock(&self.graph.waits).end_promise(self.file, self.to);
    }
}

impl WaitGraph {
    /// No waits; routes and answers come from `directory`.
    pub(super) fn new(directory: Arc<FileDirectory>) -> Self {
        Self { waits: Mutex::default(), directory }
    }

    /// The node that is asked next for a file; `None`: the PFS.
    pub(super) fn next(self: &Arc<Self>, search: &mut Search, file: &FileRef, view: &Members) -> Option<(u16, Coming)> {
        let mut waits = lock(&self.waits);
        let is_promised = |node| waits.is_promised(file, node);
        let Route::Ask(to) = self.directory.next(search, file, view, is_promised) else { return None };
        waits.begin_coming(*file, to);
        drop(waits);
        Some((to, Coming { graph: self.clone(), file: *file }))
    }

    /// What the waits say.
    pub(super) fn look<T>(&self, what: impl FnOnce(&Waits) -> T) -> T {
        what(&lock(&self.waits))
    }

    /// The answer to a request for a file. `local` says how much of it is here, `asked` what the
    /// request then is. A file that has yet to come is promised for as long as the last part lives.
    pub(super) fn answer(
        &self,
        file: &FileRef,
        view: &Members,
        local: impl FnOnce(&Waits) -> Local,
        asked: impl FnOnce(Local) -> Asked,
    ) -> (Local, Answer, Option<Promise<'_>>) {
        let mut waits = lock(&self.waits);
        let local = local(&waits);
        let asked = asked(local);
        let answer = self.directory.answer(file, view, &asked, local);
        let waiting = match answer {
            Answer::Serve if local != Local::Resident => asked.from,
            Answer::FetchAndServe => asked.from,
            _ => None,
        };
        let promise = waiting.map(|to| {
            waits.promise(*file, to);
            Promise { graph: self, file: *file, to }
        });
        (local, answer, promise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::NodeState;

    #[test]
    fn requests_are_counted_until_the_last_one_is_over() {
        let file = FileRef { index: [1; 16], id: 7, fp: 7 };
        let mut waits = Waits::default();
        waits.begin_coming(file, 2);
        waits.begin_coming(file, 3);
        assert_eq!(waits.source(&file), Some(3));
        waits.end_coming(&file);
        assert_eq!(waits.source(&file), Some(3));
        waits.end_coming(&file);
        assert_eq!(waits.source(&file), None);
        waits.promise(file, 2);
        waits.promise(file, 2);
        waits.end_promise(file, 2);
        assert!(waits.is_promised(&file, 2) && !waits.is_promised(&file, 3));
        waits.end_promise(file, 2);
        waits.end_promise(file, 3);
        assert!(waits.promised.is_empty() && waits.coming.is_empty());
    }

    #[test]
    fn a_node_that_was_promised_a_file_is_not_asked_for_it() {
        let mut view = Members::new("a");
        let b = view.add("b", NodeState::Up).unwrap();
        let graph = Arc::new(WaitGraph::new(Arc::default()));
        // A file that the other node answers for.
        let fp = (0..).find(|fp| view.answerer(*fp) == b).unwrap();
        let file = FileRef { index: [1; 16], id: 0, fp };
        let asked = |_| Asked { from: Some(b), ..Asked::default() };
        let (_, answer, promise) = graph.answer(&file, &view, |_| Local::Coming(None), asked);
        assert!(answer == Answer::Serve && promise.is_some());
        assert!(graph.next(&mut Search::new(), &file, &view).is_none());
        drop(promise);
        let (to, coming) = graph.next(&mut Search::new(), &file, &view).unwrap();
        assert_eq!((to, lock(&graph.waits).source(&file)), (b, Some(b)));
        drop(coming);
        assert_eq!(lock(&graph.waits).source(&file), None);
    }
}
