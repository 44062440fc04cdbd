//! An index that the nodes of a job have in common: who has it made, and who gets it.

use super::Roots;
use super::segments::Scan;
use crate::agent::driver::{Live, Portable};
use crate::cluster::image::Image;
use crate::cluster::node::Obtained;
use crate::engine::{PfsSource, Source};
use crate::index::root_id;
use crate::shm;
use crate::tier::CopyName;
use monarch_abi::index::Index;
use std::collections::HashSet;
use std::io;
use std::path::Path;

/// Files that are compared to find out what of an identity is the same here as where it was indexed.
const SAMPLE: usize = 4;

impl Roots {
    /// The index as another node made it, if this node is not to make it.
    pub(super) fn others_index(&self, scan: &Scan, path: &Path) -> io::Result<Theirs> {
        let Some(node) = &self.node else { return Ok(Theirs::None) };
        match node.obtain(root_id(path), scan.config.index.max_memory, &self.dir, &scan.progress)? {
            Obtained::Mine => Ok(Theirs::None),
            Obtained::Theirs(image) => {
                let index = shm::IndexBytes(&image.index).open();
                let Some(index) = index.filter(|i| i.header.root_id == root_id(path)) else {
                    return Err(io::Error::other("another node sent the index of another root"));
                };
                if !portable(&index, &PfsSource::new(path)?).ino {
                    // The preload library tells files by these numbers.
                    tracing::error!(root = %path.display(), "no sharing: the PFS gives its files other inode numbers on other nodes");
                    node.give_up(root_id(path));
                    return Ok(Theirs::Unfit);
                }
                tracing::info!(root = %path.display(), bytes = image.index.len(), "index of another node");
                Ok(Theirs::Image(image))
            }
        }
    }

    /// Other nodes can have the index of a root from here as long as jobs use it, and are told what lies here of it.
    pub(super) fn offer(&self, root: usize, live: &Live) {
        let Some(node) = &self.node else { return };
        let list = self.list();
        let Some((path, jobs)) = list.get(root).map(|r| (r.path.clone(), r.jobs)) else { return };
        if jobs == 0 {
            // The last job left while the index was on its way.
            node.give_up(root_id(&path));
            return;
        }
        let uuid = live.segment.index.header.uuid;
        let (index, _) = shm::segment_paths(&self.dir, uuid, uuid);
        node.offer(root_id(&path), live.segment, index, live.fresh);
        drop(list);
        node.announce(live);
    }

    /// The same of roots that are there already, for a job that has come.
    pub(super) fn offer_again(&self, roots: &[usize]) {
        if self.node.is_none() {
            return;
        }
        for &root in roots {
            let segment = self.list().get(root).and_then(|r| r.segment);
            if let Some(live) = segment.and_then(|number| self.driver.segment(number)) {
                self.offer(root, &live);
            }
        }
    }

    /// Nobody gets the index of a root from here any more.
    pub(super) fn withdraw_offer(&self, path: &Path) {
        if let Some(node) = &self.node {
            node.give_up(root_id(path));
        }
    }

    /// The nodes know an index no more.
    pub(super) fn leave(&self, live: &Live) {
        if let Some(node) = &self.node {
            node.leave(&live.segment.index.header.uuid);
        }
    }

    /// What copies of an earlier run come to, for those who get them from here.
    pub(super) fn note_sums_of(&self, live: &Live) {
        let Some(node) = self.node.as_ref() else { return };
        let segment = &live.segment;
        if self.driver.tiers.iter().all(|tier| tier.ledger.usage().files == 0) {
            return;
        }
        let names: HashSet<CopyName> = segment.files().map(|e| segment.copy_name(&e)).collect();
        for tier in &self.driver.tiers {
            let Ok(logged) = tier.sums(&names) else { continue };
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
    /// It is this.
    Image(Box<Image>),
}

/// What of an identity is the same here as for the node that made the index: some files are compared.
pub(super) fn portable(index: &Index<'_>, source: &dyn Source) -> Portable {
    let mut portable = Portable::default();
    let entries = index.len() as u32;
    let files = (0..entries).filter_map(|id| Some((id, index.record(id)?))).filter(|(_, r)| r.is_file());
    for (id, record) in files.step_by((index.header.files as usize / SAMPLE).max(1)).take(SAMPLE) {
        let mut path = [0; monarch_abi::PATH_MAX];
        let Some(len) = index.path(id, &mut path) else { continue };
        let Ok(now) = source.identity(path.get(..len).unwrap_or(&[])) else { continue };
        let want = record.identity();
        if (now.size, now.mtime_ns) == (want.size, want.mtime_ns) {
            portable.ino &= now.ino == want.ino;
            portable.ctime &= now.ctime_ns == want.ctime_ns;
        }
    }
    portable
}
