//! Files that a job can write from its start (see [`crate::agent::writable`]): they count as changed, in segments that are there
//! and in those that are to come. And what processes change that tell the agent instead of the control block (see
//! [`crate::agent::outside`]).
//!
//! A list says which files, another which segments are open to readers; both are under one lock, so that a file meets every
//! segment. The paths are also left where the job leaves its early changes, for an agent that comes after this one.

use super::Roots;
use crate::agent::early;
use crate::agent::protocol::Writable;
use monarch_abi::PATH_MAX;
use monarch_abi::control::{ControlMap, SEGMENT_LIVE};
use monarch_abi::segment::Segment;
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
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

/// What a process is about to change, told by a descriptor of it or of the directory that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Change {
    /// The path of the descriptor, as the kernel tells it.
    pub path: Vec<u8>,
    /// The name in the directory that is at `path`; none if it is the file at `path` itself.
    pub name: Option<Vec<u8>>,
    /// Whether the name moves, with all that may lie below it.
    pub moved: bool,
    /// The descriptor's device.
    pub dev: u64,
    /// Its inode.
    pub ino: u64,
    /// Its names.
    pub links: u64,
    /// The number of the mount through which it was opened; none on kernels that do not tell.
    pub mount: Option<u64>,
}

impl Roots {
    /// The control block.
    pub(in crate::agent) const fn control(&self) -> &ControlMap<'static> {
        &self.ctl
    }

    /// Takes what a process changes for changed, before it does so.
    pub(in crate::agent) fn enter_change(&self, change: &Change) {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mut path = change.path.clone();
        if let Some(name) = &change.name {
            path.extend_from_slice(if path == b"/" { b"" } else { b"/" });
            path.extend_from_slice(name);
        }
        let below = self.below(&path);
        let open: Vec<Open> = written.segments.iter().copied().filter(|s| self.is_live(s.number)).collect();
        // An index that is being made is opened under the same lock.
        for &(root, rel) in below.iter().filter(|(root, _)| open.iter().all(|s| s.root != *root)) {
            self.ctl.ctl.early.leave(root, rel, true);
        }
        for to in open {
            let by_path = below.iter().find(|(root, _)| *root == to.root).map(|&(_, rel)| rel);
            let found = by_path.is_some_and(|rel| self.enter(to, rel, change));
            let on_device = self.ctl.roots().get(to.root).is_some_and(|r| r.dev.load(Ordering::Relaxed) == change.dev);
            // Its path tells what it is, unless it has another name, or lies in another mount than the root.
            let elsewhere = by_path.is_none() && (change.mount.is_none() || change.mount != self.mount_of(to.root));
            let linked = change.name.is_none() && change.links > 1;
            if on_device && !found && (elsewhere || linked) {
                self.enter_by_inode(to, change);
            }
        }
    }

    /// Bypasses what a change means for the path below a root. Whether the index knows the path, or the directory in which it lies.
    fn enter(&self, to: Open, rel: &[u8], change: &Change) -> bool {
        let known = to.segment.lookup(rel);
        if change.moved {
            early::enter(&self.ctl, to.number, &to.segment, rel, true);
        }
        if let Some(e) = &known {
            early::bypass(&to.segment, e);
        }
        // A file without an entry is new.
        let parent = rel.iter().rposition(|&c| c == b'/').map_or(&[][..], |slash| &rel[..slash]);
        let listing = to.segment.lookup(parent).filter(|_| change.name.is_some() || known.is_none());
        if let Some(e) = &listing {
            early::bypass(&to.segment, e);
        }
        known.is_some() || listing.is_some()
    }

    /// The same where the path does not tell.
    fn enter_by_inode(&self, to: Open, change: &Change) {
        let dir =
            to.segment.index.dirs().iter().find(|d| to.segment.index.record(d.id).is_some_and(|r| r.ino == change.ino));
        match (&change.name, dir) {
            (Some(name), Some(dir)) => {
                let mut path = [0; PATH_MAX];
                let Some(len) = to.segment.index.path(dir.id, &mut path) else { return };
                let mut rel = path.get(..len).unwrap_or_default().to_vec();
                rel.extend_from_slice(if rel.is_empty() { b"" } else { b"/" });
                rel.extend_from_slice(name);
                self.enter(to, &rel, change);
            }
            (Some(_), None) => {}
            (None, Some(dir)) => {
                if let Some(e) = to.segment.by_id(dir.id) {
                    early::bypass(&to.segment, &e);
                }
            }
            (None, None) => {
                let same = to.segment.files().filter(|e| e.record.ino == change.ino);
                same.for_each(|e| early::bypass(&to.segment, &e));
            }
        }
    }

    /// The mount that a root's path leads to. Asks this machine only.
    fn mount_of(&self, root: usize) -> Option<u64> {
        let path =
            self.ctl.roots().get(root).map(|r| std::path::Path::new(OsStr::from_bytes(self.ctl.str(&r.path))))?;
        let mount_id = StatxFlags::from_bits_retain(0x1000);
        let st = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, mount_id).ok()?;
        (st.stx_mask & mount_id.bits() != 0).then_some(st.stx_mnt_id)
    }

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
        self.below(&f.path)
    }

    /// The roots that a path lies below, and the path there.
    fn below<'p>(&self, path: &'p [u8]) -> Vec<(usize, &'p [u8])> {
        let rel = |root: &[u8]| match path.strip_prefix(root)? {
            b"" => Some(b"".as_slice()),
            rest if root == b"/" => Some(rest),
            rest => rest.strip_prefix(b"/"),
        };
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
