//! The server behind the mount.
//!
//! Every request is handled alike ([`Server::serve`]): it is counted, checked against the fault
//! rules, done on the backing directory at once, and answered when its latency is over. Operations
//! are grouped by what they touch: [`meta`], [`dirs`], [`files`], [`change`], [`xattr`]; [`fs`] is
//! the thin shell that the FUSE library calls.

mod answer;
mod attr;
mod backing;
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

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use fuser::Errno;

pub(crate) use self::mount::{MountArgs, run, unmount};
use crate::counters::{Class, Op};
use crate::fault::{FaultKind, Rules};
use crate::options;
use answer::Answer;
use backing::Backing;
use delay::DelayQueue;
use pacer::Pacer;
use stall::Stalls;

/// Everything a mount consists of, apart from the FUSE session: the backing directory, and what
/// delays or falsifies its answers.
pub(crate) struct Server {
    backing: Backing,
    faults: Rules,
    delay: DelayQueue,
    stalls: Stalls,
    pacer: Pacer,
}

impl Server {
    /// A server for the directory `source`; see [`pins`] for `descriptors`.
    pub(crate) fn new(source: &Path, settings: &options::Settings, descriptors: usize) -> io::Result<Self> {
        Ok(Self {
            backing: Backing::open(source, settings, descriptors)?,
            faults: Rules::default(),
            delay: DelayQueue::start()?,
            stalls: Stalls::start()?,
            pacer: Pacer::default(),
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
        path: impl FnOnce(&Backing) -> Option<String>,
        work: impl FnOnce(&Backing, &mut R, usize) -> Result<T, Errno>,
    ) where
        T: Send + 'static,
        R: Answer<T>,
    {
        let arrival = Instant::now();
        self.backing.counters.call(op);
        let fault = self.faults.check(op, || path(&self.backing));
        if fault.is_some() {
            self.backing.counters.faults.fetch_add(1, Relaxed);
        }
        let mut result = match fault {
            Some(FaultKind::Errno(errno)) => Err(Errno::from_i32(errno)),
            Some(FaultKind::ShortRead(bytes)) => work(&self.backing, &mut reply, bytes as usize),
            Some(FaultKind::Stall(_) | FaultKind::Zeros) | None => work(&self.backing, &mut reply, usize::MAX),
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
                self.backing.counters.errors.fetch_add(1, Relaxed);
            }
        }
        let due = arrival + self.latency(op);
        let due = if op.class() == Class::Data {
            due.max(self.pacer.due(bytes, self.backing.options.bandwidth()))
        } else {
            due
        };
        let send = move || reply.answer(result);
        match fault {
            Some(FaultKind::Stall(time)) => self.stalls.park(time.map(|time| due + time), send),
            _ => self.delay.send_at(due, send),
        }
    }

    fn latency(&self, op: Op) -> Duration {
        match op.class() {
            Class::Meta | Class::Open => self.backing.options.meta_latency(),
            Class::Data => self.backing.options.data_latency(),
            Class::Free if op == Op::Flush && self.backing.options.flush() => self.backing.options.meta_latency(),
            Class::Free => Duration::ZERO,
        }
    }

    /// Releases stalled answers, for which clients wait.
    fn stop(&self) {
        self.stalls.close();
    }
}
