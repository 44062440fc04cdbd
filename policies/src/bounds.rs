//! Closed forms and exact bounds of what policies can reach: the simulator prints them beside what
//! policies do reach.
//!
//! Setting, unless said otherwise: n files of one size, each read once an epoch, in an order drawn
//! independently for each epoch; room for C = c n of them; an epoch after the first; n large (terms
//! of order 1/n are left out). Shares are of the opens of one epoch.

use crate::FileKey;
use std::collections::{BTreeSet, HashMap};

/// Expected share of hits of a set that never changes and fills the share `c` of the room
/// (`first_epoch`, `static`).
///
/// Each resident file is read once an epoch and hits; the others never do: C of n.
#[must_use]
pub fn static_set(c: f64) -> f64 {
    share(c)
}

/// The largest share of hits of any policy that fetches on demand, whatever it knows of the future
/// (Belady's MIN with bypass).
///
/// A hit in epoch e + 1 is on a file that was fetched, at the latest, when it was read in epoch e,
/// since it is read only once in e + 1. So it was resident at the border of the two epochs. At most
/// C files are resident at one time: no more than C hits an epoch. A set that never changes reaches
/// that. (Files fetched ahead within the epoch hit too, but each is a read of the PFS: no policy
/// has fewer than n - C of those.)
#[must_use]
pub fn min_shuffled(c: f64) -> f64 {
    share(c)
}

/// Expected share of hits of LRU: c + (1 - c) ln(1 - c).
///
/// Take a file read at the position x n of epoch e and y n of epoch e + 1; x and y are independent
/// and even on [0, 1]. It hits iff fewer than C other files were read in between. Those are the
/// (1 - x) n that come behind it in e, and the y n that come before it in e + 1. As the orders are
/// independent, one of the others is in neither part with probability x (1 - y): so there are
/// n (1 - x (1 - y)) different ones, up to fluctuations of order sqrt(n). Hit iff
/// 1 - x (1 - y) < c, that is u v > t with u = x, v = 1 - y, both even on [0, 1], and t = 1 - c.
/// Now
///
/// P(u v <= t) = t + integral from t to 1 of t / u du = t - t ln t, hence P(hit) = 1 - t + t ln t =
/// c + (1 - c) ln(1 - c).
///
/// For small c that is about c^2 / 2: a cache of a tenth of the files hits one open in 190.
#[must_use]
pub fn lru_shuffled(c: f64) -> f64 {
    let t = 1.0 - share(c);
    if t > 0.0 { 1.0 - t + t * t.ln() } else { 1.0 }
}

/// Share of hits of LRU when all epochs have the same order: none unless all fits.
///
/// Between two reads of a file all n - 1 others are read; it hits iff n - 1 < C.
#[must_use]
pub fn lru_cyclic(c: f64) -> f64 {
    if share(c) < 1.0 { 0.0 } else { 1.0 }
}

/// Expected share of hits of random replacement: -c ln(1 - c + c e^(-1/c)).
///
/// Time is the position in the epoch, from 0 to 1; M(y) n files are missed up to y. Each miss drops
/// one of C residents, evenly: a resident survives k n misses with probability e^(-k/c). A file
/// read at x of the epoch before, and now at y, hits with e^(-(M(1) - M(x) + M(y))/c), and x is
/// even on [0, 1]. So h(y) = A e^(-M(y)/c), where A = e^(-M(1)/c) integral over x of e^(M(x)/c) is
/// a constant. With w = e^(M/c) and M' = 1 - h it follows that w' = (w - A) / c, w = A + (1 - A)
/// e^(y/c); put into A = (integral of w) / w(1), that gives A = c. The share of hits is 1 - M(1) =
/// 1 - c ln w(1), which is the above.
#[must_use]
pub fn random_shuffled(c: f64) -> f64 {
    let c = share(c);
    if c > 0.0 { -c * (1.0 - c + c * (-1.0 / c).exp()).ln() } else { 0.0 }
}

fn share(c: f64) -> f64 {
    if c.is_nan() { 0.0 } else { c.clamp(0.0, 1.0) }
}

/// Hits of Belady's MIN with bypass on a sequence of files of one size with room for `capacity` of
/// them. No policy that fetches on demand has more hits, and none that fetches ahead makes fewer
/// than `accesses.len()` less these reads of the PFS.
///
/// On a miss the file comes in if there is room, or if a resident is used later than the file will
/// be (the resident that is used last of all is dropped). Files that are never used again stay out.
/// O(log capacity) an access.
#[must_use]
pub fn belady(accesses: &[FileKey], capacity: usize) -> u64 {
    let next = next_uses(accesses);
    // Residents by their next use; uses are unique.
    let mut residents = BTreeSet::new();
    let mut hits = 0;
    for (now, &then) in next.iter().enumerate() {
        hits += u64::from(residents.remove(&now));
        if then == NEVER {
            continue;
        }
        // (After a hit there is room: its own.)
        residents.insert(then);
        if residents.len() > capacity {
            residents.pop_last();
        }
    }
    hits
}

const NEVER: usize = usize::MAX;

/// For each access, the index of the next access to its file; `NEVER` when there is none.
fn next_uses(accesses: &[FileKey]) -> Vec<usize> {
    let mut last: HashMap<FileKey, usize> = HashMap::new();
    let mut next = vec![NEVER; accesses.len()];
    for (now, file) in accesses.iter().enumerate() {
        if let Some(before) = last.insert(*file, now) {
            next[before] = now;
        }
    }
    next
}

/// The fractional optimum of a knapsack: the largest value of files, given as value and cost, that
/// fit into `capacity`, where a part of a file would count as that part of its value. No set of
/// whole files is worth more (Dantzig 1957): an exchange of equal amounts of a denser file for one
/// that is less dense never loses, so that the densest, in order, up to the capacity are best.
#[must_use]
pub fn knapsack(files: &[(f64, u64)], capacity: u64) -> f64 {
    let density = |f: &(f64, u64)| f.0 / f.1.max(1) as f64;
    let mut files = files.to_vec();
    files.sort_unstable_by(|x, y| density(y).total_cmp(&density(x)));
    let (mut left, mut value) = (capacity as f64, 0.0);
    for (worth, cost) in files {
        let cost = cost.max(1) as f64;
        let part = (left / cost).clamp(0.0, 1.0);
        value += part * worth;
        left -= part * cost;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Chance;

    fn keys(files: &[u64]) -> Vec<FileKey> {
        files.iter().map(|n| FileKey(*n)).collect()
    }

    #[test]
    fn belady_by_hand() {
        // 1 2 3 1 2 3 with room for two: 1 and 2 stay, 3 bypasses.
        assert_eq!(belady(&keys(&[1, 2, 3, 1, 2, 3]), 2), 2);
        assert_eq!(belady(&keys(&[1, 1, 1]), 1), 2);
        assert_eq!(belady(&keys(&[1, 1, 1]), 0), 0);
        assert_eq!(belady(&[], 3), 0);
        // 2 is used sooner than 1, which is dropped.
        assert_eq!(belady(&keys(&[1, 2, 2, 3, 3, 1]), 1), 2);
    }

    #[test]
    fn belady_is_the_best_of_all_choices_on_short_sequences() {
        // All ways to serve a sequence: on a miss bypass, or replace any resident.
        fn best(accesses: &[u64], residents: &[u64], capacity: usize) -> u64 {
            let Some((file, rest)) = accesses.split_first() else { return 0 };
            if residents.contains(file) {
                return 1 + best(rest, residents, capacity);
            }
            let mut most = best(rest, residents, capacity);
            if residents.len() < capacity {
                most = most.max(best(rest, &[residents, &[*file]].concat(), capacity));
            }
            for at in 0..residents.len() {
                let mut others = residents.to_vec();
                others[at] = *file;
                most = most.max(best(rest, &others, capacity));
            }
            most
        }
        let mut chance = Chance::new(5);
        for _ in 0..200 {
            let accesses: Vec<u64> = (0..9).map(|_| chance.below(4) as u64).collect();
            for capacity in 1..4 {
                assert_eq!(belady(&keys(&accesses), capacity), best(&accesses, &[], capacity), "{accesses:?}");
            }
        }
    }

    /// The share of pairs of positions that hit, by the definition: the other files counted one by
    /// one.
    fn lru_by_counting(n: usize, capacity: usize, rounds: usize) -> f64 {
        let mut chance = Chance::new(11);
        let shuffled = |chance: &mut Chance| {
            let mut at: Vec<usize> = (0..n).collect();
            (1..n).rev().for_each(|i| at.swap(i, chance.below(i + 1)));
            at
        };
        let mut hits = 0;
        for _ in 0..rounds {
            let (before, after) = (shuffled(&mut chance), shuffled(&mut chance));
            let file = chance.below(n);
            let between = (0..n).filter(|f| *f != file && (before[*f] > before[file] || after[*f] < after[file]));
            hits += usize::from(between.count() < capacity);
        }
        hits as f64 / rounds as f64
    }

    #[test]
    fn the_closed_form_of_lru_agrees_with_counting() {
        for c in [0.1, 0.25, 0.5, 0.75, 0.9] {
            let counted = lru_by_counting(500, (500.0 * c) as usize, 8_000);
            // Three standard deviations of 8,000 draws, and the terms of order 1/n.
            assert!((counted - lru_shuffled(c)).abs() < 0.02, "c {c}: {counted} against {}", lru_shuffled(c));
        }
        assert!((lru_shuffled(0.5) - 0.1534).abs() < 1e-4);
        assert_eq!((lru_shuffled(0.0), lru_shuffled(1.0), lru_shuffled(2.0)), (0.0, 1.0, 1.0));
        assert_eq!((lru_cyclic(0.99), lru_cyclic(1.0)), (0.0, 1.0));
    }

    #[test]
    fn the_bounds_are_in_order_and_meet_where_nothing_or_all_fits() {
        for c in (0..=100).map(|n| f64::from(n) / 100.0) {
            let (lru, random, most) = (lru_shuffled(c), random_shuffled(c), min_shuffled(c));
            assert!(0.0 <= lru && lru <= random + 1e-12 && random <= most + 1e-12, "{c}: {lru} {random} {most}");
        }
        assert_eq!((random_shuffled(0.0), random_shuffled(1.0), static_set(f64::NAN)), (0.0, 1.0, 0.0));
    }

    #[test]
    fn knapsack_takes_the_densest_and_a_part_of_the_last() {
        assert_eq!(knapsack(&[(10.0, 10), (9.0, 3), (1.0, 1)], 9), 15.0);
        assert_eq!(knapsack(&[(10.0, 10)], 100), 10.0);
        assert_eq!(knapsack(&[], 1), 0.0);
    }
}
