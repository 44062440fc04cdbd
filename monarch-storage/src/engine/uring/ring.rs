//! The ring, and what the kernel may touch: the one place of this engine that is unsafe.
//!
//! # Who owns what
//! An [`Op`] owns everything that its entry points to: the buffer, the path, the result of a stat,
//! and a share of the descriptor it works on. [`Ring::start`] moves it into the ring's table before
//! the kernel learns of it, and only its completion ([`Ring::finished`]) moves it out again.
//! Nothing else holds a pointer into it, so that a slot may fail, a copy be given up or the whole
//! worker be dropped at any time: memory and descriptor stay until the kernel is done with them.
//! Dropping the ring cancels what is under way and waits for it; should the kernel refuse even
//! that, the memory is given up for lost.

use super::buffer::{Buffer, PAGE};
use io_uring::types::{CancelBuilder, Fd, OpenHow, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A call that the kernel makes for us.
pub(super) enum Op {
    /// Opens a path below a root.
    Open { root: Arc<OwnedFd>, path: CString, how: Box<OpenHow> },
    /// Reads up to `len` bytes at `off`; unbuffered files get whole pages. A stat may be linked to
    /// it, which needs the exact length.
    Read { file: Arc<OwnedFd>, buffer: Buffer, off: u64, len: usize, linked: bool },
    /// Asks the PFS's server who a file is.
    Stat { file: Arc<OwnedFd>, out: Box<libc::statx>, linked: bool },
    /// Closes a descriptor.
    Close(RawFd),
}

impl Op {
    /// A stat of an open file; `linked` to the read before it.
    pub(super) fn stat(file: Arc<OwnedFd>, linked: bool) -> Self {
        // SAFETY: a structure of integers, for which zeros are a value.
        Self::Stat { file, out: Box::new(unsafe { std::mem::zeroed() }), linked }
    }

    /// Closing a file.
    pub(super) fn close(file: OwnedFd) -> Self {
        Self::Close(file.into_raw_fd())
    }

    /// The entry that tells the kernel. It points into what the op owns on the heap: moving the op
    /// does not move that.
    fn entry(&mut self) -> squeue::Entry {
        match self {
            Self::Open { root, path, how } => {
                opcode::OpenAt2::new(Fd(root.as_raw_fd()), path.as_ptr(), &raw const **how).build()
            }
            Self::Read { file, buffer, off, len, linked } => {
                let bytes = buffer.bytes_mut();
                let len = if *linked { *len } else { len.next_multiple_of(PAGE) }.min(bytes.len());
                opcode::Read::new(Fd(file.as_raw_fd()), bytes.as_mut_ptr(), len as u32).offset(*off).build()
            }
            Self::Stat { file, out, .. } => {
                let out = (&raw mut **out).cast();
                opcode::Statx::new(Fd(file.as_raw_fd()), c"".as_ptr(), out)
                    .flags(libc::AT_EMPTY_PATH | libc::AT_STATX_FORCE_SYNC)
                    .mask(libc::STATX_BASIC_STATS)
                    .build()
            }
            Self::Close(fd) => opcode::Close::new(Fd(*fd)).build(),
        }
    }
}

/// A call that has ended.
pub(super) struct Finished {
    /// As given to [`Ring::start`].
    pub(super) slot: usize,
    pub(super) op: Op,
    /// What the kernel said; for an open, see `opened`.
    pub(super) result: Result<usize, i32>,
    /// The new descriptor.
    pub(super) opened: Option<OwnedFd>,
}

/// See the module.
pub(super) struct Ring {
    io: IoUring,
    depth: usize,
    held: Vec<Option<(usize, Op)>>,
    free: Vec<usize>,
    /// Calls that the kernel has not answered.
    under_way: usize,
}

/// Completions of cancels, which nobody waits for.
const NOBODY: u64 = u64::MAX;

impl Ring {
    /// A ring for `depth` calls at a time, and as many of the kernel's workers: calls that block
    /// take one each.
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        // Closes come on top of the calls, one a file.
        let entries = u32::try_from(depth * 2).unwrap_or(u32::MAX).next_power_of_two();
        let io = build(entries)?;
        let workers = u32::try_from(depth).unwrap_or(u32::MAX);
        // Kernels before 5.15 do not know it and take fewer, or none of the limit.
        let _ = io.submitter().register_iowq_max_workers(&mut [workers, workers]);
        Ok(Self { io, depth, held: Vec::new(), free: Vec::new(), under_way: 0 })
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Whether the kernel can do what an engine needs.
    pub(super) fn check(&self) -> io::Result<bool> {
        let mut probe = Probe::new();
        self.io.submitter().register_probe(&mut probe)?;
        let codes = [opcode::OpenAt2::CODE, opcode::Read::CODE, opcode::Statx::CODE, opcode::Close::CODE];
        let params = self.io.params();
        Ok(params.is_feature_ext_arg() && params.is_feature_nodrop() && codes.iter().all(|&c| probe.is_supported(c)))
    }

    /// Begins a call with the next [`Ring::wait`]; `may_block` has a worker of the kernel make it.
    pub(super) fn start(&mut self, slot: usize, op: Op, may_block: bool) -> io::Result<()> {
        let entry = self.hold(slot, op, may_block);
        self.push(&[entry])
    }

    /// Begins two calls, the second as soon as the first has done all that it was to do. Otherwise
    /// the second is cancelled.
    pub(super) fn start_linked(&mut self, slot: usize, ops: [Op; 2], may_block: bool) -> io::Result<()> {
        let [first, second] = ops.map(|op| self.hold(slot, op, may_block));
        let flags = if may_block { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        self.push(&[first.flags(flags | squeue::Flags::IO_LINK), second])
    }

    /// Takes what the kernel will touch; the entry that tells it.
    fn hold(&mut self, slot: usize, op: Op, may_block: bool) -> squeue::Entry {
        let at = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        let (_, op) = self.held[at].insert((slot, op));
        let mut entry = op.entry().user_data(at as u64);
        if may_block {
            entry = entry.flags(squeue::Flags::ASYNC);
        }
        entry
    }

    /// Puts entries into the submission queue, all of them or none: a chain ends with what is
    /// submitted at a time.
    fn push(&mut self, entries: &[squeue::Entry]) -> io::Result<()> {
        loop {
            // SAFETY: what the entries point to is owned by ops in `held` (or they point to
            // nothing) and stays there, at its place on the heap, until the completion is seen.
            if unsafe { self.io.submission().push_multiple(entries) }.is_ok() {
                self.under_way += entries.iter().filter(|e| e.get_user_data() != NOBODY).count();
                return Ok(());
            }
            match self.io.submit() {
                Ok(_) => {}
                Err(e) if is_passing(&e) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(e),
            }
        }
    }

    /// Has the kernel begin what was started and waits until something has ended, `at_most` so
    /// long.
    pub(super) fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        let until = Timespec::new().sec(at_most.as_secs()).nsec(at_most.subsec_nanos());
        match self.io.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&until)) {
            Ok(_) => Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ETIME) || is_passing(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The next call that has ended.
    pub(super) fn finished(&mut self) -> Option<Finished> {
        loop {
            let cqe = self.io.completion().next()?;
            let Some(at) = usize::try_from(cqe.user_data()).ok().filter(|_| cqe.user_data() != NOBODY) else {
                continue;
            };
            let Some((slot, op)) = self.held.get_mut(at).and_then(Option::take) else { continue };
            self.free.push(at);
            self.under_way -= 1;
            let result = usize::try_from(cqe.result()).map_err(|_| -cqe.result());
            let opened = match (&op, result) {
                // SAFETY: a descriptor that the kernel has just made for us, and nobody else knows
                // of.
                (Op::Open { .. }, Ok(_)) => Some(unsafe { OwnedFd::from_raw_fd(cqe.result()) }),
                // SAFETY: the close was cancelled before it began: the descriptor is still ours.
                (Op::Close(fd), Err(libc::ECANCELED)) => Some(unsafe { OwnedFd::from_raw_fd(*fd) }),
                _ => None,
            };
            return Some(Finished { slot, op, result, opened });
        }
    }

    /// Cancels everything under way; each call still ends by a completion of its own.
    pub(super) fn cancel(&mut self) -> io::Result<()> {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(NOBODY);
        self.push(&[entry])
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = self.cancel();
        while self.under_way > 0 {
            if self.wait(Duration::from_secs(1)).is_err() {
                // The kernel may still write into it.
                std::mem::forget(std::mem::take(&mut self.held));
                return;
            }
            while self.finished().is_some() {}
        }
    }
}

/// A ring with what this kernel has: completions that are worked on when the thread asks for them
/// (6.1), without interrupting it (5.19), or as ever.
fn build(entries: u32) -> io::Result<IoUring> {
    let invalid = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL);
    let mut ring = IoUring::builder();
    match ring.dontfork().setup_clamp().setup_single_issuer().setup_defer_taskrun().build(entries) {
        Err(e) if invalid(&e) => {}
        other => return other,
    }
    let mut ring = IoUring::builder();
    match ring.dontfork().setup_clamp().setup_coop_taskrun().build(entries) {
        Err(e) if invalid(&e) => IoUring::builder().dontfork().setup_clamp().build(entries),
        other => other,
    }
}

/// Errors of the ring itself that mean "again": a signal, or the kernel short of memory for the
/// moment.
fn is_passing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
