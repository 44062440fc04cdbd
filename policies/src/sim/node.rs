//! The agent of a node, without time: answers opens, admits and drops copies, tells the policy.
//!
//! It puts the same questions as the agent's tiering engine, in the same order; [`super::run`] adds
//! what they cost.

use super::model::{Station, Time};
use super::outcome::EpochFigures;
use super::pace::Pace;
use super::residency::{ByFile, State, States};
use super::workload::{Order, Workload};
use crate::{Access, Candidate, Decision, Event, FileKey, Hints, Policy, RequestSource, Served, TierRoom};
use std::time::Duration;

/// What a reader gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A copy in this tier.
    Tier(usize),
    /// A copy that is under way.
    Wait,
    /// A copy that is to be fetched now.
    Fetch,
    /// The PFS.
    Pfs,
}

/// An open by a reader.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) file: u32,
    pub(super) size: u64,
    /// Number of the reader in the simulation, and on its node.
    pub(super) worker: u32,
    pub(super) stream: u16,
    pub(super) at: Time,
}

impl Open {
    fn access(&self, served: Served) -> Event {
        let at = Duration::from_nanos(self.at);
        Event::Access(Access { file: key(self.file), size: self.size, at, stream: self.stream, served })
    }
}

#[derive(Clone, Copy, Debug)]
struct Room {
    capacity: u64,
    used: u64,
    most: u64,
}

/// Free bytes in the tiers of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreeRoom {
    pub(super) total: u64,
    /// In the tier that has most.
    pub(super) largest: u64,
}

/// The opens that wait for a copy under way.
pub(super) type Waiting = Vec<Open>;

/// A node of the simulated job.
pub(super) struct Node {
    pub(super) policy: Box<dyn Policy>,
    pub(super) asks_again: bool,
    pub(super) hints: Hints,
    pub(super) states: States,
    rooms: Vec<Room>,
    /// The tiers as the simulation's stations.
    pub(super) disks: Vec<Station>,
    pub(super) under_way: ByFile<Waiting>,
    pub(super) pace: Pace,
    /// Whether ranks announce their orders to the policy.
    pub(super) uses_hints: bool,
    /// Epoch of the rank that is furthest.
    pub(super) epoch: u32,
}

fn key(file: u32) -> FileKey {
    FileKey(u64::from(file))
}

impl Node {
    pub(super) fn new(policy: Box<dyn Policy>, capacities: &[u64], work: &Workload, uses_hints: bool) -> Self {
        let rooms = capacities.iter().map(|c| Room { capacity: *c, used: 0, most: 0 }).collect();
        let mut node = Self {
            asks_again: policy.asks_again(),
            policy,
            hints: Hints::default(),
            states: States::new(work.files()),
            rooms,
            disks: vec![Station::default(); capacities.len()],
            under_way: ByFile::default(),
            pace: Pace::NEW,
            uses_hints,
            epoch: 0,
        };
        let capacity = capacities.iter().fold(0, |all: u64, c| all.saturating_add(*c));
        node.tell(&Event::Extent { files: u64::from(work.files()), bytes: work.bytes(), capacity });
        node
    }

    fn tell(&mut self, event: &Event) {
        self.policy.event(event, &self.hints);
    }

    /// A rank begins an epoch; the first rank that does begins that of the node.
    pub(super) fn begin(&mut self, epoch: u32) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.tell(&Event::Epoch { number: epoch });
        }
    }

    /// Ranks of this node announce what they will read. `first` is the number of the node's first
    /// rank in the order. False where hints are off and the order was not taken.
    pub(super) fn announce(&mut self, order: &Order, first: usize, ranks: std::ops::Range<usize>) -> bool {
        if !self.uses_hints {
            return false;
        }
        for rank in ranks {
            let files = order.of(first + rank).iter().map(|f| key(*f)).collect();
            self.hints.announce(rank as u64, files);
        }
        self.tell(&Event::Hinted);
        true
    }

    /// A reader opens a file.
    pub(super) fn open(&mut self, open: Open, work: &Workload, counts: &mut EpochFigures) -> Answer {
        if self.uses_hints {
            self.hints.accessed(key(open.file));
        }
        counts.accesses += 1;
        let mut state = self.states.get(open.file);
        let fetched = if state == State::Absent || state == State::Refused && self.asks_again {
            let admitted = self.admit(open.file, RequestSource::Demand, work, counts);
            state = self.states.get(open.file);
            admitted
        } else {
            false
        };
        match state {
            State::Resident(tier) => {
                counts.hits += 1;
                self.tell(&open.access(Served::Tier));
                Answer::Tier(tier)
            }
            State::Fetching(_) => {
                counts.waits += 1;
                self.under_way.entry(open.file).or_default().push(open);
                if fetched { Answer::Fetch } else { Answer::Wait }
            }
            State::Absent | State::Refused => {
                counts.direct += 1;
                self.tell(&open.access(Served::Pfs));
                Answer::Pfs
            }
        }
    }

    pub(super) fn free(&self) -> FreeRoom {
        let mut free = FreeRoom::default();
        for bytes in self.rooms.iter().map(|r| r.capacity - r.used) {
            free.total = free.total.saturating_add(bytes);
            free.largest = free.largest.max(bytes);
        }
        free
    }

    /// The most bytes that copies have taken, by tier.
    pub(super) fn most_used(&self) -> impl Iterator<Item = u64> + '_ {
        self.rooms.iter().map(|r| r.most)
    }

    /// Asks the policy, makes room, and reserves it. Whether the file is to be fetched now.
    pub(super) fn admit(
        &mut self,
        file: u32,
        source: RequestSource,
        work: &Workload,
        counts: &mut EpochFigures,
    ) -> bool {
        let size = work.size(file);
        let room = |r: &Room| TierRoom { cost: size, free: r.capacity - r.used, usable: true };
        let rooms: Vec<TierRoom> = self.rooms.iter().map(room).collect();
        let candidate = Candidate { file: key(file), size, source };
        let tier = match self.policy.place(&candidate, &rooms, &self.hints) {
            Decision::Admit(tier) => Some(tier),
            Decision::Replace { tier, victims } => {
                victims.into_iter().for_each(|v| self.evict(v.0 as u32, work, counts));
                Some(tier)
            }
            Decision::Refuse(_) => None,
        };
        let fits = |tier: &usize| self.rooms.get(*tier).is_some_and(|r| r.capacity - r.used >= size);
        let Some(tier) = tier.filter(fits) else {
            self.states.set(file, State::Refused);
            return false;
        };
        let room = &mut self.rooms[tier];
        room.used += size;
        room.most = room.most.max(room.used);
        self.states.set(file, State::Fetching(tier));
        self.under_way.insert(file, Waiting::new());
        true
    }

    /// Drops a resident copy. A copy under way stays.
    fn evict(&mut self, file: u32, work: &Workload, counts: &mut EpochFigures) {
        if let State::Resident(tier) = self.states.get(file) {
            self.rooms[tier].used -= work.size(file);
            self.states.set(file, State::Refused);
            counts.evicted += 1;
            self.tell(&Event::Dropped { file: key(file) });
        }
    }

    /// A copy is complete. The opens that have waited for it, and its tier.
    pub(super) fn arrived(&mut self, file: u32, size: u64, took: Time) -> (Vec<Open>, usize) {
        let State::Fetching(tier) = self.states.get(file) else { return (Vec::new(), 0) };
        self.states.set(file, State::Resident(tier));
        self.tell(&Event::Fetched { file: key(file), size, took: Duration::from_nanos(took) });
        self.tell(&Event::Placed { file: key(file), size, cost: size, tier });
        let waited = self.under_way.remove(&file).unwrap_or_default();
        waited.iter().for_each(|open| self.tell(&open.access(Served::Waited)));
        (waited, tier)
    }
}
