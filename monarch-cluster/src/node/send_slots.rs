//! [`SendSlots`]: how many large answers this node sends at a time, whatever they are asked for.
//!
//! Many at a time would all end late: sixteen pieces of 4 MiB take more than 5 s each over 100
//! Mbit/s, which askers take for a link that does not work (`peer_timeout`). So a large answer
//! waits for its turn, while the server sends a sign of life every 100 ms, and then gets most of
//! the link. Answers go out in the order in which they were ready. One that is stuck, because its
//! asker has a slow link or is gone, gives its slot to the next.

use super::transfer_time::TransferTime;
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::Notify;

/// Fewest bytes of an answer that waits for a slot.
const MIN_BYTES: u64 = 1 << 20;
/// The same of a batch of small files.
const MIN_BATCH_BYTES: u64 = 512 << 10;
/// How many batches are sent at a time over any link: they are smaller than other answers, and on a
/// node whose processors are busy each takes long that is sent by itself.
const MIN_BATCHES: usize = 4;

/// Answers that are sent and that wait, in order. A state machine without clock.
#[derive(Debug, Default)]
pub(super) struct SlotTable {
    active: Vec<(u64, Instant)>,
    queue: VecDeque<u64>,
    next: u64,
    time: TransferTime,
    /// Fewest answers at a time, whatever time they take.
    least: usize,
}

impl SlotTable {
    /// Adds an answer that is ready to be sent.
    pub(super) fn enqueue(&mut self) -> u64 {
        self.next += 1;
        self.queue.push_back(self.next);
        self.next
    }

    /// Begins to send an answer if it is its turn.
    ///
    /// # Errors
    /// It is not: when to look again if no answer has ended before.
    pub(super) fn begin(&mut self, id: u64, now: Instant) -> Result<(), Instant> {
        let stall = self.time.stall();
        let busy = self.active.iter().filter(|(_, since)| now.saturating_duration_since(*since) < stall).count();
        let free = self.time.answers_at_a_time().max(self.least).saturating_sub(busy);
        let Some(place) = self.queue.iter().take(free).position(|queued| *queued == id) else {
            return Err(now + stall);
        };
        self.queue.remove(place);
        self.active.push((id, now));
        Ok(())
    }

    /// Notes that an answer of `bytes` was sent, or is not sent any more.
    pub(super) fn end(&mut self, id: u64, bytes: u64, now: Instant) {
        self.queue.retain(|queued| *queued != id);
        if let Some(at) = self.active.iter().position(|(of, _)| *of == id) {
            let (_, since) = self.active.swap_remove(at);
            self.time.note_bytes(bytes, now.saturating_duration_since(since));
        }
    }
}

/// The slots of a node.
#[derive(Debug, Default)]
pub(super) struct SendSlots {
    table: Mutex<SlotTable>,
    /// Notified when an answer has ended.
    freed: Notify,
}

/// A place in the queue, and then a slot, for as long as this lives.
pub(super) struct SendSlot {
    slots: Arc<SendSlots>,
    id: u64,
    bytes: u64,
}

impl Drop for SendSlot {
    fn drop(&mut self) {
        lock(&self.slots.table).end(self.id, self.bytes, Instant::now());
        self.slots.freed.notify_waiters();
    }
}

impl SendSlots {
    /// Slots for batches of small files.
    pub(super) fn for_batches() -> Self {
        let table = SlotTable { least: MIN_BATCHES, ..SlotTable::default() };
        Self { table: Mutex::new(table), freed: Notify::default() }
    }

    /// Waits until an answer of `bytes` may be sent. `None`: it is too small to need a slot.
    pub(super) async fn take(self: &Arc<Self>, bytes: u64) -> Option<SendSlot> {
        if bytes < MIN_BYTES { None } else { Some(self.take_one(bytes).await) }
    }

    /// The same of a batch of small files. (Those of a node have slots of their own.)
    pub(super) async fn take_for_batch(self: &Arc<Self>, bytes: u64) -> Option<SendSlot> {
        if bytes < MIN_BATCH_BYTES { None } else { Some(self.take_one(bytes).await) }
    }

    async fn take_one(self: &Arc<Self>, bytes: u64) -> SendSlot {
        let id = lock(&self.table).enqueue();
        let slot = SendSlot { slots: self.clone(), id, bytes };
        loop {
            // Before the look: what ends afterwards wakes it.
            let freed = self.freed.notified();
            let begun = lock(&self.table).begin(id, Instant::now());
            match begun {
                Ok(()) => return slot,
                Err(until) => drop(tokio::time::timeout_at(until.into(), freed).await),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::transfer_time::FIRST_STALL;
    use super::*;
    use std::time::Duration;

    const PIECE: u64 = 4 << 20;

    #[test]
    fn answers_over_a_slow_link_go_out_one_after_the_other_in_order() {
        let (mut table, zero) = (SlotTable::default(), Instant::now());
        let ids: Vec<u64> = (0..5).map(|_| table.enqueue()).collect();
        let begun =
            |table: &mut SlotTable, now| -> Vec<bool> { ids.iter().map(|id| table.begin(*id, now).is_ok()).collect() };
        assert_eq!(begun(&mut table, zero), [true, false, false, false, false], "nothing is known yet");
        let later = zero + Duration::from_millis(336);
        table.end(ids[0], PIECE, later);
        assert_eq!(begun(&mut table, later), [false, true, false, false, false]);
        assert_eq!(begun(&mut table, later), [false; 5], "the other one has the link");
        // The asker of the third has gone.
        table.end(ids[2], PIECE, later);
        table.end(ids[1], PIECE, later + Duration::from_millis(336));
        assert_eq!(begun(&mut table, later), [false, false, false, true, false]);
    }

    #[test]
    fn several_answers_at_a_time_fill_a_quick_link() {
        let (mut table, zero) = (SlotTable::default(), Instant::now());
        let first = table.enqueue();
        assert!(table.begin(first, zero).is_ok());
        table.end(first, PIECE, zero + Duration::from_millis(4));
        let ids: Vec<u64> = (0..9).map(|_| table.enqueue()).collect();
        let begun = ids.iter().filter(|id| table.begin(**id, zero).is_ok()).count();
        assert_eq!(begun, table.time.answers_at_a_time());
        assert!(begun > 1);
    }

    #[test]
    fn a_few_batches_go_out_together_over_any_link() {
        let (slots, zero) = (SendSlots::for_batches(), Instant::now());
        let mut table = slots.table.into_inner().unwrap();
        let first = table.enqueue();
        assert!(table.begin(first, zero).is_ok());
        table.end(first, PIECE, zero + Duration::from_secs(4));
        let ids: Vec<u64> = (0..9).map(|_| table.enqueue()).collect();
        assert_eq!(ids.iter().filter(|id| table.begin(**id, zero).is_ok()).count(), MIN_BATCHES);
    }

    #[test]
    fn an_answer_that_is_stuck_gives_its_slot_to_the_next() {
        let (mut table, zero) = (SlotTable::default(), Instant::now());
        let ids: Vec<u64> = (0..2).map(|_| table.enqueue()).collect();
        assert!(table.begin(ids[0], zero).is_ok());
        let again = table.begin(ids[1], zero).unwrap_err();
        assert_eq!(again, zero + FIRST_STALL);
        assert!(table.begin(ids[1], again).is_ok());
        assert_eq!(table.active.len(), 2);
    }

    #[tokio::test]
    async fn a_slot_is_free_when_its_answer_or_its_wait_ends() {
        let slots = Arc::<SendSlots>::default();
        assert!(slots.take(MIN_BYTES - 1).await.is_none(), "small answers do not wait");
        let batches = Arc::new(SendSlots::for_batches());
        assert!(batches.take_for_batch(MIN_BATCH_BYTES - 1).await.is_none(), "nor do small batches");
        assert!(batches.take_for_batch(MIN_BATCH_BYTES).await.is_some());
        let first = slots.take(PIECE).await;
        let waits = tokio::time::timeout(Duration::from_millis(5), slots.take(PIECE));
        assert!(waits.await.is_err());
        assert!(lock(&slots.table).queue.is_empty(), "it has left the queue");
        let waiting = slots.take(PIECE);
        drop(first);
        assert!(waiting.await.is_some());
    }
}
