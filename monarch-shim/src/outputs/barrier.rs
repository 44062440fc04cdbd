//! Waiting until what is pending is published.

use super::journal::{About, Journal};
use super::kernel::Errno;
use super::order::{sleep, sleep_up_to};
use super::roots::{self, Root};
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::demand::{self, Life};
use monarch_abi::outputs::record::Op;
use monarch_abi::outputs::state::closed;
use monarch_guest::ctx;
use monarch_guest::sys::coarse_ms;

/// How long a process waits for an agent that has died: `monarch run` starts another one within a
/// second, unless it was killed, too.
const DEAD_AGENT_TIMEOUT_MS: u64 = 60_000;
/// How long an open for writing waits while the agent publishes the file: many times what a PFS
/// that answers takes to rename it.
const PUBLISHED_TIMEOUT_MS: u64 = 300;

/// How long a process waits for the agent to open an output root that it has made.
const MADE_TIMEOUT_MS: u64 = 2_000;
/// How long it sleeps at a time.
const MADE_SLEEP_MS: u64 = 50;

/// The agent without whose successor this process has waited for [`DEAD_AGENT_TIMEOUT_MS`]: its
/// number, or 0.
static GIVEN_UP: AtomicU32 = AtomicU32::new(0);

/// Waits until all entries so far are published, and files that were closed without a record.
/// Returns whether they are: not if there is no agent for a long time. Where the PFS refuses what
/// is pending, the call gets its error. The caller does not hold the lock of the journal.
pub fn wait_for_all(root: &Root) -> Result<bool, Errno> {
    let (seq, state) = (begin(root), root.state());
    let is_published = || state.published.load(Ordering::Acquire) >= seq;
    let held = || state.held_errno.load(Ordering::Acquire);
    let is_gone = || state.closed.load(Ordering::Acquire) == closed::GONE;
    let is_met = wait_until(root, |_| is_published() || held() != 0 || is_gone());
    match held() {
        errno if errno != 0 && !is_published() => Err(errno as Errno),
        _ => Ok(is_met),
    }
}

/// The number up to which entries have to be published before a call that must not overtake them.
pub fn begin(root: &Root) -> u64 {
    let state = root.state();
    // (Where the tier has no space for the record, what the journal tells is waited for.)
    if state.pending.load(Ordering::Acquire) != 0
        && let Ok(journal) = Journal::lock(root)
    {
        let _ = journal.append(Op::Barrier, About::default(), b"", b"");
    }
    state.last_entry.load(Ordering::Acquire)
}

/// This process has made the directory of an output root, or has moved one there: waits until the
/// agent has opened it, and has said which one it is.
#[cold]
#[inline(never)]
pub fn wait_for_root(root: &Root) {
    let (state, began) = (root.state(), coarse_ms());
    let changes = state.root_changes.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    root.map.notify_agent();
    while coarse_ms().saturating_sub(began) < MADE_TIMEOUT_MS && demand::agent_up(root.ctx.map.ctl) {
        let seen = state.done.load(Ordering::Acquire);
        if state.root_seen.load(Ordering::Acquire) >= changes {
            break;
        }
        sleep_up_to(root, seen, MADE_SLEEP_MS);
    }
    roots::forget(root);
}

/// Waits until the agent does not publish a file any more, or does not get on with it.
pub fn wait_until_published(root: &Root, id: u64) {
    let (state, began) = (root.state(), coarse_ms());
    while demand::agent_up(root.ctx.map.ctl) {
        let seen = state.done.load(Ordering::Acquire);
        let left = PUBLISHED_TIMEOUT_MS.saturating_sub(coarse_ms().saturating_sub(began));
        if left == 0 || !state.is_publishing(id) {
            break;
        }
        state.is_waited_for.store(1, Ordering::Release);
        sleep_up_to(root, seen, left);
    }
}

/// Waits until an entry is published, or the PFS refuses what is pending.
pub fn wait_until_entry(root: &Root, seq: u64) {
    let state = root.state();
    let is_published = || state.published.load(Ordering::Acquire) >= seq;
    wait_until(root, |_| is_published() || state.held_errno.load(Ordering::Acquire) != 0);
}

/// Waits until a condition holds that changes with publications. Returns whether it does: not if
/// there is no agent for a long time. A process waits so long once for an agent.
pub fn wait_until(root: &Root, is_met: impl Fn(&Root) -> bool) -> bool {
    let (state, ctl) = (root.state(), root.ctx.map.ctl);
    let mut dead_since = None;
    loop {
        let seen = state.done.load(Ordering::Acquire);
        if is_met(root) {
            return true;
        }
        let agent = ctl.incarnation.load(Ordering::Acquire);
        let is_there = is_agent_there(root, agent);
        if !is_there && GIVEN_UP.load(Ordering::Relaxed) == agent {
            state.is_overtaken.store(1, Ordering::Release);
            return false;
        }
        sleep(root, seen);
        if is_there {
            dead_since = None;
        } else if coarse_ms().saturating_sub(*dead_since.get_or_insert_with(coarse_ms)) > DEAD_AGENT_TIMEOUT_MS {
            GIVEN_UP.store(agent, Ordering::Relaxed);
            state.is_overtaken.store(1, Ordering::Release);
            return false;
        }
    }
}

/// Whether an agent lives, as far as is known. One that is silent is looked at: it may have been
/// killed, with all that would start another one.
fn is_agent_there(root: &Root, agent: u32) -> bool {
    let ctl = root.ctx.map.ctl;
    if demand::agent_up(ctl) && demand::is_silent(ctl, coarse_ms().saturating_mul(1_000)) && ctx::agent() == Life::Dead
    {
        ctl.dead.store(agent, Ordering::Relaxed);
    }
    demand::agent_up(ctl)
}
