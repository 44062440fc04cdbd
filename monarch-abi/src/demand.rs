//! Asking the agent for a file and waiting for it.
//!
//! A demand is one compare-and-swap Absent -> Requested, one bit in a bitmap and a futex wake, so
//! that a client killed at any instruction leaves nothing half-done: at worst a Requested word
//! whose bit is missing, and the next reader sets the bit again. Waiting has two clocks: `pickup`
//! during which copiers take neither this demand nor those before it, `stall` without any progress
//! after that, or in line. A copier inside a PFS call says so, and is then waited for as the PFS
//! itself would have been, up to `max_wait`, so that an overloaded PFS is not asked twice. An agent
//! that lives but does not run (stopped, swapped out) is recognised by its pulse: once that is
//! missing for `stall`, demands are still left for it, but no reader waits.

use crate::chunks::{DropSnapshot, LargeFile, PAGED, REST};
use crate::control::{Control, ControlMap, Inflight, MAX_CLOCK_MS, RING};
use crate::resolve::Found;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::{futex_wait, futex_wake};
use crate::word::{Refusal, State, Word};
use core::time::Duration;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Resident: open the copy.
    Resident(Word),
    /// A large file, of which chunks can be had.
    Partial(Word),
    /// The agent said no, or the file was bypassed: what the word says then.
    Refused(Word),
    /// A clock ran out or the agent is dead.
    Deadline,
}

/// The number under which a file is known in rings and in-flight tables; never 0.
#[must_use]
pub const fn file_key(segment: usize, id: u32) -> u64 {
    (segment as u64 + 1) << 32 | id as u64
}

/// What the agent's lock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is held.
    Alive,
    /// It could be taken: no agent holds it.
    Dead,
    /// It could not be tested (no descriptors left, another root directory): says something about
    /// this process only.
    Unknown,
}

/// What a waiting process knows about time and the agent.
pub trait Watch {
    /// Microseconds of the monotonic clock.
    fn now_us(&self) -> u64;
    /// Whether the agent holds its lock. Asked on the slow path only.
    fn agent(&self) -> Life;
}

/// Sleeps until `word` is no longer `expected`, it is woken, or the time is over.
fn wait_on(word: &AtomicU32, expected: u32, timeout: Duration) {
    futex_wait(word, expected, Some([timeout.as_secs() as i64, i64::from(timeout.subsec_nanos())]));
}

/// Wakes the copiers.
pub fn ring_the_bell(ctl: &Control) {
    ctl.demand.fetch_add(1, Ordering::SeqCst);
    if ctl.sleepers.load(Ordering::SeqCst) > 0 {
        futex_wake(&ctl.demand, 1);
    }
}

/// Whether demands are taken: there is a live agent, and no process found it dead.
#[must_use]
#[inline]
pub fn agent_up(ctl: &Control) -> bool {
    ctl.dead.load(Ordering::Relaxed) != ctl.incarnation.load(Ordering::Relaxed)
}

/// Whether the agent, alive or not, has not run for longer than `stall` at a time of the monotonic
/// clock, in microseconds. Then no reader waits for it at all.
#[must_use]
pub fn is_silent(ctl: &Control, now_us: u64) -> bool {
    let pulse = ctl.pulse_ms.load(Ordering::Relaxed).saturating_mul(1000);
    pulse != 0 && now_us.saturating_sub(pulse) > clock(&ctl.stall_ms).max(MIN_PULSE_TIMEOUT_US)
}

/// Asks for a file: Absent -> Requested. Also repeats the bit of a demand whose client may have
/// died. Gives the word.
pub fn raise(ctl: &ControlMap<'_>, f: &Found<'_>) -> Word {
    let word = &f.entry.master.word;
    let mut now = Word(word.load(Ordering::Acquire));
    while now.state() == State::Absent {
        match word.compare_exchange_weak(now.0, now.with(State::Requested).0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                announce(ctl, f);
                return now.with(State::Requested);
            }
            Err(seen) => now = Word(seen),
        }
    }
    if now.state() == State::Requested {
        announce(ctl, f);
    }
    now
}

/// Sets the bit, leaves a hint about the order, wakes a copier.
fn announce(ctl: &ControlMap<'_>, f: &Found<'_>) {
    let id = f.entry.master.id;
    f.segment.state.raise(id);
    let at = ctl.ctl.ring_head.fetch_add(1, Ordering::Relaxed) as usize % RING;
    if let Some(r) = ctl.ctl.ring.get(at) {
        r.store(file_key(f.number, id), Ordering::Release);
    }
    ring_the_bell(ctl.ctl);
}

/// Turns a file to Bypass, for good, wakes waiting readers and notifies the agent.
pub fn bypass(ctl: &ControlMap<'_>, f: &Found<'_>) {
    let word = &f.entry.master.word;
    let mut now = Word(word.load(Ordering::Acquire));
    while !now.is_changed() {
        match word.compare_exchange_weak(now.0, now.next(State::Bypass).0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return told(ctl, f),
            Err(seen) => now = Word(seen),
        }
    }
}

/// Notes of a file that a job has changed that it has removed it, too: it has no name any more.
pub fn gone(ctl: &ControlMap<'_>, f: &Found<'_>) {
    bypass(ctl, f);
    let word = &f.entry.master.word;
    let mut now = Word(word.load(Ordering::Acquire));
    while now.is_changed() && !now.is_gone() {
        match word.compare_exchange_weak(now.0, now.gone().0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(seen) => now = Word(seen),
        }
    }
}

/// Turns a file to Bypass that is not what was indexed any more, though no job has changed it, and
/// wakes waiting readers and notifies the agent.
pub fn leave(ctl: &ControlMap<'_>, f: &Found<'_>) {
    let word = &f.entry.master.word;
    let mut now = Word(word.load(Ordering::Acquire));
    while now.state() != State::Bypass {
        match word.compare_exchange_weak(now.0, now.left().0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return told(ctl, f),
            Err(seen) => now = Word(seen),
        }
    }
}

/// Takes a copy out of use that was found damaged, if its word still says `seen`, and has the agent
/// drop it.
pub fn damaged(ctl: &ControlMap<'_>, f: &Found<'_>, seen: Word) {
    let to = seen.refused(Refusal::Damaged);
    if f.entry.master.word.compare_exchange(seen.0, to.0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        told(ctl, f);
    }
}

/// Notifies the agent again of a copy that was found damaged: the process that found it may have
/// died before it did.
pub fn repeat_damaged(ctl: &ControlMap<'_>, f: &Found<'_>, word: Word) {
    if word.refusal() == Some(Refusal::Damaged) {
        told(ctl, f);
    }
}

/// Wakes waiting readers, and has the agent look at a file whose word was turned.
fn told(ctl: &ControlMap<'_>, f: &Found<'_>) {
    futex_wake(&f.entry.master.word, u32::MAX >> 1);
    if f.entry.record.is_file() {
        f.segment.state.raise(f.entry.master.id);
        ring_the_bell(ctl.ctl);
    }
}

/// The in-flight entry of a file.
fn inflight<'a>(ctl: &ControlMap<'a>, key: u64) -> Option<&'a Inflight> {
    ctl.ctl.inflight.iter().find(|i| i.file.load(Ordering::Acquire) == key)
}

/// A process that waits for a file.
struct Waiter<'a, 'c, W> {
    ctl: &'a ControlMap<'c>,
    watch: &'a W,
    start: u64,
    /// When progress was last seen, and the mark then.
    mark: (u64, u32),
    /// When the line of demands was last seen to move, and how far it had got.
    line: (u64, u32),
    /// When the agent's lock was last looked at.
    checked: u64,
}

/// Microseconds of a clock of the control block. Every process of the user can write there: none
/// shows more than a configuration could.
fn clock(v: &AtomicU32) -> u64 {
    u64::from(v.load(Ordering::Relaxed).min(MAX_CLOCK_MS)) * 1000
}

/// Time without a pulse after which the agent counts as stopped at the earliest, microseconds:
/// several of its pulses.
const MIN_PULSE_TIMEOUT_US: u64 = 1_000_000;
/// How often the agent's lock is looked at, microseconds.
const LOCK_CHECK_INTERVAL_US: u64 = 100_000;

/// What the agent makes of a demand.
enum Step {
    /// It has not taken it.
    NotTaken,
    /// It has: the mark that goes up with each progress, and whether it is inside a PFS call.
    Taken(u32, bool),
}

impl<'a, 'c, W: Watch> Waiter<'a, 'c, W> {
    fn new(ctl: &'a ControlMap<'c>, watch: &'a W) -> Self {
        let start = watch.now_us();
        let line = (start, ctl.ctl.taken.load(Ordering::Relaxed));
        Self { ctl, watch, start, mark: (start, 0), line, checked: start }
    }

    /// How a copy under way gets on.
    fn step_of_copy(&self, key: u64) -> Step {
        let copy = inflight(self.ctl, key);
        let progress = copy.map_or(0, |c| c.progress.load(Ordering::Relaxed));
        Step::Taken(progress, copy.is_some_and(|c| c.in_pfs.load(Ordering::Relaxed) != 0))
    }

    /// Sleeps on `on` until the clock that applies runs out, 50 ms at most; `false` when there is
    /// nothing to wait for any more.
    fn sleep(&mut self, step: &Step, on: &AtomicU32, seen: u32) -> bool {
        let now = self.watch.now_us();
        let left = self.left(step, now);
        if left == 0 {
            self.alive();
            return false;
        }
        // The agent's death is noticed within a tenth of a second, whatever the clocks say.
        if now.saturating_sub(self.checked) > LOCK_CHECK_INTERVAL_US {
            self.checked = now;
            if !self.alive() {
                return false;
            }
        }
        wait_on(on, seen, Duration::from_micros(left.min(50_000)));
        true
    }

    /// Microseconds left until the clock that counts now runs out.
    fn left(&mut self, step: &Step, now: u64) -> u64 {
        if is_silent(self.ctl.ctl, now) {
            return 0;
        }
        let waited = now.saturating_sub(self.start);
        let &Step::Taken(progress, in_pfs) = step else {
            self.mark.0 = now;
            // In line behind others it is not forgotten, as long as copiers take those.
            let taken = self.ctl.ctl.taken.load(Ordering::Relaxed);
            if taken != self.line.1 {
                self.line = (now, taken);
            }
            let pickup = clock(&self.ctl.ctl.pickup_ms).saturating_sub(now.saturating_sub(self.line.0));
            return pickup.min(clock(&self.ctl.ctl.stall_ms).saturating_sub(waited));
        };
        if progress != self.mark.1 || in_pfs {
            self.mark = (now, progress);
        }
        let stalled = now.saturating_sub(self.mark.0);
        let stall = clock(&self.ctl.ctl.stall_ms).saturating_sub(stalled);
        stall.min(clock(&self.ctl.ctl.max_wait_ms).saturating_sub(waited))
    }

    /// Whether the agent holds its lock; if it does not, notes that for all processes.
    fn alive(&self) -> bool {
        // Read before the lock is tested: an agent that starts in between holds the lock before it
        // counts itself.
        let seen = self.ctl.ctl.incarnation.load(Ordering::Acquire);
        let life = self.watch.agent();
        if life == Life::Dead {
            self.ctl.ctl.dead.store(seen, Ordering::Relaxed);
        }
        life == Life::Alive
    }
}

/// How often a demand is raised again for a file whose copy comes and goes.
pub const TRIES: u32 = 4;

/// Waits until a demanded file is resident, or, if it is large, until chunks of it can be had.
pub fn wait(ctl: &ControlMap<'_>, f: &Found<'_>, watch: &impl Watch) -> Outcome {
    let word = &f.entry.master.word;
    let key = file_key(f.number, f.entry.master.id);
    let mut waiter = Waiter::new(ctl, watch);
    let mut tries = TRIES;
    loop {
        let w = Word(word.load(Ordering::Acquire));
        let step = match w.state() {
            State::Resident => return Outcome::Resident(w),
            State::Partial => return Outcome::Partial(w),
            State::Requested => Step::NotTaken,
            State::Fetching => waiter.step_of_copy(key),
            // Its decoded copy was just replaced, or the copier that fetched it ahead has stopped.
            State::Absent if tries > 0 => {
                tries -= 1;
                raise(ctl, f);
                waiter = Waiter::new(ctl, watch);
                continue;
            }
            _ => return Outcome::Refused(w),
        };
        if !waiter.sleep(&step, word, w.0) {
            return Outcome::Deadline;
        }
    }
}

/// Asks for those of the chunks `from..end` that are not there.
pub fn want_chunks(ctl: &ControlMap<'_>, f: &Found<'_>, file: &LargeFile<'_>, from: u32, end: u32) {
    let mut any = false;
    for chunk in (from..end.min(file.chunks())).filter(|&c| !file.has(c)) {
        // Also where another process has asked: it may have died before it notified the agent.
        let _ = file.want(chunk);
        any = true;
    }
    if any {
        announce(ctl, f);
    }
}

/// Tells the agent that this process reads a large file of the PFS through the page cache: all of
/// it if `whole`.
pub fn read_by_pages(ctl: &ControlMap<'_>, f: &Found<'_>, file: &LargeFile<'_>, whole: bool) {
    if file.ask_rest(if whole { REST | PAGED } else { PAGED }) {
        announce(ctl, f);
    }
}

/// Waits until a chunk that was asked for is there, while the file's word stays as it is. `seen` is
/// what was seen before it was asked for.
#[must_use]
pub fn wait_chunk(
    ctl: &ControlMap<'_>,
    f: &Found<'_>,
    file: &LargeFile<'_>,
    seen: DropSnapshot,
    chunk: u32,
    watch: &impl Watch,
) -> bool {
    let mut waiter = Waiter::new(ctl, watch);
    let mut drops = seen.drops;
    loop {
        let tick = file.head.tick.load(Ordering::Acquire);
        if file.has(chunk) {
            return true;
        }
        // It may have come and gone again before this reader woke.
        let now = file.head.drops.load(Ordering::Acquire);
        if now != drops {
            drops = now;
            want_chunks(ctl, f, file, chunk, chunk.saturating_add(1));
        }
        if f.entry.word() != seen.word {
            return false;
        }
        let step = if file.is_wanted(chunk) {
            Step::NotTaken
        } else {
            Step::Taken(tick, file.head.in_pfs.load(Ordering::Relaxed) != 0)
        };
        if !waiter.sleep(&step, &file.head.tick, tick) {
            return false;
        }
    }
}

/// Waits for a large file to be complete, for readers that cannot use single chunks: only if
/// that is near, by the rate of late. Otherwise `paged` says that the reader turns to the PFS by
/// pages that the agent can follow.
pub fn wait_complete(
    ctl: &ControlMap<'_>,
    f: &Found<'_>,
    file: &LargeFile<'_>,
    paged: bool,
    watch: &impl Watch,
) -> Outcome {
    let most = clock(&ctl.ctl.complete_ms);
    let start = watch.now_us();
    let mut asked = false;
    let mut waiter = Waiter::new(ctl, watch);
    loop {
        let tick = file.head.tick.load(Ordering::Acquire);
        let w = f.entry.word();
        let step = match w.state() {
            State::Partial => Step::Taken(tick, file.head.in_pfs.load(Ordering::Relaxed) != 0),
            State::Fetching => Step::Taken(tick, false),
            State::Requested => Step::NotTaken,
            State::Resident => return Outcome::Resident(w),
            _ => return Outcome::Refused(w),
        };
        let missing = u64::from(file.chunks().saturating_sub(file.count())).saturating_mul(file.chunk);
        let rate = ctl.ctl.rate.load(Ordering::Relaxed).max(1);
        let needed = missing.min(f.entry.record.size).saturating_mul(1_000_000).checked_div(rate).unwrap_or(u64::MAX);
        let left = most.saturating_sub(watch.now_us().saturating_sub(start));
        let hopeless = needed > left || left == 0 || file.is_streamed();
        let on = if w.state() == State::Partial { (&file.head.tick, tick) } else { (&f.entry.master.word, w.0) };
        if hopeless {
            // For later readers.
            let ask = if paged { REST | PAGED } else { REST };
            if !file.is_streamed() && file.ask_rest(ask) {
                announce(ctl, f);
            }
            return Outcome::Deadline;
        }
        if !asked {
            // Otherwise no process might request them.
            asked = true;
            want_chunks(ctl, f, file, 0, file.chunks());
        }
        if !waiter.sleep(&step, on.0, on.1) {
            return Outcome::Deadline;
        }
    }
}
