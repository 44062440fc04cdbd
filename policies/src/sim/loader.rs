//! Ranks and their loader processes, as PyTorch's `DataLoader` has them: batch b is made by process
//! b mod W, processes work at most `ahead` batches each ahead of the rank (a batch is handed out
//! when the rank takes one), and the rank takes batches in order. Without processes a rank makes
//! each batch when it wants it.

use super::model::Time;
use super::workload::{Loader, Order};
use std::ops::Range;
use std::rc::Rc;

/// A rank in an epoch.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) node: u32,
    pub(super) epoch: u32,
    pub(super) order: Rc<Order>,
    /// Its part of the order.
    part: Range<usize>,
    pub(super) steps: u32,
    /// Batches that it took.
    pub(super) taken: u32,
    /// Since when it has waited for the next one.
    pub(super) waiting: Option<Time>,
}

/// A loader process, or a rank's own reading.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worker {
    pub(super) rank: u32,
    /// Its number among those of its rank.
    slot: u32,
    /// Batches that it made in this epoch.
    made: u32,
    /// The file that it is at, and the end of its batch, in the order.
    at: usize,
    end: usize,
    busy: bool,
}

impl Rank {
    pub(super) fn new(node: u32) -> Self {
        let (order, part) = (Rc::default(), 0..0);
        Self { node, epoch: 0, order, part, steps: 0, taken: 0, waiting: None }
    }

    /// Begins an epoch.
    pub(super) fn begin(&mut self, number: usize, order: &Rc<Order>, epoch: u32, loader: &Loader) {
        self.part = order.ranks[number].clone();
        self.order = Rc::clone(order);
        (self.epoch, self.taken, self.waiting) = (epoch, 0, None);
        self.steps = self.part.len().div_ceil(loader.batch as usize) as u32;
    }

    /// Time before its next batch, if that was recorded.
    pub(super) fn gap(&self) -> Option<Time> {
        let at = self.part.start + self.taken as usize;
        if at < self.part.end { self.order.gaps.get(at).copied() } else { None }
    }

    fn batch(&self, number: u32, size: u32) -> Range<usize> {
        let start = self.part.start + number as usize * size as usize;
        start..(start + size as usize).min(self.part.end)
    }
}

impl Worker {
    pub(super) fn new(rank: u32, slot: u32) -> Self {
        Self { rank, slot, ..Self::default() }
    }

    pub(super) fn begin(&mut self) {
        (self.made, self.busy) = (0, false);
    }

    /// Whether it has made a batch that belongs to it.
    pub(super) fn has_made(&self, batch: u32, processes: u32) -> bool {
        self.made > batch / processes
    }

    /// Begins the next batch, if it may; whether there is a file to be read now.
    pub(super) fn start(&mut self, rank: &Rank, loader: &Loader) -> bool {
        let processes = loader.workers.max(1);
        let batch = self.made * processes + self.slot;
        let may = if loader.workers == 0 {
            rank.waiting.is_some() && batch == rank.taken
        } else {
            batch < rank.taken + processes * loader.ahead.max(1)
        };
        if self.busy || !may || batch >= rank.steps {
            return false;
        }
        let files = rank.batch(batch, loader.batch);
        (self.at, self.end, self.busy) = (files.start, files.end, true);
        true
    }

    /// The file to be read now.
    pub(super) fn file(&self, rank: &Rank) -> u32 {
        rank.order.files[self.at]
    }

    /// A file was read; whether the batch is complete with it.
    pub(super) fn read(&mut self) -> bool {
        self.at += 1;
        if self.at < self.end {
            return false;
        }
        self.busy = false;
        self.made += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loader(workers: u32) -> Loader {
        Loader { ranks: 1, workers, batch: 2, ahead: 2, epochs: 1 }
    }

    fn rank(loader: &Loader) -> Rank {
        let order =
            Rc::new(Order { files: (0..13).collect(), ranks: std::iter::once(0..13).collect(), gaps: Vec::new() });
        let mut rank = Rank::new(0);
        rank.begin(0, &order, 1, loader);
        rank
    }

    /// Files that a process reads until it has to wait.
    fn reads(worker: &mut Worker, rank: &Rank, loader: &Loader) -> Vec<u32> {
        let mut files = Vec::new();
        while worker.start(rank, loader) {
            loop {
                files.push(worker.file(rank));
                if worker.read() {
                    break;
                }
            }
        }
        files
    }

    #[test]
    fn loader_processes_take_batches_in_turn_and_work_two_batches_ahead() {
        let loader = loader(2);
        let (mut rank, mut one, mut two) = (rank(&loader), Worker::new(0, 0), Worker::new(0, 1));
        assert_eq!(rank.steps, 7);
        assert_eq!(reads(&mut one, &rank, &loader), [0, 1, 4, 5]);
        assert_eq!(reads(&mut two, &rank, &loader), [2, 3, 6, 7]);
        assert!(one.has_made(2, 2) && !one.has_made(4, 2) && two.has_made(3, 2));
        rank.taken = 1;
        assert_eq!((reads(&mut one, &rank, &loader), reads(&mut two, &rank, &loader)), (vec![8, 9], vec![]));
        rank.taken = 7;
        assert_eq!((reads(&mut one, &rank, &loader), reads(&mut two, &rank, &loader)), (vec![12], vec![10, 11]));
    }

    #[test]
    fn without_loader_processes_the_rank_makes_each_batch_when_it_wants_it() {
        let loader = loader(0);
        let (mut rank, mut own) = (rank(&loader), Worker::new(0, 0));
        assert!(!own.start(&rank, &loader));
        rank.waiting = Some(0);
        assert_eq!(reads(&mut own, &rank, &loader), [0, 1]);
    }
}
