//! One thread at its ring: takes files, keeps calls under way, handles those that have ended.

use super::buffer::{Buffer, Buffers};
use super::ring::{Finished, Op, Ring};
use super::setup::Setup;
use super::slot::{Slot, Want};
use crate::engine::{Copied, CopyError, Work};
use io_uring::types::OpenHow;
use rustix::fs::{OFlags, ResolveFlags};
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pieces of a large file that are under way at a time.
const PIECES_UNDER_WAY: usize = 4;
/// Longest sleep while files are under way: a stop, or new work, is noticed that late.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// A call that waits for its turn.
struct Pending {
    slot: usize,
    want: Want,
    /// When it may begin, once the limits have granted it.
    at: Option<Instant>,
}

/// A thread at its ring.
pub(super) struct Worker<'e, 'w> {
    setup: &'e Setup,
    work: &'w dyn Work,
    ring: &'e mut Ring,
    slots: Vec<Option<Slot<'w>>>,
    pending: VecDeque<Pending>,
    /// Since when the first of `pending` is the first.
    since: Instant,
    /// Calls at the PFS; closes do not count.
    calls: usize,
    buffers: &'e mut Buffers,
    stopped: bool,
}

impl<'e, 'w> Worker<'e, 'w> {
    pub(super) fn new(setup: &'e Setup, work: &'w dyn Work, ring: &'e mut Ring, buffers: &'e mut Buffers) -> Self {
        Self {
            setup,
            work,
            ring,
            slots: Vec::new(),
            pending: VecDeque::new(),
            since: Instant::now(),
            calls: 0,
            buffers,
            stopped: false,
        }
    }

    /// Works until no file is left and the kernel is done.
    ///
    /// # Errors
    /// The ring is unusable; every file has ended as failed.
    pub(super) fn run(mut self) -> io::Result<()> {
        let ran = self.turns();
        if let Err(e) = &ran {
            self.pending.clear();
            for slot in self.slots.iter_mut().filter_map(Option::take) {
                (0..slot.calls).for_each(|_| slot.task.marks().in_pfs(false));
                // A task with another sink fails again, until it has none.
                let mut next = Some(slot);
                while let Some(slot) = next {
                    next = slot.end(Err(CopyError::Source(io::Error::new(e.kind(), e.to_string())))).1;
                }
            }
        }
        ran
    }

    fn turns(&mut self) -> io::Result<()> {
        loop {
            self.stop_if_told()?;
            self.fill();
            let pause = self.begin()?;
            if self.pending.is_empty() && self.ring.is_idle() {
                return Ok(());
            }
            self.ring.wait(pause.min(MAX_SLEEP))?;
            while let Some(finished) = self.ring.finished() {
                self.finished(finished)?;
            }
        }
    }

    fn is_told(&self) -> bool {
        self.setup.stop.load(Ordering::Relaxed)
    }

    /// When the agent stops: cancels the calls under way, and fails all files.
    fn stop_if_told(&mut self) -> io::Result<()> {
        if self.stopped || !self.is_told() {
            return Ok(());
        }
        self.stopped = true;
        self.ring.cancel()?;
        for at in 0..self.slots.len() {
            self.fail(at, CopyError::Stopped)?;
        }
        Ok(())
    }

    /// Takes files while the ring has space for their calls.
    fn fill(&mut self) {
        while self.calls + self.pending.len() < self.ring.depth() {
            let Some(mut task) = self.work.next() else { return };
            if task.source().root().is_none() {
                // A source that the kernel cannot read: a test double, or another node.
                self.setup.plain.take(&mut *task);
                continue;
            }
            let bytes = task.range().end - task.range().start;
            let large = self.setup.options.direct && bytes >= self.setup.options.io_size;
            let direct = large || task.is_direct();
            let may_block = !task.source().keeps_nowait();
            self.add(Slot::new(task, direct, may_block));
        }
    }

    fn add(&mut self, slot: Slot<'w>) {
        let free = self.slots.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let mut slot = slot;
        let first = if slot.file.is_some() {
            slot.ahead(PIECES_UNDER_WAY, self.setup.io_size(&slot))
        } else {
            vec![Want::Open]
        };
        self.slots[at] = Some(slot);
        self.want(at, first);
        if self.stopped || self.is_told() {
            // Cannot fail: no call of it is under way.
            let _ = self.fail(at, CopyError::Stopped);
        }
    }

    /// Queues calls. From here on the file counts as being in a PFS call.
    fn want(&mut self, at: usize, wants: impl IntoIterator<Item = Want>) {
        let Some(slot) = self.slots[at].as_mut() else { return };
        for want in wants {
            slot.calls += 1;
            slot.task.marks().in_pfs(true);
            let pending = Pending { slot: at, want, at: None };
            // A call with a buffer goes first: other files may wait for that buffer.
            if matches!(pending.want, Want::Read(_, _, Some(_))) {
                self.pending.push_front(pending);
            } else {
                self.pending.push_back(pending);
            }
        }
    }

    /// Begins the calls that the limits grant; the time until the next may begin.
    fn begin(&mut self) -> io::Result<Duration> {
        while self.calls < self.ring.depth() {
            let Some(first) = self.pending.front_mut() else { break };
            let Some(slot) = self.slots[first.slot].as_mut() else {
                self.pending.pop_front();
                continue;
            };
            let now = Instant::now();
            if first.at.is_none() {
                let bytes = if let Want::Read(off, end, _) = first.want { end - off } else { 0 };
                match self.setup.limits.ask(bytes, slot.task.marks().waited_for(), self.since, now) {
                    Ok(pause) => first.at = Some(now + pause),
                    Err(pause) => return Ok(pause),
                }
            }
            if let Some(pause) = first.at.map(|at| at.saturating_duration_since(now)).filter(|p| !p.is_zero()) {
                return Ok(pause);
            }
            if let Want::Read(off, end, buffer @ None) = &mut first.want {
                *buffer = slot.memory(*off, *end).or_else(|| {
                    let len = usize::try_from(*end - *off).unwrap_or(usize::MAX);
                    self.buffers.take(len).map(Buffer::Ring)
                });
                if buffer.is_none() {
                    break;
                }
            }
            let Some(Pending { slot: at, want, .. }) = self.pending.pop_front() else { break };
            self.since = now;
            if let Want::Open = want {
                slot.opening = now;
            }
            match op(slot, want) {
                Ok(Op::Read { file, buffer, off, len, .. })
                    if !self.setup.limits.limit() && slot.ends_with(off, off + len as u64) =>
                {
                    // The two calls run one after the other, so they count as one.
                    self.calls += 1;
                    slot.calls += 1;
                    slot.task.marks().in_pfs(true);
                    self.setup.limits.passed(0);
                    let stat = Op::stat(file.clone(), true);
                    let read = Op::Read { file, buffer, off, len, linked: true };
                    self.ring.start_linked(at, [read, stat], slot.may_block)?;
                }
                Ok(op) => {
                    self.calls += 1;
                    self.ring.start(at, op, slot.may_block)?;
                }
                Err(e) => {
                    slot.calls -= 1;
                    slot.task.marks().in_pfs(false);
                    self.fail(at, CopyError::Source(e))?;
                }
            }
        }
        Ok(MAX_SLEEP)
    }

    /// Handles the end of a call.
    fn finished(&mut self, f: Finished) -> io::Result<()> {
        if let Op::Close(_) = f.op {
            return Ok(());
        }
        // A chain counts until its last call has ended.
        self.calls -= usize::from(!matches!(f.op, Op::Read { linked: true, .. }));
        let at = f.slot;
        let Some(slot) = self.slots[at].as_mut() else { return Ok(()) };
        slot.calls -= 1;
        slot.task.marks().in_pfs(false);
        slot.task.marks().progress();
        if slot.failed.is_some() {
            if let Some(file) = f.opened {
                let _ = slot.opened(file);
            }
            if let Op::Read { buffer, .. } = f.op {
                self.buffers.give_back(buffer);
            }
            return self.end_if_over(at);
        }
        match answer(slot, f, self.setup.io_size(slot)) {
            Ok(Answer::Call(wants)) => self.want(at, wants),
            Ok(Answer::Whole(copied)) => {
                slot.whole = Some(copied);
                return self.end_if_over(at);
            }
            Err(e) => return self.fail(at, e),
        }
        self.take_back(at);
        self.end_if_over(at)
    }

    fn take_back(&mut self, at: usize) {
        let Some(slot) = self.slots[at].as_mut() else { return };
        slot.emptied.drain(..).for_each(|b| self.buffers.give_back(b));
    }

    /// Fails a file: no call of it begins any more, and it ends with its last call.
    fn fail(&mut self, at: usize, e: CopyError) -> io::Result<()> {
        let Some(slot) = self.slots[at].as_mut() else { return Ok(()) };
        slot.fail(e);
        let mut kept = VecDeque::with_capacity(self.pending.len());
        for pending in self.pending.drain(..) {
            if pending.slot != at {
                kept.push_back(pending);
                continue;
            }
            slot.calls -= 1;
            slot.task.marks().in_pfs(false);
            if let Want::Read(_, _, Some(buffer)) = pending.want {
                slot.emptied.push(buffer);
            }
        }
        self.pending = kept;
        self.end_if_over(at)
    }

    fn end_if_over(&mut self, at: usize) -> io::Result<()> {
        let Some(slot) = self.slots[at].as_mut().filter(|s| s.calls == 0) else { return Ok(()) };
        match (slot.failed.take(), slot.whole.take()) {
            (Some(e), _) => self.end(at, Err(e)),
            (None, Some(copied)) => self.end(at, Ok(copied)),
            (None, None) => Ok(()),
        }
    }

    fn end(&mut self, at: usize, end: Result<Copied, CopyError>) -> io::Result<()> {
        self.take_back(at);
        let Some(slot) = self.slots[at].take() else { return Ok(()) };
        let may_block = slot.may_block;
        let (file, again) = slot.end(end);
        if let Some(file) = file {
            self.ring.start(at, Op::close(file), may_block)?;
        }
        if let Some(slot) = again {
            self.add(slot);
        }
        Ok(())
    }
}

/// What follows an answer.
enum Answer {
    /// These calls; none if other calls of the file are under way.
    Call(Vec<Want>),
    /// Nothing: the copy is complete.
    Whole(Copied),
}

/// What the answer to a call means for its file.
fn answer(slot: &mut Slot<'_>, f: Finished, io_size: u64) -> Result<Answer, CopyError> {
    let n = match f.result {
        // The read that it was linked to was short, and has been continued.
        Err(libc::ECANCELED)
            if matches!(f.op, Op::Stat { linked: true, .. }) && (slot.calls > 0 || !slot.is_whole()) =>
        {
            return Ok(Answer::Call(Vec::new()));
        }
        Ok(n) => n,
        Err(errno) => return slot.once_more(f.op, errno).map(|want| Answer::Call(vec![want])),
    };
    let mut wants = Vec::new();
    match f.op {
        Op::Stat { out, .. } => return Ok(Answer::Whole(slot.copied(Some(&out)))),
        Op::Read { buffer, off, len, linked, .. } => {
            wants.extend(slot.arrived(off, off + len as u64, n, buffer)?);
            if linked && slot.is_whole() {
                return Ok(Answer::Call(wants));
            }
        }
        Op::Open { .. } | Op::Close(_) => {
            let file = f.opened.ok_or_else(|| CopyError::Source(io::ErrorKind::NotFound.into()))?;
            slot.opened(file).map_err(CopyError::Source)?;
        }
    }
    if slot.is_whole() {
        let checked = slot.task.is_checked();
        return Ok(if checked { Answer::Call(vec![Want::Stat]) } else { Answer::Whole(slot.copied(None)) });
    }
    wants.extend(slot.ahead(PIECES_UNDER_WAY, io_size));
    Ok(Answer::Call(wants))
}

/// The call for what a slot wants.
fn op(slot: &Slot<'_>, want: Want) -> io::Result<Op> {
    Ok(match (want, &slot.file) {
        (Want::Read(off, end, Some(buffer)), Some(file)) => {
            let len = usize::try_from(end - off).unwrap_or(usize::MAX);
            Op::Read { file: file.clone(), buffer, off, len, linked: false }
        }
        (_, Some(file)) => Op::stat(file.clone(), false),
        (_, None) => {
            let root = slot.task.source().root().ok_or(io::ErrorKind::Unsupported)?;
            Op::Open { root, path: CString::new(slot.task.rel())?, how: Box::new(how(slot.direct)) }
        }
    })
}

/// How files are opened: like [`crate::engine::PfsSource`] does.
fn how(direct: bool) -> OpenHow {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    flags.set(OFlags::DIRECT, direct);
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    OpenHow::new().flags(u64::from(flags.bits())).resolve(resolve.bits())
}
