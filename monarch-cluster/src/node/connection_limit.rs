//! How many connections of other nodes a node takes: as many as its job can use.

use super::peer_pool::MAX_IDLE_CONNECTIONS;
use crate::http::STRANGERS;

/// Connections that are taken however few nodes there are: a node that works hard has one for each
/// request under way, and keeps [`MAX_IDLE_CONNECTIONS`].
const MIN_CONNECTIONS: usize = 1024;
/// Connections for each node: those that it keeps, and as many again for what is under way beside
/// them.
const CONNECTIONS_PER_NODE: usize = 2 * MAX_IDLE_CONNECTIONS;

/// Connections for this number of nodes, of a process that may have `descriptors` open: half of
/// them are for copies, some for connections that have not proven whose they are.
pub(super) const fn max_connections(nodes: usize, descriptors: usize) -> usize {
    let (wanted, half) = (wanted_connections(nodes), descriptors / 2);
    let room = if half > 2 * STRANGERS { half - STRANGERS } else { half / 2 };
    if wanted < room { wanted } else { room }
}

/// Connections for this number of nodes, if there are descriptors enough.
pub(super) const fn wanted_connections(nodes: usize) -> usize {
    let all = nodes * CONNECTIONS_PER_NODE;
    if all > MIN_CONNECTIONS { all } else { MIN_CONNECTIONS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_follow_the_members_and_leave_descriptors_for_copies() {
        let many = 1 << 20;
        assert_eq!([1, 2, 64].map(|nodes| max_connections(nodes, many)), [1024; 3]);
        assert_eq!([65, 128, 1000, 8192].map(|nodes| max_connections(nodes, many)), [1040, 2048, 16_000, 131_072]);
        // All nodes with all that they keep, at any number.
        assert!((1..=8192).all(|nodes| max_connections(nodes, many) >= nodes * MAX_IDLE_CONNECTIONS));
        assert_eq!([1, 8192].map(|nodes| max_connections(nodes, 1024)), [256; 2]);
        assert_eq!([1, 8192].map(|nodes| max_connections(nodes, 4096)), [1024, 1792]);
        assert_eq!(max_connections(8192, usize::MAX), 131_072);
    }
}
