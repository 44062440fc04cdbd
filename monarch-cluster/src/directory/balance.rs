//! Balances what the nodes own: the files whose owner is not the first in their order.
//!
//! Rendezvous hashing gives each node about the mean, and the node with the most far more where
//! files are few. This is consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam
//! 2018), with the order of rendezvous hashing in place of a ring:
//! * A node has room for 1.01 times the mean, or for the largest file if that is more.
//! * A node beyond that gives up the files with the lowest scores there, until the others fit.
//!   Those no larger than its excess go first, so that small files leave and not a giant one.
//! * Such a file goes to the first node of its order that has room, the largest file first.
//! * Where no node has room, it goes to the node with the fewest bytes.
//!
//! Invariant: no node owns more than its room, or the mean and one file. The result depends on the
//! keys of the owners and on the files, not on local numbers or on the order of the files.

use super::members::{Exceptions, Members, score};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most entries of an index that is balanced. Each takes one hash for each owner, and two bytes
/// while the exceptions are computed.
pub const MAX_ENTRIES: usize = 8_000_000;
/// Room of a node in percent of the mean.
const ROOM_PERCENT: u128 = 101;

/// Computes the owners by exception of the files of one index, among the nodes of `view` that count
/// as owners.
///
/// `files` returns hash of the path and size in bytes of each file, the same files in the same
/// order each time. An empty file counts as one byte, so that many of them are spread too.
pub fn exceptions<I>(view: &Members, files: impl Fn() -> I) -> Exceptions
where
    I: Iterator<Item = (u64, u64)>,
{
    let mut owners = Owners::of(view);
    if owners.nodes.len() < 2 {
        return Exceptions::new();
    }
    let firsts = owners.assign_firsts(files());
    let mut surplus = owners.take_surplus(&firsts, files());
    drop(firsts);
    surplus.sort_unstable_by_key(|f| (Reverse(f.bytes), f.fp));
    let mut exceptions = Exceptions::new();
    for file in &surplus {
        let to = owners.place(file);
        if to != file.first {
            exceptions.insert(file.fp, owners.nodes[to].number);
        }
    }
    exceptions
}

/// A node that counts as an owner.
struct Owner {
    key: u64,
    /// Its local number.
    number: u16,
    /// Bytes that it owns so far.
    bytes: u128,
}

/// A file that its first node gives up.
struct Surplus {
    fp: u64,
    bytes: u64,
    /// Position of its first node.
    first: usize,
}

/// All owners by key, which is the same order on all nodes of the job.
struct Owners {
    nodes: Vec<Owner>,
    /// Bytes that a node may own.
    room: u128,
}

impl Owners {
    fn of(view: &Members) -> Self {
        let owner = |n: &u16| view.get(*n).map(|m| Owner { key: m.key, number: *n, bytes: 0 });
        let mut nodes: Vec<Owner> = view.owners().iter().filter_map(owner).collect();
        nodes.sort_unstable_by_key(|n| n.key);
        Self { nodes, room: 0 }
    }

    /// Gives each file to the first node of its order, and fixes the room of a node. Returns the
    /// position of that node for each file.
    fn assign_firsts(&mut self, files: impl Iterator<Item = (u64, u64)>) -> Vec<u16> {
        let keys: Vec<u64> = self.nodes.iter().map(|n| n.key).collect();
        let (mut firsts, mut total, mut largest) = (Vec::new(), 0_u128, 0);
        for (fp, bytes) in files {
            let (mut best, mut first) = (0, 0);
            for (at, key) in keys.iter().enumerate() {
                let score = score(*key, fp);
                if score > best {
                    (best, first) = (score, at);
                }
            }
            let bytes = weight(bytes);
            self.nodes[first].bytes += u128::from(bytes);
            total += u128::from(bytes);
            largest = largest.max(bytes);
            firsts.push(first as u16);
        }
        self.room = (total * ROOM_PERCENT).div_ceil(100 * keys.len() as u128).max(u128::from(largest));
        firsts
    }

    /// Takes the files with the lowest scores from each node that has more than its room.
    fn take_surplus(&mut self, firsts: &[u16], files: impl Iterator<Item = (u64, u64)>) -> Vec<Surplus> {
        let excess = |n: &Owner| n.bytes.checked_sub(self.room).filter(|excess| *excess > 0);
        let mut lowest: Vec<Option<Lowest>> = self.nodes.iter().map(|n| excess(n).map(Lowest::new)).collect();
        if lowest.iter().all(Option::is_none) {
            return Vec::new();
        }
        for ((fp, bytes), first) in files.zip(firsts) {
            let first = usize::from(*first);
            if let Some(lowest) = &mut lowest[first] {
                lowest.add(score(self.nodes[first].key, fp), fp, weight(bytes));
            }
        }
        let mut surplus = Vec::new();
        for (first, lowest) in lowest.into_iter().enumerate() {
            for (_, _, fp, bytes) in lowest.into_iter().flat_map(|l| l.files) {
                self.nodes[first].bytes -= u128::from(bytes);
                surplus.push(Surplus { fp, bytes, first });
            }
        }
        surplus
    }

    /// Gives a file to the first node of its order that has room for it, or to the one with the
    /// fewest bytes. Returns the position of that node.
    fn place(&mut self, file: &Surplus) -> usize {
        let bytes = u128::from(file.bytes);
        let with_score = |(at, n): (usize, &Owner)| (score(n.key, file.fp), at);
        let fitting = self.nodes.iter().enumerate().filter(|(_, n)| n.bytes + bytes <= self.room);
        let all = || self.nodes.iter().enumerate().map(with_score);
        let least = || all().min_by_key(|(score, at)| (self.nodes[*at].bytes, Reverse(*score)));
        let to = fitting.map(with_score).max().or_else(least).map_or(file.first, |(_, at)| at);
        self.nodes[to].bytes += bytes;
        to
    }
}

/// The files of a node with the lowest scores that together have at least `excess` bytes. Files
/// that are larger than that come last.
struct Lowest {
    excess: u128,
    bytes: u128,
    /// Whether it is larger, score, hash of the path, bytes; the greatest comes off first.
    files: BinaryHeap<(bool, u64, u64, u64)>,
}

impl Lowest {
    fn new(excess: u128) -> Self {
        Self { excess, bytes: 0, files: BinaryHeap::new() }
    }

    fn add(&mut self, score: u64, fp: u64, bytes: u64) {
        self.files.push((u128::from(bytes) > self.excess, score, fp, bytes));
        self.bytes += u128::from(bytes);
        while let Some((.., bytes)) = self.files.peek().filter(|(.., b)| self.bytes - u128::from(*b) >= self.excess) {
            self.bytes -= u128::from(*bytes);
            self.files.pop();
        }
    }
}

/// What a file counts, in bytes.
fn weight(bytes: u64) -> u64 {
    bytes.max(1)
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
