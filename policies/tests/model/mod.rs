//! A cache in memory that asks a policy and checks each decision: the agent's part, without files,
//! threads or time.
//!
//! Opens are served at once, and so are fetches: this is what a policy can reach when nothing is
//! late.
#![allow(dead_code, reason = "each test file uses its part")]

use monarch_policies::hints::Priority;
use monarch_policies::{
    Access, Candidate, Decision, Event, FileKey, Hints, Policy, RequestSource, Served, TierRoom, Why,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

/// Seconds of a request to the PFS, and of a byte.
const REQUEST_SECONDS: f64 = 1e-3;
const BYTE_SECONDS: f64 = 1e-9;
const IO_BYTES: u64 = 4 << 20;

/// Opens and reads of a file at the PFS.
pub(crate) fn ops(size: u64) -> u64 {
    1 + size.div_ceil(IO_BYTES)
}

/// What happened since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) opens: u64,
    pub(crate) hits: u64,
    pub(crate) prefetched: u64,
    pub(crate) ops: u64,
    pub(crate) replaced: u64,
}

impl Counts {
    pub(crate) fn hit_share(&self) -> f64 {
        self.hits as f64 / self.opens as f64
    }

    pub(crate) fn fetched(&self) -> u64 {
        self.opens - self.hits + self.prefetched
    }
}

pub(crate) struct Model {
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) hints: Hints,
    capacities: Vec<u64>,
    used: Vec<u64>,
    usable: Vec<bool>,
    resident: BTreeMap<FileKey, (usize, u64)>,
    sizes: BTreeMap<FileKey, u64>,
    refused: HashSet<FileKey>,
    counts: Counts,
}

impl Model {
    pub(crate) fn new(
        policy: Box<dyn Policy>,
        capacities: &[u64],
        sizes: impl IntoIterator<Item = (FileKey, u64)>,
    ) -> Self {
        let mut model = Self {
            policy,
            hints: Hints::default(),
            capacities: capacities.to_vec(),
            used: vec![0; capacities.len()],
            usable: vec![true; capacities.len()],
            resident: BTreeMap::new(),
            sizes: sizes.into_iter().collect(),
            refused: HashSet::new(),
            counts: Counts::default(),
        };
        let extent = Event::Extent {
            files: model.sizes.len() as u64,
            bytes: model.sizes.values().sum(),
            capacity: capacities.iter().sum(),
        };
        model.event(&extent);
        model
    }

    pub(crate) fn event(&mut self, event: &Event) {
        self.policy.event(event, &self.hints);
    }

    pub(crate) fn resident(&self) -> BTreeSet<FileKey> {
        self.resident.keys().copied().collect()
    }

    pub(crate) fn counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    fn rooms(&self, cost: u64) -> Vec<TierRoom> {
        let tier = |(tier, usable): (usize, &bool)| TierRoom {
            cost,
            free: self.capacities[tier] - self.used[tier],
            usable: *usable,
        };
        self.usable.iter().enumerate().map(tier).collect()
    }

    pub(crate) fn set_usable(&mut self, tier: usize, usable: bool) {
        let n = self.usable.len();
        self.usable[tier % n] = usable;
    }

    pub(crate) fn announce(&mut self, stream: u64, order: Vec<FileKey>) {
        self.hints.announce(stream, order);
        self.event(&Event::Hinted);
    }

    pub(crate) fn prioritise(&mut self, file: FileKey, priority: Priority) {
        self.hints.prioritise(file, priority);
        self.event(&Event::Hinted);
    }

    /// A reader opens a file, and a miss is offered to the policy, as long as it wants to be asked.
    pub(crate) fn open(&mut self, file: FileKey) {
        let size = self.sizes.get(&file).copied().unwrap_or(1);
        let hit = self.resident.contains_key(&file);
        self.counts.opens += 1;
        self.counts.hits += u64::from(hit);
        self.hints.accessed(file);
        let served = if hit { Served::Tier } else { Served::Pfs };
        self.event(&Event::Access(Access { file, size, at: Duration::ZERO, stream: 0, served }));
        if hit {
            return;
        }
        self.fetch(file, size);
        if !self.refused.contains(&file) && !self.place(file, size, RequestSource::Demand) && !self.policy.asks_again()
        {
            self.refused.insert(file);
        }
    }

    fn fetch(&mut self, file: FileKey, size: u64) {
        self.counts.ops += ops(size);
        let took = Duration::from_secs_f64(REQUEST_SECONDS * ops(size) as f64 + BYTE_SECONDS * size as f64);
        self.event(&Event::Fetched { file, size, took });
    }

    /// Fetches ahead whatever the policy wants fetched.
    pub(crate) fn prefetch(&mut self) {
        // (A bound: what is given is not to be given again unless something happened.)
        for _ in 0..=self.sizes.len() {
            let free = (0..self.capacities.len()).map(|t| self.capacities[t] - self.used[t]).sum();
            let Some(file) = self.policy.next(free, &self.hints) else {
                if self.policy.unfinished() {
                    continue;
                }
                return;
            };
            assert!(!self.resident.contains_key(&file), "{file:?} is there");
            assert!(self.hints.next_use(file).is_some(), "nobody wants {file:?}");
            let size = self.sizes.get(&file).copied().unwrap_or(1);
            if self.place(file, size, RequestSource::Prefetch) {
                self.counts.prefetched += 1;
                self.fetch(file, size);
            }
        }
        panic!("files are given without end");
    }

    /// Places a file; whether it was admitted.
    pub(crate) fn place(&mut self, file: FileKey, size: u64, source: RequestSource) -> bool {
        let rooms = self.rooms(size);
        let decision = self.policy.place(&Candidate { file, size, source }, &rooms, &self.hints);
        if self.hints.priority(file) == Priority::Never {
            assert_eq!(decision, Decision::Refuse(Why::Unwanted));
        }
        let tier = match decision {
            Decision::Refuse(_) => return false,
            Decision::Admit(tier) => tier,
            Decision::Replace { tier, victims } => {
                self.check_victims(file, tier, &victims);
                self.counts.replaced += victims.len() as u64;
                victims.into_iter().for_each(|v| self.drop_copy(v));
                tier
            }
        };
        assert!(self.usable[tier]);
        self.forget(file);
        assert!(self.used[tier] + size <= self.capacities[tier], "no room for {file:?}");
        self.resident.insert(file, (tier, size));
        self.used[tier] += size;
        self.event(&Event::Placed { file, size, cost: size, tier });
        true
    }

    fn check_victims(&self, file: FileKey, tier: usize, victims: &[FileKey]) {
        let distinct: BTreeSet<_> = victims.iter().collect();
        assert_eq!(distinct.len(), victims.len(), "{victims:?}");
        for v in victims {
            assert!(*v != file, "{file:?} replaces itself");
            assert_eq!(self.resident.get(v).map(|(t, _)| *t), Some(tier), "{v:?} is not there");
            assert!(self.hints.priority(*v) != Priority::High, "{v:?} was favoured");
        }
    }

    pub(crate) fn drop_copy(&mut self, file: FileKey) {
        if self.forget(file) {
            self.event(&Event::Dropped { file });
        }
    }

    /// An index is gone, with its files and their copies.
    pub(crate) fn index_gone(&mut self, index: u32) {
        let files: Vec<FileKey> = self.resident.keys().copied().filter(|f| f.index() == index).collect();
        for file in files {
            self.forget(file);
        }
        self.hints.forget_index(index);
        self.event(&Event::IndexGone { index });
    }

    fn forget(&mut self, file: FileKey) -> bool {
        let Some((tier, cost)) = self.resident.remove(&file) else { return false };
        self.used[tier] -= cost;
        true
    }
}

/// A generator for tests (SplitMix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(x ^ (x >> 31)) * n as u128) >> 64) as usize
    }

    pub(crate) fn shuffled(&mut self, files: impl IntoIterator<Item = FileKey>) -> Vec<FileKey> {
        let mut files: Vec<FileKey> = files.into_iter().collect();
        (1..files.len()).rev().for_each(|i| files.swap(i, self.below(i + 1)));
        files
    }
}
