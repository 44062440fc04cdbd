//! Results of a simulation.

use std::ops::AddAssign;
use std::time::Duration;

/// Figures of an epoch, all nodes together. Fields: 15, because each is one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochFigures {
    /// From the end of the previous epoch until the last rank has finished.
    pub time: Duration,
    /// Computing of the rank that computes longest: the duration of the epoch when no rank waits.
    pub ideal: Duration,
    /// Computing, all ranks together.
    pub compute: Duration,
    /// Ranks waiting for their own data, all together.
    pub stall: Duration,
    /// Ranks waiting for other ranks, all together.
    pub sync_wait: Duration,
    /// Files opened.
    pub accesses: u64,
    /// Of them, served from a copy that was there.
    pub hits: u64,
    /// Of them, served from a copy that was waited for.
    pub waits: u64,
    /// Of them, read from the PFS by the reader.
    pub direct: u64,
    /// Metadata calls to the PFS.
    pub metadata_calls: u64,
    /// Read calls to the PFS.
    pub read_calls: u64,
    /// Bytes from the PFS to tiers.
    pub bytes_copied: u64,
    /// Bytes from the PFS to readers.
    pub bytes_direct: u64,
    /// Copies fetched ahead.
    pub prefetched: u64,
    /// Copies dropped for others.
    pub evicted: u64,
}

impl EpochFigures {
    /// Bytes read from the PFS.
    #[must_use]
    pub fn pfs_bytes(&self) -> u64 {
        self.bytes_copied + self.bytes_direct
    }

    /// Calls to the PFS.
    #[must_use]
    pub fn pfs_calls(&self) -> u64 {
        self.metadata_calls + self.read_calls
    }

    /// Share of opens that found a copy.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits as f64, self.accesses as f64)
    }

    /// Waiting for data in units of computing; 0 where nothing is computed.
    #[must_use]
    pub fn stall_ratio(&self) -> f64 {
        ratio(self.stall.as_secs_f64(), self.compute.as_secs_f64())
    }

    /// Time when no rank waits, divided by the time it took.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        ratio(self.ideal.as_secs_f64(), self.time.as_secs_f64())
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

impl AddAssign for EpochFigures {
    fn add_assign(&mut self, o: Self) {
        self.time += o.time;
        self.ideal += o.ideal;
        self.compute += o.compute;
        self.stall += o.stall;
        self.sync_wait += o.sync_wait;
        self.accesses += o.accesses;
        self.hits += o.hits;
        self.waits += o.waits;
        self.direct += o.direct;
        self.metadata_calls += o.metadata_calls;
        self.read_calls += o.read_calls;
        self.bytes_copied += o.bytes_copied;
        self.bytes_direct += o.bytes_direct;
        self.prefetched += o.prefetched;
        self.evicted += o.evicted;
    }
}

/// Results of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// By epoch.
    pub epochs: Vec<EpochFigures>,
    /// The most bytes that copies took on any node at any time, by tier.
    pub most_used: Vec<u64>,
    /// Events that were simulated.
    pub events: u64,
}

impl Outcome {
    /// All epochs together.
    #[must_use]
    pub fn total(&self) -> EpochFigures {
        sum(&self.epochs)
    }

    /// All epochs but the first; the first where there is no other.
    #[must_use]
    pub fn later(&self) -> EpochFigures {
        sum(if self.epochs.len() > 1 { &self.epochs[1..] } else { &self.epochs })
    }

    /// Number of epochs in [`Outcome::later`].
    #[must_use]
    pub fn later_epochs(&self) -> u64 {
        (self.epochs.len() as u64).saturating_sub(1).max(1)
    }
}

fn sum(epochs: &[EpochFigures]) -> EpochFigures {
    let mut all = EpochFigures::default();
    epochs.iter().for_each(|e| all += *e);
    all
}
