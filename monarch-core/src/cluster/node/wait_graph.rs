//! Who waits for whom: files that come from other nodes, and nodes that were promised files that
//! are yet to come.
//!
//! Two nodes may want the same file of each other at the same time. Both are noted under one lock,
//! so that of two that would wait for each other one knows: who has promised a file does not ask
//! the one that it was promised to, and who asks for a file promises nothing to the one
//! that is asked (see [`Residency::answer`](crate::cluster::directory::Residency::answer)).

use super::{FileRef, Node, lock, pure};
use crate::cluster::directory::{Answer, Asked, Local, Members, Route, Search};
use std::collections::HashMap;
use std::sync::Arc;

/// All of them.
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

    fn comes(&mut self, file: FileRef, from: u16) {
        let (node, requests) = self.coming.entry(file).or_insert((from, 0));
        (*node, *requests) = (from, *requests + 1);
    }

    fn came(&mut self, file: &FileRef) {
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

    fn kept(&mut self, file: FileRef, to: u16) {
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
    node: Arc<Node>,
    file: FileRef,
}

impl Drop for Coming {
    fn drop(&mut self) {
        lock(&self.node.waits).came(&self.file);
    }
}

/// A file that another node waits for here, for as long as this lives.
pub(super) struct Promise<'a> {
    node: &'a Node,
    file: FileRef,
    to: u16,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        lock(&self.node.waits).kept(self.file, self.to);
    }
}

impl Node {
    /// The node that is asked next for a file; `None`: the PFS.
    pub(super) fn next(self: &Arc<Self>, search: &mut Search, file: &FileRef) -> Option<(u16, Coming)> {
        let mut waits = lock(&self.waits);
        let is_promised = |node| waits.is_promised(file, node);
        let route = search.next(&pure(file), &lock(&self.residency), &self.view(), is_promised);
        let Route::Ask(to) = route else { return None };
        waits.comes(*file, to);
        drop(waits);
        Some((to, Coming { node: self.clone(), file: *file }))
    }

    /// What is said to a request for a file of which there is so much here. What has yet to come is
    /// promised for as long as the last part lives.
    pub(super) fn answer_for(
        &self,
        file: &FileRef,
        view: &Members,
        standing: impl FnOnce(&Waits) -> Local,
        asked: impl FnOnce(Local) -> Asked,
    ) -> (Local, Answer, Option<Promise<'_>>) {
        let mut waits = lock(&self.waits);
        let local = standing(&waits);
        let asked = asked(local);
        let answer = lock(&self.residency).answer(&pure(file), view, &asked, local);
        let waiting = match answer {
            Answer::Serve if local != Local::Resident => asked.from,
            Answer::FetchAndServe => asked.from,
            _ => None,
        };
        let promise = waiting.map(|to| {
            waits.promise(*file, to);
            Promise { node: self, file: *file, to }
        });
        (local, answer, promise)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_until_the_last_one_is_over() {
        let file = FileRef { index: [1; 16], id: 7, fp: 7 };
        let mut waits = Waits::default();
        waits.comes(file, 2);
        waits.comes(file, 3);
        assert_eq!(waits.source(&file), Some(3));
        waits.came(&file);
        assert_eq!(waits.source(&file), Some(3));
        waits.came(&file);
        assert_eq!(waits.source(&file), None);
        waits.promise(file, 2);
        waits.promise(file, 2);
        waits.kept(file, 2);
        assert!(waits.is_promised(&file, 2) && !waits.is_promised(&file, 3));
        waits.kept(file, 2);
        waits.kept(file, 3);
        assert!(waits.promised.is_empty() && waits.coming.is_empty());
    }
}
