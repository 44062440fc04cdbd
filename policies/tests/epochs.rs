//! Policies on epochs that are shuffled independently, against their bounds.

mod model;

use model::{Counts, Model, Rng};
use monarch_policies::{Event, FileKey, NAMES, bounds, by_name};

const FILES: u64 = 2_000;

fn model(name: &str, c: f64) -> Model {
    let policy = by_name(name, 7).unwrap();
    Model::new(policy, &[(FILES as f64 * c) as u64], (0..FILES).map(|n| (FileKey(n), 1)))
}

/// Epochs, and what happened in each; `announced`: the order of each is announced as it begins, and
/// files are fetched ahead.
fn run(name: &str, c: f64, epochs: u32, announced: bool) -> Vec<Counts> {
    let (mut m, mut rng) = (model(name, c), Rng(42));
    let epoch = |number| {
        let order = rng.shuffled((0..FILES).map(FileKey));
        m.event(&Event::Epoch { number });
        if announced {
            m.announce(1, order.clone());
            m.prefetch();
        }
        for file in order {
            m.open(file);
            if announced {
                m.prefetch();
            }
        }
        m.counts()
    };
    (1..=epochs).map(epoch).collect()
}

fn mean_hits(counts: &[Counts]) -> f64 {
    counts.iter().map(Counts::hit_share).sum::<f64>() / counts.len() as f64
}

#[test]
fn static_placement_hits_the_share_that_has_room() {
    for c in [0.1, 0.25, 0.5, 0.75, 1.0] {
        for name in ["first_epoch", "static"] {
            let hits = mean_hits(&run(name, c, 4, false)[1..]);
            println!("{name} c {c}: {hits:.4}");
            assert!((hits / bounds::static_set(c) - 1.0).abs() < 0.01, "{name} c {c}: {hits}");
        }
    }
}

#[test]
fn the_static_set_hardly_depends_on_the_order_of_readers() {
    let resident = |seed| {
        let mut m = model("static", 0.25);
        Rng(seed).shuffled((0..FILES).map(FileKey)).into_iter().for_each(|f| m.open(f));
        m.resident()
    };
    let (one, other) = (resident(1), resident(2));
    let both = one.intersection(&other).count();
    println!("{both} of {} and {}", one.len(), other.len());
    assert!(both as f64 > 0.85 * 500.0);
}

#[test]
fn lru_and_random_hit_what_their_closed_forms_say() {
    for c in [0.25, 0.5, 0.75, 0.9] {
        for (name, form) in [("lru", bounds::lru_shuffled(c)), ("random", bounds::random_shuffled(c))] {
            let hits = mean_hits(&run(name, c, 13, false)[3..]);
            println!("{name} c {c}: {hits:.4} against {form:.4}");
            assert!((hits - form).abs() < 0.012, "{name} c {c}: {hits}");
        }
    }
}

#[test]
fn no_policy_hits_more_than_belady_and_belady_hits_the_share_that_has_room() {
    for c in [0.25, 0.5] {
        let mut rng = Rng(42);
        let accesses: Vec<_> = (0..5).flat_map(|_| rng.shuffled((0..FILES).map(FileKey))).collect();
        let most = bounds::belady(&accesses, (FILES as f64 * c) as usize);
        let share = most as f64 / (4 * FILES) as f64;
        println!("belady c {c}: {share:.4}");
        assert!((share - bounds::min_shuffled(c)).abs() < 0.005);
        for name in NAMES {
            let counts = run(name, c, 5, false);
            println!("{name} c {c}: {:.4}, {} replaced", mean_hits(&counts[1..]), counts[4].replaced);
            assert!(counts.iter().map(|e| e.hits).sum::<u64>() <= most, "{name}");
        }
    }
}

#[test]
fn known_orders_save_waiting_and_cost_no_more_of_the_pfs() {
    for c in [0.25, 0.5, 0.75] {
        let counts = run("clairvoyant", c, 5, true);
        let outside = (FILES as f64 * (1.0 - c)) as u64;
        for epoch in &counts[1..] {
            let waited = epoch.opens - epoch.hits;
            println!("clairvoyant c {c}: {} fetched of {outside}, {waited} waited for", epoch.fetched());
            assert!(epoch.fetched().abs_diff(outside) <= 3, "{epoch:?}");
            assert!(waited as f64 <= 0.2 * outside as f64, "{epoch:?}");
        }
    }
}

#[test]
fn two_tiers_are_one_room() {
    for name in NAMES {
        let mut m = Model::new(by_name(name, 7).unwrap(), &[300, 200], (0..1_000).map(|n| (FileKey(n), 1)));
        let mut rng = Rng(3);
        for number in 1..=4 {
            m.event(&Event::Epoch { number });
            rng.shuffled((0..1_000).map(FileKey)).into_iter().for_each(|f| m.open(f));
        }
        assert_eq!(m.resident().len(), 500, "{name}");
    }
}
