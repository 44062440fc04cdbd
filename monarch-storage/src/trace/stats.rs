//! Statistics of a trace: epochs, sizes, reuse, hit ratios of LRU caches.

use super::read::{End, TraceReader};
use super::reuse::Reuse;
use monarch_policies::{Access, EpochEvent, Epochs, Served};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

/// From where accesses were served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ServedCounts {
    /// From a copy.
    pub tier: u64,
    /// From a copy that was waited for.
    pub waited: u64,
    /// From the PFS.
    pub pfs: u64,
}

/// A pass over the data set.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EpochStats {
    /// Its number, from 1.
    pub number: u32,
    /// Seconds from the first access of the trace to the first of the epoch.
    pub start_s: f64,
    /// Seconds from its first access to its last.
    pub duration_s: f64,
    /// Opened files.
    pub accesses: u64,
    /// Their sizes together.
    pub bytes: u64,
    /// From where they were served.
    pub served: ServedCounts,
}

/// A bin of a histogram: values up to a bound, and above the bound of the bin before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bin {
    /// Largest value.
    pub up_to: u64,
    /// Number of values.
    pub count: u64,
}

/// Hits of a cache of some capacity that replaces the least recently used file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LruStats {
    /// Capacity in percent of the files, regardless of their sizes.
    pub percent: u32,
    /// Capacity in files.
    pub files: u64,
    /// Accesses that find their file in the cache.
    pub hits: u64,
    /// Hits as a share of all accesses, first accesses included.
    pub hit_ratio: f64,
}

/// A process, or several processes with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StreamStats {
    /// Its number.
    pub stream: u16,
    /// Opened files.
    pub accesses: u64,
}

/// Statistics of a trace.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Distinct files.
    pub files: u64,
    /// Their sizes together.
    pub bytes: u64,
    /// Opened files.
    pub accesses: u64,
    /// Accesses that are missing.
    pub lost: u64,
    /// How the trace ends: `whole`, `unfinished`, `torn` or `damaged`.
    pub end: &'static str,
    /// Seconds from the first access to the last.
    pub duration_s: f64,
    /// From where accesses were served.
    pub served: ServedCounts,
    /// Passes over the data set, as found from the accesses.
    pub epochs: Vec<EpochStats>,
    /// Sizes of files.
    pub sizes: Vec<Bin>,
    /// Distinct files between two accesses to a file.
    pub reuse: Vec<Bin>,
    /// Hits of LRU caches of some capacities.
    pub lru: Vec<LruStats>,
    /// Processes.
    pub streams: Vec<StreamStats>,
}

/// Capacities, in percent of the files.
const CAPACITY_PERCENTS: [u32; 5] = [10, 25, 50, 75, 90];

/// Reads a trace to its end and returns its statistics. It keeps about 50 bytes a file besides the
/// reader.
pub fn stats<R: Read>(reader: &mut TraceReader<R>) -> Stats {
    let mut found = Stats::default();
    let mut epochs = Passes::default();
    let mut reuse = Reuse::default();
    let mut distances: Vec<u64> = Vec::new();
    let mut streams = BTreeMap::<u16, u64>::new();
    let mut span: Option<(Duration, Duration)> = None;
    for access in reader.by_ref() {
        let (first, last) = span.map_or((access.at, access.at), |(a, b)| (a.min(access.at), b.max(access.at)));
        span = Some((first, last));
        found.accesses += 1;
        found.served.count(access.served);
        *streams.entry(access.stream).or_default() += 1;
        epochs.access(&access);
        // (The reader has as many files in memory as the largest number.)
        if let Some(distance) = reuse.access(access.file.0 as usize) {
            let at = distance as usize;
            distances.resize(distances.len().max(at + 1), 0);
            distances[at] += 1;
        }
    }
    let sizes: Vec<u64> = reader.files().iter().map(|f| f.size).collect();
    let (first, last) = span.unwrap_or_default();
    found.files = sizes.len() as u64;
    found.bytes = sizes.iter().fold(0, |sum, size| sum.saturating_add(*size));
    found.lost = reader.lost();
    found.end = end_name(reader.end());
    found.duration_s = (last - first).as_secs_f64();
    found.epochs = epochs.end(first);
    found.sizes = bins(sizes.iter().map(|s| (*s, 1)));
    found.lru =
        CAPACITY_PERCENTS.iter().map(|percent| lru(*percent, &distances, found.files, found.accesses)).collect();
    found.reuse = bins((0..).zip(distances.iter().copied()));
    found.streams = streams.into_iter().map(|(stream, accesses)| StreamStats { stream, accesses }).collect();
    found
}

fn end_name(end: End) -> &'static str {
    match end {
        End::Open | End::Unfinished => "unfinished",
        End::Whole => "whole",
        End::Torn => "torn",
        End::Damaged => "damaged",
    }
}

/// Powers of two.
fn bins(values: impl Iterator<Item = (u64, u64)>) -> Vec<Bin> {
    let mut found = BTreeMap::<u64, u64>::new();
    for (value, count) in values.filter(|(_, count)| *count > 0) {
        *found.entry(value.checked_next_power_of_two().unwrap_or(u64::MAX)).or_default() += count;
    }
    found.into_iter().map(|(up_to, count)| Bin { up_to, count }).collect()
}

fn lru(percent: u32, distances: &[u64], files: u64, accesses: u64) -> LruStats {
    let room = (u128::from(files) * u128::from(percent) / 100) as u64;
    // A file is still in the cache when fewer other files than its capacity were opened since.
    let hits = distances.iter().take(room as usize).sum::<u64>();
    LruStats { percent, files: room, hits, hit_ratio: hits as f64 / accesses.max(1) as f64 }
}

impl ServedCounts {
    fn count(&mut self, served: Served) {
        match served {
            Served::Tier => self.tier += 1,
            Served::Waited => self.waited += 1,
            Served::Pfs => self.pfs += 1,
        }
    }
}

/// Accesses of an epoch, or of a possible beginning of an epoch.
#[derive(Clone, Copy, Debug)]
struct Pass {
    number: u32,
    span: Option<(Duration, Duration)>,
    accesses: u64,
    bytes: u64,
    served: ServedCounts,
}

impl Pass {
    fn new(number: u32) -> Self {
        Self { number, span: None, accesses: 0, bytes: 0, served: ServedCounts::default() }
    }

    fn count(&mut self, a: &Access) {
        let (first, last) = self.span.unwrap_or((a.at, a.at));
        self.span = Some((first.min(a.at), last.max(a.at)));
        self.accesses += 1;
        self.bytes = self.bytes.saturating_add(a.size);
        self.served.count(a.served);
    }

    fn add(&mut self, other: &Self) {
        let Some((from, to)) = other.span else { return };
        let (first, last) = self.span.unwrap_or((from, to));
        self.span = Some((first.min(from), last.max(to)));
        self.accesses += other.accesses;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.served.tier += other.served.tier;
        self.served.waited += other.served.waited;
        self.served.pfs += other.served.pfs;
    }
}

/// All epochs of a trace.
#[derive(Debug, Default)]
struct Passes {
    epochs: Epochs,
    done: Vec<Pass>,
    perhaps: Option<Pass>,
}

impl Passes {
    fn access(&mut self, access: &Access) {
        if self.done.is_empty() {
            self.done.push(Pass::new(self.epochs.number()));
        }
        match self.epochs.access(access.file) {
            EpochEvent::Same => {}
            EpochEvent::Perhaps => {
                self.keep();
                self.perhaps = Some(Pass::new(0));
            }
            EpochEvent::Begun(number) => {
                let begun = self.perhaps.take().unwrap_or(Pass::new(0));
                self.done.push(Pass { number, ..begun });
            }
            EpochEvent::Not => self.keep(),
        }
        if let Some(pass) = self.perhaps.as_mut().or(self.done.last_mut()) {
            pass.count(access);
        }
    }

    /// The possible beginning of an epoch was none: adds its accesses to the last epoch.
    fn keep(&mut self) {
        if let (Some(perhaps), Some(last)) = (self.perhaps.take(), self.done.last_mut()) {
            last.add(&perhaps);
        }
    }

    fn end(mut self, start: Duration) -> Vec<EpochStats> {
        self.keep();
        let stats_of = |p: &Pass| {
            let (first, last) = p.span.unwrap_or((start, start));
            EpochStats {
                number: p.number,
                start_s: first.saturating_sub(start).as_secs_f64(),
                duration_s: (last - first).as_secs_f64(),
                accesses: p.accesses,
                bytes: p.bytes,
                served: p.served,
            }
        };
        self.done.iter().map(stats_of).collect()
    }
}
