//! Properties of every policy, for any sequence of events: decisions fit the rooms, victims are
//! resident, and all follows from the seed.

mod model;

use model::{Counts, Model, Rng};
use monarch_policies::hints::Priority;
use monarch_policies::{
    Access, Candidate, Decision, Event, FileKey, Hints, NAMES, RequestSource, Served, TierRoom, bounds, by_name,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

/// What happens in a job. Files and streams are numbers that are folded to those of the case.
#[derive(Clone, Debug)]
enum Op {
    Open(u64),
    Drop(u64),
    Epoch,
    /// The next opens of this stream: true or not.
    Announce(u64, Vec<u64>),
    Forget(u64),
    Prioritise(u64, Priority),
    Prefetch,
    /// The agent offers a file of its own accord.
    Offer(u64),
    Usable(usize, bool),
    IndexGone(u32),
}

/// The files of two indexes.
fn key(n: u64) -> FileKey {
    FileKey((n & 1) << 32 | n >> 1)
}

fn op() -> impl Strategy<Value = Op> {
    let file = 0..60u64;
    let priority = prop_oneof![Just(Priority::Never), Just(Priority::Normal), Just(Priority::High)];
    prop_oneof![
        20 => file.clone().prop_map(Op::Open),
        2 => file.clone().prop_map(Op::Drop),
        1 => Just(Op::Epoch),
        2 => (0..3u64, prop::collection::vec(file.clone(), 0..80)).prop_map(|(s, order)| Op::Announce(s, order)),
        1 => (0..3u64).prop_map(Op::Forget),
        2 => (file.clone(), priority).prop_map(|(f, p)| Op::Prioritise(f, p)),
        4 => Just(Op::Prefetch),
        2 => file.prop_map(Op::Offer),
        1 => (0..3usize, any::<bool>()).prop_map(|(t, u)| Op::Usable(t, u)),
        1 => (0..3u32).prop_map(Op::IndexGone),
    ]
}

fn apply(m: &mut Model, op: &Op, sizes: &[u64], epoch: &mut u32) {
    match op {
        Op::Open(f) => m.open(key(*f)),
        Op::Drop(f) => m.drop_copy(key(*f)),
        Op::Epoch => {
            *epoch += 1;
            m.event(&Event::Epoch { number: *epoch });
        }
        Op::Announce(stream, order) => m.announce(*stream, order.iter().copied().map(key).collect()),
        Op::Forget(stream) => {
            m.hints.forget(*stream);
            m.event(&Event::Hinted);
        }
        Op::Prioritise(f, priority) => m.prioritise(key(*f), *priority),
        Op::Prefetch => m.prefetch(),
        Op::Offer(f) => {
            // (Some files are not among those known.)
            let size = sizes.get(*f as usize).copied().unwrap_or(1);
            m.place(key(*f), size, RequestSource::Prefetch);
        }
        Op::Usable(tier, usable) => m.set_usable(*tier, *usable),
        Op::IndexGone(index) => m.index_gone(*index),
    }
}

fn replay(name: &str, ops: &[Op], capacities: &[u64], sizes: &[u64], seed: u64) -> (BTreeSet<FileKey>, Counts) {
    let files = sizes.iter().enumerate().map(|(n, size)| (key(n as u64), *size));
    let mut m = Model::new(by_name(name, seed).unwrap(), capacities, files);
    let mut epoch = 0;
    ops.iter().for_each(|op| apply(&mut m, op, sizes, &mut epoch));
    (m.resident(), m.counts())
}

/// Events in an order that no agent would send, about files that do not exist.
fn event() -> impl Strategy<Value = Event> {
    let file = prop_oneof![0..40u64, any::<u64>()].prop_map(FileKey);
    let size = prop_oneof![0..100u64, any::<u64>()];
    let tier = prop_oneof![0..3usize, any::<usize>()];
    prop_oneof![
        4 => (file.clone(), size.clone(), size.clone(), tier)
            .prop_map(|(file, size, cost, tier)| Event::Placed { file, size, cost, tier }),
        2 => file.clone().prop_map(|file| Event::Dropped { file }),
        1 => prop_oneof![Just(0), any::<u32>()].prop_map(|index| Event::IndexGone { index }),
        4 => (file.clone(), size.clone()).prop_map(|(file, size)| {
            Event::Access(Access { file, size, at: Duration::ZERO, stream: 0, served: Served::Waited })
        }),
        1 => any::<u32>().prop_map(|number| Event::Epoch { number }),
        1 => Just(Event::Hinted),
        2 => (file, size.clone(), any::<u64>()).prop_map(|(file, size, ns)| Event::Fetched {
            file,
            size,
            took: Duration::from_nanos(ns)
        }),
        1 => (0..10_000u64, size.clone(), size).prop_map(|(files, bytes, capacity)| Event::Extent { files, bytes, capacity }),
    ]
}

fn question() -> impl Strategy<Value = (Candidate, Vec<TierRoom>)> {
    let file = prop_oneof![0..40u64, any::<u64>()].prop_map(FileKey);
    let bytes = || prop_oneof![0..100u64, any::<u64>()];
    let source = prop_oneof![Just(RequestSource::Demand), Just(RequestSource::Prefetch)];
    let room = (bytes(), bytes(), any::<bool>()).prop_map(|(cost, free, usable)| TierRoom { cost, free, usable });
    (file, bytes(), source, prop::collection::vec(room, 0..4))
        .prop_map(|(file, size, source, rooms)| (Candidate { file, size, source }, rooms))
}

fn sane(decision: &Decision, rooms: &[TierRoom]) -> bool {
    match decision {
        Decision::Refuse(_) => true,
        Decision::Admit(tier) => rooms.get(*tier).is_some_and(|r| r.usable && r.cost <= r.free),
        Decision::Replace { tier, victims } => {
            rooms.get(*tier).is_some_and(|r| r.usable && r.cost > r.free)
                && victims.iter().collect::<BTreeSet<_>>().len() == victims.len()
        }
    }
}

/// Files read once an epoch in orders of their own.
fn epochs(rng: &mut Rng, files: u64, n: usize) -> Vec<Vec<FileKey>> {
    (0..n).map(|_| rng.shuffled((0..files).map(FileKey))).collect()
}

/// The policies that track residents.
const REPLACING: &[&str] = &["ops_per_byte", "clairvoyant", "lru", "lfu", "random"];

#[test]
fn favoured_files_come_in_and_stay() {
    for name in REPLACING {
        let mut m = Model::new(by_name(name, 1).unwrap(), &[10], (0..100).map(|n| (FileKey(n), 1)));
        let files = || (0..40).map(FileKey);
        files().for_each(|f| m.open(f));
        (90..95).for_each(|n| m.prioritise(FileKey(n), Priority::High));
        (90..95).for_each(|n| m.open(FileKey(n)));
        (0..3).for_each(|_| files().for_each(|f| m.open(f)));
        assert!((90..95).all(|n| m.resident().contains(&FileKey(n))), "{name}");
    }
}

#[test]
fn every_policy_forgets_an_index_that_is_gone() {
    for name in REPLACING {
        let other = |n: u64| FileKey(1 << 32 | n);
        let files = (0..100).flat_map(|n| [(FileKey(n), 1), (other(n), 1)]);
        let mut m = Model::new(by_name(name, 1).unwrap(), &[6, 14], files);
        (0..10).for_each(|n| {
            m.open(FileKey(n));
            m.open(other(n));
        });
        assert_eq!(m.resident().len(), 20);
        m.index_gone(1);
        assert_eq!(m.resident(), (0..10).map(FileKey).collect());
        // (The model checks that victims are there.)
        (0..3).for_each(|_| (0..60).for_each(|n| m.open(FileKey(n))));
        (0..3).for_each(|_| (0..60).for_each(|n| m.open(other(n))));
        assert_eq!(m.resident().len(), 20, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// The model checks rooms, victims and priorities at each decision.
    #[test]
    fn decisions_fit_after_any_event_and_follow_from_the_seed(
        ops in prop::collection::vec(op(), 1..400),
        capacities in prop::collection::vec(0..60u64, 1..4),
        sizes in prop::collection::vec(0..12u64, 50),
        seed in any::<u64>(),
    ) {
        for name in NAMES {
            let once = replay(name, &ops, &capacities, &sizes, seed);
            prop_assert_eq!(once, replay(name, &ops, &capacities, &sizes, seed), "{}", name);
        }
    }

    #[test]
    fn no_order_of_events_upsets_a_policy(
        steps in prop::collection::vec((event(), question(), any::<u64>()), 1..200),
        orders in prop::collection::vec(prop::collection::vec(0..40u64, 0..60), 1..4),
    ) {
        for name in NAMES {
            let mut policy = by_name(name, 1).unwrap();
            let mut hints = Hints::default();
            for (event, (candidate, rooms), chance) in &steps {
                if chance % 16 == 0 {
                    let order = &orders[*chance as usize % orders.len()];
                    hints.announce(chance % 3, order.iter().copied().map(FileKey).collect());
                }
                if chance % 64 == 1 {
                    hints.forget_all();
                }
                policy.event(event, &hints);
                let decision = policy.place(candidate, rooms, &hints);
                prop_assert!(sane(&decision, rooms), "{}: {:?} for {:?} in {:?}", name, decision, candidate, rooms);
                policy.next(chance % 2, &hints);
            }
        }
    }

    #[test]
    fn no_policy_beats_belady(accesses in prop::collection::vec(0..30u64, 1..500), capacity in 0..30usize) {
        let accesses: Vec<_> = accesses.into_iter().map(FileKey).collect();
        let most = bounds::belady(&accesses, capacity);
        for name in NAMES {
            let mut m = Model::new(by_name(name, 1).unwrap(), &[capacity as u64], (0..30).map(|n| (FileKey(n), 1)));
            accesses.iter().for_each(|f| m.open(*f));
            let hits = m.counts().hits;
            prop_assert!(hits <= most, "{}: {} of {}", name, hits, most);
        }
    }

    /// Wrong hints cost transfers, at worst one for each file announced; they break nothing. The
    /// bytes read from the PFS are never less than Belady's misses.
    #[test]
    fn wrong_hints_break_nothing(seed in any::<u64>(), wrong in 0..5u8, capacity in 10..90usize) {
        const FILES: u64 = 100;
        let mut rng = Rng(seed);
        let mut m = Model::new(by_name("clairvoyant", 1).unwrap(), &[capacity as u64], (0..FILES).map(|n| (FileKey(n), 1)));
        let orders = epochs(&mut rng, FILES, 4);
        let mut announced = 0;
        for order in &orders {
            let hint = match wrong {
                0 => rng.shuffled(order.iter().copied()),
                1 => order[..50].to_vec(),
                2 => order.iter().map(|f| FileKey(f.0 * 2)).collect(),
                3 => order.iter().copied().chain(order.iter().copied()).collect(),
                _ => order.iter().rev().copied().collect(),
            };
            announced += hint.len() as u64;
            m.announce(1, hint.clone());
            // Another stream announces the same files.
            m.announce(2, hint.into_iter().rev().collect());
            for file in order {
                m.prefetch();
                m.open(*file);
            }
        }
        let counts = m.counts();
        let most = bounds::belady(&orders.concat(), capacity);
        prop_assert!(counts.fetched() >= counts.opens - most);
        prop_assert!(counts.prefetched <= 2 * announced);
    }

    #[test]
    fn with_true_hints_the_pfs_serves_only_the_files_without_room(seed in any::<u64>(), capacity in 20..300usize) {
        const FILES: u64 = 300;
        let mut rng = Rng(seed);
        let mut m = Model::new(by_name("clairvoyant", 1).unwrap(), &[capacity as u64], (0..FILES).map(|n| (FileKey(n), 1)));
        for (epoch, order) in epochs(&mut rng, FILES, 4).into_iter().enumerate() {
            // The order of two readers that take turns.
            let half = |of: usize| order.iter().copied().skip(of).step_by(2).collect();
            m.announce(1, half(0));
            m.announce(2, half(1));
            for file in order {
                m.prefetch();
                m.open(file);
            }
            let fetched = m.counts().fetched();
            let outside = if epoch == 0 { FILES } else { FILES - capacity as u64 };
            prop_assert!(fetched.abs_diff(outside) <= 3, "{} of {}", fetched, outside);
        }
    }
}
