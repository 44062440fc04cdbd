//! Waiting until what is pending is published.

use super::roots::Root;
use core::sync::atomic::Ordering;
use monarch_abi::demand;
use monarch_abi::outputs::state::flag;
use monarch_abi::sys::futex_wait;
use monarch_guest::sys::coarse_ms;

/// How long a process waits for an agent that has died: `monarch run` starts another one within a
/// second, unless it was killed, too.
const DEAD_AGENT_TIMEOUT_MS: u64 = 60_000;
/// How long a call waits for its place in the order of the nodes: several times as long as the
/// agent waits for nodes that are silent.
const ORDER_TIMEOUT_MS: u64 = 10_000;
/// How long a process sleeps at a time.
const SLEEP_S: i64 = 1;

/// Waits until all entries up to the last one are published. Returns whether they are: not if there
/// is no agent for a long time.
pub fn wait_for_all(root: &Root) -> bool {
    wait_up_to(root, root.state().last_entry.load(Ordering::Acquire))
}

fn sleep(root: &Root, seen: u32) {
    let state = root.state();
    state.waiters.fetch_add(1, Ordering::AcqRel);
    futex_wait(&state.done, seen, Some([SLEEP_S, 0]));
    state.waiters.fetch_sub(1, Ordering::AcqRel);
}

/// [`wait_for_all`] for the entries up to a number.
pub fn wait_up_to(root: &Root, seq: u64) -> bool {
    wait_until(root, |root| root.state().published.load(Ordering::Acquire) >= seq)
}

/// Waits until entries up to a number have their place in the order of the nodes. The agent gives
/// up nodes that do not answer. A call does not wait for an agent that has died, that keeps no
/// order any more, or that cannot.
pub fn wait_for_order(root: &Root, seq: u64) {
    let (state, began) = (root.state(), coarse_ms());
    let keeps_order = || state.flags.load(Ordering::Acquire) & flag::NODES_ORDER != 0;
    while demand::agent_up(root.ctx.map.ctl) && keeps_order() && coarse_ms().saturating_sub(began) < ORDER_TIMEOUT_MS {
        let seen = state.done.load(Ordering::Acquire);
        if state.keyed.load(Ordering::Acquire) >= seq {
            return;
        }
        sleep(root, seen);
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
