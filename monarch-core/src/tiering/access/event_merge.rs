//! Merges opens and hints in the order in which they happened.
//!
//! Within one process that is the order of its lane. Between processes it is that of the coarse
//! clock. Within a tick of it, opens that a process made before its hint come first, then the hint,
//! then all other opens: what other processes open meanwhile is mostly a response to the hint.

use crate::tiering::access::hint_inbox::Hint;
use monarch_abi::accesses::{Noted, Opened};

/// An event.
#[derive(Debug)]
pub(crate) enum Happened {
    /// A process that uses this lane opened a file.
    Opened(usize, Opened),
    /// A process gave a hint.
    Hinted(Hint),
}

/// Hints whose place has not been seen yet, each with the time (milliseconds) until which it waits.
pub(crate) type Unplaced = Vec<(u64, Hint)>;

/// Orders what was noted, lane by lane. Takes out of `unplaced` the hints that have their place in
/// it, and those that are overdue at `now`: these are placed by their own time.
pub(crate) fn in_order(noted: Vec<(usize, Noted)>, unplaced: &mut Unplaced, now: u64) -> Vec<Happened> {
    let mut all = Vec::with_capacity(noted.len());
    // The hint that was seen last, in reverse order.
    let mut behind = None;
    for (lane, what) in noted.into_iter().rev() {
        match what {
            Noted::Opened(o) => all.push((o.ms, behind != Some((lane, o.ms)), Happened::Opened(lane, o))),
            Noted::Hinted(h) => {
                behind = Some((lane, h.ms));
                if let Some(at) = unplaced.iter().position(|(_, hint)| hint.header.tag() == h.tag) {
                    all.push((h.ms, false, Happened::Hinted(unplaced.remove(at).1)));
                }
            }
        }
    }
    let (overdue, rest) = std::mem::take(unplaced).into_iter().partition::<Vec<_>, _>(|(until, _)| *until <= now);
    *unplaced = rest;
    all.extend(overdue.into_iter().rev().map(|(_, hint)| (hint.header.ms, false, Happened::Hinted(hint))));
    all.reverse();
    all.sort_by_key(|(ms, after, _)| (*ms, *after));
    all.into_iter().map(|(.., happened)| happened).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::accesses::{Hinted, Served};
    use monarch_abi::hint::{Header, Kind};

    fn opened(id: u32, ms: u64) -> Noted {
        Noted::Opened(Opened { segment: 0, id, served: Served::Tier, ms })
    }

    fn hint(number: u32, ms: u64) -> Hint {
        Hint { header: Header { kind: Kind::EpochEnd, process: 7, value: 0, ms, number }, files: Vec::new() }
    }

    fn word(hint: &Hint) -> Noted {
        Noted::Hinted(Hinted { tag: hint.header.tag(), ms: hint.header.ms })
    }

    /// Opens by their ids, hints by 1000 and their number.
    fn told(noted: Vec<(usize, Noted)>, unplaced: &mut Unplaced, now: u64) -> Vec<u32> {
        let id = |happened: &Happened| match happened {
            Happened::Opened(_, o) => o.id,
            Happened::Hinted(h) => 1000 + h.header.number,
        };
        in_order(noted, unplaced, now).iter().map(id).collect()
    }

    #[test]
    fn what_a_process_opened_within_the_tick_of_its_hint_stays_on_its_side() {
        let (end, begin) = (hint(1, 5), hint(2, 5));
        let lane = [opened(1, 1), opened(2, 5), word(&end), word(&begin), opened(3, 5), opened(4, 9)];
        let mut unplaced = vec![(100, end), (100, begin)];
        assert_eq!(told(lane.map(|w| (3, w)).to_vec(), &mut unplaced, 9), [1, 2, 1001, 1002, 3, 4]);
        assert!(unplaced.is_empty());
    }

    #[test]
    fn what_others_opened_within_a_tick_comes_behind_the_hint() {
        let h = hint(1, 5);
        let noted = vec![
            (0, opened(1, 4)),
            (0, opened(2, 5)),
            (1, opened(3, 5)),
            (1, word(&h)),
            (1, opened(4, 5)),
            (2, opened(5, 5)),
            (2, opened(6, 6)),
        ];
        assert_eq!(told(noted, &mut vec![(100, h)], 9), [1, 3, 1001, 2, 4, 5, 6]);
    }

    #[test]
    fn a_hint_without_a_place_waits_for_it_and_then_comes_when_it_says() {
        let mut unplaced = vec![(100, hint(1, 5))];
        assert_eq!(told(vec![(0, opened(1, 4)), (0, opened(2, 6))], &mut unplaced, 99), [1, 2]);
        assert_eq!(unplaced.len(), 1);
        assert_eq!(told(vec![(0, opened(3, 4)), (0, opened(4, 6))], &mut unplaced, 100), [3, 1001, 4]);
        assert!(unplaced.is_empty());
        // A word whose hint was overdue, or never came, means nothing.
        assert_eq!(told(vec![(0, word(&hint(1, 7))), (0, opened(5, 7))], &mut unplaced, 101), [5]);
    }
}
