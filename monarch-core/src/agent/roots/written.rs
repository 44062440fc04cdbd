//! Files that a job can write from its start (see [`crate::agent::writable`]): they count as changed, in segments that are there
//! and in those that are to come.
//!
//! A list says which files, another which segments are open to readers; both are under one lock, so that a file meets every
//! segment. The paths are also left where the job leaves its early changes, for an agent that comes after this one.

use super::Roots;
use crate::agent::early;
use crate::agent::protocol::Writable;
use monarch_abi::control::SEGMENT_LIVE;
use monarch_abi::segment::Segment;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Most files that are kept for segments to come; more than any job inherits.
const MOST: usize = 65_536;

/// Files that jobs can write, and the segments in which they are to be entered.
#[derive(Debug, Default)]
pub(super) struct Written {
    files: Vec<Writable>,
    segments: Vec<Open>,
}

/// A segment that is open to readers.
#[derive(Clone, Copy, Debug)]
struct Open {
    root: usize,
    number: usize,
    segment: Segment<'static>,
}

impl Roots {
    /// Opens a segment to readers, with all changes that are known already.
    pub(super) fn open_segment(&self, root: usize, number: usize, segment: &Segment<'static>) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let open = Open { root, number, segment: *segment };
        // Readers come in with the last step of this.
        written.files.iter().for_each(|f| self.enter_written(open, f));
        written.segments.retain(|s| self.is_live(s.number));
        written.segments.push(open);
        early::open(&self.ctl, root, number, segment);
    }

    /// Takes files for changed, before the job begins that can write them.
    pub fn enter_writable(&self, files: &[Writable], again: bool) {
        if files.is_empty() {
            return;
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for f in files {
            tracing::info!(file = %crate::shown::bytes(&f.path), "a job can write this file from its start: it is read from the PFS");
            for (root, rel) in self.below_roots(f) {
                if !again {
                    self.ctl.ctl.early.leave(root, rel, false);
                }
            }
            let open: Vec<Open> = written.segments.iter().copied().filter(|s| self.is_live(s.number)).collect();
            open.into_iter().for_each(|s| self.enter_written(s, f));
            if !written.files.contains(f) && written.files.len() < MOST {
                written.files.push(f.clone());
            }
        }
    }

    /// The roots that a file lies below by its path, and its path there.
    fn below_roots<'f>(&self, f: &'f Writable) -> Vec<(usize, &'f [u8])> {
        let rel =
            |root: &[u8]| f.path.strip_prefix(root)?.strip_prefix(if root == b"/" { b"".as_slice() } else { b"/" });
        self.ctl.roots().iter().enumerate().filter_map(|(n, r)| Some((n, rel(self.ctl.str(&r.path))?))).collect()
    }

    /// Bypasses a file in a segment: by its path, and by its inode where it has another name or was opened through another mount.
    /// Without an entry it is new, and its directory's listing is not what the index says.
    fn enter_written(&self, to: Open, f: &Writable) {
        let by_path = self.below_roots(f).into_iter().find(|(root, _)| *root == to.root);
        let found = by_path.is_some_and(|(_, rel)| {
            let known = to.segment.lookup(rel).is_some();
            early::enter(&self.ctl, to.number, &to.segment, rel, !known);
            known
        });
        let device = self.ctl.roots().get(to.root).map(|r| r.dev.load(Ordering::Relaxed));
        if device == Some(f.dev) && (!found || f.links > 1) {
            to.segment.files().filter(|e| e.record.ino == f.ino).for_each(|e| early::bypass(&to.segment, &e));
        }
    }

    fn is_live(&self, number: usize) -> bool {
        self.ctl.segments().get(number).is_some_and(|s| s.status.load(Ordering::Acquire) == SEGMENT_LIVE)
    }
}
