//! Half of the bytes in files of 100 KiB, half in files a hundred times larger, room for a quarter;
//! and sizes spread evenly by magnitude.

mod model;

use model::{Counts, Model, Rng, ops};
use monarch_policies::{Event, FileKey, bounds, by_name};

const SMALL_BYTES: u64 = 100 << 10;
const LARGE_BYTES: u64 = 100 * SMALL_BYTES;
const LARGE_FILES: u64 = 500;
const SMALL_FILES: u64 = 100 * LARGE_FILES;

fn files() -> impl Iterator<Item = (FileKey, u64)> {
    (0..SMALL_FILES + LARGE_FILES).map(|n| (FileKey(n), if n < SMALL_FILES { SMALL_BYTES } else { LARGE_BYTES }))
}

fn run(name: &str, orders: impl Iterator<Item = Vec<FileKey>>) -> Vec<Counts> {
    let room = files().map(|(_, size)| size).sum::<u64>() / 4;
    let mut m = Model::new(by_name(name, 1).unwrap(), &[room], files());
    let epoch = |(number, order): (usize, Vec<FileKey>)| {
        m.event(&Event::Epoch { number: number as u32 + 1 });
        order.into_iter().for_each(|file| m.open(file));
        m.counts()
    };
    orders.enumerate().map(epoch).collect()
}

fn shuffled(seed: u64) -> impl Iterator<Item = Vec<FileKey>> {
    let mut rng = Rng(seed);
    (0..3).map(move |_| rng.shuffled(files().map(|(file, _)| file)))
}

fn saved(epoch: &Counts) -> u64 {
    files().map(|(_, size)| ops(size)).sum::<u64>() - epoch.ops
}

#[test]
fn small_files_first_saves_nearly_twice_the_operations() {
    let values: Vec<_> = files().map(|(_, size)| (ops(size) as f64, size)).collect();
    let most = bounds::knapsack(&values, files().map(|(_, size)| size).sum::<u64>() / 4);
    let (mut first, mut dense) = (0, 0);
    for seed in 0..4 {
        let epochs = run("ops_per_byte", shuffled(seed));
        epochs[1..].iter().for_each(|e| println!("{} saved of {most} at most, {} replaced", saved(e), e.replaced));
        assert!(saved(&epochs[2]) as f64 > 0.99 * most);
        dense += saved(&epochs[2]);
        first += saved(&run("first_epoch", shuffled(seed))[2]);
    }
    println!("{:.3} times first_epoch", dense as f64 / first as f64);
    assert!(dense as f64 >= 1.9 * first as f64);
}

#[test]
fn the_order_of_large_and_small_files_does_not_matter() {
    let sorted = |large_first: bool| {
        let mut order: Vec<FileKey> = files().map(|(file, _)| file).collect();
        if large_first {
            order.reverse();
        }
        run("ops_per_byte", std::iter::repeat_n(order, 3))
    };
    let (large, small) = (sorted(true), sorted(false));
    println!("{} and {}", saved(&large[2]), saved(&small[2]));
    assert!(saved(&large[2]) as f64 > 0.97 * saved(&small[2]) as f64);
    // At rest: no file is exchanged for its like.
    assert_eq!((large[2].replaced, small[2].replaced), (0, 0));
}

/// 1 KiB to 16 MiB, each power of two alike.
fn spread() -> impl Iterator<Item = (FileKey, u64)> {
    let mut rng = Rng(9);
    (0..20_000).map(move |n| (FileKey(n), (1024.0 * 2f64.powf(rng.below(14_000) as f64 / 1_000.0)) as u64))
}

#[test]
fn sizes_of_all_magnitudes_come_near_the_knapsack_and_come_to_rest() {
    let cost = |size: u64| 1e-3 * ops(size) as f64 + 1e-9 * size as f64;
    let values: Vec<_> = spread().map(|(_, size)| (cost(size), size)).collect();
    let bytes: u64 = values.iter().map(|(_, size)| size).sum();
    let mut rng = Rng(2);
    for part in [10, 4, 2] {
        let most = bounds::knapsack(&values, bytes / part);
        let saved = |resident: std::collections::BTreeSet<FileKey>| -> f64 {
            spread().filter(|(file, _)| resident.contains(file)).map(|(_, size)| cost(size)).sum()
        };
        let mut m = Model::new(by_name("ops_per_byte", 1).unwrap(), &[bytes / part], spread());
        let mut replaced = 0;
        for number in 1..=5 {
            m.event(&Event::Epoch { number });
            rng.shuffled(spread().map(|(file, _)| file)).into_iter().for_each(|f| m.open(f));
            replaced = m.counts().replaced;
            println!("1/{part}, epoch {number}: {:.3} of the most, {replaced} replaced", saved(m.resident()) / most);
        }
        assert!(saved(m.resident()) > 0.95 * most);
        assert!(replaced < 200, "{replaced}");
    }
}
