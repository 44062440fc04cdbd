//! A recorded run as a workload: each process that read becomes a rank that reads by itself, in its
//! order, and lets pass between two files the time that passed in the record. That time includes
//! the recorded read: what a faster tier saves is thus underestimated.

use super::model::{Time, nanos};
use super::workload::{Order, Workload};
use crate::{Access, FileKey};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

/// Longest pause between two accesses that is taken over from a record: a job that was suspended
/// over night says nothing about its loader.
pub const MAX_GAP: Duration = Duration::from_secs(10);

/// A run of one node, as recorded: accesses in order of time, and at which of them each epoch
/// begins (the first one, where nothing is said). Every simulated node repeats it. Files are
/// numbered in the order of their keys, which is that of listings.
#[must_use]
pub fn recorded_workload(accesses: &[Access], epochs: &[usize]) -> Workload {
    let mut sizes = BTreeMap::new();
    accesses.iter().for_each(|a| {
        sizes.insert(a.file, a.size);
    });
    let number: BTreeMap<FileKey, u32> = sizes.keys().copied().zip(0..).collect();
    let streams: Vec<u16> = accesses.iter().map(|a| a.stream).collect::<BTreeSet<_>>().into_iter().collect();
    let orders = bounds(accesses.len(), epochs).map(|range| order(accesses, range, &streams, &number)).collect();
    Workload::recorded(sizes.into_values().collect(), streams.len() as u32, orders)
}

/// Parts of the record, one an epoch.
fn bounds(len: usize, epochs: &[usize]) -> impl Iterator<Item = Range<usize>> {
    // Accesses before the first epoch belong to it.
    let mut starts = vec![0];
    starts.extend(epochs.iter().skip(1).copied().filter(|at| (1..len).contains(at)).collect::<BTreeSet<_>>());
    starts.push(len);
    (1..starts.len()).map(move |at| starts[at - 1]..starts[at])
}

fn order(all: &[Access], part: Range<usize>, streams: &[u16], number: &BTreeMap<FileKey, u32>) -> Order {
    // The time before the first access of a process counts from the begin of the epoch.
    let begin = all.get(part.start).map_or(Duration::ZERO, |a| a.at);
    let mut order = Order::default();
    for stream in streams {
        let (start, mut last) = (order.files.len(), begin);
        for a in all[part.clone()].iter().filter(|a| a.stream == *stream) {
            order.files.push(number[&a.file]);
            order.gaps.push(gap(last, a.at));
            last = a.at;
        }
        order.ranks.push(start..order.files.len());
    }
    order
}

fn gap(from: Duration, to: Duration) -> Time {
    nanos(to.saturating_sub(from).min(MAX_GAP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Served;

    fn access(file: u64, ms: u64, stream: u16) -> Access {
        Access { file: FileKey(file), size: file * 10, at: Duration::from_millis(ms), stream, served: Served::Pfs }
    }

    #[test]
    fn processes_become_ranks_and_files_are_numbered_as_listed() {
        let record = [access(9, 0, 1), access(5, 2, 4), access(7, 3, 1), access(9, 60_000, 1), access(5, 60_001, 4)];
        let w = recorded_workload(&record, &[0, 3]);
        assert_eq!((w.files(), w.epochs(), w.ranks(), w.bytes()), (3, 2, 2, 210));
        let one = w.order(1, 1);
        assert_eq!((one.of(0), one.of(1)), (&[2, 1][..], &[0][..]));
        assert_eq!(one.gaps, [0, 3_000_000, 2_000_000]);
        let two = w.order(2, 2);
        assert_eq!((two.of(0), two.of(1), two.of(2), two.of(3)), (&[2][..], &[0][..], &[2][..], &[0][..]));
        assert_eq!(w.accesses(2), 10);
    }

    #[test]
    fn a_long_pause_is_cut_short() {
        let w = recorded_workload(&[access(1, 0, 0), access(2, 90_000, 0)], &[]);
        assert_eq!(w.order(1, 1).gaps, [0, 10_000_000_000]);
        assert_eq!(recorded_workload(&[], &[]).accesses(1), 0);
    }
}
