//! The links of nodes that read a large file: what goes over each, and whether it has room for one
//! more piece.

use super::transfer_time::{MAX_AT_A_TIME, TransferTime};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

/// A node whose transfers take more than this multiple of the median of all nodes gets its pieces
/// last.
const SLOW_FACTOR: u32 = 3;

/// What is common to the decisions of one moment.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) now: Instant,
    /// Age at which a transfer is stuck.
    pub(super) stall: Duration,
    /// Age at which a transfer is about to end.
    pub(super) ending: Duration,
    /// The median of the times of transfers to the readers of a file.
    pub(super) usual: Option<Duration>,
}

impl Moment {
    fn age(&self, since: Instant) -> Duration {
        self.now.saturating_duration_since(since)
    }

    /// Whether something has got on since then for as long as it usually takes.
    pub(super) fn is_recent(&self, since: Instant) -> bool {
        self.age(since) < self.stall
    }

    /// Transfers that count; those that are stuck do not.
    fn count(&self, since: impl Iterator<Item = Instant>) -> usize {
        since.filter(|since| self.is_recent(*since)).count()
    }

    /// Whether a link that carries `at_a_time` transfers has room for one more beside those that
    /// are under way. One of them may be about to end: the next one is on its way by then.
    pub(super) fn has_room(&self, since: impl Iterator<Item = Instant> + Clone, at_a_time: usize) -> bool {
        let active = self.count(since.clone());
        let is_ending = |since: Instant| (self.ending..self.stall).contains(&self.age(since));
        active < at_a_time || (active == at_a_time && since.into_iter().any(is_ending))
    }
}

/// A piece that an asker waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) bytes: u64,
    /// Whether this node has the piece.
    pub(super) is_at_hand: bool,
}

/// The place of an asker among others: whether it is slow, pieces on their way to it, and those
/// that it has got.
pub(super) type Rank = (bool, usize, u64);

/// What a node does for the others that read a file, and how fast it gets its own pieces.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// Askers that were sent to it.
    pub(super) relayed: u64,
    /// Pieces that it has got.
    got: u64,
    pub(super) barred_until: Option<Instant>,
    /// When the transfers from it that are under way began, by asker and piece.
    pub(super) active: Vec<(u16, u64, Instant)>,
    /// When the transfers to it that are under way began, by piece.
    coming: Vec<(u64, Instant)>,
    /// Time of the transfers to it.
    time: TransferTime,
    /// The pieces that it waits for, by where they begin.
    pub(super) waits: BTreeMap<u64, Wish>,
    /// Where pieces begin that it may have.
    pub(super) has: HashSet<u64>,
}

impl Load {
    /// Whether it can send one more piece.
    pub(super) fn can_send(&self, at: &Moment, at_a_time: usize) -> bool {
        at.has_room(self.active.iter().map(|(_, _, since)| *since), at_a_time)
    }

    /// Whether it can get one more piece, besides those that are about to be sent to it. Over a
    /// quick link one more comes at a time than goes.
    fn can_get(&self, at: &Moment, at_a_time: usize, prepared: usize) -> bool {
        let coming = self.coming.iter().map(|(_, since)| *since);
        let all = coming.chain(std::iter::repeat_n(at.now, prepared));
        at.has_room(all, at_a_time + usize::from(at_a_time > 1))
    }

    /// [`Load::can_get`], but one at first: the link of a node that has got nothing yet is not
    /// known.
    pub(super) fn can_get_one(&self, at: &Moment, at_a_time: usize, prepared: usize) -> bool {
        let is_new = self.got == 0 && self.relayed == 0 && self.coming.is_empty();
        if is_new { prepared == 0 } else { self.can_get(at, at_a_time, prepared) }
    }

    /// Its place among askers: first those to which the fewest pieces are on their way, then those
    /// that have got the fewest; slow ones last.
    fn rank(&self, at: &Moment) -> Rank {
        let is_slow = self.time.usual().zip(at.usual).is_some_and(|(its, usual)| its > usual * SLOW_FACTOR);
        (is_slow, at.count(self.coming.iter().map(|(_, since)| *since)), self.got)
    }

    pub(super) fn is_barred(&self, at: &Moment) -> bool {
        self.barred_until.is_some_and(|until| at.now < until)
    }

    /// Notes that a piece is sent from it to `asker`.
    pub(super) fn sends(&mut self, asker: u16, start: u64, at: &Moment) {
        self.relayed += 1;
        self.active.retain(|(_, _, since)| at.is_recent(*since));
        self.active.push((asker, start, at.now));
    }

    /// Notes that a piece is on its way to it, and forgets those that are stuck.
    pub(super) fn gets(&mut self, start: u64, at: &Moment) {
        self.forgets(start);
        self.coming.retain(|(_, since)| at.is_recent(*since));
        self.coming.push((start, at.now));
    }

    /// Notes that a piece is not on its way to it.
    pub(super) fn forgets(&mut self, start: u64) {
        self.coming.retain(|(of, _)| *of != start);
    }

    /// Notes that a piece has come.
    pub(super) fn has_got(&mut self, start: u64, took: Duration) {
        self.forgets(start);
        self.got += 1;
        self.time.note(took);
    }
}

/// The readers of a file.
#[derive(Debug, Default)]
pub(super) struct Readers {
    pub(super) nodes: HashMap<u16, Load>,
    /// The median of the times of transfers to them.
    pub(super) usual: Option<Duration>,
    /// Pieces in the table.
    pub(super) pieces: usize,
    /// Pieces that nodes wait for, by where they begin.
    pub(super) wanted: BTreeMap<u64, Wanting>,
}

/// Who waits for a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanting {
    /// Of the piece.
    pub(super) bytes: u64,
    nodes: usize,
}

impl Readers {
    pub(super) fn load(&mut self, node: u16) -> &mut Load {
        self.nodes.entry(node).or_default()
    }

    /// A node waits for a piece.
    pub(super) fn waits(&mut self, node: u16, start: u64, wish: Wish) {
        if self.load(node).waits.insert(start, wish).is_none() {
            self.wanted.entry(start).or_insert(Wanting { bytes: wish.bytes, nodes: 0 }).nodes += 1;
        }
    }

    /// A node does not wait for a piece.
    pub(super) fn waits_no_more(&mut self, node: u16, start: u64) {
        if self.load(node).waits.remove(&start).is_none() {
            return;
        }
        if let Some(wanting) = self.wanted.get_mut(&start) {
            wanting.nodes -= 1;
            if wanting.nodes == 0 {
                self.wanted.remove(&start);
            }
        }
    }

    /// Askers that wait for a piece and whose links may have room, with their ranks.
    pub(super) fn waiting(&self, at: &Moment) -> impl Iterator<Item = (Rank, u16, &Load)> {
        let may_get = |load: &Load| !load.waits.is_empty() && load.can_get(at, MAX_AT_A_TIME, 0);
        self.nodes.iter().filter(move |(_, load)| may_get(load)).map(|(node, load)| (load.rank(at), *node, load))
    }

    /// Nodes that can be named as relays and have room for one more transfer.
    pub(super) fn relays(&self, at: &Moment, at_a_time: usize, can_relay: impl Fn(u16) -> bool) -> Vec<&Load> {
        let is_free = |load: &Load| !load.has.is_empty() && load.can_send(at, at_a_time) && !load.is_barred(at);
        self.nodes.iter().filter(|(node, load)| is_free(load) && can_relay(**node)).map(|(_, load)| load).collect()
    }

    /// A piece is not remembered any more.
    pub(super) fn forget_piece(&mut self, start: u64) {
        self.pieces -= 1;
        self.wanted.remove(&start);
        for load in self.nodes.values_mut() {
            load.waits.remove(&start);
            load.has.remove(&start);
        }
    }

    /// Notes that a transfer has ended, or will not take place: from `relay`, if it is one, to
    /// `asker`.
    pub(super) fn free_links(&mut self, relay: Option<u16>, asker: u16, start: u64) {
        if let Some(load) = relay.and_then(|relay| self.nodes.get_mut(&relay)) {
            load.active.retain(|(to, at, _)| (*to, *at) != (asker, start));
        }
        if let Some(load) = self.nodes.get_mut(&asker) {
            load.forgets(start);
        }
    }

    /// Notes that the only transfer from a relay that is left begins now. Returns its asker and
    /// piece.
    pub(super) fn begins_last(&mut self, relay: u16, now: Instant) -> Option<(u16, u64)> {
        let [(to, start, since)] = self.nodes.get_mut(&relay)?.active.as_mut_slice() else { return None };
        *since = now;
        let (to, start) = (*to, *start);
        let coming = self.nodes.get_mut(&to)?.coming.iter_mut().find(|(of, _)| *of == start);
        coming.into_iter().for_each(|(_, since)| *since = now);
        Some((to, start))
    }

    /// Notes that a node has got a piece, in this time.
    pub(super) fn has_got(&mut self, node: u16, start: u64, took: Duration) {
        self.load(node).has_got(start, took);
        let mut times: Vec<Duration> = self.nodes.values().filter_map(|l| l.time.usual()).collect();
        let middle = times.len() / 2;
        self.usual = (middle < times.len()).then(|| *times.select_nth_unstable(middle).1);
    }
}
