//! Simulates all combinations of policies, capacities and numbers of nodes, in parallel: each
//! simulation runs on a core of its own.

use super::given::Capacity;
use super::row::{Bound, Row};
use crate::progress;
use monarch_policies::sim::{Model, Setup, Workload, belady, belady_later, simulate, static_share};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The values to combine.
pub(super) struct Sweep<'a> {
    pub(super) work: &'a Workload,
    pub(super) model: &'a Model,
    pub(super) policies: &'a [String],
    pub(super) capacities: &'a [Capacity],
    pub(super) nodes: &'a [u32],
    pub(super) prefetch: bool,
    pub(super) hints: bool,
    pub(super) seed: u64,
}

impl Sweep<'_> {
    /// Rows in the order of policies, capacities, numbers of nodes.
    pub(super) fn run(&self, quiet: bool) -> Vec<Row> {
        let mut cases = Vec::new();
        for policy in self.policies {
            for capacity in self.capacities {
                cases.extend(self.nodes.iter().map(|nodes| (policy, capacity, *nodes)));
            }
        }
        let all = cases.iter().map(|(.., nodes)| self.work.accesses(*nodes)).sum();
        let rows = progress::while_counting(quiet, all, |opened| {
            let bounds = self.bounds();
            side_by_side(&cases, |(policy, capacity, nodes)| self.case(policy, capacity, *nodes, &bounds, opened))
        });
        let mut rows: Vec<Row> = rows.into_iter().flatten().collect();
        compare(&mut rows);
        rows
    }

    fn case(&self, policy: &str, room: &Capacity, nodes: u32, bounds: &Bounds, opened: &AtomicU64) -> Option<Row> {
        let capacities = room.bytes(self.work);
        let setup = Setup {
            policy,
            nodes,
            capacities: &capacities,
            model: self.model,
            prefetch: self.prefetch,
            hints: self.hints,
            seed: self.seed,
        };
        // (Names were looked up when the command line was read.)
        let outcome = simulate(self.work, &setup, &mut |n| _ = opened.fetch_add(n, Ordering::Relaxed)).ok()?;
        let bound = bounds.get(&(room.label.clone(), nodes))?.clone();
        let (policy, label) = (policy.to_owned(), room.label.clone());
        Some(Row { policy, label, capacities, nodes, outcome, bound, scaling: 1.0 })
    }

    fn bounds(&self) -> Bounds {
        let each =
            |room: &Capacity, nodes: u32| ((room.label.clone(), nodes), room.bytes(self.work).iter().sum::<u64>());
        let wanted: BTreeMap<(String, u32), u64> =
            self.capacities.iter().flat_map(|room| self.nodes.iter().map(move |nodes| each(room, *nodes))).collect();
        let wanted: Vec<((String, u32), u64)> = wanted.into_iter().collect();
        let found = side_by_side(&wanted, |((_, nodes), capacity)| Bound {
            pfs_bytes: belady(self.work, *nodes, *capacity),
            later: belady_later(self.work, *nodes, *capacity),
            static_share: static_share(self.work, *nodes, *capacity),
        });
        wanted.into_iter().map(|(key, _)| key).zip(found).collect()
    }
}

type Bounds = BTreeMap<(String, u32), Bound>;

/// Throughput per node beside that of the fewest nodes, other things being equal; in later epochs.
fn compare(rows: &mut [Row]) {
    let spent = |r: &Row| r.outcome.later().time.as_secs_f64() * f64::from(r.nodes);
    let fewest: Vec<f64> = rows
        .iter()
        .map(|row| {
            let same = rows.iter().filter(|r| r.policy == row.policy && r.label == row.label);
            same.min_by_key(|r| r.nodes).map_or(0.0, spent)
        })
        .collect();
    for (row, best) in rows.iter_mut().zip(fewest) {
        let spent = spent(row);
        row.scaling = if spent > 0.0 { best / spent } else { 1.0 };
    }
}

/// Does the same with all items, as many at a time as there are cores.
fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                while let Some((at, item)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, items.get(at)?)))
                {
                    let result = work(item);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
