//! Changes that no shim enters into the control block: of files that a job can write from its start
//! (see [`crate::agent::writable`]), and of processes that inform the agent instead (see
//! [`crate::agent::foreign_changes`]). They count as changes in all segments, those that are there
//! and those that are to come.
//!
//! One list has the files, another the segments that are open to readers. Both are under one lock,
//! so that a file meets every segment. The paths are also left where the job leaves its early
//! changes, for an agent that comes after this one.

use crate::agent::pre_index_changes;
use crate::agent::protocol::Writable;
use monarch_abi::PATH_MAX;
use monarch_abi::control::{ControlMap, SEGMENT_LIVE};
use monarch_abi::foreign_changes::{FILE, Head, MOVED, TREE};
use monarch_abi::segment::{Entry, Segment};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Most files, and most changes, that are kept for segments to come; more files than any job
/// inherits.
const MAX_KEPT: usize = 65_536;

/// Changes, and the segments in which they are to be entered.
#[derive(Debug)]
pub(in crate::agent) struct UntrackedChanges {
    ctl: ControlMap<'static>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Files that jobs can write.
    files: Vec<Writable>,
    segments: Vec<Open>,
    /// Changes of other users.
    changes: HashSet<Change>,
    /// Whether other users have changed more than is kept.
    lost: bool,
}

/// A segment that is open to readers.
#[derive(Clone, Debug)]
struct Open {
    root: usize,
    number: usize,
    segment: Segment<'static>,
    found: Arc<ByInode>,
}

/// Entries by their inode, collected when the first is looked for.
#[derive(Debug, Default)]
struct ByInode {
    directories: OnceLock<HashMap<u64, u32>>,
    /// Files with several names.
    linked: OnceLock<HashMap<u64, Vec<u32>>>,
}

impl Open {
    fn directory(&self, ino: u64) -> Option<u32> {
        let index = &self.segment.index;
        let all = || index.dirs().iter().filter_map(|d| Some((index.record(d.id)?.ino, d.id))).collect();
        self.found.directories.get_or_init(all).get(&ino).copied()
    }

    fn linked(&self, ino: u64) -> impl Iterator<Item = u32> {
        let all = || {
            let mut all: HashMap<u64, Vec<u32>> = HashMap::new();
            for (id, r) in (0..).zip(self.segment.index.records()).filter(|(_, r)| r.nlink > 1 && r.is_file()) {
                all.entry(r.ino).or_default().push(id);
            }
            all
        };
        self.found.linked.get_or_init(all).get(&ino).into_iter().flatten().copied()
    }
}

/// A change that a process is about to make.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct Change {
    pub head: Head,
    /// The last component of its path.
    pub name: Vec<u8>,
}

impl UntrackedChanges {
    /// No changes yet; they are entered into the segments of `ctl`.
    pub(super) fn new(ctl: ControlMap<'static>) -> Self {
        Self { ctl, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a change, before the process makes it.
    pub(in crate::agent) fn enter_change(&self, change: &Change) {
        let mut kept = self.kept();
        let open: Vec<Open> = kept.segments.iter().filter(|s| self.is_live(s.number)).cloned().collect();
        // For indexes that are being made: they may have seen what was there before.
        if kept.changes.len() < MAX_KEPT {
            kept.changes.insert(change.clone());
        } else {
            kept.lost = true;
        }
        drop(kept);
        open.iter().for_each(|to| self.enter(to, change));
    }

    /// Bypasses what a change means in a segment, by the index alone.
    fn enter(&self, to: &Open, change: &Change) {
        let Head { kind, is_dir, file, links, parent } = change.head;
        let device = self.ctl.roots().get(to.root).map(|r| r.dev.load(Ordering::Relaxed));
        let directory = |[dev, ino]: [u64; 2]| (device == Some(dev)).then(|| to.directory(ino)).flatten();
        if let Some(dir) = directory(parent).and_then(|id| to.segment.by_id(id)) {
            self.enter_name(to, &dir, change);
        } else if is_dir && let Some(e) = directory(file).and_then(|id| to.segment.by_id(id)) {
            // The top of a root: its name lies outside.
            pre_index_changes::bypass(&to.segment, &e);
            if kind == TREE {
                self.bypass_below(to, &e);
            }
        } else if device.is_some_and(|device| device == parent[0] || device == file[0]) {
            // It may be in a directory that the index does not hold: its path is not known here.
            to.segment.state.marks.close();
        }
        if matches!(kind, FILE | TREE) && !is_dir && links > 1 && device == Some(file[0]) {
            // Another name of a file that the index knows.
            to.linked(file[1])
                .filter_map(|id| to.segment.by_id(id))
                .for_each(|e| pre_index_changes::bypass(&to.segment, &e));
        }
    }

    /// A change of a name in a directory of the index, or of what it leads to.
    fn enter_name(&self, to: &Open, dir: &Entry<'_>, change: &Change) {
        let mut path = [0; PATH_MAX];
        let Some(len) = to.segment.index.path(dir.id, &mut path) else { return };
        let mut rel = path.get(..len).unwrap_or_default().to_vec();
        rel.extend_from_slice(if rel.is_empty() { b"" } else { b"/" });
        rel.extend_from_slice(&change.name);
        let child = to.segment.lookup(&rel);
        match change.head.kind {
            _ if child.is_some() => {}
            FILE => to.segment.state.marks.note_entry(&rel),
            MOVED | TREE => to.segment.state.marks.close(),
            _ => to.segment.state.marks.note_name(&rel),
        }
        if let Some(e) = &child {
            pre_index_changes::bypass(&to.segment, e);
            if matches!(change.head.kind, MOVED | TREE) {
                self.bypass_below(to, e);
            }
        }
        // A file that the index does not know is new, or has taken the place of another.
        let is_known = child.is_some_and(|e| e.record.ino == change.head.file[1]);
        if !(matches!(change.head.kind, FILE | TREE) && is_known) {
            pre_index_changes::bypass(&to.segment, dir);
        }
    }

    fn bypass_below(&self, to: &Open, e: &Entry<'_>) {
        if let Some(d) = to.segment.index.dir(e.record)
            && !self.ctl.bypass_range(to.number as u32, d.id, d.end)
        {
            to.segment.state.header.bypassed.store(1, Ordering::SeqCst);
        }
    }

    /// Opens a segment to readers, with all changes that are known already.
    pub(super) fn open_segment(&self, root: usize, number: usize, segment: &Segment<'static>) {
        let mut kept = self.kept();
        let open = Open { root, number, segment: *segment, found: Arc::default() };
        // Readers come in with the last step of this.
        kept.files.iter().for_each(|f| self.enter_written(&open, f));
        kept.changes.iter().for_each(|change| self.enter(&open, change));
        let lost = kept.lost;
        kept.segments.retain(|s| self.is_live(s.number));
        kept.segments.push(open);
        if lost {
            // (`pre_index_changes::open` opens it only from the state in which it was published.)
            segment.state.header.bypassed.store(1, Ordering::SeqCst);
        }
        pre_index_changes::open(&self.ctl, root, number, segment);
    }

    /// Enters files that a job can write, before it begins.
    pub(in crate::agent) fn enter_writable(&self, files: &[Writable], again: bool) {
        if files.is_empty() {
            return;
        }
        let mut kept = self.kept();
        for f in files {
            tracing::info!(file = %crate::shown::bytes(&f.path), "a job can write this file from its start: it is read from the PFS");
            for (root, rel) in self.below_roots(f) {
                if !again {
                    self.ctl.ctl.early.leave(root, rel, false);
                }
            }
            let open: Vec<Open> = kept.segments.iter().filter(|s| self.is_live(s.number)).cloned().collect();
            open.iter().for_each(|s| self.enter_written(s, f));
            if !kept.files.contains(f) && kept.files.len() < MAX_KEPT {
                kept.files.push(f.clone());
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

    /// Bypasses a file in a segment: by its path, and by its inode where it has another name or was
    /// opened through another mount. Without an entry it is new, and its directory's listing is
    /// not what the index says.
    fn enter_written(&self, to: &Open, f: &Writable) {
        let by_path = self.below_roots(f).into_iter().find(|(root, _)| *root == to.root);
        let found = by_path.is_some_and(|(_, rel)| {
            let known = to.segment.lookup(rel).is_some();
            pre_index_changes::enter(&self.ctl, to.number, &to.segment, rel, !known);
            known
        });
        let device = self.ctl.roots().get(to.root).map(|r| r.dev.load(Ordering::Relaxed));
        if device == Some(f.dev) && (!found || f.links > 1) {
            to.segment
                .files()
                .filter(|e| e.record.ino == f.ino)
                .for_each(|e| pre_index_changes::bypass(&to.segment, &e));
        }
    }

    fn is_live(&self, number: usize) -> bool {
        self.ctl.segments().get(number).is_some_and(|s| s.status.load(Ordering::Acquire) == SEGMENT_LIVE)
    }
}
