//! Bounds that both sides of a request for a file keep.

use std::ops::Range;
use std::time::Duration;

/// Most bytes that one request for a file asks for.
pub(super) const MAX_REQUEST_BYTES: u64 = 4 << 20;
/// Fewest bytes of a piece of a large file for which nodes wait for their turn: below that, the
/// extra round trip costs more than the transfer.
pub(super) const MIN_PIECE_BYTES: u64 = 64 << 10;
/// Fewest nodes of a job that pass pieces on: among fewer, the owner's link carries a file three
/// times at most, and a file is mapped where its first pieces come at once.
pub(super) const MIN_RELAY_NODES: usize = 5;
/// How long a request for a file waits at a node that has just come up for its index.
pub(super) const INDEX_ARRIVAL_TIMEOUT: Duration = Duration::from_millis(1500);

/// Where the pieces of a part of a large file begin: the part is requested in order.
pub(super) fn piece_starts(part: &Range<u64>) -> impl Iterator<Item = u64> {
    part.clone().step_by(MAX_REQUEST_BYTES as usize)
}
