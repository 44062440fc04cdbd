//! Waiting for the agent: sleeps until it tells something, and waits for a place in the order of
//! the nodes.

use super::roots::Root;
use core::sync::atomic::Ordering;
use monarch_abi::demand;
use monarch_abi::outputs::state::flag;
use monarch_abi::sys::futex_wait;
use monarch_guest::sys::coarse_ms;

/// How long a call waits for its place in the order of the nodes: several times as long as the
/// agent waits for nodes that are silent.
const ORDER_TIMEOUT_MS: u64 = 10_000;
/// How long a process sleeps at a time.
const SLEEP_MS: u64 = 1_000;

/// Sleeps until the agent tells something, or for a while. `seen`: what [`State::done`] was before
/// the caller looked.
///
/// [`State::done`]: monarch_abi::outputs::state::State::done
pub fn sleep(root: &Root, seen: u32) {
    sleep_up_to(root, seen, SLEEP_MS);
}

/// [`sleep`] for `ms` milliseconds at most.
pub fn sleep_up_to(root: &Root, seen: u32, ms: u64) {
    let state = root.state();
    state.waiters.fetch_add(1, Ordering::AcqRel);
    futex_wait(&state.done, seen, Some([(ms / 1_000) as i64, (ms % 1_000) as i64 * 1_000_000]));
    state.waiters.fetch_sub(1, Ordering::AcqRel);
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
