//! The table of relays, shared by the requests that wait for their turn.

use super::relay_table::{Piece, RelayTable, Turn, Wanted, piece_of};
use super::request_limits::{MAX_REQUEST_BYTES, MIN_PIECE_BYTES, piece_starts};
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Lists of waiting requests.
const WAITER_LISTS: usize = 64;

/// Least time between two looks of a request that waits for another one of its piece.
const RECHECK_PAUSE: Duration = Duration::from_millis(20);

/// Gives pieces of large files out in turns.
#[derive(Debug, Default)]
pub(super) struct Relays {
    table: Mutex<RelayTable>,
    /// Notified when the turn of a piece may have come; by piece.
    moved: Waiters,
    /// Notified when a node has ended a transfer, or this node has one piece less to prepare.
    freed: Notify,
    /// Notified when an asker has got a piece; by asker.
    arrived: Waiters,
}

/// Requests that wait for a piece, or for their asker. Pieces and askers share a few lists: a
/// request that is woken for another one waits again.
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

    fn of_asker(&self, asker: u16) -> &Notify {
        &self.0[usize::from(asker) % WAITER_LISTS]
    }
}

async fn after(pause: Duration, event: impl Future<Output = ()>) {
    tokio::time::sleep(pause).await;
    event.await;
}

/// A request for a piece that is being answered. Until bytes are sent, other nodes wait for it.
pub(super) struct Asking {
    relays: Arc<Relays>,
    piece: Piece,
    bytes: u64,
    asker: u16,
}

impl Asking {
    /// The piece.
    pub(super) const fn piece(&self) -> Piece {
        self.piece
    }
}

/// A piece that goes out from here.
pub(super) struct Sending(Asking);

impl Drop for Sending {
    fn drop(&mut self) {
        let Asking { relays, piece, asker, .. } = &self.0;
        lock(&relays.table).ends(*piece, *asker);
        relays.freed.notify_waiters();
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        if lock(&self.relays.table).leaves(self.piece, self.asker) {
            self.relays.moved.of(&self.piece).notify_waiters();
            self.relays.freed.notify_waiters();
        }
    }
}

impl Relays {
    /// Counts a request for a part of a file for as long as the result lives.
    pub(super) fn asking(self: &Arc<Self>, file: &FileRef, part: &Range<u64>, asker: u16) -> Asking {
        let (piece, bytes) = (piece_of(file, part.start), part.end - part.start);
        Asking { relays: self.clone(), piece, bytes, asker }
    }

    /// Notes that the asker has got the piece that comes before that of a request: both are of one
    /// chunk, whose pieces are asked for one after the other.
    pub(super) fn has_got_former(&self, asking: &Asking) {
        let (file, start) = asking.piece;
        let former = (file, start.saturating_sub(MAX_REQUEST_BYTES));
        lock(&self.table).arrived(former, asking.asker, Instant::now());
        self.arrived.of_asker(asking.asker).notify_waiters();
        self.freed.notify_waiters();
    }

    /// Waits for the turn of a request: `Some`, a relay sends the piece; `None`, this node does.
    /// `can_relay` says whether a node can be named, `is_at_hand` whether this node has the piece,
    /// if turns are still of use.
    pub(super) async fn turn(
        &self,
        asking: &Asking,
        can_relay: impl Fn(u16) -> bool,
        is_at_hand: impl Fn() -> Option<bool>,
    ) -> Option<u16> {
        while let Some(is_at_hand) = is_at_hand() {
            // Before the look: what changes afterwards wakes it.
            let (moved, freed) = (self.moved.of(&asking.piece).notified(), self.freed.notified());
            let arrived = self.arrived.of_asker(asking.asker).notified();
            let wanted = Wanted { piece: asking.piece, bytes: asking.bytes, is_at_hand };
            let turn = lock(&self.table).turn(wanted, asking.asker, Instant::now(), &can_relay);
            match turn {
                Turn::Here => return None,
                Turn::Relay(relay) => return Some(relay),
                Turn::Full(until) => drop(tokio::time::timeout_at(until.into(), arrived).await),
                Turn::Wait(until) => tokio::select! {
                    () = moved => {}
                    // The asker that goes first may be full by now.
                    () = after(RECHECK_PAUSE, freed) => {}
                    () = tokio::time::sleep_until(until.into()) => {}
                },
                Turn::Busy(until) => tokio::select! {
                    () = moved => {}
                    () = freed => {}
                    () = tokio::time::sleep_until(until.into()) => {}
                },
            }
        }
        None
    }

    /// Notes that the piece of a request goes out from here now, until the result is dropped.
    pub(super) fn begins(&self, asking: Asking) -> Sending {
        lock(&self.table).begins(asking.piece, asking.asker, Instant::now());
        self.freed.notify_waiters();
        Sending(asking)
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
        self.arrived.of_asker(node).notify_waiters();
        self.freed.notify_waiters();
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&self, index: &[u8; 16]) {
        lock(&self.table).forget_index(index);
    }
}
