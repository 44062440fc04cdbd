//! What a node fetches before anybody asks: first what its policy wants, then the known order while
//! there is room, then the listing while there is room. Only while fewer copies than `inflight` are
//! under way; demands are under way, too, and never wait for a place.

use super::node::Node;
use super::outcome::EpochFigures;
use super::residency::State;
use super::workload::Workload;
use crate::RequestSource;

/// See the module.
#[derive(Debug)]
pub(super) struct Ahead {
    on: bool,
    pub(super) hints: bool,
    /// Copies under way above which nothing is fetched ahead.
    inflight: usize,
    /// Next file of the listing to be looked at.
    walk: u32,
    /// By rank: how far its announced order was looked at.
    pub(super) looked: Vec<u32>,
}

/// How often in a row a policy may want what it then refuses.
const TRIES: usize = 64;

impl Ahead {
    pub(super) fn new(on: bool, hints: bool, inflight: usize, ranks: u32) -> Self {
        Self { on, hints, inflight, walk: 0, looked: vec![0; ranks as usize] }
    }
}

impl Node {
    /// A file that is to be fetched ahead now; room for it is reserved.
    pub(super) fn next_ahead(&mut self, backoff: bool, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
        if !self.ahead.on || self.under_way.len() >= self.slots(backoff) {
            return None;
        }
        let file = self.wanted_by_policy(work, counts);
        let file = file.or_else(|| self.due(work, counts)).or_else(|| self.listed(work, counts))?;
        counts.prefetched += 1;
        Some(file)
    }

    fn slots(&self, backoff: bool) -> usize {
        let divisor = if backoff { self.pace.divisor() } else { 1 };
        if self.ahead.inflight == 0 { 0 } else { (self.ahead.inflight / divisor).max(1) }
    }

    fn fetch(&mut self, file: u32, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
        self.admit(file, RequestSource::Prefetch, work, counts).then_some(file)
    }

    fn asked_of_policy(&mut self) -> Option<u32> {
        let free = self.free().0;
        loop {
            let file = self.policy.next(free, &self.hints);
            if file.is_some() || !self.policy.unfinished() {
                return file.map(|f| f.0 as u32);
            }
        }
    }

    /// What the policy wants, even if others have to make way.
    fn wanted_by_policy(&mut self, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
        for _ in 0..TRIES {
            let file = self.asked_of_policy()?;
            if file >= work.files() || !matches!(self.states.get(file), State::Absent | State::Refused) {
                continue;
            }
            if let Some(file) = self.fetch(file, work, counts) {
                return Some(file);
            }
        }
        None
    }

    /// The file that comes next in the known order, has no copy, and finds room.
    fn due(&mut self, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
        while self.ahead.hints && self.free().1 >= work.smallest() {
            let (rank, file) = self.nearest()?;
            self.ahead.looked[rank] += 1;
            let state = self.states.get(file);
            let none = state == State::Absent || state == State::Refused && self.asks_again;
            if none && work.size(file) <= self.free().1 {
                let fetched = self.fetch(file, work, counts);
                if fetched.is_some() {
                    return fetched;
                }
            }
        }
        None
    }

    /// Of the files that were not looked at, the one that comes first: rank and file.
    fn nearest(&mut self) -> Option<(usize, u32)> {
        let mut best: Option<(u32, usize, u32)> = None;
        for (rank, looked) in self.ahead.looked.iter_mut().enumerate() {
            let Some((order, at)) = self.hints.order(rank as u64) else { continue };
            *looked = (*looked).max(at);
            if let Some(file) = order.get(*looked as usize)
                && best.is_none_or(|(distance, ..)| *looked - at < distance)
            {
                best = Some((*looked - at, rank, file.0 as u32));
            }
        }
        best.map(|(_, rank, file)| (rank, file))
    }

    /// The next file of the listing that nobody has asked for yet and that finds room.
    fn listed(&mut self, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
        while self.ahead.walk < work.files() && self.free().1 >= work.smallest() {
            let file = self.ahead.walk;
            self.ahead.walk += 1;
            if self.states.get(file) == State::Absent && work.size(file) <= self.free().1 {
                let fetched = self.fetch(file, work, counts);
                if fetched.is_some() {
                    return fetched;
                }
            }
        }
        None
    }
}
