use super::*;
use crate::streams::Rng;
use proptest::prelude::*;

/// Number and accesses of each epoch, as counted by a caller that follows the events.
fn counted(e: &mut Epochs, accesses: impl IntoIterator<Item = FileKey>) -> Vec<(u32, u64)> {
    let mut epochs = vec![(e.number(), 0)];
    let mut perhaps: Option<u64> = None;
    for file in accesses {
        let turn = e.access(file);
        match turn {
            EpochEvent::Same => {}
            EpochEvent::Perhaps => {
                let before = perhaps.replace(0).unwrap_or(0);
                epochs.last_mut().unwrap().1 += before;
            }
            EpochEvent::Begun(n) => {
                epochs.push((n, perhaps.take().unwrap_or(0)));
            }
            EpochEvent::Not => epochs.last_mut().unwrap().1 += perhaps.take().expect("a Perhaps before a Not"),
        }
        match &mut perhaps {
            Some(n) => *n += 1,
            None => epochs.last_mut().unwrap().1 += 1,
        }
        assert_eq!(e.number(), epochs.last().unwrap().0);
    }
    epochs.last_mut().unwrap().1 += perhaps.unwrap_or(0);
    epochs
}

fn found(accesses: impl IntoIterator<Item = FileKey>) -> Vec<(u32, u64)> {
    counted(&mut Epochs::default(), accesses)
}

/// Asserts that as many epochs are found as there are lengths, each off by no more than `off`
/// accesses.
fn check(accesses: Vec<FileKey>, lengths: &[u64], off: u64) {
    let found = found(accesses);
    let numbers: Vec<u32> = found.iter().map(|f| f.0).collect();
    assert_eq!(numbers, (1..=lengths.len() as u32).collect::<Vec<_>>(), "{found:?} for {lengths:?}");
    let (mut a, mut b) = (0u64, 0u64);
    for ((_, is), want) in found.iter().zip(lengths) {
        a += is;
        b += want;
        assert!(a.abs_diff(b) <= off, "{found:?} for {lengths:?}");
    }
}

fn repeat(order: &[FileKey], times: usize) -> Vec<FileKey> {
    order.iter().copied().cycle().take(order.len() * times).collect()
}

#[test]
fn the_same_order_every_epoch() {
    let order: Vec<FileKey> = (0..5000).map(FileKey).collect();
    check(repeat(&order, 4), &[5000; 4], 0);
}

#[test]
fn a_second_index_and_the_largest_sets() {
    let order: Vec<FileKey> = (0..40_000).map(|n| FileKey(((n % 2) << 32) | (n / 2))).collect();
    check(repeat(&order, 3), &[40_000; 3], 0);
}

#[test]
fn several_ranks_and_workers() {
    let mut r = Rng::new(1);
    for (files, apart) in [(2000, 64), (20_000, 512), (100_000, 1000)] {
        let mut all = Vec::new();
        for _ in 0..4 {
            all.extend(r.order(0, files));
        }
        // The jitter reaches over the ends of epochs: workers read ahead.
        r.jitter(&mut all, apart);
        check(all, &[files; 4], apart + 32);
    }
}

#[test]
fn padded_samplers() {
    let mut r = Rng::new(2);
    let mut all = Vec::new();
    for _ in 0..5 {
        let order = r.order(0, 1003);
        all.extend(&order);
        all.extend(&order[..13]);
    }
    check(all, &[1016; 5], 24);
}

#[test]
fn a_validation_set_every_few_epochs() {
    let mut r = Rng::new(3);
    for every in [1, 2, 5] {
        let (mut all, mut lengths) = (Vec::new(), Vec::new());
        for n in 1..=10 {
            all.extend(r.order(0, 3000));
            lengths.push(3000);
            if n % every == 0 {
                all.extend(r.order(10_000, 10_500));
                lengths[n - 1] += 500;
            }
        }
        check(all, &lengths, 40);
    }
}

#[test]
fn a_validation_set_that_is_tried_before_the_training() {
    let mut r = Rng::new(4);
    let valid: Vec<FileKey> = (10_000..10_500).map(FileKey).collect();
    let (mut all, mut lengths) = (valid[..64].to_vec(), vec![3564; 4]);
    for _ in 0..4 {
        all.extend(r.order(0, 3000));
        all.extend(r.order(20_000, 20_064));
        all.extend(&valid);
    }
    lengths.fill(3564);
    lengths[0] += 64;
    check(all, &lengths, 64);
}

#[test]
fn reading_ahead_past_the_end() {
    let mut r = Rng::new(5);
    let mut all: Vec<FileKey> = Vec::new();
    for n in 0..6 {
        let order = r.order(0, 8000);
        // Some of the next epoch come before the last ones of this one.
        let at = if n == 0 { 0 } else { all.len() - 200 };
        for (k, f) in order[..200].iter().enumerate() {
            all.insert((at + 2 * k).min(all.len()), *f);
        }
        all.extend(&order[200..]);
    }
    check(all, &[8000; 6], 250);
}

#[test]
fn nodes_that_share_a_shuffle() {
    for (nodes, files) in [(2, 20_000), (4, 40_000), (8, 40_000), (16, 64_000), (32, 128_000), (32, 1_280_000)] {
        let mut r = Rng::new(nodes);
        let share = files / nodes;
        let all: Vec<FileKey> =
            (0..8).flat_map(|_| r.order(0, files).into_iter().take(share as usize).collect::<Vec<_>>()).collect();
        check(all, &[share; 8], share / 5);
    }
}

#[test]
fn padded_shares_of_a_shuffle_are_found_nearly_always() {
    for nodes in [2, 8, 32] {
        let wrong = (0..30).filter(|seed| {
            let mut r = Rng::new(seed * 77 + 5);
            let pass = |_| {
                let mut order = r.order(0, nodes * 2000);
                order.truncate(2000);
                order.extend([order[0], order[3]]);
                order
            };
            found((0..10).flat_map(pass).collect::<Vec<_>>()).len() != 10
        });
        let wrong = wrong.count();
        assert!(wrong <= 1, "{wrong} of 30 jobs on {nodes} nodes");
    }
}

#[test]
fn an_epoch_that_was_missed_does_not_hide_the_next_ones() {
    let mut r = Rng::new(8);
    let mut all: Vec<FileKey> = (0..3).flat_map(|_| r.order(0, 3000)).collect();
    // A small part of the files is read again and again.
    for _ in 0..3 {
        all.extend(r.order(0, 400));
    }
    (0..4).for_each(|_| all.extend(r.order(0, 3000)));
    let n = found(all).len();
    assert!((7..=9).contains(&n), "{n}");
}

#[test]
fn tiny_sets() {
    let eight: Vec<FileKey> = (0..8).map(FileKey).collect();
    let found = found(repeat(&eight, 20));
    let last = found.last().unwrap().0;
    assert!((19..=20).contains(&last), "{found:?}");
    assert_eq!(found[0].1, 8);
    assert_eq!(super::tests::found(repeat(&eight[..1], 1000)).len(), 1);
    let two = super::tests::found(repeat(&eight[..2], 20));
    assert!(two.last().unwrap().0 > 5, "{two:?}");
}

#[test]
fn shuffled_shards() {
    for seed in 0..20 {
        let mut r = Rng::new(seed);
        let all: Vec<FileKey> = (0..20).flat_map(|_| r.order(0, 16)).collect();
        let found = found(all);
        assert!((16..=21).contains(&found.last().unwrap().0), "{found:?}");
    }
}

#[test]
fn files_that_are_opened_twice_or_all_the_time() {
    let mut r = Rng::new(6);
    let meta = FileKey(1 << 40);
    for every in [1, 3, 100, 400, 1000] {
        let mut all = Vec::new();
        let mut lengths = Vec::new();
        for _ in 0..4 {
            let from = all.len();
            for (n, f) in r.order(0, 6000).into_iter().enumerate() {
                if n % every == 0 {
                    all.push(meta);
                }
                all.extend([f, f]);
            }
            lengths.push((all.len() - from) as u64);
        }
        check(all, &lengths, 100);
    }
}

#[test]
fn eight_workers_open_each_of_their_first_samples_twice() {
    let order: Vec<FileKey> = (0..1000).map(FileKey).collect();
    let mut all = Vec::new();
    for _ in 0..3 {
        for eight in order.chunks(8) {
            all.extend(eight);
            all.extend(eight);
        }
    }
    check(all, &[2000; 3], 32);
}

#[test]
fn epochs_that_end_early() {
    let mut r = Rng::new(7);
    let all: Vec<FileKey> =
        (0..6).flat_map(|_| r.order(0, 10_000).into_iter().take(5000).collect::<Vec<_>>()).collect();
    check(all, &[5000; 6], 100);
    let order: Vec<FileKey> = (0..5000).map(FileKey).collect();
    let mut all = repeat(&order, 2);
    all.extend(&order[..2000]);
    all.extend(&order);
    check(all, &[5000, 5000, 2000, 5000], 0);
}

#[test]
fn sampling_with_replacement_gives_some_number() {
    for seed in 0..10 {
        let mut r = Rng::new(seed);
        let all: Vec<FileKey> = (0..100_000).map(|_| FileKey(r.below(5000))).collect();
        let n = found(all).last().unwrap().0;
        // Twenty times as many accesses as there are files.
        assert!((2..=500).contains(&n), "{n}");
    }
}

#[test]
fn four_ranks_announce_the_same_epochs() {
    let mut e = Epochs::default();
    let order: Vec<FileKey> = (0..2000).map(FileKey).collect();
    for n in 5..9 {
        assert_eq!(e.begin(Some(n)), EpochEvent::Begun(n));
        for _ in 0..3 {
            assert_eq!(e.begin(Some(n)), EpochEvent::Same);
        }
        assert_eq!(counted(&mut e, order.iter().copied()), [(n, 2000)]);
        assert!(e.has_read(FileKey(1)) && e.seen() == 2000);
        // A rank that is behind begins the last one.
        (0..4).for_each(|_| e.end());
    }
    assert_eq!(e.begin(Some(9)), EpochEvent::Begun(9));
    e.access(FileKey(0));
    assert_eq!(e.begin(Some(8)), EpochEvent::Same);
    counted(&mut e, order.iter().copied());
    // The job begins from the start.
    assert_eq!(e.begin(Some(8)), EpochEvent::Begun(8));
    assert_eq!(e.begin(Some(0)), EpochEvent::Begun(0));
}

#[test]
fn announcements_without_numbers() {
    for ranks in [1, 2, 8] {
        let mut e = Epochs::default();
        let mut r = Rng::new(ranks);
        for n in 1..6 {
            let order = r.order(0, 4000);
            let turns: Vec<EpochEvent> = (0..ranks).map(|_| e.begin(None)).collect();
            let expected = if n == 1 { EpochEvent::Same } else { EpochEvent::Begun(n) };
            assert_eq!(turns[0], expected);
            assert!(turns[1..].iter().all(|t| *t == EpochEvent::Same), "{ranks} ranks: {turns:?}");
            assert_eq!(counted(&mut e, order), [(n, 4000)]);
            (0..ranks).for_each(|_| e.end());
        }
    }
}

#[test]
fn without_ends_the_files_tell() {
    let mut e = Epochs::default();
    counted(&mut e, (0..3).map(FileKey));
    assert_eq!(e.begin(None), EpochEvent::Begun(1));
    for n in 2..5 {
        assert_eq!(e.begin(None), EpochEvent::Same);
        counted(&mut e, (0..1000).map(FileKey));
        assert_eq!(e.begin(None), EpochEvent::Begun(n));
    }
}

#[test]
fn announcements_that_cease_do_not_rule_forever() {
    let mut e = Epochs::default();
    let order: Vec<FileKey> = (0..3000).map(FileKey).collect();
    e.begin(Some(0));
    counted(&mut e, order.iter().copied());
    e.begin(Some(1));
    let epochs = counted(&mut e, repeat(&order, 6));
    assert!(!e.announced());
    let numbers: Vec<u32> = epochs.iter().map(|x| x.0).collect();
    // Two passes are taken for one.
    assert_eq!(numbers, [1, 2, 3, 4, 5], "{epochs:?}");
    assert!(epochs[0].1.abs_diff(6000) < 100 && epochs[2].1.abs_diff(3000) < 100, "{epochs:?}");
}

#[test]
fn accesses_are_counted_beyond_32_bits() {
    for behind in [10, 4000, 10_000] {
        let order: Vec<FileKey> = (0..3000).map(FileKey).collect();
        let mut e = Epochs { now: u32::MAX - behind, start: u32::MAX - behind + 1, ..Epochs::default() };
        let epochs = counted(&mut e, repeat(&order, 6));
        assert_eq!(epochs.iter().map(|x| x.1).collect::<Vec<_>>(), [3000; 6]);
    }
    // An epoch as long as that.
    let mut e = Epochs { now: u32::MAX, seen: 5, ..Epochs::default() };
    counted(&mut e, (0..3000).map(FileKey));
    assert!(e.has_read(FileKey(2999)));
}

#[derive(Clone, Debug)]
enum Op {
    Access(u64),
    Begin(Option<u32>),
    End,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (0u64..50).prop_map(Op::Access),
        20 => (0u64..2000).prop_map(Op::Access),
        1 => any::<u64>().prop_map(Op::Access),
        1 => proptest::option::of(any::<u32>()).prop_map(Op::Begin),
        1 => Just(Op::End),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever comes, an event is given as documented, and what is said of the epoch agrees with
    /// its accesses.
    #[test]
    fn anything(ops in proptest::collection::vec(op(), 0..3000)) {
        let mut e = Epochs::default();
        let mut perhaps = false;
        for op in ops {
            let turn = match op {
                Op::Access(f) => {
                    let turn = e.access(FileKey(f));
                    prop_assert!(e.seen() >= 1);
                    turn
                }
                Op::Begin(n) => e.begin(n),
                Op::End => { e.end(); EpochEvent::Same }
            };
            match turn {
                EpochEvent::Perhaps => perhaps = true,
                EpochEvent::Not => { prop_assert!(perhaps); perhaps = false }
                EpochEvent::Begun(n) => { prop_assert_eq!(n, e.number()); perhaps = false }
                EpochEvent::Same => {}
            }
            prop_assert!(e.seen() <= e.last.iter().filter(|(_, at)| *at >= e.start).count() as u64);
        }
    }

    /// Shuffled epochs with workers, padding and files opened all the time are found, whatever
    /// their size.
    #[test]
    fn shuffled(seed in any::<u64>(), files in 100u64..6000, passes in 2usize..6, workers in 1u64..8, pad in 0u64..8) {
        let mut r = Rng::new(seed);
        let mut all = Vec::new();
        for _ in 0..passes {
            let order = r.order(0, files);
            all.extend(&order);
            all.extend(&order[..pad as usize]);
        }
        r.jitter(&mut all, workers * (files / 200).min(32));
        let found = found(all);
        if files < 500 {
            // (Small sets leave too little to tell padding from repeats each time.)
            prop_assert!(found.len().abs_diff(passes) <= 1, "{:?}", found);
            return Ok(());
        }
        prop_assert_eq!(found.len(), passes, "{:?}", found);
        for (_, n) in &found {
            prop_assert!(n.abs_diff(files + pad) <= 40 + files / 8, "{:?}", found);
        }
    }

    /// In one epoch no other is found.
    #[test]
    fn a_single_one(seed in any::<u64>(), files in 1u64..5000, twice in 0u64..3) {
        let mut r = Rng::new(seed);
        let all = r.order(0, files).into_iter().flat_map(|f| (0..=twice).map(move |_| f));
        prop_assert_eq!(found(all), [(1, files * (twice + 1))]);
    }
}
