//! Bounds of a simulation: the fewest bytes that any policy reads, and the hits of a fixed set.
//!
//! Belady with bypass: a cache that knows the whole future keeps the files used soonest, and
//! bypasses a file that is used later than all that it would have to drop. For files of one size
//! this is the least number of transfers from the PFS that a node can have, with or without
//! fetching ahead (a file that is fetched ahead is transferred as well). Files of different sizes
//! are taken as bytes that may be kept in part: then it is a bound below what whole files can
//! reach, and not always reached.
//!
//! Ranks are taken to be in step. Where they do not wait for each other ([`super::Model::sync`]), a
//! rank may run through its epochs before another begins: the node then reads in an order that is
//! not that of epochs, and may need less.

use super::workload::{Order, Workload};
use std::collections::BinaryHeap;

/// Next use of a file that is not used again.
const NEVER: u32 = u32::MAX;

/// Least bytes that all nodes read from the PFS, by epoch, when each has room for `capacity` bytes
/// and begins with nothing. The bound is their sum: a policy that fetches more in the first epoch
/// than the node needs there may read less than it later, but never less than [`belady_later`].
#[must_use]
pub fn belady(work: &Workload, nodes: u32, capacity: u64) -> Vec<u64> {
    bound(work, nodes, capacity, 1, false)
}

/// Least bytes that all nodes read from the PFS in all epochs but the first, whatever they have
/// fetched before: the cache is full of what suits it when the second epoch begins. (Where there is
/// only one epoch, the bytes read in it.)
#[must_use]
pub fn belady_later(work: &Workload, nodes: u32, capacity: u64) -> u64 {
    let first = if work.epochs() > 1 { 2 } else { 1 };
    bound(work, nodes, capacity, first, first == 2).iter().sum()
}

fn bound(work: &Workload, nodes: u32, capacity: u64, first: u32, filled: bool) -> Vec<u64> {
    let capacity = match work.one_size() {
        // Half a file is of no use.
        Some(size @ 1..) => capacity / size * size,
        _ => capacity,
    };
    let orders: Vec<Order> = (first..=work.epochs()).map(|epoch| work.order(nodes, epoch)).collect();
    let mut cache = Cache::new(work, capacity);
    let mut bytes = vec![0; orders.len()];
    // Every node repeats what was recorded.
    let (simulated, times) = if work.is_recorded() { (1, nodes) } else { (nodes, 1) };
    for node in 0..simulated {
        let (sequence, ends) = sequence(work, &orders, node);
        if filled {
            let warm = warm(&sequence);
            let ends: Vec<usize> = std::iter::once(0).chain(ends).map(|end| end + warm.len()).collect();
            let mut counted = vec![0; ends.len()];
            cache.replay(&[warm, sequence].concat(), &ends, &mut counted);
            bytes.iter_mut().zip(&counted[1..]).for_each(|(all, own)| *all += own);
        } else {
            cache.replay(&sequence, &ends, &mut bytes);
        }
    }
    bytes.iter_mut().for_each(|b| *b *= u64::from(times));
    bytes
}

/// Each file of a sequence once: the cache that knows the future keeps of this what suits it best.
fn warm(sequence: &[u32]) -> Vec<u32> {
    let mut files = sequence.to_vec();
    files.sort_unstable();
    files.dedup();
    files
}

/// Share of a node's accesses that hit once `capacity` is full of files that stay: c, whatever the
/// order, as long as each file is read once an epoch and placement does not depend on when.
#[must_use]
pub fn static_share(work: &Workload, nodes: u32, capacity: u64) -> f64 {
    let whole = match work.one_size() {
        Some(size @ 1..) => capacity / size * size,
        _ => capacity,
    };
    let own = if work.is_sharded() { work.bytes() as f64 / f64::from(nodes) } else { work.bytes() as f64 };
    (whole as f64 / own.max(1.0)).min(1.0)
}

/// The files that a node reads, its ranks in step, and where each epoch ends.
fn sequence(work: &Workload, orders: &[Order], node: u32) -> (Vec<u32>, Vec<usize>) {
    let (ranks, batch) = (work.loader.ranks as usize, work.loader.batch as usize);
    let (mut sequence, mut ends) = (Vec::new(), Vec::new());
    for order in orders {
        let streams: Vec<&[u32]> = (0..ranks).map(|rank| order.of(node as usize * ranks + rank)).collect();
        let longest = streams.iter().map(|s| s.len()).max().unwrap_or(0);
        for start in (0..longest).step_by(batch) {
            for stream in &streams {
                sequence.extend(&stream[start.min(stream.len())..(start + batch).min(stream.len())]);
            }
        }
        ends.push(sequence.len());
    }
    (sequence, ends)
}

/// A cache that knows the future.
struct Cache<'a> {
    work: &'a Workload,
    capacity: u64,
    free: u64,
    /// By file: bytes that are kept, and its next use.
    held: Vec<u64>,
    next: Vec<u32>,
    /// Next use and file of what is kept, the farthest first. Entries that no longer hold are
    /// passed over.
    farthest: BinaryHeap<(u32, u32)>,
}

impl<'a> Cache<'a> {
    fn new(work: &'a Workload, capacity: u64) -> Self {
        let files = work.files() as usize;
        let (held, next) = (vec![0; files], vec![NEVER; files]);
        Self { work, capacity, free: capacity, held, next, farthest: BinaryHeap::new() }
    }

    fn replay(&mut self, sequence: &[u32], ends: &[usize], bytes: &mut [u64]) {
        let uses = self.uses(sequence);
        self.free = self.capacity;
        let mut epoch = 0;
        for (at, (file, next)) in sequence.iter().zip(uses).enumerate() {
            while at == ends[epoch] {
                epoch += 1;
            }
            bytes[epoch] += self.access(*file, next);
        }
        // For the next node; what is kept has been used for the last time.
        self.farthest.clear();
        for file in sequence {
            (self.held[*file as usize], self.next[*file as usize]) = (0, NEVER);
        }
    }

    /// For each access, the index of the next access to its file.
    fn uses(&mut self, sequence: &[u32]) -> Vec<u32> {
        let mut uses = vec![NEVER; sequence.len()];
        for (at, file) in sequence.iter().enumerate().rev() {
            uses[at] = std::mem::replace(&mut self.next[*file as usize], at as u32);
        }
        sequence.iter().for_each(|file| self.next[*file as usize] = NEVER);
        uses
    }

    /// Bytes that an access reads from the PFS.
    fn access(&mut self, file: u32, next: u32) -> u64 {
        let size = self.work.size(file);
        let held = std::mem::take(&mut self.held[file as usize]);
        self.free += held;
        if next != NEVER {
            self.make_room(size, next);
            let kept = size.min(self.free);
            self.free -= kept;
            self.held[file as usize] = kept;
            self.next[file as usize] = next;
            self.farthest.push((next, file));
        }
        size - held
    }

    /// Drops files that are used later than `next`, until `size` bytes are free.
    fn make_room(&mut self, size: u64, next: u32) {
        while self.free < size {
            let Some((use_of, file)) = self.farthest.peek().copied() else { return };
            let held = self.held[file as usize];
            if held == 0 || self.next[file as usize] != use_of {
                self.farthest.pop();
            } else if use_of <= next {
                return;
            } else {
                let dropped = held.min(size - self.free);
                self.free += dropped;
                self.held[file as usize] -= dropped;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::recorded_workload;
    use crate::sim::{Mix, Shuffle, Synthetic};
    use crate::{Access, FileKey, Served};
    use std::time::Duration;

    fn recorded(files: &[(u64, u64)]) -> Workload {
        let access = |(at, (file, size)): (usize, &(u64, u64))| Access {
            file: FileKey(*file),
            size: *size,
            at: Duration::from_secs(at as u64),
            stream: 0,
            served: Served::Pfs,
        };
        let all: Vec<Access> = files.iter().enumerate().map(access).collect();
        recorded_workload(&all, &[])
    }

    /// Fewest transfers, by trying all that a cache of whole files could keep.
    fn best(rest: &[u64], cache: &[u64], room: usize) -> u64 {
        let Some((file, rest)) = rest.split_first() else { return 0 };
        if cache.contains(file) {
            return best(rest, cache, room);
        }
        let mut least = best(rest, cache, room);
        let with: Vec<u64> = cache.iter().copied().chain([*file]).collect();
        if with.len() <= room {
            least = least.min(best(rest, &with, room));
        }
        for victim in cache {
            let kept: Vec<u64> = with.iter().copied().filter(|f| f != victim).collect();
            if kept.len() <= room {
                least = least.min(best(rest, &kept, room));
            }
        }
        least + 1
    }

    #[test]
    fn for_files_of_one_size_the_bound_is_exact() {
        let mut rng = super::super::rng::Rng::new(1, 1);
        for _ in 0..40 {
            let files: Vec<u64> = (0..11).map(|_| rng.below(5) as u64).collect();
            let work = recorded(&files.iter().map(|f| (*f, 10)).collect::<Vec<_>>());
            for room in 0..4 {
                assert_eq!(belady(&work, 1, room as u64 * 10 + 9), [best(&files, &[], room) * 10], "{files:?} {room}");
            }
        }
    }

    #[test]
    fn of_files_of_several_sizes_parts_are_kept() {
        let work = recorded(&[(1, 10), (2, 30), (2, 30), (1, 10)]);
        assert_eq!(belady(&work, 1, 30), [40 + 10], "one file or the other, or 30 bytes of both");
        assert_eq!(belady(&work, 1, 35), [40 + 5]);
        assert_eq!(belady(&work, 2, 40), [80]);
    }

    #[test]
    fn where_each_file_is_read_once_an_epoch_nothing_beats_a_static_cache() {
        // A hit needs a copy that was there when the epoch began, whatever the order.
        let made =
            |shuffle| Synthetic { files: 10_000, size: 100, epochs: 4, ranks: 2, shuffle, ..Synthetic::default() };
        for shuffle in [Shuffle::Global, Shuffle::Fixed, Shuffle::None, Shuffle::Local] {
            let work = Workload::synthetic(&made(shuffle), 3);
            let (all, capacity) = (work.bytes(), work.bytes() / 4);
            assert_eq!(belady(&work, 1, capacity), [all, all / 4 * 3, all / 4 * 3, all / 4 * 3], "{shuffle:?}");
            assert_eq!(belady_later(&work, 1, capacity), all / 4 * 9);
            assert!((static_share(&work, 1, capacity) - 0.25).abs() < 1e-9);
        }
    }

    #[test]
    fn files_fetched_in_the_first_epoch_are_not_read_later() {
        let synthetic = Synthetic { files: 1000, size: 100, epochs: 2, ranks: 1, ..Synthetic::default() };
        let work = Workload::synthetic(&synthetic, 3);
        // A node of ten needs a tenth of the files in the second epoch.
        assert_eq!(belady_later(&work, 10, work.bytes() / 10), 0);
        assert_eq!(belady_later(&work, 10, work.bytes() / 20), work.bytes() / 2);
        assert!(belady(&work, 10, work.bytes())[1] > work.bytes() / 2);
        let once = Workload::synthetic(&Synthetic { epochs: 1, ..synthetic }, 3);
        assert_eq!(belady_later(&once, 10, u64::MAX), work.bytes());
    }

    #[test]
    fn the_bound_sums_all_nodes() {
        let mix = Some(Mix { share: 0.5, size: 1000 });
        let local =
            Synthetic { files: 1000, size: 100, mix, shuffle: Shuffle::Local, batch: 10, ..Synthetic::default() };
        let work = Workload::synthetic(&local, 3);
        assert_eq!(belady(&work, 4, u64::MAX)[1..], [0, 0]);
        assert_eq!(static_share(&work, 4, work.bytes() / 4), 1.0);
    }
}
