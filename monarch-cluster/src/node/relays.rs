//! The table of relays, shared by the requests that wait for their turn.

use super::relay_table::{Piece, RelayTable, Turn, piece_of};
use super::request_limits::{MIN_PIECE_BYTES, piece_starts};
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;

/// Lists of waiting requests.
const WAITER_LISTS: usize = 64;

/// Gives pieces of large files out in turns.
#[derive(Debug, Default)]
pub(super) struct Relays {
    table: Mutex<RelayTable>,
    /// Notified when the turn of a piece may have come; by piece.
    moved: Waiters,
    /// Notified when a relay has ended a transfer.
    freed: Notify,
}

/// Requests that wait for a piece. Pieces share a few lists: a request that is woken for another
/// piece waits again.
#[derive(Debug)]
struct Waiters([Notify; WAITER_LISTS]);

impl Default for Waiters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Notify::new()))
    }
}

impl Waiters {
    fn of(&self, (file, start): &Piece) -> &Notify {
        let at = (start / MIN_PIECE_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.0[(at as usize).wrapping_add(file.id as usize) % WAITER_LISTS]
    }
}

/// A request for a piece that is being answered. Until bytes are sent, other nodes wait for it.
pub(super) struct Asking {
    relays: Arc<Relays>,
    piece: Piece,
    asker: u16,
}

impl Asking {
    /// The piece.
    pub(super) const fn piece(&self) -> Piece {
        self.piece
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if lock(&self.relays.table).leaves(self.piece, self.asker) {
            self.relays.moved.of(&self.piece).notify_waiters();
        }
    }
}

impl Relays {
    /// Counts a request for a piece for as long as the result lives.
    pub(super) fn asking(self: &Arc<Self>, piece: Piece, asker: u16) -> Asking {
        Asking { relays: self.clone(), piece, asker }
    }

    /// Waits for the turn of a request: `Some`, a relay sends the piece; `None`, this node does.
    /// `can_relay` says whether a node can be named, `is_shared` whether turns are still of use.
    pub(super) async fn turn(
        &self,
        asking: &Asking,
        can_relay: impl Fn(u16) -> bool,
        is_shared: impl Fn() -> bool,
    ) -> Option<u16> {
        while is_shared() {
            // Before the look: what changes afterwards wakes it.
            let (moved, freed) = (self.moved.of(&asking.piece).notified(), self.freed.notified());
            let turn = lock(&self.table).turn(asking.piece, asking.asker, Instant::now(), &can_relay);
            match turn {
                Turn::Here => return None,
                Turn::Relay(relay) => return Some(relay),
                Turn::Wait(until) => drop(tokio::time::timeout_at(until.into(), moved).await),
                Turn::Busy(until) => tokio::select! {
                    () = moved => {}
                    () = freed => {}
                    () = tokio::time::sleep_until(until.into()) => {}
                },
            }
        }
        None
    }

    /// Notes that a piece goes out from here.
    pub(super) fn begins(&self, piece: Piece, asker: u16) {
        lock(&self.table).begins(piece, asker, Instant::now());
    }

    /// Notes that the relay that was named for a piece did not send it.
    pub(super) fn failed(&self, piece: Piece, asker: u16) {
        lock(&self.table).failed(piece, asker, Instant::now());
    }

    /// Notes that a node has parts of files.
    pub(super) fn has(&self, node: u16, parts: &[(FileRef, Range<u64>)]) {
        let mut table = lock(&self.table);
        parts.iter().for_each(|(file, part)| table.has(file, part, node, Instant::now()));
        drop(table);
        for (file, part) in parts {
            piece_starts(part).for_each(|start| self.moved.of(&piece_of(file, start)).notify_waiters());
        }
        self.freed.notify_waiters();
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&self, index: &[u8; 16]) {
        lock(&self.table).forget_index(index);
    }
}
