//! The ring, and the memory that the kernel may touch: the only unsafe code of this engine.
//!
//! # Ownership
//! An [`Op`] owns everything that its entry points to: the buffer (or a share of the mapping of the
//! sink's memory), the path, the result of a stat, and a share of the descriptor. [`Ring::start`]
//! moves it into the ring's table before the kernel sees the entry, and only its completion
//! ([`Ring::finished`]) moves it out again. Nothing else points into it, so a slot may fail, a copy
//! be given up or the worker be dropped at any time: memory and descriptor stay until the kernel is
//! done with them. Dropping the ring cancels the calls under way and waits for them; should the
//! kernel refuse that, the memory is leaked.

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
    /// Asks the PFS's server for the identity of a file.
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

    /// The close of a file.
    pub(super) fn close(file: OwnedFd) -> Self {
        Self::Close(file.into_raw_fd())
    }

    /// The entry for the kernel. It points to what the op owns on the heap: moving the op does not
    /// move that.
    fn entry(&mut self) -> squeue::Entry {
        match self {
            Self::Open { root, path, how } => {
                opcode::OpenAt2::new(Fd(root.as_raw_fd()), path.as_ptr(), &raw const **how).build()
            }
            Self::Read { file, buffer, off, len, linked } => {
                let len = if *linked { *len } else { len.next_multiple_of(PAGE) }.min(buffer.len());
                opcode::Read::new(Fd(file.as_raw_fd()), buffer.as_mut_ptr(), len as u32).offset(*off).build()
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
    /// The slot given to [`Ring::start`].
    pub(super) slot: usize,
    pub(super) op: Op,
    /// The result of the call, or its error code. The descriptor of an open is in `opened`.
    pub(super) result: Result<usize, i32>,
    /// The new descriptor.
    pub(super) opened: Option<OwnedFd>,
}

/// A ring, and the calls that the kernel makes.
pub(super) struct Ring {
    io: IoUring,
    depth: usize,
    held: Vec<Option<(usize, Op)>>,
    free: Vec<usize>,
    /// Calls that the kernel has not answered.
    under_way: usize,
}

/// User data of cancels, whose completions no slot waits for.
const NO_SLOT: u64 = u64::MAX;

impl Ring {
    /// A ring for `depth` calls at a time, and as many workers of the kernel: each blocking call
    /// takes one.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        // Closes come in addition, one for each file.
        let entries = u32::try_from(depth * 2).unwrap_or(u32::MAX).next_power_of_two();
        let io = build(entries)?;
        let workers = u32::try_from(depth).unwrap_or(u32::MAX);
        // Kernels before 5.15 do not know it: they use fewer workers, or have no limit.
        let _ = io.submitter().register_iowq_max_workers(&mut [workers, workers]);
        Ok(Self { io, depth, held: Vec::new(), free: Vec::new(), under_way: 0 })
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// Whether the kernel supports the calls of the engine.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn check(&self) -> io::Result<bool> {
        let mut probe = Probe::new();
        self.io.submitter().register_probe(&mut probe)?;
        let codes = [opcode::OpenAt2::CODE, opcode::Read::CODE, opcode::Statx::CODE, opcode::Close::CODE];
        let params = self.io.params();
        Ok(params.is_feature_ext_arg() && params.is_feature_nodrop() && codes.iter().all(|&c| probe.is_supported(c)))
    }

    /// Begins a call with the next [`Ring::wait`]; with `may_block` a worker of the kernel makes
    /// it.
    ///
    /// # Errors
    /// The ring is unusable.
    pub(super) fn start(&mut self, slot: usize, op: Op, may_block: bool) -> io::Result<()> {
        let entry = self.hold(slot, op, may_block);
        self.push(&[entry])
    }

    /// Begins two calls, the second once the first has succeeded in full. Otherwise the second is
    /// cancelled.
    ///
    /// # Errors
    /// The ring is unusable.
    pub(super) fn start_linked(&mut self, slot: usize, ops: [Op; 2], may_block: bool) -> io::Result<()> {
        let [first, second] = ops.map(|op| self.hold(slot, op, may_block));
        let flags = if may_block { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        self.push(&[first.flags(flags | squeue::Flags::IO_LINK), second])
    }

    /// Takes what the kernel will touch into the table; the entry for the kernel.
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

    /// Puts entries into the submission queue, all of them or none: a chain must be submitted as a
    /// whole.
    ///
    /// # Errors
    /// The ring is unusable.
    fn push(&mut self, entries: &[squeue::Entry]) -> io::Result<()> {
        loop {
            // SAFETY: what the entries point to is owned by ops in `held` (or they point to
            // nothing) and stays there, at its place on the heap, until the completion is seen.
            if unsafe { self.io.submission().push_multiple(entries) }.is_ok() {
                self.under_way += entries.iter().filter(|e| e.get_user_data() != NO_SLOT).count();
                return Ok(());
            }
            match self.io.submit() {
                Ok(_) => {}
                Err(e) if is_passing(&e) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(e),
            }
        }
    }

    /// Submits the calls that were started, and waits until a call has ended, for `at_most` at
    /// most.
    ///
    /// # Errors
    /// The ring is unusable.
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
            let Some(at) = usize::try_from(cqe.user_data()).ok().filter(|_| cqe.user_data() != NO_SLOT) else {
                continue;
            };
            let Some((slot, op)) = self.held.get_mut(at).and_then(Option::take) else { continue };
            self.free.push(at);
            self.under_way -= 1;
            let result = usize::try_from(cqe.result()).map_err(|_| -cqe.result());
            let opened = match (&op, result) {
                // SAFETY: a descriptor that the kernel has just made for this call, and that has no
                // other owner.
                (Op::Open { .. }, Ok(_)) => Some(unsafe { OwnedFd::from_raw_fd(cqe.result()) }),
                // SAFETY: the close was cancelled before it began: the descriptor is still ours.
                (Op::Close(fd), Err(libc::ECANCELED)) => Some(unsafe { OwnedFd::from_raw_fd(*fd) }),
                _ => None,
            };
            return Some(Finished { slot, op, result, opened });
        }
    }

    /// Cancels all calls under way; each still ends with a completion of its own.
    ///
    /// # Errors
    /// The ring is unusable.
    pub(super) fn cancel(&mut self) -> io::Result<()> {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::any()).build().user_data(NO_SLOT);
        self.push(&[entry])
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = self.cancel();
        while self.under_way > 0 {
            if self.wait(Duration::from_secs(1)).is_err() {
                // The kernel may still write into the memory.
                std::mem::forget(std::mem::take(&mut self.held));
                return;
            }
            while self.finished().is_some() {}
        }
    }
}

/// Makes a ring with what this kernel has: completions are processed when the thread asks for them
/// (6.1), without interrupting it (5.19), or at any time.
///
/// # Errors
/// What the kernel said.
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

/// Whether an error of the ring itself calls for another try: a signal, or the kernel is short of
/// memory for the moment.
fn is_passing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}
