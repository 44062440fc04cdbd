//! The table of relays, shared by the requests that wait for their turn.

use super::peer_pool::PeerPool;
use super::relay_askers::{Piece, piece_of};
use super::relay_table::{RelayTable, Turn, Wanted};
use super::request_limits::{MAX_REQUEST_BYTES, MIN_PIECE_BYTES};
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;

/// Lists of waiting requests.
const WAITER_LISTS: usize = 256;

/// Gives pieces of large files out in turns.
pub(super) struct Relays {
    table: Mutex<RelayTable>,
    pool: Arc<PeerPool>,
    waiters: Waiters,
}

/// Requests that wait for their turn, by piece and asker. They share lists: a request that is woken
/// for another one waits again.
#[derive(Debug)]
struct Waiters([Notify; WAITER_LISTS]);

impl Default for Waiters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Notify::new()))
    }
}

impl Waiters {
    fn of(&self, (file, start): &Piece, asker: u16) -> &Notify {
        let at = (start / MIN_PIECE_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.0[(at as usize).wrapping_add(file.id as usize).wrapping_add(usize::from(asker)) % WAITER_LISTS]
    }
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
        relays.change(&piece.0, |table, _| table.ends(*piece, *asker));
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let Self { relays, piece, asker, .. } = self;
        relays.change(&piece.0, |table, _| table.leaves(*piece, *asker));
    }
}

impl Relays {
    /// Relays of the nodes of `pool`.
    pub(super) fn new(pool: Arc<PeerPool>) -> Self {
        Self { table: Mutex::default(), pool, waiters: Waiters::default() }
    }

    /// Counts a request for a part of a file for as long as the result lives.
    pub(super) fn asking(self: &Arc<Self>, file: &FileRef, part: &Range<u64>, asker: u16) -> Asking {
        let (piece, bytes) = (piece_of(file, part.start), part.end - part.start);
        Asking { relays: self.clone(), piece, bytes, asker }
    }

    /// Changes the table, and then decides whose turn it is that waits for a piece of `file`.
    fn change<T>(&self, file: &FileRef, change: impl FnOnce(&mut RelayTable, Instant) -> T) -> T {
        let view = self.pool.view();
        self.change_alone(|table, now| {
            let result = change(table, now);
            table.decide(file, now, |node| view.is_up(node));
            result
        })
    }

    /// Changes the table in a way that gives no link more room: whose turn comes by it is decided
    /// there.
    fn change_alone<T>(&self, change: impl FnOnce(&mut RelayTable, Instant) -> T) -> T {
        let (mut table, now) = (lock(&self.table), Instant::now());
        let result = change(&mut table, now);
        let decided = table.decided();
        drop(table);
        decided.iter().for_each(|(piece, asker)| self.waiters.of(piece, *asker).notify_waiters());
        result
    }

    /// Decides again when a transfer that begins now is about to end.
    fn decide_later(self: &Arc<Self>, asking: &Asking) {
        let (relays, file) = (Arc::downgrade(self), asking.piece.0);
        let Some(pause) = lock(&self.table).ending(asking.bytes) else { return };
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            relays.upgrade().into_iter().for_each(|relays| relays.change(&file, |_, _| ()));
        });
    }

    /// Notes that the asker has got the piece that comes before that of a request: both are of one
    /// chunk, whose pieces are asked for one after the other.
    pub(super) fn has_got_former(&self, asking: &Asking) {
        let (file, start) = asking.piece;
        let former = (file, start.saturating_sub(MAX_REQUEST_BYTES));
        self.change(&file, |table, now| table.arrived(former, asking.asker, now));
    }

    /// Waits for the turn of a request: `Some`, a relay sends the piece; `None`, this node does.
    /// `is_at_hand` says whether this node has the piece, if turns are still of use.
    pub(super) async fn turn(self: &Arc<Self>, asking: &Asking, is_at_hand: impl Fn() -> Option<bool>) -> Option<u16> {
        let Asking { piece, bytes, asker, .. } = *asking;
        while let Some(is_at_hand) = is_at_hand() {
            // Before the look: what is decided afterwards wakes it.
            let decided = self.waiters.of(&piece, asker).notified();
            let wanted = Wanted { piece, bytes, is_at_hand };
            let view = self.pool.view();
            let turn = |table: &mut RelayTable, now| table.turn(wanted, asker, now, |node| view.is_up(node));
            match self.change_alone(turn) {
                Turn::Here => return None,
                Turn::Relay(relay) => {
                    self.decide_later(asking);
                    return Some(relay);
                }
                Turn::Wait(until) => drop(tokio::time::timeout_at(until.into(), decided).await),
            }
        }
        None
    }

    /// Notes that the piece of a request goes out from here now, until the result is dropped.
    pub(super) fn begins(self: &Arc<Self>, asking: Asking) -> Sending {
        let Asking { piece, asker, .. } = asking;
        self.change(&piece.0, |table, now| table.begins(piece, asker, now));
        self.decide_later(&asking);
        Sending(asking)
    }

    /// Notes that the relay that was named for a piece did not send it.
    pub(super) fn failed(&self, piece: Piece, asker: u16) {
        self.change(&piece.0, |table, now| table.failed(piece, asker, now));
    }

    /// Notes that a node has parts of files.
    pub(super) fn has(&self, node: u16, parts: &[(FileRef, Range<u64>)]) {
        for (file, part) in parts {
            self.change(file, |table, now| table.has(file, part, node, now));
        }
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&self, index: &[u8; 16]) {
        lock(&self.table).forget_index(index);
    }
}
