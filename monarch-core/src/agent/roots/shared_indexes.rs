//! An index that the nodes of a job have in common: obtained from another node, or offered.

use super::root_list::RootList;
use super::scan::Scan;
use crate::cluster::index_image::Image;
use crate::cluster::node::{Node, Obtained};
use crate::engine::{PfsSource, Source};
use crate::held_dir::HeldDir;
use crate::index::{DirReader, MAX_REQUESTS_PER_NODE, ScanHelpers, root_id};
use crate::shm;
use crate::tier::CopyName;
use crate::tiering::{IdentityScope, LiveSegment, TieringEngine};
use monarch_abi::index::{Index, Record};
use monarch_abi::segment::Segment;
use monarch_abi::word::Word;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Files that are compared to find out which part of an identity is the same here as on the node
/// that made the index.
const SAMPLE_FILES: usize = 4;
/// Files that are compared where some of the first are other files here: changed since, or another
/// file system altogether.
const LARGE_SAMPLE_FILES: usize = 16;

/// Indexes of this node's roots among the nodes of the job; without other nodes nothing is done.
#[derive(Debug)]
pub(super) struct SharedIndexes {
    dir: Arc<HeldDir>,
    tiering: Arc<TieringEngine>,
    node: Option<Arc<Node>>,
}

impl SharedIndexes {
    /// Indexes in files of `dir`, shared by `node`.
    pub(super) const fn new(dir: Arc<HeldDir>, tiering: Arc<TieringEngine>, node: Option<Arc<Node>>) -> Self {
        Self { dir, tiering, node }
    }

    /// The index as another node made it, if this node is not to make it.
    pub(super) fn obtain(&self, scan: &Scan, path: &Path) -> io::Result<Theirs> {
        let Some(node) = &self.node else { return Ok(Theirs::None) };
        let index = &scan.config.index;
        // While this node waits for the index of another one.
        let reader = || {
            let limits = self.tiering.shared.cx.limits.clone();
            let threads = index.scan_threads.div_ceil(MAX_REQUESTS_PER_NODE);
            Arc::new(DirReader::new(path.to_owned(), limits, threads))
        };
        let reader = index.shared_scan.then(reader);
        match node.obtain(root_id(path), index.max_memory, &self.dir, &scan.progress, reader)? {
            Obtained::Mine => Ok(Theirs::None),
            Obtained::Theirs(image) => {
                let index = shm::IndexBytes(&image.index).open();
                let Some(index) = index.filter(|i| i.header.root_id == root_id(path)) else {
                    return Err(io::Error::other("another node sent the index of another root"));
                };
                match portable(&index, &PfsSource::new(path)?) {
                    Some(portable) if portable.ino => {
                        tracing::info!(root = %path.display(), bytes = image.index.len(), "index of another node");
                        return Ok(Theirs::Image(image, portable));
                    }
                    // The preload library tells files by these numbers.
                    Some(_) => {
                        tracing::error!(root = %path.display(), "no sharing: the PFS gives its files other inode numbers on other nodes");
                    }
                    None => {
                        tracing::error!(root = %path.display(), "no sharing: other nodes have other files at this path");
                    }
                }
                node.give_up(root_id(path));
                Ok(Theirs::Unfit)
            }
        }
    }

    /// The nodes that help this one to scan a root, where that is asked for.
    pub(super) fn scan_helpers(&self, scan: &Scan, path: &Path) -> Option<Arc<dyn ScanHelpers>> {
        let node = self.node.as_ref().filter(|_| scan.config.index.shared_scan)?;
        Some(node.scan_helpers(root_id(path)))
    }

    /// Asks the other nodes what they hold of this node's files, before an index is served.
    pub(super) fn join(&self, segment: &Segment<'static>) {
        if let Some(node) = &self.node {
            node.join(segment);
        }
    }

    /// The same of an index of an agent that died; the part of an identity that is the same here
    /// goes into `live`.
    pub(super) fn join_adopted(&self, live: &mut LiveSegment) {
        if let Some(node) = &self.node {
            live.portable = portable(&live.segment.index, &*live.source).unwrap_or_default();
            node.join(&live.segment);
        }
    }

    /// Announces the copies and changes of an index of an agent that died.
    pub(super) fn announce_adopted(&self, live: &LiveSegment) {
        if let Some(node) = &self.node {
            node.announce(&live.segment);
            // Whether the agent before this one has informed the other nodes is not known.
            live.segment.files_that(Word::is_changed).for_each(|e| node.note_changed(live.file_ref(&e)));
        }
    }

    /// Offers the index of a root to other nodes for as long as jobs use it, and announces the
    /// copies that are here.
    pub(super) fn offer(&self, list: &RootList, root: usize, live: &LiveSegment) {
        let Some(node) = &self.node else { return };
        let list = list.lock();
        let Some((path, jobs)) = list.get(root).map(|r| (r.path.clone(), r.jobs)) else { return };
        if jobs == 0 {
            // The last job left while the index was on its way.
            node.give_up(root_id(&path));
            return;
        }
        let uuid = live.segment.index.header.uuid;
        let (index, _) = shm::segment_names(uuid, uuid);
        node.offer(root_id(&path), live.segment, (self.dir.clone(), index), live.fresh);
        drop(list);
        node.announce(&live.segment);
    }

    /// The same of roots that are there already, for a job that has come.
    pub(super) fn offer_again(&self, list: &RootList, roots: &[usize]) {
        if self.node.is_none() {
            return;
        }
        for &root in roots {
            let segment = list.lock().get(root).and_then(|r| r.segment);
            if let Some(live) = segment.and_then(|number| self.tiering.shared.segments.segment(number)) {
                self.offer(list, root, &live);
            }
        }
    }

    /// Withdraws the index of a root from other nodes.
    pub(super) fn withdraw(&self, path: &Path) {
        if let Some(node) = &self.node {
            node.give_up(root_id(path));
        }
    }

    /// Forgets an index that is not served any more.
    pub(super) fn leave(&self, live: &LiveSegment) {
        if let Some(node) = &self.node {
            node.leave(&live.segment.index.header.uuid);
        }
    }

    /// Notes the checksums of copies of an earlier run, for the nodes that get them from here.
    pub(super) fn note_sums(&self, live: &LiveSegment) {
        let Some(node) = self.node.as_ref() else { return };
        let segment = &live.segment;
        if self.tiering.shared.cx.tiers.iter().all(|tier| tier.space.ledger.usage().files == 0) {
            return;
        }
        let names: HashSet<CopyName> = segment.files().map(|e| segment.copy_name(&e)).collect();
        for tier in &self.tiering.shared.cx.tiers {
            let Ok(logged) = tier.log.sums(&names) else { continue };
            for e in segment.files() {
                if let Some(l) = logged.get(segment.copy_name(&e)) {
                    node.note_sum(&live.file_ref(&e), l.sum);
                }
            }
        }
    }
}

/// An index of another node.
pub(super) enum Theirs {
    /// This node is to make it.
    None,
    /// It is of no use here.
    Unfit,
    /// The index, and the part of an identity that is the same here.
    Image(Box<Image>, IdentityScope),
}

/// The part of an identity that is the same here as for the node that made the index: some files
/// are compared. `None` if most of them are not there, or are other files: the metadata and bytes
/// of that node's files would be taken for those of files here.
fn portable(index: &Index<'_>, source: &dyn Source) -> Option<IdentityScope> {
    let is_file = |id: &u32| index.record(*id).is_some_and(Record::is_file);
    let every = (index.header.files as usize / LARGE_SAMPLE_FILES).max(1);
    let ids: Vec<u32> = (0..index.len() as u32).filter(is_file).step_by(every).take(LARGE_SAMPLE_FILES).collect();
    let (mut portable, mut same, mut others) = (IdentityScope::default(), 0, 0);
    // The first few are from all over the index, too.
    for id in (0..SAMPLE_FILES).flat_map(|first| ids.iter().skip(first).step_by(SAMPLE_FILES)) {
        if same == SAMPLE_FILES && others == 0 {
            break;
        }
        let mut path = [0; monarch_abi::PATH_MAX];
        let (Some(record), Some(len)) = (index.record(*id), index.path(*id, &mut path)) else { continue };
        let want = record.identity();
        match source.identity(path.get(..len).unwrap_or(&[])) {
            Ok(now) if (now.size, now.mtime_ns) == (want.size, want.mtime_ns) => {
                same += 1;
                portable.ino &= now.ino == want.ino;
                portable.ctime &= now.ctime_ns == want.ctime_ns;
            }
            _ => others += 1,
        }
    }
    (same >= others).then_some(portable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{ScanOptions, ScanProgress, build, scan};

    /// An index was taken as it came where not one of its files was to be found.
    #[test]
    fn an_index_of_other_files_is_of_no_use() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: usize| dir.path().join(format!("{n:02}"));
        let write = |n: usize, bytes: &[u8]| std::fs::write(at(n), bytes).unwrap();
        (0..40).for_each(|n| write(n, b"as it was"));
        let options = ScanOptions { threads: 1, max_memory: 1 << 20 };
        let built = build(scan(dir.path(), options, &ScanProgress::default()).unwrap(), 0, [1; 16]);
        let bytes = shm::IndexBytes(&built.index);
        let index = bytes.open().unwrap();
        let source = PfsSource::new(dir.path()).unwrap();
        assert_eq!(portable(&index, &source), Some(IdentityScope::default()));
        // Some were changed since.
        (0..40).step_by(4).for_each(|n| write(n, b"as it is now"));
        assert_eq!(portable(&index, &source), Some(IdentityScope::default()));
        (0..40).for_each(|n| write(n, b"something else"));
        assert_eq!(portable(&index, &source), None);
        (0..40).for_each(|n| std::fs::remove_file(at(n)).unwrap());
        assert_eq!(portable(&index, &source), None);
    }
}
