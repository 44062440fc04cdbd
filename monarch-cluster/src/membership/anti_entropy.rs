//! Push-pull anti-entropy: repairs what news missed (Demers et al. 1987).
//!
//! 1. A node sends the hash of its table to a member by chance, every [`PERIOD_MS`].
//! 2. A member whose table differs answers with a hash for each of [`BUCKETS`] parts.
//! 3. The node sends its records of the parts that differ, whole parts in each datagram.
//! 4. The member takes them in, and sends back those that the node lacks or has an older state of.
//!
//! As long as tables differ, the next exchange follows after [`HURRY_MS`]. One datagram is answered
//! with at most [`MAX_DATAGRAMS`].

use super::member::Member;
use super::message::{BUCKETS, MAX_PAYLOAD_BYTES, Mask};
use super::record::{Incarnation, Record, Status};
use super::rotation::Chance;
use super::table::Table;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_64;

/// Milliseconds between two exchanges while tables are equal.
const PERIOD_MS: u64 = 1_000;
/// Milliseconds to the next exchange when tables differed.
const HURRY_MS: u64 = 200;
/// Milliseconds after its start for which a node is in a hurry in any case.
const YOUTH_MS: u64 = 3_000;
/// Exchanges in a row that may change nothing, as datagrams were lost, before the hurry ends.
const MAX_FRUITLESS: u8 = 3;
/// Most datagrams that answer one.
const MAX_DATAGRAMS: usize = 12;
/// Bytes of records in one datagram: the rest is for its sender.
const ROOM_BYTES: usize = MAX_PAYLOAD_BYTES - 150;

/// When the next exchange begins.
pub(super) struct Schedule {
    next_at: u64,
    /// Milliseconds until which each exchange follows in a hurry.
    young_until: u64,
    /// Revision of the table when a difference was found last.
    revision: u64,
    /// Exchanges since then that found a difference and changed nothing.
    fruitless: u8,
}

impl Schedule {
    /// For a node that starts now.
    pub(super) const fn new(now: u64, chance: &mut Chance) -> Self {
        let next_at = now + HURRY_MS + chance.below(HURRY_MS as usize) as u64;
        Self { next_at, young_until: now + YOUTH_MS, revision: 0, fruitless: 0 }
    }

    /// Whether an exchange is due. Asking counts as beginning it.
    pub(super) const fn is_due(&mut self, now: u64) -> bool {
        let is_due = now >= self.next_at;
        if is_due {
            self.next_at = now + if now < self.young_until { HURRY_MS } else { PERIOD_MS };
        }
        is_due
    }

    /// A difference was found: the next exchange follows soon, unless [`MAX_FRUITLESS`] changed
    /// nothing. (Lists of nodes that differ never become equal.)
    pub(super) fn note_difference(&mut self, now: u64, revision: u64) {
        let has_changed = std::mem::replace(&mut self.revision, revision) != revision;
        self.fruitless = if has_changed { 0 } else { self.fruitless.saturating_add(1) };
        if self.fruitless <= MAX_FRUITLESS {
            self.next_at = self.next_at.min(now + HURRY_MS);
        }
    }
}

/// Records for one datagram, and the parts of the table that they are all of.
pub(super) type Piece = (Mask, Vec<Record>);

/// The part of a table that a member belongs to.
const fn bucket(key: u64) -> usize {
    (key % BUCKETS as u64) as usize
}

/// Hashes a table part by part. Tables that say the same have the same hashes, whatever the ages of
/// the states.
pub(super) fn hashes(table: &Table, now: u64) -> [u32; BUCKETS] {
    let mut hashes = [0; BUCKETS];
    for member in table.members() {
        if let Some(status) = member.told(now) {
            hashes[bucket(member.key)] ^= hash(member, status);
        }
    }
    hashes
}

fn hash(member: &Member, status: Status) -> u32 {
    let Incarnation { life, refutations } = member.incarnation;
    let word = member.key ^ life.rotate_left(20) ^ (u64::from(refutations) << 2) ^ status as u64;
    // The finalizer of MurmurHash3.
    let word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (word >> 32) as u32
}

/// The hash of a whole table.
pub(super) fn digest(hashes: &[u32; BUCKETS]) -> u64 {
    let mut bytes = [0; 4 * BUCKETS];
    for (to, hash) in bytes.chunks_exact_mut(4).zip(hashes) {
        to.copy_from_slice(&hash.to_le_bytes());
    }
    xxh3_64(&bytes)
}

/// All that this node knows in the parts whose hashes differ, beginning with part `first`.
pub(super) fn pieces(table: &Table, now: u64, theirs: &[u32; BUCKETS], first: usize) -> Vec<Piece> {
    let ours = hashes(table, now);
    let mut parts: Vec<Vec<Record>> = vec![Vec::new(); BUCKETS];
    for (n, member) in table.members().enumerate() {
        let at = bucket(member.key);
        if ours[at] != theirs[at] {
            parts[at].extend(table.record(n as u16, now, false));
        }
    }
    let mut pieces: Vec<Piece> = Vec::new();
    let mut room = 0;
    for at in (0..BUCKETS).map(|n| (first + n) % BUCKETS).filter(|at| ours[*at] != theirs[*at]) {
        let part = std::mem::take(&mut parts[at]);
        let len: usize = part.iter().map(Record::wire_len).sum();
        if pieces.is_empty() || len > room {
            if pieces.len() == MAX_DATAGRAMS {
                break;
            }
            pieces.push(Piece::default());
            room = ROOM_BYTES;
        }
        room = room.saturating_sub(len);
        if let Some((mask, records)) = pieces.last_mut() {
            mask.insert(at);
            records.extend(part);
        }
    }
    pieces
}

/// Records of some parts that another node lacks or has an older state of, for a datagram each.
/// `theirs` is all that it knows in these parts.
pub(super) fn missing(table: &Table, now: u64, parts: Mask, theirs: &[Record], first: usize) -> Vec<Vec<Record>> {
    let known: HashMap<u64, &Record> = theirs.iter().map(|record| (record.key, record)).collect();
    let (mut out, mut room) = (Vec::<Vec<Record>>::new(), 0);
    let count = table.members().count();
    for n in (0..count).map(|n| ((first + n) % count) as u16) {
        let member = table.get(n);
        if !parts.contains(bucket(member.key)) {
            continue;
        }
        let Some(short) = table.record(n, now, false) else { continue };
        let theirs = known.get(&member.key);
        if theirs.is_some_and(|t| (t.incarnation, t.status) >= (short.incarnation, short.status)) {
            continue;
        }
        let is_same_life = theirs.is_some_and(|t| t.incarnation.life == short.incarnation.life);
        let record = if is_same_life { short } else { table.record(n, now, true).unwrap_or(short) };
        let len = record.wire_len();
        if len > room {
            if out.len() == MAX_DATAGRAMS {
                break;
            }
            out.push(Vec::new());
            room = ROOM_BYTES;
        }
        room = room.saturating_sub(len);
        out.last_mut().into_iter().for_each(|records| records.push(record.clone()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::table::Merged;
    use super::super::types::Peer;
    use super::*;

    fn peer(n: usize, life: u64) -> Peer {
        Peer { name: format!("node{n:04}"), incarnation: life, gossip: Some(([10, 0, 0, 1], 1).into()), files: None }
    }

    fn table(me: usize, members: impl Iterator<Item = (usize, u64)>) -> Table {
        let mut table = Table::new(&peer(me, 1), 0, 0);
        for (n, life) in members {
            table.merge(&Record::of_peer(&peer(n, life), 0), 0);
        }
        table
    }

    /// One exchange that `a` begins. Returns the datagrams of both, without the two of hashes.
    fn exchange(a: &mut Table, b: &mut Table, first: usize) -> usize {
        let theirs = hashes(b, 0);
        let sent = pieces(a, 0, &theirs, first);
        let mut count = sent.len();
        for (parts, records) in sent {
            let back = missing(b, 0, parts, &records, first);
            count += back.len();
            for record in &records {
                if let Merged::Unknown(key) = b.merge(record, 0) {
                    let full = a.number(key).and_then(|n| a.record(n, 0, true)).unwrap();
                    b.merge(&full, 0);
                }
            }
            for record in back.iter().flatten() {
                a.merge(record, 0);
            }
        }
        count
    }

    #[test]
    fn tables_that_say_the_same_have_the_same_hash_in_any_order_and_at_any_age() {
        let one = table(0, (1..50).map(|n| (n, 7)));
        let mut two = table(1, (2..50).rev().map(|n| (n, 7)));
        two.merge(&Record::of_peer(&peer(0, 1), 0), 5);
        assert_ne!(digest(&hashes(&one, 0)), digest(&hashes(&two, 0)), "node 1 has another life");
        let mut one = table(0, (2..50).map(|n| (n, 7)).chain([(1, 1)]));
        assert_eq!(digest(&hashes(&one, 0)), digest(&hashes(&two, 9_000)));
        let number = one.number(Record::of_peer(&peer(9, 0), 0).key).unwrap();
        one.suspect(number, 100);
        assert_ne!(digest(&hashes(&one, 200)), digest(&hashes(&two, 200)));
    }

    #[test]
    fn one_exchange_makes_tables_that_differ_a_little_equal_with_few_datagrams() {
        let mut a = table(0, (1..1_000).map(|n| (n, if n % 100 == 50 { 9 } else { 1 })));
        let mut b = table(1, (0..990).filter(|n| *n != 1).map(|n| (n, 1)));
        let count = exchange(&mut a, &mut b, 17);
        assert_eq!(digest(&hashes(&a, 0)), digest(&hashes(&b, 0)));
        assert!(count <= 6, "{count}");
    }

    #[test]
    fn a_newcomer_gets_all_in_a_few_exchanges_each_of_bounded_size() {
        let mut all = table(0, (1..1_000).map(|n| (n, 1)));
        let mut newcomer = table(1_000, [].into_iter());
        let mut exchanges = 0;
        while hashes(&all, 0) != hashes(&newcomer, 0) {
            let count = exchange(&mut newcomer, &mut all, 131 * exchanges % BUCKETS);
            assert!(count <= 4 * MAX_DATAGRAMS, "{count}");
            exchanges += 1;
        }
        assert!(exchanges <= 8, "{exchanges}");
    }

    #[test]
    fn exchanges_hurry_at_first_and_while_they_change_anything() {
        let mut schedule = Schedule::new(0, &mut Chance::new(1));
        let mut count = |from: u64, until: u64, revision: &mut dyn FnMut() -> Option<u64>| {
            let due = (from..until).step_by(100).filter(|now| {
                let is_due = schedule.is_due(*now);
                if let Some(revision) = revision().filter(|_| is_due) {
                    schedule.note_difference(*now, revision);
                }
                is_due
            });
            due.count()
        };
        assert!((13..=15).contains(&count(0, 3_000, &mut || None)));
        assert!((9..=11).contains(&count(3_000, 13_000, &mut || None)));
        let mut revision = 0;
        let mut changing = || {
            revision += 1;
            Some(revision)
        };
        assert!((48..=50).contains(&count(13_000, 23_000, &mut changing)));
        assert!((9..=15).contains(&count(23_000, 33_000, &mut || Some(7))));
    }

    #[test]
    fn datagrams_are_of_bounded_size_with_as_many_nodes_as_a_job_can_have() {
        let a = table(0, (1..8_192).map(|n| (n, 1)));
        for (_, records) in pieces(&a, 0, &[1; BUCKETS], 0) {
            let len: usize = records.iter().map(Record::wire_len).sum();
            assert!(len <= MAX_PAYLOAD_BYTES + 100 && records.len() < 256, "{len} bytes");
        }
    }
}
