//! The thread that looks up names of nodes that had no address at the start.
//!
//! Where all nodes start at the same time, names become known when their nodes have started.

use super::peer_pool::PeerPool;
use super::setup::NodeOptions;
use crate::discovery;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pause before the first lookup; it doubles with each, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause between two lookups.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// How often the thread looks whether the agent ends.
const STOP_POLL_PERIOD: Duration = Duration::from_millis(100);

/// Whether the address of an expected node was not known at the start.
pub(super) fn is_needed(options: &NodeOptions) -> bool {
    options.members.iter().any(|(name, at)| at.is_none() && *name != options.name)
}

/// Looks names up until all have an address or the agent ends.
pub(super) fn run(pool: &Arc<PeerPool>, stop: &AtomicBool) {
    let NodeOptions { name: me, members, .. } = pool.options();
    let mut lost: Vec<&String> = members.iter().filter(|(n, at)| at.is_none() && *n != me).map(|(n, _)| n).collect();
    tracing::warn!(members = ?lost, "no address is known for these nodes yet; they are looked up again");
    let (mut pause, port) = (FIRST_PAUSE, pool.options().listen.port());
    loop {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(STOP_POLL_PERIOD);
        }
        lost.retain(|name| {
            let found = discovery::resolve_addresses(name, port, &discovery::SystemLocal);
            if let Some(at) = found.ok().and_then(|all| all.first().copied()) {
                pool.membership().locate(name, at);
            }
            pool.membership().is_lost(name)
        });
        if lost.is_empty() {
            return;
        }
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
