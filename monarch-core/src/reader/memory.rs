//! The shared memory of an agent, as this process has mapped it: its roots, and the segments of
//! those that are live.

use crate::held_dir::HeldDir;
use crate::shm;
use monarch_abi::control::{ControlMap, Counter, MAX_SEGMENTS, SEGMENT_LIVE};
use monarch_abi::resolve::Found;
use monarch_abi::segment::Segment;
use monarch_abi::word::Word;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// The control block and the segments of an agent. A segment stays mapped once it was used.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) ctl: ControlMap<'static>,
    /// The runtime directory of the agent.
    pub(super) dir: HeldDir,
    segments: Box<[OnceLock<Option<Segment<'static>>>]>,
    /// Whether this process sees the mounts that the agent sees.
    same_mounts: bool,
    /// Group in which opens by this reader are counted.
    pub(super) counter_group: usize,
}

impl Memory {
    pub(super) fn new(ctl: ControlMap<'static>, dir: HeldDir) -> Self {
        let segments = (0..MAX_SEGMENTS).map(|_| OnceLock::new()).collect();
        Self { same_mounts: crate::agent::start::same_mounts(&ctl), ctl, dir, segments, counter_group: 0 }
    }

    /// Returns the real paths of the roots.
    pub(super) fn roots(&self) -> Vec<PathBuf> {
        self.ctl.roots().iter().map(|r| path_of(self.ctl.str(&r.path))).collect()
    }

    /// Returns the directories of the tiers.
    pub(super) fn tiers(&self) -> Vec<PathBuf> {
        self.ctl.tiers().iter().map(|t| path_of(self.ctl.str(&t.path))).collect()
    }

    /// Returns a path as it is looked up: the real path where this process has mounts of its own,
    /// since links and other spellings may lead to other files than for the agent.
    pub(super) fn spelled(&self, path: &Path) -> io::Result<PathBuf> {
        if self.same_mounts { std::path::absolute(path) } else { path.canonicalize() }
    }

    /// Returns the path of the copy that a word names.
    pub(super) fn copy_path(&self, found: &Found<'_>, word: Word) -> Option<PathBuf> {
        let tier = self.ctl.tiers().get(word.tier())?;
        let rel = found.segment.copy_name(&found.entry).rel_path();
        Some(path_of(self.ctl.str(&tier.path)).join(OsStr::from_bytes(&rel)))
    }

    /// Whether all processes read the root from the PFS.
    pub(super) fn is_given_up(&self, root: usize) -> bool {
        let bypassed = self.ctl.roots().get(root).is_none_or(|r| r.bypassed.load(Ordering::Relaxed) != 0);
        bypassed || self.ctl.ctl.bypassed.load(Ordering::Relaxed) != 0
    }

    /// Returns the live segment of a root and its number. The first call maps the segment.
    pub(super) fn live(&self, root: usize) -> Option<(usize, &Segment<'static>)> {
        let is = |s: &monarch_abi::control::SegmentRef| {
            s.status.load(Ordering::Acquire) == SEGMENT_LIVE && s.root.load(Ordering::Relaxed) as usize == root
        };
        let (number, s) = self.ctl.segments().iter().enumerate().rfind(|(_, s)| is(s))?;
        let (index, state) = (shm::get_uuid(&s.uuid), shm::get_uuid(&s.state_uuid));
        let segment = self.segments.get(number)?.get_or_init(|| shm::open_segment(&self.dir, index, state).ok());
        Some((number, segment.as_ref()?))
    }

    /// Whether the paths of a root and of the tiers lead to the same directories as for the agent,
    /// and nothing is mounted below the root.
    pub(super) fn leads_there(&self, root: usize) -> bool {
        if self.same_mounts {
            return true;
        }
        let is = |path: &[u8], dev: u64, ino: u64| {
            std::fs::metadata(path_of(path)).is_ok_and(|m| (m.dev(), m.ino()) == (dev, ino))
        };
        let load = |v: &std::sync::atomic::AtomicU64| v.load(Ordering::Relaxed);
        let Some(r) = self.ctl.roots().get(root) else { return false };
        is(self.ctl.str(&r.path), load(&r.dev), load(&r.ino))
            && self.ctl.tiers().iter().all(|t| is(self.ctl.str(&t.path), load(&t.dev), load(&t.ino)))
            && !crate::config::mounted_below(&path_of(self.ctl.str(&r.path)))
    }

    pub(super) fn count(&self, what: Counter, by: u64) {
        self.ctl.count(self.counter_group, std::process::id() as usize, what, by);
    }

    pub(super) fn indexed_path(&self, found: &Found<'_>) -> Option<PathBuf> {
        let mut buf = [0; monarch_abi::PATH_MAX];
        let len = found.segment.index.path(found.entry.id, &mut buf)?;
        let root = self.ctl.roots().get(found.root)?;
        Some(path_of(self.ctl.str(&root.path)).join(OsStr::from_bytes(buf.get(..len)?)))
    }
}

/// The path that these bytes are.
pub(super) fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}
