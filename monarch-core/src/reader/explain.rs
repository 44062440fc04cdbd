//! Explains what an open of a path would do, by the same lookups as an open makes.

use super::guard::{self, View};
use super::memory::{Memory, path_of};
use crate::agent::client;
use crate::index::is_library;
use crate::shm::Checks;
use crate::shown::ShowPath;
use monarch_abi::absent::Absent;
use monarch_abi::control::Start;
use monarch_abi::demand;
use monarch_abi::guard::{LastCheck, NEVER_AGAIN};
use monarch_abi::resolve::{Found, Miss, resolve};
use monarch_abi::word::{Refusal, State};
use rustix::fs::AtFlags;
use rustix::io::Errno;
use serde::Serialize;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Whether a file may be mapped for execution where it lies.
fn can_be_executed(copy: &Path) -> bool {
    let flags = rustix::fs::statvfs(copy).map(|v| v.f_flag);
    flags.is_ok_and(|flags| !flags.contains(rustix::fs::StatVfsMountFlags::NOEXEC))
}

/// What is known about a path.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The path, absolute.
    #[serde(serialize_with = "crate::shown::serial::path")]
    pub path: PathBuf,
    /// Real path of the root below which it lies.
    pub root: Option<PathBuf>,
    /// The entry of the index, links followed.
    pub file: Option<FileInfo>,
    /// The path of its copy.
    pub copy: Option<PathBuf>,
    /// The consistency of the root, and whether copies are verified at each open; only for a path
    /// in the index.
    pub served: Option<Served>,
    /// Of a file with the name of a shared library: whether the loader maps its copy in processes
    /// with the audit library.
    pub library: Option<bool>,
    /// What an open for reading gets.
    pub verdict: Verdict,
}

/// How a root is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Served {
    /// `immutable`, or how often the PFS is asked.
    pub consistency: String,
    /// Whether copies are compared with their checksums when they are opened.
    pub verify_on_open: bool,
}

/// What the index knows about an entry.
#[derive(Clone, Debug, Serialize)]
pub struct FileInfo {
    /// Path below the root.
    #[serde(serialize_with = "crate::shown::serial::path")]
    pub path: PathBuf,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    /// Inode number.
    pub ino: u64,
}

/// What an open for reading gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum Verdict {
    /// The copy.
    Hit,
    /// A directory: listings and metadata come from memory.
    Directory,
    /// Neither file nor directory.
    Special,
    /// Below no root.
    Outside,
    /// Below a root, by a spelling that the agent does not know.
    OtherSpelling {
        /// The real path.
        #[serde(serialize_with = "crate::shown::serial::path")]
        real: PathBuf,
    },
    /// A link below a root leads out of all roots.
    LinkedOutside {
        /// Where it leads.
        #[serde(serialize_with = "crate::shown::serial::path")]
        real: PathBuf,
    },
    /// The root's path leads to another file system in this process than for the agent.
    OtherMount,
    /// The agent has ended or died.
    NoAgent,
    /// The root was renamed, replaced or mounted over by a job.
    RootGivenUp,
    /// The root is being scanned, or cannot be scanned.
    NoIndex,
    /// There is no such file.
    Missing,
    /// There is no such file, and the listing of its directory says so to jobs.
    ListedMissing,
    /// On another file system that is mounted below the root.
    OtherDevice,
    /// Not in the index: it appeared after the scan, lies in `.snapshot`, or did not fit into
    /// `index.max_memory`.
    NotInIndex,
    /// Changed by a job, or by another node since the scan.
    Changed {
        /// Whether size, times or inode differ from the index now.
        differs: bool,
    },
    /// Larger than `source.chunk_threshold`, and its copy is not complete.
    Large {
        /// Chunks that are there.
        there: u32,
        /// Chunks of the file.
        chunks: u32,
    },
    /// Compressed: an open waits until it is decompressed.
    Packed {
        /// Directory of the tier.
        tier: PathBuf,
    },
    /// No copy yet: the first open makes one.
    Absent,
    /// Being copied, or about to be.
    Fetching,
    /// Not copied for now.
    Refused {
        /// Why not.
        why: RefusedFor,
    },
    /// The copy was removed or damaged by another process.
    Vanished,
    /// This user may not read it.
    Forbidden,
}

/// Why a file is not copied for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusedFor {
    /// No tier has room for it.
    NoRoom,
    /// It was changed a moment ago.
    RecentlyModified,
    /// The PFS failed.
    PfsFailed,
    /// A tier failed.
    TierFailed,
    /// Its copy had to go.
    Dropped,
}

impl From<Refusal> for RefusedFor {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::NoRoom | Refusal::Streamable => Self::NoRoom,
            Refusal::RecentlyModified => Self::RecentlyModified,
            Refusal::PfsFailed => Self::PfsFailed,
            Refusal::TierFailed => Self::TierFailed,
            Refusal::Dropped | Refusal::Damaged | Refusal::Replaced => Self::Dropped,
        }
    }
}

impl Verdict {
    /// Whether it is served locally.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::Hit | Self::Directory)
    }

    /// Returns what to do about it, if anything.
    #[must_use]
    pub const fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::Outside => "add the directory of the data set to dataset.roots (--root)",
            Self::OtherSpelling { .. } => {
                "use the real path; if a link leads there, name it in dataset.aliases (`..` outside of a root is not followed)"
            }
            Self::LinkedOutside { .. } => {
                "add the directory that the link leads to with --root; dataset.follow: auto adds small ones on the same file system"
            }
            Self::OtherMount => "start `monarch run` inside the container, or mount the same directory there",
            Self::NoAgent => "look into the agent's log; `monarch run` starts another agent within a second",
            Self::RootGivenUp => "do not rename the root or mount over it while jobs run; the next job is served again",
            Self::NoIndex => "wait for the scan (`monarch status`), or save an index first (`monarch index build`)",
            Self::OtherDevice => "make the mounted directory a root of its own",
            Self::NotInIndex => "the next job that starts after all other jobs have ended scans the root again",
            Self::Changed { .. } => "the next job that starts after all other jobs have ended sees the new version",
            Self::Refused { why: RefusedFor::NoRoom | RefusedFor::Dropped } => {
                "give the tiers more capacity; `monarch status` shows what is taken, `monarch evict` frees what is not needed"
            }
            Self::Refused { why: RefusedFor::RecentlyModified } => "wait until dataset.min_file_age has passed",
            Self::Refused { .. } => "look into the agent's log; it is tried again",
            Self::Vanished => "leave the tier's directory alone; the copy is made again",
            _ => return None,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hit => "hit: an open for reading gets the copy",
            Self::Directory => "directory: listings and metadata are answered from memory",
            Self::Special => "neither file nor directory: left to the kernel",
            Self::Outside => "not below any root: read directly",
            Self::OtherSpelling { real } => {
                return write!(f, "unknown spelling of {}: read from the PFS", real.shown());
            }
            Self::LinkedOutside { real } => {
                return write!(f, "a link leads out of the roots, to {}: read from the PFS", real.shown());
            }
            Self::OtherMount => "other mount: here the root's path leads to another directory than for the agent",
            Self::NoAgent => "the agent is not running: existing copies are served, new ones are not made",
            Self::RootGivenUp => "the root was renamed, replaced or mounted over by a job: read from the PFS",
            Self::NoIndex => "the root has no index yet: read from the PFS until it is scanned",
            Self::Missing => "no such file",
            Self::ListedMissing => "no such file: jobs learn that from the listing of its directory (dataset.absent)",
            Self::OtherDevice => "on another file system mounted below the root: read from the PFS",
            Self::NotInIndex => {
                "not in the index: it appeared after the scan, is in .snapshot, or exceeds index.max_memory"
            }
            Self::Changed { differs: true } => "changed: it is not what was indexed any more",
            Self::Changed { differs: false } => "changed: a job wrote to it or touched its attributes or directory",
            Self::Large { there, chunks } => {
                return write!(
                    f,
                    "large: {there} of {chunks} chunks are there and served, the others as they are read"
                );
            }
            Self::Packed { tier } => {
                return write!(f, "compressed in {}: an open waits until it is decoded", tier.shown());
            }
            Self::Absent => "no copy yet: the first open makes one",
            Self::Fetching => "being copied: an open waits for it",
            Self::Refused { why } => match why {
                RefusedFor::NoRoom => "refused: no tier has room for it",
                RefusedFor::RecentlyModified => "refused for now: changed a moment ago",
                RefusedFor::PfsFailed => "refused for now: the PFS failed at the last try",
                RefusedFor::TierFailed => "refused for now: a tier failed, or takes no copies at present",
                RefusedFor::Dropped => "refused for now: its copy had to make room",
            },
            Self::Vanished => "its copy was removed or damaged by another process",
            Self::Forbidden => "you may not read it",
        })
    }
}

/// Explains paths by the memory of an agent.
pub(super) struct Explainer<'a> {
    pub(super) memory: &'a Memory,
    /// Monotonic time in microseconds, as the agent's pulse is compared with it.
    pub(super) now_us: u64,
}

impl Explainer<'_> {
    /// Explains what an open of `path` for reading would do now. Asks the PFS where the index has
    /// no answer, and changes nothing.
    pub(super) fn explain(&self, path: &Path) -> Explanation {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (root, file, copy, served, library) = (None, None, None, None, None);
        let mut said = Explanation { path, root, file, copy, served, library, verdict: Verdict::Outside };
        let spelled = self.memory.spelled(&said.path).unwrap_or_else(|_| said.path.clone());
        let bytes = spelled.as_os_str().as_bytes();
        // The entry of the index is shown also where the root's path leads to another directory in
        // this process.
        match resolve(&self.memory.ctl, &View { memory: self.memory, trusting: true }, bytes, true) {
            Ok(found) => {
                said.root = self.memory.roots().get(found.root).cloned();
                said.file = info(&found);
                let checks = Checks::of(found.segment);
                said.served = Some(Served { consistency: checks.consistency(), verify_on_open: checks.verify });
                if found.entry.word().state() == State::Resident {
                    said.copy = self.memory.copy_path(&found, found.entry.word());
                }
                said.verdict = self.verdict(&said.path, &found);
                let name = said.path.file_name().unwrap_or_default().as_bytes();
                let maps_copy = || said.verdict == Verdict::Hit && said.copy.as_deref().is_some_and(can_be_executed);
                said.library = (found.entry.record.is_file() && is_library(name)).then(maps_copy);
            }
            Err(miss) => {
                said.root = root_of(miss).and_then(|n| self.memory.roots().get(n).cloned());
                said.verdict = self.why(&said.path, miss);
            }
        }
        said
    }

    fn verdict(&self, path: &Path, found: &Found<'_>) -> Verdict {
        let record = found.entry.record;
        if !self.memory.leads_there(found.root) {
            return Verdict::OtherMount;
        }
        if self.has_changed(path, found) {
            return Verdict::Changed { differs: true };
        }
        if record.is_dir() {
            return Verdict::Directory;
        }
        if !record.is_file() {
            return Verdict::Special;
        }
        let word = found.entry.word();
        match word.state() {
            State::Resident => match self.memory.copy_path(found, word).map(std::fs::metadata) {
                Some(Ok(copy)) if copy.len() == record.size => Verdict::Hit,
                _ => Verdict::Vanished,
            },
            // The agent gives up what it may not read, as it does what has changed.
            State::Bypass if self.cannot_read(path) => Verdict::Forbidden,
            State::Bypass => Verdict::Changed { differs: differs(path, found) },
            _ if self.cannot_read(path) => Verdict::Forbidden,
            _ if !self.agent_runs() => Verdict::NoAgent,
            State::Absent if let Some(at) = word.packed_in() => {
                let tier = self.memory.ctl.tiers().get(at).map(|t| path_of(self.memory.ctl.str(&t.path)));
                Verdict::Packed { tier: tier.unwrap_or_default() }
            }
            State::Refused => Verdict::Refused { why: word.refusal().map_or(RefusedFor::NoRoom, RefusedFor::from) },
            state if let Some(large) = found.segment.state.large(found.entry.master.id) => {
                let large = large.streamed_through(&self.memory.ctl.ctl.stream);
                let there = if state == State::Partial { large.count() } else { 0 };
                Verdict::Large { there, chunks: large.head.chunks }
            }
            State::Absent => Verdict::Absent,
            _ => Verdict::Fetching,
        }
    }

    /// Whether an open would find that the PFS has something else by now; nothing is noted.
    fn has_changed(&self, path: &Path, found: &Found<'_>) -> bool {
        let guard = &found.segment.state.guard;
        let asks = |check: LastCheck<'_>| guard.interval_ms() != NEVER_AGAIN || check.is_due(guard::now_ms());
        let watched = guard.last_check(found.entry.id).is_some_and(asks) && found.entry.word().state() != State::Bypass;
        watched
            && match guard::identity(path, AtFlags::empty()) {
                Ok(now) => !guard.is_still(found.entry.record, &now),
                Err(e) => matches!(e, Errno::NOENT | Errno::NOTDIR),
            }
    }

    fn agent_runs(&self) -> bool {
        let ctl = self.memory.ctl.ctl;
        demand::agent_up(ctl) && client::agent_alive(self.memory.dir.path()) && !demand::is_silent(ctl, self.now_us)
    }

    fn cannot_read(&self, path: &Path) -> bool {
        rustix::fs::access(path, rustix::fs::Access::READ_OK) == Err(rustix::io::Errno::ACCESS)
    }

    /// Returns why the index does not answer for a path.
    pub(super) fn why(&self, path: &Path, miss: Miss) -> Verdict {
        let Some(root) = root_of(miss) else { return self.outside(path) };
        if self.memory.ctl.ctl.bypassed.load(Ordering::Relaxed) != 0 {
            return Verdict::NoAgent;
        }
        if self.memory.is_given_up(root) {
            return Verdict::RootGivenUp;
        }
        if !self.memory.leads_there(root) {
            return Verdict::OtherMount;
        }
        match miss {
            Miss::NoSegment(_) => Verdict::NoIndex,
            Miss::Changed(_) => Verdict::Changed { differs: false },
            Miss::Absent(_) if std::fs::symlink_metadata(path).is_err() => Verdict::ListedMissing,
            _ => self.unknown(path, root),
        }
    }

    /// Returns the verdict on a path below no known spelling of a root: it may be an unknown
    /// spelling.
    fn outside(&self, path: &Path) -> Verdict {
        match path.canonicalize() {
            Ok(real) if matches!(self.memory.ctl.match_root(real.as_os_str().as_bytes()), Start::Root(_)) => {
                Verdict::OtherSpelling { real }
            }
            Ok(real) if matches!(self.memory.ctl.match_root(path.as_os_str().as_bytes()), Start::Root(_)) => {
                Verdict::LinkedOutside { real }
            }
            _ => Verdict::Outside,
        }
    }

    /// Returns the verdict on a path below a root that is not in the index.
    fn unknown(&self, path: &Path, root: usize) -> Verdict {
        let Ok(meta) = std::fs::symlink_metadata(path) else { return Verdict::Missing };
        let dev = self.memory.ctl.roots().get(root).map_or(0, |r| r.dev.load(Ordering::Relaxed));
        if meta.dev() == dev { Verdict::NotInIndex } else { Verdict::OtherDevice }
    }
}

const fn root_of(miss: Miss) -> Option<usize> {
    match miss {
        Miss::Outside => None,
        Miss::NoSegment(root) | Miss::Unknown(root) | Miss::Changed(root) | Miss::Absent(Absent { root, .. }) => {
            Some(root)
        }
    }
}

/// Whether the file on the PFS differs from the index.
fn differs(path: &Path, found: &Found<'_>) -> bool {
    let id = found.entry.record.identity();
    let nanos = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
    std::fs::metadata(path).map_or(true, |m| {
        let now = (m.len(), nanos(m.mtime(), m.mtime_nsec()), nanos(m.ctime(), m.ctime_nsec()), m.ino());
        now != (id.size, id.mtime_ns, id.ctime_ns, id.ino)
    })
}

fn info(found: &Found<'_>) -> Option<FileInfo> {
    let mut buf = [0; monarch_abi::PATH_MAX];
    let len = found.segment.index.path(found.entry.id, &mut buf)?;
    let r = found.entry.record;
    let path = path_of(buf.get(..len)?);
    Some(FileInfo { path, size: r.size, mtime_ns: r.mtime_ns, mode: r.mode, ino: r.ino })
}
