//! The server behind the mount.
//!
//! Every request is handled alike ([`Server::serve`]): it is counted, checked against the fault
//! rules, done on the backing directory at once, and answered when its latency is over. Operations
//! are grouped by what they touch: [`meta`], [`dirs`], [`files`], [`change`], [`xattr`]; [`fs`] is
//! the thin shell that the FUSE library calls.

mod answer;
mod attr;
mod buffer;
mod change;
mod control;
mod delay;
mod dirs;
mod files;
mod fs;
mod handle;
mod meta;
mod mount;
mod node;
mod pacer;
mod paths;
mod pins;
mod stall;
mod sys;
mod xattr;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fuser::{Errno, INodeNo, Notifier};

pub(crate) use self::mount::{MountArgs, run, unmount};
use crate::counters::{self, Class, Op};
use crate::fault::{FaultKind, Rules};
use crate::mutation::Armed;
use crate::options;
use answer::Answer;
use delay::DelayQueue;
use handle::{DirHandle, FileHandle, Handles};
use node::Nodes;
use pacer::Pacer;
use paths::Paths;
use stall::Stalls;
use sys::proc_path;

/// Everything a mount consists of, apart from the FUSE session.
pub(crate) struct Server {
    options: options::Live,
    counters: counters::Live,
    paths: Paths,
    faults: Rules,
    armed: Armed,
    delay: DelayQueue,
    stalls: Stalls,
    pacer: Pacer,
    nodes: Nodes,
    files: Handles<FileHandle>,
    dirs: Handles<DirHandle>,
    notifier: OnceLock<Notifier>,
    /// `/proc/self/fd/N` of the backing directory: still right after something is mounted over its
    /// path.
    root: PathBuf,
    /// Whether files made by other users are given to them.
    give_away: bool,
}

impl Server {
    /// A server for the directory `source`; see [`pins`] for `descriptors`.
    pub(crate) fn new(source: &Path, settings: &options::Settings, descriptors: usize) -> io::Result<Self> {
        let options = options::Live::default();
        options.apply(settings);
        let directory = File::open(source)?;
        let nodes = Nodes::new(directory.into(), descriptors)?;
        let root = nodes.root().map_err(|e| io::Error::from_raw_os_error(e.code()))?;
        Ok(Self {
            options,
            counters: counters::Live::default(),
            paths: Paths::new(root.as_fd())?,
            faults: Rules::default(),
            armed: Armed::default(),
            delay: DelayQueue::start()?,
            stalls: Stalls::start()?,
            pacer: Pacer::default(),
            files: Handles::default(),
            dirs: Handles::default(),
            notifier: OnceLock::new(),
            root: proc_path(&root).into(),
            give_away: rustix::process::geteuid().is_root(),
            nodes,
        })
    }

    /// Handles one request: counted now, done now, answered when its latency is over.
    ///
    /// `path` names the file for fault rules. `work` gets the reply (a listing is written into it)
    /// and the number of bytes that a short-read fault leaves.
    fn serve<T, R>(
        &self,
        op: Op,
        mut reply: R,
        path: impl FnOnce(&Self) -> Option<String>,
        work: impl FnOnce(&Self, &mut R, usize) -> Result<T, Errno>,
    ) where
        T: Send + 'static,
        R: Answer<T>,
    {
        let arrival = Instant::now();
        self.counters.call(op);
        let fault = self.faults.check(op, || path(self));
        if fault.is_some() {
            self.counters.faults.fetch_add(1, Relaxed);
        }
        let mut result = match fault {
            Some(FaultKind::Errno(errno)) => Err(Errno::from_i32(errno)),
            Some(FaultKind::ShortRead(bytes)) => work(self, &mut reply, bytes as usize),
            Some(FaultKind::Stall(_) | FaultKind::Zeros) | None => work(self, &mut reply, usize::MAX),
        };
        let mut bytes = 0;
        match &mut result {
            Ok(value) => {
                bytes = R::payload(value);
                if fault == Some(FaultKind::Zeros) {
                    R::blank(value);
                }
            }
            Err(_) => {
                self.counters.errors.fetch_add(1, Relaxed);
            }
        }
        let due = arrival + self.latency(op);
        let due =
            if op.class() == Class::Data { due.max(self.pacer.due(bytes, self.options.bandwidth())) } else { due };
        let send = move || reply.answer(result);
        match fault {
            Some(FaultKind::Stall(time)) => self.stalls.park(time.map(|time| due + time), send),
            _ => self.delay.send_at(due, send),
        }
    }

    fn latency(&self, op: Op) -> Duration {
        match op.class() {
            Class::Meta | Class::Open => self.options.meta_latency(),
            Class::Data => self.options.data_latency(),
            Class::Free if op == Op::Flush && self.options.flush() => self.options.meta_latency(),
            Class::Free => Duration::ZERO,
        }
    }

    /// The relative path of a node, for fault rules and mutations.
    fn path_of(&self, ino: INodeNo) -> Option<String> {
        self.nodes.get(ino).ok()?.path(&self.paths)
    }

    /// The relative path of an entry.
    fn path_in(&self, parent: INodeNo, name: &std::ffi::OsStr) -> Option<String> {
        let mut path = self.path_of(parent)?;
        if !path.is_empty() {
            path.push('/');
        }
        path.push_str(&name.to_string_lossy());
        Some(path)
    }

    /// Releases stalled answers, for which clients wait.
    fn stop(&self) {
        self.stalls.close();
    }
}
