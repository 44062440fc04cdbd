use super::*;
use crate::Epochs;
use crate::streams::Rng;
use proptest::prelude::*;

/// Runs a job that announces its epochs; the orders that were learned, with the epoch (from 0) and
/// the position in it.
fn run(l: &mut OrderPredictor, epochs: &[Vec<FileKey>]) -> Vec<(usize, usize, Vec<FileKey>)> {
    let mut orders = Vec::new();
    for (n, epoch) in epochs.iter().enumerate() {
        l.epoch_began();
        orders.extend(l.order().map(|o| (n, 0, o)));
        for (at, file) in epoch.iter().enumerate() {
            l.access(*file);
            orders.extend(l.order().map(|o| (n, at + 1, o)));
        }
    }
    orders
}

fn files(n: u64) -> Vec<FileKey> {
    Rng::new(n).order(0, n)
}

#[test]
fn a_repeating_order_is_given_in_the_second_epoch_and_in_each_later_one() {
    for n in [16, 20, 100, 5000] {
        let order = files(n);
        // (Near the end of an epoch it is given once more.)
        let mut orders = run(&mut OrderPredictor::default(), &vec![order.clone(); 4]);
        orders.dedup_by_key(|t| t.0);
        assert_eq!(orders.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 3], "{n} files");
        let (_, at, rest) = &orders[0];
        assert!(*at <= 16.max(n as usize / 8), "after {at} of {n}");
        assert!(rest.starts_with(&order[*at..]));
        assert!(orders[1..].iter().all(|(_, at, o)| *at == 0 && *o == order));
    }
}

#[test]
fn workers_are_not_quite_in_order() {
    for (n, apart) in [(300, 4), (5000, 100), (50_000, 400)] {
        let mut r = Rng::new(n);
        let order = files(n);
        let epochs: Vec<Vec<FileKey>> = (0..4)
            .map(|_| {
                let mut o = order.clone();
                r.jitter(&mut o, apart);
                o
            })
            .collect();
        let mut orders = run(&mut OrderPredictor::default(), &epochs);
        orders.dedup_by_key(|t| t.0);
        assert_eq!(orders.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 3], "{n} files");
        assert!(orders[0].1 <= n as usize / 4, "{}", orders[0].1);
    }
}

#[test]
fn another_order_is_dropped_quickly() {
    let mut l = OrderPredictor::default();
    run(&mut l, &vec![files(5000); 3]);
    assert!(l.repeats());
    let mut r = Rng::new(9);
    l.epoch_began();
    assert!(l.order().is_some_and(|o| o.len() == 5000));
    for f in r.order(0, 5000).into_iter().take(60) {
        l.access(f);
    }
    assert!(!l.repeats() && l.order().is_none());
    // Other files altogether, too.
    run(&mut l, &vec![files(5000); 3]);
    assert!(l.repeats());
    (0..20).for_each(|n| l.access(FileKey(90_000 + n)));
    assert!(!l.repeats());
}

#[test]
fn an_epoch_that_starts_elsewhere_is_found_in_the_order() {
    let order = files(4000);
    let mut l = OrderPredictor::default();
    run(&mut l, std::slice::from_ref(&order));
    l.epoch_began();
    order[1000..].iter().take(700).for_each(|f| l.access(*f));
    let rest = l.order().expect("recognised");
    assert!(rest.ends_with(&order[1700..]) && rest.len() < 2500, "{}", rest.len());
}

#[test]
fn with_epochs_found_from_accesses() {
    let order = files(6000);
    let (mut e, mut l) = (Epochs::default(), OrderPredictor::default());
    let mut orders = Vec::new();
    for n in 0..4 {
        for (at, f) in order.iter().enumerate() {
            l.turn(e.access(*f));
            l.access(*f);
            orders.extend(l.order().map(|o| (n, at, o)));
        }
    }
    // Near the end the start of the next epoch is given, too.
    let near_end: Vec<_> = orders.iter().filter(|(_, at, _)| *at > 4000).cloned().collect();
    assert_eq!(near_end.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 3]);
    for (_, at, o) in &near_end {
        assert!(o[..] == [&order[at + 1..], &order[..6000 / 32]].concat(), "after {at}: {} files", o.len());
    }
    orders.dedup_by_key(|t| t.0);
    assert_eq!(orders.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 3]);
    // Files read until the epoch was sure are not given again.
    for (_, at, o) in &orders {
        assert!(*at <= 1024 && o[..] == order[at + 1..], "after {at}: {} files", o.len());
    }
}

#[test]
fn a_loop_over_a_few_files_is_neither_kept_nor_undecided_without_end() {
    let (mut e, mut l) = (Epochs::default(), OrderPredictor::default());
    let mut most = 0;
    for file in (0..10_000).chain((0..100_000).map(|n| n % 100)).map(FileKey) {
        l.turn(e.access(file));
        l.access(file);
        most = most.max(l.perhaps.as_ref().map_or(0, LinkedHashSet::len));
    }
    assert_eq!(most, 100);
    assert!(l.perhaps.is_none() && e.number() == 1);
    // The next epoch is found all the same.
    for file in (0..10_000).map(FileKey) {
        l.turn(e.access(file));
        l.access(file);
    }
    assert_eq!(e.number(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_shuffled_job_is_never_taken_for_a_repeating_one(seed in any::<u64>(), n in 1u64..3000, epochs in 2usize..6) {
        let mut r = Rng::new(seed);
        let epochs: Vec<Vec<FileKey>> = (0..epochs).map(|_| r.order(0, n)).collect();
        prop_assert!(run(&mut OrderPredictor::default(), &epochs).is_empty());
    }

    #[test]
    fn orders_hold_files_of_the_last_epoch_once(seed in any::<u64>(), n in 16u64..2000, part in 1u64..100) {
        let mut r = Rng::new(seed);
        let order = files(n);
        let part = (n * part / 100).max(1) as usize;
        let mut epochs = vec![order.clone(), order.clone(), order[..part].to_vec(), order.clone()];
        epochs.push(r.order(0, n));
        for (_, _, mut orders) in run(&mut OrderPredictor::default(), &epochs) {
            let len = orders.len();
            prop_assert!(len <= n as usize);
            orders.sort();
            orders.dedup();
            prop_assert_eq!(orders.len(), len);
        }
    }

    #[test]
    fn anything(ops in proptest::collection::vec((0u64..300, 0u8..40), 0..2000)) {
        let (mut e, mut l) = (Epochs::default(), OrderPredictor::default());
        for (file, what) in ops {
            match what {
                0 => l.epoch_began(),
                1 => l.turn(EpochEvent::Perhaps),
                2 => l.turn(EpochEvent::Not),
                3 => drop(l.order()),
                _ => l.turn(e.access(FileKey(file))),
            }
            l.access(FileKey(file));
        }
    }
}
