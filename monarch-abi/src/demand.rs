//! Asking the agent for a file and waiting for it.
//!
//! A demand is one compare-and-swap Absent -> Wanted, one bit in a bitmap and a futex wake, so that a client killed at any
//! instruction leaves nothing half-done: at worst a Wanted word whose bit is missing, and the next reader sets the bit
//! again. Waiting has two clocks: `pickup` until the agent has taken the demand, `stall` without any progress after that. A
//! copier inside a PFS call says so, and is then waited for as the PFS itself would have been, up to `max_wait`, so that an
//! overloaded PFS is not asked twice.

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

/// What a waiting process knows about time and the agent.
pub trait Watch {
    /// Microseconds of the monotonic clock.
    fn now_us(&self) -> u64;
    /// Whether the agent holds its lock. Asked on the slow path only.
    fn agent_alive(&self) -> bool;
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

/// Waits until a demanded file is resident.
pub fn wait(ctl: &ControlMap<'_>, f: &Found<'_>, watch: &impl Watch) -> Outcome {
    let word = &f.entry.master.word;
    let key = file_key(f.number, f.entry.master.id);
    let ms = |v: &AtomicU32| u64::from(v.load(Ordering::Relaxed)) * 1000;
    let (pickup, stall, max) = (ms(&ctl.ctl.pickup_ms), ms(&ctl.ctl.stall_ms), ms(&ctl.ctl.max_wait_ms));
    let start = watch.now_us();
    let mut mark = (start, 0u32);
    let mut checked = start;
    loop {
        let w = Word(word.load(Ordering::Acquire));
        match w.state() {
            State::Resident => return Outcome::Resident(w),
            State::Wanted | State::Fetching => {}
            other => return Outcome::Refused(other),
        }
        let now = watch.now_us();
        let waited = now.saturating_sub(start);
        let left = if w.state() == State::Wanted {
            mark.0 = now;
            pickup.saturating_sub(waited)
        } else {
            let copy = inflight(ctl, key);
            let progress = copy.map_or(0, |c| c.progress.load(Ordering::Relaxed));
            let in_pfs = copy.is_some_and(|c| c.in_pfs.load(Ordering::Relaxed) != 0);
            if progress != mark.1 || in_pfs {
                mark = (now, progress);
            }
            stall.saturating_sub(now.saturating_sub(mark.0)).min(max.saturating_sub(waited))
        };
        if left == 0 {
            if w.state() == State::Wanted && !watch.agent_alive() {
                mark_dead(ctl.ctl);
            }
            return Outcome::Deadline;
        }
        // The agent's death is noticed within a tenth of a second, whatever the clocks say.
        if now.saturating_sub(checked) > 100_000 {
            checked = now;
            if !watch.agent_alive() {
                mark_dead(ctl.ctl);
                return Outcome::Deadline;
            }
        }
        wait_on(word, w.0, Duration::from_micros(left.min(50_000)));
    }
}

/// Remembers that this incarnation of the agent is dead, so that nobody else waits for it.
fn mark_dead(ctl: &Control) {
    ctl.dead.store(ctl.incarnation.load(Ordering::Relaxed), Ordering::Relaxed);
}
