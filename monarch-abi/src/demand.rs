//! Asking the agent for a file and waiting for it.
//!
//! A demand is one compare-and-swap Absent -> Wanted, one bit in a bitmap and a futex wake, so that a client killed at any
//! instruction leaves nothing half-done: at worst a Wanted word whose bit is missing, and the next reader sets the bit
//! again. Waiting has two clocks: `pickup` until the agent has taken the demand, `stall` without any progress after that. A
//! copier inside a PFS call says so, and is then waited for as the PFS itself would have been, up to `max_wait`, so that an
//! overloaded PFS is not asked twice. An agent that lives but does not run (stopped, swapped out) is told by its pulse:
//! once it is missing for `stall`, demands are still left for it, but nobody waits.

use crate::control::{Control, ControlMap, Inflight, RING};
use crate::resolve::Found;
use crate::sys::{futex_wait, futex_wake};
use crate::word::{State, Word};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Resident: open the copy.
    Resident(Word),
    /// The agent said no, or the file was bypassed.
    Refused(State),
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
    /// It could be taken: nobody holds it.
    Dead,
    /// It could not be tested (no descriptors left, another root directory): says something about this process only.
    Unknown,
}

/// What a waiting process knows about time and the agent.
pub trait Watch {
    /// Microseconds of the monotonic clock.
    fn now_us(&self) -> u64;
    /// Whether the agent holds its lock. Asked on the slow path only.
    fn agent(&self) -> Life;
}

/// Sleeps until `word` is no longer `expected`, somebody wakes it, or the time is over.
fn wait_on(word: &AtomicU32, expected: u32, timeout: Duration) {
    futex_wait(word, expected, Some([timeout.as_secs() as i64, i64::from(timeout.subsec_nanos())]));
}

/// Tells the copiers that there is work.
pub fn ring_the_bell(ctl: &Control) {
    ctl.demand.fetch_add(1, Ordering::SeqCst);
    if ctl.sleepers.load(Ordering::SeqCst) > 0 {
        futex_wake(&ctl.demand, 1);
    }
}

/// Whether demands are taken: an agent is there that nobody found dead.
#[must_use]
#[inline]
pub fn agent_up(ctl: &Control) -> bool {
    ctl.dead.load(Ordering::Relaxed) != ctl.incarnation.load(Ordering::Relaxed)
}

/// Whether the agent, alive or not, has not run for longer than `stall` at a time of the monotonic clock, in microseconds. Then
/// nobody waits for it at all.
#[must_use]
pub fn is_silent(ctl: &Control, now_us: u64) -> bool {
    let pulse = ctl.pulse_ms.load(Ordering::Relaxed) * 1000;
    pulse != 0 && now_us.saturating_sub(pulse) > clock(&ctl.stall_ms).max(SILENCE)
}

/// Asks for a file: Absent -> Wanted. Also repeats the bit of a demand whose client may have died. Gives the word.
pub fn raise(ctl: &ControlMap<'_>, f: &Found<'_>) -> Word {
    let word = &f.entry.master.word;
    let mut now = Word(word.load(Ordering::Acquire));
    while now.state() == State::Absent {
        match word.compare_exchange_weak(now.0, now.with(State::Wanted).0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                announce(ctl, f);
                return now.with(State::Wanted);
            }
            Err(seen) => now = Word(seen),
        }
    }
    if now.state() == State::Wanted {
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

/// The in-flight entry of a file.
fn inflight<'a>(ctl: &ControlMap<'a>, key: u64) -> Option<&'a Inflight> {
    ctl.ctl.inflight.iter().find(|i| i.file.load(Ordering::Acquire) == key)
}

/// A process that waits for a file.
struct Waiter<'a, 'c, W> {
    ctl: &'a ControlMap<'c>,
    watch: &'a W,
    key: u64,
    start: u64,
    /// When progress was last seen, and the mark then.
    mark: (u64, u32),
    /// When the agent's lock was last looked at.
    checked: u64,
}

/// Microseconds of a clock of the control block.
fn clock(v: &AtomicU32) -> u64 {
    u64::from(v.load(Ordering::Relaxed)) * 1000
}

/// Least time without a pulse after which the agent counts as stopped, microseconds: several of its pulses.
const SILENCE: u64 = 1_000_000;
/// How often the agent's lock is looked at, microseconds.
const CHECK: u64 = 100_000;

impl<W: Watch> Waiter<'_, '_, W> {
    /// Microseconds left until the clock that counts in this state runs out.
    fn left(&mut self, state: State, now: u64) -> u64 {
        if is_silent(self.ctl.ctl, now) {
            return 0;
        }
        let waited = now.saturating_sub(self.start);
        if state == State::Wanted {
            self.mark.0 = now;
            return clock(&self.ctl.ctl.pickup_ms).saturating_sub(waited);
        }
        let copy = inflight(self.ctl, self.key);
        let progress = copy.map_or(0, |c| c.progress.load(Ordering::Relaxed));
        let in_pfs = copy.is_some_and(|c| c.in_pfs.load(Ordering::Relaxed) != 0);
        if progress != self.mark.1 || in_pfs {
            self.mark = (now, progress);
        }
        let stalled = now.saturating_sub(self.mark.0);
        let stall = clock(&self.ctl.ctl.stall_ms).saturating_sub(stalled);
        stall.min(clock(&self.ctl.ctl.max_wait_ms).saturating_sub(waited))
    }

    /// Whether the agent holds its lock; remembers for everybody if it does not.
    fn alive(&self) -> bool {
        // Read before the lock is tested: an agent that starts in between holds the lock before it counts itself.
        let seen = self.ctl.ctl.incarnation.load(Ordering::Acquire);
        let life = self.watch.agent();
        if life == Life::Dead {
            self.ctl.ctl.dead.store(seen, Ordering::Relaxed);
        }
        life == Life::Alive
    }
}

/// Waits until a demanded file is resident.
pub fn wait(ctl: &ControlMap<'_>, f: &Found<'_>, watch: &impl Watch) -> Outcome {
    let word = &f.entry.master.word;
    let start = watch.now_us();
    let key = file_key(f.number, f.entry.master.id);
    let mut waiter = Waiter { ctl, watch, key, start, mark: (start, 0), checked: start };
    loop {
        let w = Word(word.load(Ordering::Acquire));
        match w.state() {
            State::Resident => return Outcome::Resident(w),
            State::Wanted | State::Fetching => {}
            other => return Outcome::Refused(other),
        }
        let now = watch.now_us();
        let left = waiter.left(w.state(), now);
        if left == 0 {
            waiter.alive();
            return Outcome::Deadline;
        }
        // The agent's death is noticed within a tenth of a second, whatever the clocks say.
        if now.saturating_sub(waiter.checked) > CHECK {
            waiter.checked = now;
            if !waiter.alive() {
                return Outcome::Deadline;
            }
        }
        wait_on(word, w.0, Duration::from_micros(left.min(50_000)));
    }
}
