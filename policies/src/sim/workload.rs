//! What is read: sizes of files by dense number (that of listings), and for each epoch the order in
//! which every rank reads.
//!
//! Orders of a synthetic workload are made when an epoch begins and forgotten when it is over: one
//! order of 1.28 million files is 5 MB, too much to keep for 90 epochs. Files are dealt out to
//! ranks as PyTorch's `DistributedSampler` does: rank r of R takes r, r + R, ... of the epoch's
//! permutation, which is padded from its beginning until all ranks have the same number.

use super::model::Time;
use super::rng::Rng;
use std::ops::Range;

/// Order of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// A new permutation of all files each epoch, dealt out to all ranks: a node sees other files
    /// each time.
    Global,
    /// Each node has a part of the files, and reads it in a new order each epoch.
    Local,
    /// One permutation of all files, the same in all epochs.
    Fixed,
    /// In the order of listings.
    None,
}

/// Files of another size, which have a part of the bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Share of all bytes, between 0 and 1.
    pub share: f64,
    /// Size of these files.
    pub size: u64,
}

/// A synthetic data set and how it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Number of files.
    pub files: u32,
    /// Their size in bytes.
    pub size: u64,
    /// Files of another size among them.
    pub mix: Option<Mix>,
    /// Passes over the data set.
    pub epochs: u32,
    /// Order of an epoch.
    pub shuffle: Shuffle,
    /// Ranks (GPUs) of a node.
    pub ranks: u32,
    /// Loader processes of a rank; without any, the rank reads itself.
    pub workers: u32,
    /// Files of a batch.
    pub batch: u32,
    /// Batches that a loader process works ahead (`prefetch_factor`).
    pub ahead: u32,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self {
            files: 1_281_167,
            size: 110_000,
            mix: None,
            epochs: 3,
            shuffle: Shuffle::Global,
            ranks: 4,
            workers: 4,
            batch: 64,
            ahead: 2,
        }
    }
}

/// Sizes of files by number.
#[derive(Clone, Debug)]
enum Sizes {
    Equal(u64),
    Each(Vec<u64>),
}

/// The files of a job and the orders in which its ranks read them.
#[derive(Clone, Debug)]
pub struct Workload {
    files: u32,
    sizes: Sizes,
    bytes: u64,
    smallest: u64,
    /// How a node reads.
    pub(super) loader: Loader,
    source: Source,
    seed: u64,
}

/// How ranks read: as of [`Synthetic`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Loader {
    pub(super) ranks: u32,
    pub(super) workers: u32,
    pub(super) batch: u32,
    pub(super) ahead: u32,
    pub(super) epochs: u32,
}

#[derive(Clone, Debug)]
enum Source {
    Shuffled(Shuffle),
    /// By epoch, of one node; every node does the same.
    Recorded(Vec<Order>),
}

/// The order of one epoch: for each rank of all nodes, a part of one array.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Order {
    pub(super) files: Vec<u32>,
    pub(super) ranks: Vec<Range<usize>>,
    /// Of a recorded order: time that passes before each access.
    pub(super) gaps: Vec<Time>,
}

impl Order {
    /// What a rank reads.
    pub(super) fn of(&self, rank: usize) -> &[u32] {
        &self.files[self.ranks[rank].clone()]
    }
}

impl Workload {
    /// A synthetic workload. Random choices follow from the seed.
    #[must_use]
    pub fn synthetic(s: &Synthetic, seed: u64) -> Self {
        let sizes = match s.mix {
            Some(mix) => Sizes::Each(mixed(s, mix, seed)),
            None => Sizes::Equal(s.size),
        };
        let loader =
            Loader { ranks: s.ranks, workers: s.workers, batch: s.batch.max(1), ahead: s.ahead, epochs: s.epochs };
        Self::new(s.files, sizes, loader, Source::Shuffled(s.shuffle), seed)
    }

    /// The accesses of one node: sizes by number, and for each epoch the order of each process.
    pub(super) fn recorded(sizes: Vec<u64>, streams: u32, epochs: Vec<Order>) -> Self {
        let loader = Loader { ranks: streams, workers: 0, batch: 1, ahead: 0, epochs: epochs.len() as u32 };
        Self::new(sizes.len() as u32, Sizes::Each(sizes), loader, Source::Recorded(epochs), 0)
    }

    fn new(files: u32, sizes: Sizes, loader: Loader, source: Source, seed: u64) -> Self {
        let (bytes, smallest) = match &sizes {
            Sizes::Equal(size) => (size * u64::from(files), *size),
            Sizes::Each(each) => (each.iter().sum(), each.iter().copied().min().unwrap_or(0)),
        };
        Self { files, sizes, bytes, smallest, loader, source, seed }
    }

    /// Number of files.
    #[must_use]
    pub fn files(&self) -> u32 {
        self.files
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Size of a file.
    #[must_use]
    pub fn size(&self, file: u32) -> u64 {
        match &self.sizes {
            Sizes::Equal(size) => *size,
            Sizes::Each(each) => each[file as usize],
        }
    }

    /// Size of the smallest file.
    #[must_use]
    pub fn smallest(&self) -> u64 {
        self.smallest
    }

    /// The size of all files, if they have the same.
    #[must_use]
    pub fn one_size(&self) -> Option<u64> {
        match &self.sizes {
            Sizes::Equal(size) => Some(*size),
            Sizes::Each(each) => each.iter().all(|s| *s == self.smallest).then_some(self.smallest),
        }
    }

    /// Passes over the data set.
    #[must_use]
    pub fn epochs(&self) -> u32 {
        self.loader.epochs
    }

    /// Ranks of a node.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.loader.ranks
    }

    /// Whether the order was recorded, with the time that passed between accesses.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        matches!(self.source, Source::Recorded(_))
    }

    /// Whether each node has files of its own.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        matches!(self.source, Source::Shuffled(Shuffle::Local))
    }

    /// Accesses of all nodes in all epochs.
    #[must_use]
    pub fn accesses(&self, nodes: u32) -> u64 {
        let ranks = u64::from(nodes) * u64::from(self.loader.ranks);
        match &self.source {
            Source::Recorded(epochs) => epochs.iter().map(|o| o.files.len() as u64).sum::<u64>() * u64::from(nodes),
            Source::Shuffled(_) => u64::from(self.files).div_ceil(ranks) * ranks * u64::from(self.loader.epochs),
        }
    }

    /// The order of an epoch, counted from 1.
    pub(super) fn order(&self, nodes: u32, epoch: u32) -> Order {
        let ranks = (nodes * self.loader.ranks) as usize;
        match &self.source {
            Source::Recorded(epochs) => replicated(&epochs[epoch as usize - 1], ranks),
            Source::Shuffled(Shuffle::Local) => self.local(nodes, epoch),
            Source::Shuffled(shuffle) => {
                let mut all: Vec<u32> = (0..self.files).collect();
                match shuffle {
                    Shuffle::Global => Rng::new(self.seed, u64::from(epoch)).shuffle(&mut all),
                    Shuffle::Fixed => Rng::new(self.seed, 0).shuffle(&mut all),
                    Shuffle::None | Shuffle::Local => {}
                }
                deal(&all, ranks)
            }
        }
    }

    /// Every node has each `nodes`-th file of the listing, padded so that all have the same number.
    fn local(&self, nodes: u32, epoch: u32) -> Order {
        let (each, ranks) = (self.files.div_ceil(nodes), self.loader.ranks as usize);
        let mut order = Order::default();
        for node in 0..nodes {
            let mut own: Vec<u32> = (0..each).map(|at| (node + at * nodes) % self.files).collect();
            Rng::new(self.seed, (u64::from(node) << 32) | u64::from(epoch)).shuffle(&mut own);
            let dealt = deal(&own, ranks);
            let start = order.files.len();
            order.ranks.extend(dealt.ranks.into_iter().map(|r| start + r.start..start + r.end));
            order.files.extend(dealt.files);
        }
        order
    }
}

/// Deals out files to ranks like cards.
fn deal(all: &[u32], ranks: usize) -> Order {
    let each = all.len().div_ceil(ranks);
    let files = (0..ranks).flat_map(|rank| (0..each).map(move |at| all[(rank + at * ranks) % all.len()])).collect();
    Order { files, ranks: (0..ranks).map(|rank| rank * each..(rank + 1) * each).collect(), gaps: Vec::new() }
}

/// The order of one node, repeated by every node.
fn replicated(one: &Order, ranks: usize) -> Order {
    Order { ranks: one.ranks.iter().cloned().cycle().take(ranks).collect(), ..one.clone() }
}

/// Sizes of a mixed data set. The other files lie anywhere in the listing.
fn mixed(s: &Synthetic, mix: Mix, seed: u64) -> Vec<u64> {
    // Of n other files of size L among N, n L / (n L + (N - n) s) = share.
    let (size, other) = (s.size as f64, mix.size as f64);
    let share = mix.share * size / (mix.share * size + (1.0 - mix.share) * other);
    let others = (share * f64::from(s.files)).round() as usize;
    let mut sizes = vec![s.size; s.files as usize];
    sizes.iter_mut().take(others.max(1)).for_each(|size| *size = mix.size);
    Rng::new(seed, u64::MAX).shuffle(&mut sizes);
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(shuffle: Shuffle) -> Workload {
        Workload::synthetic(&Synthetic { files: 103, size: 10, shuffle, ..Synthetic::default() }, 7)
    }

    #[test]
    fn every_file_is_read_and_every_rank_reads_as_much() {
        for shuffle in [Shuffle::Global, Shuffle::Local, Shuffle::Fixed, Shuffle::None] {
            let order = made(shuffle).order(2, 1);
            assert_eq!(order.ranks.len(), 8);
            assert!((0..8).all(|rank| order.of(rank).len() == 13), "{shuffle:?}: {:?}", order.ranks);
            let mut read: Vec<u32> = order.files.clone();
            read.sort_unstable();
            read.dedup();
            assert!(read.into_iter().eq(0..103), "{shuffle:?}");
            assert_eq!(made(shuffle).accesses(2), 104 * 3);
        }
    }

    #[test]
    fn only_shuffled_orders_change_from_epoch_to_epoch() {
        let same = |shuffle| made(shuffle).order(2, 1) == made(shuffle).order(2, 2);
        assert_eq!(
            [Shuffle::Global, Shuffle::Local, Shuffle::Fixed, Shuffle::None].map(same),
            [false, false, true, true]
        );
        let shard = |epoch| {
            let mut files = made(Shuffle::Local).order(2, epoch).files[..52].to_vec();
            files.sort_unstable();
            files
        };
        assert_eq!(shard(1), shard(2), "a node keeps its files");
        assert_eq!(made(Shuffle::None).order(1, 1).of(1)[..3], [1, 5, 9], "as DistributedSampler deals");
    }

    #[test]
    fn a_mix_holds_its_share_of_the_bytes() {
        let mix = Some(Mix { share: 0.5, size: 10_000_000 });
        let w = Workload::synthetic(&Synthetic { files: 10_000, size: 100_000, mix, ..Synthetic::default() }, 7);
        let large: Vec<u32> = (0..10_000).filter(|f| w.size(*f) == 10_000_000).collect();
        assert_eq!(large.len(), 99);
        assert!((large.len() as f64 * 1e7 / w.bytes() as f64 - 0.5).abs() < 0.01);
        assert!(large.windows(2).any(|w| w[1] - w[0] > 10), "not all in one place");
        assert_eq!((w.one_size(), w.smallest()), (None, 100_000));
    }
}
