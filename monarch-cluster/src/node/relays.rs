//! The table of relays, shared by the requests that wait for their turn.

use super::relay_table::{Piece, RelayTable, Turn};
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;

/// Gives pieces of large files out in turns.
#[derive(Debug, Default)]
pub(super) struct Relays {
    table: Mutex<RelayTable>,
    /// Notified when a turn may have come.
    changed: Notify,
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
            self.relays.changed.notify_waiters();
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
            let changed = self.changed.notified();
            let turn = lock(&self.table).turn(asking.piece, asking.asker, Instant::now(), &can_relay);
            match turn {
                Turn::Here => return None,
                Turn::Relay(relay) => return Some(relay),
                Turn::Wait(until) => {
                    let _ = tokio::time::timeout_at(until.into(), changed).await;
                }
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
        self.changed.notify_waiters();
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget_index(&self, index: &[u8; 16]) {
        lock(&self.table).forget_index(index);
        self.changed.notify_waiters();
    }
}
