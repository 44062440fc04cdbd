//! What a node fetches before a reader asks: first what its policy wants, then the known order
//! while there is room, then the listing while there is room.
//!
//! A prefetch starts only while fewer copies than `inflight` are under way. Demands count as under
//! way and never wait for a slot.

use super::node::Node;
use super::outcome::EpochFigures;
use super::residency::State;
use super::workload::Workload;
use crate::RequestSource;

/// Chooses the files that a node fetches ahead of its readers.
#[derive(Debug)]
pub(super) struct Prefetcher {
    on: bool,
    /// Copies under way at which no further prefetch starts.
    inflight: usize,
    /// Next file of the listing to be looked at.
    walk: u32,
    /// By rank: position in its announced order up to which files were looked at.
    looked: Vec<u32>,
}

/// How often in a row a policy may want a file that it then refuses.
const MAX_REFUSED_WISHES: usize = 64;

impl Prefetcher {
    pub(super) fn new(on: bool, inflight: usize, ranks: u32) -> Self {
        Self { on, inflight, walk: 0, looked: vec![0; ranks as usize] }
    }

    /// The orders of these ranks are new: looks at them from their beginning.
    pub(super) fn restart(&mut self, ranks: std::ops::Range<usize>) {
        self.looked[ranks].fill(0);
    }

    /// A file to fetch ahead now; room for it is reserved.
    pub(super) fn next(
        &mut self,
        node: &mut Node,
        backoff: bool,
        work: &Workload,
        counts: &mut EpochFigures,
    ) -> Option<u32> {
        if !self.on || node.under_way.len() >= self.slots(node, backoff) {
            return None;
        }
        let file = wanted_by_policy(node, work, counts);
        let file = file.or_else(|| self.ordered(node, work, counts)).or_else(|| self.listed(node, work, counts))?;
        counts.prefetched += 1;
        Some(file)
    }

    fn slots(&self, node: &Node, backoff: bool) -> usize {
        let divisor = if backoff { node.pace.divisor() } else { 1 };
        if self.inflight == 0 { 0 } else { (self.inflight / divisor).max(1) }
    }

    /// The file that comes next in the known order, has no copy, and finds room.
    fn ordered(&mut self, node: &mut Node, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
        while node.uses_hints && node.free().largest >= work.smallest() {
            let (rank, file) = self.nearest(node)?;
            self.looked[rank] += 1;
            let state = node.states.get(file);
            let none = state == State::Absent || state == State::Refused && node.asks_again;
            if none && work.size(file) <= node.free().largest {
                let fetched = fetch(node, file, work, counts);
                if fetched.is_some() {
                    return fetched;
                }
            }
        }
        None
    }

    /// Rank and file of the first file in the known orders that was not looked at.
    fn nearest(&mut self, node: &Node) -> Option<(usize, u32)> {
        let mut best: Option<(u32, usize, u32)> = None;
        for (rank, looked) in self.looked.iter_mut().enumerate() {
            let Some((order, at)) = node.hints.order(rank as u64) else { continue };
            *looked = (*looked).max(at);
            if let Some(file) = order.get(*looked as usize)
                && best.is_none_or(|(distance, ..)| *looked - at < distance)
            {
                best = Some((*looked - at, rank, file.0 as u32));
            }
        }
        best.map(|(_, rank, file)| (rank, file))
    }

    /// The next file of the listing that no reader has asked for yet and that finds room.
    fn listed(&mut self, node: &mut Node, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
        while self.walk < work.files() && node.free().largest >= work.smallest() {
            let file = self.walk;
            self.walk += 1;
            if node.states.get(file) == State::Absent && work.size(file) <= node.free().largest {
                let fetched = fetch(node, file, work, counts);
                if fetched.is_some() {
                    return fetched;
                }
            }
        }
        None
    }
}

fn fetch(node: &mut Node, file: u32, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
    node.admit(file, RequestSource::Prefetch, work, counts).then_some(file)
}

fn asked_of_policy(node: &mut Node) -> Option<u32> {
    let free = node.free().total;
    loop {
        let file = node.policy.next(free, &node.hints);
        if file.is_some() || !node.policy.unfinished() {
            return file.map(|f| f.0 as u32);
        }
    }
}

/// What the policy wants, even if it drops other copies for it.
fn wanted_by_policy(node: &mut Node, work: &Workload, counts: &mut EpochFigures) -> Option<u32> {
    for _ in 0..MAX_REFUSED_WISHES {
        let file = asked_of_policy(node)?;
        if file >= work.files() || !matches!(node.states.get(file), State::Absent | State::Refused) {
            continue;
        }
        if let Some(file) = fetch(node, file, work, counts) {
            return Some(file);
        }
    }
    None
}
