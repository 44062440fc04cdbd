//! Waiting until what is pending is published.

use super::journal::{About, Journal};
use super::order::{sleep, sleep_up_to};
use super::roots::Root;
use core::sync::atomic::Ordering;
use monarch_abi::demand;
use monarch_abi::outputs::record::Op;
use monarch_guest::sys::coarse_ms;

/// How long a process waits for an agent that has died: `monarch run` starts another one within a
/// second, unless it was killed, too.
const DEAD_AGENT_TIMEOUT_MS: u64 = 60_000;
/// How long an open for writing waits while the agent publishes the file: many times what a PFS
/// that answers takes to rename it.
const PUBLISHED_TIMEOUT_MS: u64 = 300;

/// Waits until all entries so far are published, and files that were closed without a record.
/// Returns whether they are: not if there is no agent for a long time. The caller does not hold the
/// lock of the journal.
pub fn wait_for_all(root: &Root) -> bool {
    wait_up_to(root, begin(root))
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

/// [`wait_for_all`] for the entries up to a number.
pub fn wait_up_to(root: &Root, seq: u64) -> bool {
    wait_until(root, |root| root.state().published.load(Ordering::Acquire) >= seq)
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

/// Waits until a condition holds that changes with publications.
pub fn wait_until(root: &Root, is_met: impl Fn(&Root) -> bool) -> bool {
    let state = root.state();
    let mut dead_since = None;
    loop {
        let seen = state.done.load(Ordering::Acquire);
        if is_met(root) {
            return true;
        }
        sleep(root, seen);
        if demand::agent_up(root.ctx.map.ctl) {
            dead_since = None;
        } else if coarse_ms().saturating_sub(*dead_since.get_or_insert_with(coarse_ms)) > DEAD_AGENT_TIMEOUT_MS {
            return false;
        }
    }
}
