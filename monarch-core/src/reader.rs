//! Reads through an agent without the preload library: for programs that link this crate, and for
//! `monarch explain`.
//!
//! A [`Reader`] maps the shared memory of an agent as the preload library does and follows the same
//! path: a lookup, then the copy or, if the agent makes none in time, the parallel file system. It
//! needs no connection to the agent; [`crate::session::Session`] is a job that has a connection.
//!
//! | module | what it does |
//! |---|---|
//! | [`memory`] | maps the control block and the segments |
//! | [`copies`] | maps the names of copies to files |
//! | [`guard`] | checks a file and its copy before the copy is opened |
//! | [`explain`] | explains what an open of a path would do, and why |

mod copies;
mod explain;
mod guard;
mod memory;

pub use explain::{Explanation, FileInfo, RefusedFor, Served, Verdict};

use crate::agent::{client, runtime_dir};
use crate::held_dir::HeldDir;
use crate::shm;
use crate::snapshot::Range;
use explain::Explainer;
use guard::View;
use memory::Memory;
use monarch_abi::accesses::{self, Served as From};
use monarch_abi::control::Counter;
use monarch_abi::demand::{self, Life, Outcome, Watch};
use monarch_abi::hash::CopyName;
use monarch_abi::resolve::{Found, Miss, resolve};
use monarch_abi::word::{State, Word};
use rustix::fs::AtFlags;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Why an agent's shared memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// It cannot be mapped, or is of another version.
    #[error("cannot map the control block {path}: {source}")]
    Map {
        /// The control block.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The agent has other groups: it may read files that this process may not.
    #[error("the agent of the control block {0} runs with other groups than this process")]
    OtherGroups(PathBuf),
    /// It belongs to another user, who may read files that this user may not.
    #[error("the control block {path} belongs to user {uid}; each user has agents of their own")]
    OtherUser {
        /// The control block.
        path: PathBuf,
        /// The owner.
        uid: u32,
    },
}

/// What was opened.
#[derive(Debug)]
pub struct Opened {
    /// The file, open for reading: the kernel's own descriptor, at offset 0.
    pub file: File,
    /// Where the file is.
    pub place: Place,
}

/// Where an opened file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A complete, verified copy in the tier with this number, fastest first.
    Copy(usize),
    /// The parallel file system.
    Pfs,
}

/// The shared memory of an agent. Its segments stay mapped: make a reader once per process, not
/// once per file.
#[derive(Debug)]
pub struct Reader {
    memory: Memory,
}

impl Reader {
    /// Maps the control block of an agent (`MONARCH_CTL` of a job, `control` in the agent's runtime
    /// directory).
    ///
    /// # Errors
    /// [`ReaderError`].
    pub fn open(control: &Path) -> Result<Self, ReaderError> {
        let fail = |source| ReaderError::Map { path: control.to_owned(), source };
        let (dir, name) = (control.parent().unwrap_or(Path::new("/")), control.file_name().unwrap_or_default());
        let dir = HeldDir::at(dir).map_err(|e| fail(e.into()))?;
        let owner = dir.stat(name).map_err(|e| fail(e.into()))?.st_uid;
        if owner != rustix::process::geteuid().as_raw() {
            return Err(ReaderError::OtherUser { path: control.to_owned(), uid: owner });
        }
        let ctl = shm::open_control(&dir, &name.to_string_lossy()).map_err(fail)?;
        if owner != 0 && ctl.ctl.groups != shm::our_groups() {
            return Err(ReaderError::OtherGroups(control.to_owned()));
        }
        Ok(Self { memory: Memory::new(ctl, dir) })
    }

    /// Counts opens as those of a job: its [`Attached`](crate::agent::client::Attached) has the
    /// group. Without this they are those of no job.
    #[must_use]
    pub fn counting_in(mut self, counter_group: usize) -> Self {
        self.memory.counter_group = counter_group;
        self
    }

    /// Returns the runtime directory of the agent.
    #[must_use]
    pub fn runtime_dir(&self) -> &Path {
        self.memory.dir.path()
    }

    /// Returns the real paths of the roots.
    #[must_use]
    pub fn roots(&self) -> Vec<PathBuf> {
        self.memory.roots()
    }

    /// Returns the directories of the tiers: those that hold `copies`.
    #[must_use]
    pub fn tiers(&self) -> Vec<PathBuf> {
        self.memory.tiers()
    }

    /// Explains what an open of `path` for reading would do now. Asks the PFS where the index has
    /// no answer, and changes nothing.
    #[must_use]
    pub fn explain(&self, path: &Path) -> Explanation {
        self.explainer().explain(path)
    }

    fn explainer(&self) -> Explainer<'_> {
        Explainer { memory: &self.memory, now_us: self.now_us() }
    }

    /// Returns the name of the copy of each regular file, with the file as a range; only of files
    /// in `within`, if given.
    pub fn copy_names(&self, within: Option<&[Range]>) -> impl Iterator<Item = (CopyName, Range)> {
        copies::copy_names(&self.memory, within)
    }

    /// Returns the directories of these ranges of which the index has no names, or not all: with
    /// the paths of their roots.
    #[must_use]
    pub fn unread_dirs(&self, within: &[Range]) -> Vec<(PathBuf, PathBuf)> {
        copies::unread_dirs(&self.memory, within)
    }

    /// Returns the path of the first entry of a range.
    #[must_use]
    pub fn path(&self, of: Range) -> Option<PathBuf> {
        copies::path(&self.memory, of)
    }

    /// Opens a file for reading: its copy if it exists or the agent makes it in time, otherwise the
    /// file on the parallel file system. Paths below no root are opened directly.
    ///
    /// # Errors
    /// Those of a plain open.
    pub fn open_file(&self, path: &Path) -> io::Result<Opened> {
        let copy = self.find(path).ok().and_then(|found| self.open_copy(&found, path));
        match copy {
            Some((file, tier)) => Ok(Opened { file, place: Place::Copy(tier) }),
            None => Ok(Opened { file: File::open(path)?, place: Place::Pfs }),
        }
    }

    /// Finds the entry of a path, and follows links.
    fn find(&self, path: &Path) -> Result<Found<'_>, Miss> {
        let path = self.memory.spelled(path).map_err(|_| Miss::Outside)?;
        resolve(&self.memory.ctl, &View { memory: &self.memory, trusting: false }, path.as_os_str().as_bytes(), true)
    }

    /// Returns the entries of a path and of everything below it, for requests to the agent.
    ///
    /// # Errors
    /// The [`Verdict`] on a path that is not in the index.
    pub fn range(&self, path: &Path) -> Result<Range, Verdict> {
        let found = self.find(path).map_err(|miss| self.explainer().why(path, miss))?;
        let (id, index) = (found.entry.id, &found.segment.index);
        let end = index.dir(found.entry.record).map_or(id + 1, |d| d.end);
        Ok(Range { segment: found.number, from: id, end })
    }

    fn open_copy(&self, found: &Found<'_>, path: &Path) -> Option<(File, usize)> {
        let root = self.memory.ctl.ctl.roots.get(found.root)?;
        if root.opens.load(Ordering::Relaxed) == 0 {
            root.opens.store(1, Ordering::Relaxed);
        }
        if !found.entry.record.is_file() {
            return None;
        }
        if found.entry.word().state() != State::Bypass && !guard::is_still(&self.memory, found, path, AtFlags::empty())
        {
            self.to_pfs(found, Counter::Changed);
            return None;
        }
        let word = found.entry.word();
        let opened = match word.state() {
            // The copy may just have moved to another tier.
            State::Resident => self.copy(found, word).or_else(|| self.copy(found, found.entry.word())),
            _ => None,
        };
        match opened {
            Some(copy) => {
                self.memory.count(Counter::Hits, 1);
                self.memory.count(Counter::HitBytes, found.entry.record.size);
                self.note(found, From::Tier);
                if word.is_watched() {
                    found.segment.state.touch(found.entry.master.id);
                }
                Some(copy)
            }
            // A decompressed copy is gone, but its compressed copy may still exist.
            None => self
                .demanded(found, if word.is_marked() { found.entry.word() } else { word })
                .inspect_err(|&why| self.to_pfs(found, why))
                .ok(),
        }
    }

    /// Opens the copy that a word names.
    fn copy(&self, found: &Found<'_>, word: Word) -> Option<(File, usize)> {
        if word.state() != State::Resident {
            return None;
        }
        let file = File::open(self.memory.copy_path(found, word)?).ok()?;
        guard::is_sound(&self.memory, found, word, &file).then_some((file, word.tier()))
    }

    /// Requests a copy from the agent and waits for it, where the word allows that.
    ///
    /// # Errors
    /// The reason why the file is read from the PFS.
    fn demanded(&self, found: &Found<'_>, word: Word) -> Result<(File, usize), Counter> {
        match word.state() {
            State::Resident => return Err(Counter::Vanished),
            State::Bypass | State::Refused => return Err(Counter::of_miss(word)),
            _ if !demand::agent_up(self.memory.ctl.ctl) => return Err(Counter::Deadline),
            _ => {}
        }
        if found.segment.state.large(found.entry.master.id).is_some() {
            demand::raise(&self.memory.ctl, found);
            return Err(Counter::Large);
        }
        let start = self.now_us();
        let mut tries = demand::TRIES;
        let (outcome, copy) = loop {
            demand::raise(&self.memory.ctl, found);
            let outcome = demand::wait(&self.memory.ctl, found, self);
            let Outcome::Resident(word) = outcome else { break (outcome, None) };
            let copy = self.copy(found, word);
            if copy.is_some() && word.is_watched() {
                found.segment.state.touch(found.entry.master.id);
            }
            // A decompressed copy may have been dropped again.
            if copy.is_some() || !word.is_marked() || tries == 0 {
                break (outcome, copy);
            }
            tries -= 1;
        };
        self.memory.count(Counter::WaitMicros, self.now_us().saturating_sub(start));
        match outcome {
            Outcome::Resident(_) => copy.ok_or(Counter::Vanished).inspect(|_| {
                self.memory.count(Counter::Waited, 1);
                self.memory.count(Counter::HitBytes, found.entry.record.size);
                self.note(found, From::Waited);
            }),
            Outcome::Refused(word) => Err(Counter::of_miss(word)),
            Outcome::Partial(_) => Err(Counter::Large),
            Outcome::Deadline => Err(Counter::Deadline),
        }
    }

    fn to_pfs(&self, found: &Found<'_>, why: Counter) {
        self.memory.count(why, 1);
        self.memory.count(Counter::MissBytes, found.entry.record.size);
        self.note(found, From::Pfs);
    }

    /// Records the open for the agent's policies.
    fn note(&self, found: &Found<'_>, served: From) {
        let ms = crate::sys::coarse_ms();
        let opened = accesses::Opened { segment: found.number, id: found.entry.master.id, served, ms };
        self.memory.ctl.ctl.accesses.note(std::process::id(), opened);
    }
}

impl Watch for Reader {
    fn now_us(&self) -> u64 {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
    }

    fn agent(&self) -> Life {
        match (self.memory.dir.path().join(runtime_dir::LOCK).exists(), client::agent_alive(self.memory.dir.path())) {
            (true, true) => Life::Alive,
            (true, false) => Life::Dead,
            (false, _) => Life::Unknown,
        }
    }
}
