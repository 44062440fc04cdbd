//! Receipts: pieces of large files that this node has got, for the nodes that it asked for them. A
//! node that has given a receipt can be named as a relay.

use super::peer_pool::PeerPool;
use super::request_limits::piece_starts;
use crate::sync::lock;
use monarch_storage::sharing::FileRef;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Receipts in one message.
const MAX_RECEIPTS: usize = 256;
/// Bytes of a receipt: index, number of the file, offset, length.
const RECEIPT_BYTES: usize = 16 + 4 + 8 + 8;
/// Pieces whose receipt is due, and receipts that wait to be sent to a node; more are dropped.
const MAX_DUE: usize = 4096;
/// Longest part of a file in a receipt.
const MAX_PART_BYTES: u64 = 1 << 30;
/// How often the thread that sends looks whether it is to end.
const STOP_POLL_PERIOD: Duration = Duration::from_millis(200);

/// A part of a file that a node has.
pub type Receipt = (FileRef, Range<u64>);

#[derive(Debug, Default)]
struct Due {
    /// Pieces that arrived and are not in the copy yet, and the node that was asked for each.
    arrived: HashMap<(FileRef, u64), u16>,
    /// Receipts by the node that gets them.
    ready: HashMap<u16, Vec<Receipt>>,
}

/// Receipts that are due.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    due: Mutex<Due>,
    is_ready: Condvar,
}

impl Receipts {
    /// Notes that a piece of a file arrived for which `asked` was asked.
    pub(super) fn arrived(&self, file: &FileRef, start: u64, asked: u16) {
        let mut due = lock(&self.due);
        if due.arrived.len() < MAX_DUE {
            due.arrived.insert((*file, start), asked);
        }
    }

    /// Notes that readers find a part of a file from now on.
    pub(super) fn published(&self, file: &FileRef, (start, len): (u64, u64)) {
        let part = start..start.saturating_add(len);
        let mut due = lock(&self.due);
        let asked: Vec<u16> = piece_starts(&part).filter_map(|at| due.arrived.remove(&(*file, at))).collect();
        for node in asked {
            let ready = due.ready.entry(node).or_default();
            if ready.last().is_none_or(|(of, last)| (of, last) != (file, &part)) && ready.len() < MAX_DUE {
                ready.push((*file, part.clone()));
            }
        }
        drop(due);
        self.is_ready.notify_one();
    }

    /// Forgets what has arrived of a file whose fetch has ended.
    pub(super) fn ended(&self, file: &FileRef) {
        lock(&self.due).arrived.retain(|(of, _), _| of != file);
    }

    /// Takes the receipts of one node, as a message; waits a moment for one.
    fn take(&self) -> Option<(u16, Vec<u8>)> {
        let mut due = lock(&self.due);
        if due.ready.is_empty() {
            let waited = self.is_ready.wait_timeout(due, STOP_POLL_PERIOD);
            due = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let node = *due.ready.keys().next()?;
        let mut ready = due.ready.remove(&node)?;
        if ready.len() > MAX_RECEIPTS {
            let rest = ready.split_off(MAX_RECEIPTS);
            due.ready.insert(node, rest);
        }
        Some((node, encode(&ready)))
    }

    /// Sends receipts until the agent ends. One that a node does not take is not repeated: that
    /// node then sends the piece itself.
    pub(super) fn run(&self, pool: &PeerPool, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            if let Some((node, body)) = self.take().filter(|(node, _)| pool.view().is_up(*node)) {
                pool.post(node, "/v1/got", &body);
            }
        }
    }
}

/// A message with these receipts.
#[must_use]
pub fn encode(receipts: &[Receipt]) -> Vec<u8> {
    let mut out = Vec::with_capacity(receipts.len() * RECEIPT_BYTES);
    for (file, part) in receipts {
        out.extend_from_slice(&file.index);
        out.extend_from_slice(&file.id.to_le_bytes());
        out.extend_from_slice(&part.start.to_le_bytes());
        out.extend_from_slice(&(part.end - part.start).to_le_bytes());
    }
    out
}

/// The receipts of a message; `None` if it is none, or holds too many. (Files are named by number:
/// the hash of the path is 0.)
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<Receipt>> {
    let one = |bytes: &[u8]| {
        let (index, bytes) = bytes.split_first_chunk()?;
        let (id, bytes) = bytes.split_first_chunk()?;
        let (start, bytes) = bytes.split_first_chunk()?;
        let (start, len) = (u64::from_le_bytes(*start), u64::from_le_bytes(bytes.try_into().ok()?));
        let end = start.checked_add(len).filter(|_| (1..=MAX_PART_BYTES).contains(&len))?;
        Some((FileRef { index: *index, id: u32::from_le_bytes(*id), fp: 0 }, start..end))
    };
    (bytes.len() <= MAX_RECEIPTS * RECEIPT_BYTES).then(|| bytes.chunks(RECEIPT_BYTES).map(one).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::request_limits::MAX_REQUEST_BYTES;

    const FILE: FileRef = FileRef { index: [3; 16], id: 7, fp: 0 };

    #[test]
    fn a_receipt_is_due_once_the_piece_can_be_read_and_names_the_whole_chunk() {
        let (receipts, piece) = (Receipts::default(), MAX_REQUEST_BYTES);
        receipts.arrived(&FILE, 2 * piece, 4);
        receipts.arrived(&FILE, 3 * piece, 4);
        assert!(receipts.take().is_none());
        receipts.published(&FILE, (0, piece));
        assert!(receipts.take().is_none(), "it came from the PFS");
        receipts.published(&FILE, (2 * piece, 2 * piece));
        let (node, body) = receipts.take().unwrap();
        assert_eq!((node, decode(&body).unwrap()), (4, vec![(FILE, 2 * piece..4 * piece)]));
        receipts.arrived(&FILE, 0, 4);
        receipts.ended(&FILE);
        receipts.published(&FILE, (0, piece));
        assert!(receipts.take().is_none(), "the fetch has ended");
    }

    #[test]
    fn receipts_beyond_a_message_are_sent_with_the_next_one() {
        let receipts = Receipts::default();
        for n in 0..=MAX_RECEIPTS as u64 {
            receipts.arrived(&FILE, n * 100, 4);
            receipts.published(&FILE, (n * 100, 100));
        }
        let sizes = [receipts.take().unwrap().1, receipts.take().unwrap().1].map(|body| decode(&body).unwrap().len());
        assert_eq!(sizes, [MAX_RECEIPTS, 1]);
        assert!(receipts.take().is_none());
    }

    #[test]
    fn messages_that_are_no_receipts_are_refused() {
        let good = encode(&[(FILE, 5..9)]);
        assert_eq!(decode(&good), Some(vec![(FILE, 5..9)]));
        assert_eq!(decode(&[]), Some(Vec::new()));
        assert_eq!(decode(&good[..RECEIPT_BYTES - 1]), None);
        assert_eq!(decode(&good.repeat(MAX_RECEIPTS + 1)), None);
        for part in [5..5, 0..MAX_PART_BYTES + 1] {
            assert_eq!(decode(&encode(&[(FILE, part)])), None);
        }
        let beyond = [&good[..20], &u64::MAX.to_le_bytes()[..], &9_u64.to_le_bytes()[..]].concat();
        assert_eq!(decode(&beyond), None);
    }
}
