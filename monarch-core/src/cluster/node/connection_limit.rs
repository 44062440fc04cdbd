//! How many connections of other nodes a node takes: as many as its job can use.

use super::{IDLE, Node, lock};
use crate::cluster::directory::Members;
use crate::cluster::http::STRANGERS;
use std::sync::atomic::Ordering;

/// Connections that are taken of however few nodes: one that works hard has as many as requests
/// under way, and keeps [`IDLE`].
const FEW: usize = 1024;
/// Connections for each node: those that it keeps, and as many again for what is under way beside
/// them.
const EACH: usize = 2 * IDLE;

/// Connections for so many nodes, of a process that may have so many descriptors open: half of them
/// are for copies, some for connections that have not proven who they are.
const fn connections(nodes: usize, descriptors: usize) -> usize {
    let (wanted, half) = (wanted(nodes), descriptors / 2);
    let room = if half > 2 * STRANGERS { half - STRANGERS } else { half / 2 };
    if wanted < room { wanted } else { room }
}

const fn wanted(nodes: usize) -> usize {
    if nodes * EACH > FEW { nodes * EACH } else { FEW }
}

fn descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
}

impl Node {
    /// Takes as many connections from now on as these members need.
    pub(super) fn admit(&self, view: &Members) {
        let nodes = view.iter().skip(1).filter(|(_, m)| m.standing.takes_part()).count();
        let (descriptors, wanted) = (descriptors(), wanted(nodes));
        let limit = connections(nodes, descriptors);
        if limit < wanted && !self.confined.swap(true, Ordering::Relaxed) {
            tracing::warn!(limit, wanted, descriptors, "open descriptors limit the connections of other nodes");
        }
        if let Some(server) = &*lock(&self.server) {
            server.admit(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_follow_the_members_and_leave_descriptors_for_copies() {
        let many = 1 << 20;
        assert_eq!([1, 2, 64].map(|nodes| connections(nodes, many)), [1024; 3]);
        assert_eq!([65, 128, 1000, 8192].map(|nodes| connections(nodes, many)), [1040, 2048, 16_000, 131_072]);
        // All nodes with all that they keep, at any number.
        assert!((1..=8192).all(|nodes| connections(nodes, many) >= nodes * IDLE));
        assert_eq!([1, 8192].map(|nodes| connections(nodes, 1024)), [256; 2]);
        assert_eq!([1, 8192].map(|nodes| connections(nodes, 4096)), [1024, 1792]);
        assert_eq!(connections(8192, usize::MAX), 131_072);
    }
}
