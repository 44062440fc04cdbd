//! Simulations whose outcome is known.

use super::*;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Files of 1 MB read by one rank of each node by itself; a PFS of 1 GB/s that takes 1 ms for each
/// call; nothing else costs anything.
fn made(files: u32, epochs: u32) -> Synthetic {
    Synthetic { files, size: 1_000_000, epochs, ranks: 1, workers: 0, batch: 1, ..Synthetic::default() }
}

fn model() -> Model {
    Model {
        pfs_rate: f64::INFINITY,
        pfs_bandwidth: 1e9,
        link: f64::INFINITY,
        tiers: vec![TierModel { latency: Duration::ZERO, bandwidth: f64::INFINITY }],
        compute: Some(Duration::ZERO),
        ..Model::default()
    }
}

fn run_at(work: &Workload, model: &Model, nodes: u32, capacities: &[u64], prefetch: bool) -> Outcome {
    let setup = Setup { policy: "first_epoch", nodes, capacities, model, prefetch, hints: false, seed: 1 };
    simulate(work, &setup, &mut |_| ()).expect("a policy")
}

fn run(s: &Synthetic, model: &Model, nodes: u32, capacity: u64) -> Outcome {
    run_at(&Workload::synthetic(s, 1), model, nodes, &[capacity], false)
}

#[test]
fn a_file_takes_its_calls_and_its_bytes() {
    // Copied: open, read, check, 1 ms each, and 1 MB at 1 GB/s.
    let copied = run(&made(1, 2), &model(), 1, u64::MAX);
    assert_eq!((copied.epochs[0].time, copied.epochs[1].time), (4 * MS, Duration::ZERO));
    assert_eq!((copied.epochs[0].waits, copied.epochs[1].hits, copied.total().pfs_calls()), (1, 1, 3));
    // Read by the application: open, stat, four reads.
    let app = Model { app_io: 250_000, ..model() };
    let direct = run(&made(1, 2), &app, 1, 10);
    assert_eq!((direct.epochs[0].time, direct.epochs[1].time), (7 * MS, 7 * MS));
    assert_eq!((direct.total().direct, direct.total().metadata_calls, direct.total().read_calls), (2, 4, 8));
    // The tier: 0.5 ms and 1 MB at 2 GB/s, behind the write of the copy.
    let tiers = vec![TierModel { latency: MS / 2, bandwidth: 2e9 }];
    let slow = run(&made(1, 2), &Model { tiers, ..model() }, 1, u64::MAX);
    assert_eq!((slow.epochs[0].time, slow.epochs[1].time), (4 * MS + MS * 3 / 2, MS));
}

#[test]
fn nodes_share_the_bandwidth_and_the_servers_of_metadata() {
    let of =
        |nodes, model: &Model| run(&made(1000, 1), &Model { sync: false, ..model.clone() }, nodes, 0).epochs[0].time;
    // 4 ms a file, of which 1 ms is the wire: four nodes have it busy, eight are no quicker.
    assert_eq!(of(1, &model()), 4000 * MS);
    let [two, four, eight] = [2, 4, 8].map(|nodes| of(nodes, &model()).as_secs_f64());
    assert!(
        (two - 2.0).abs() < 0.01 && (1.0..1.05).contains(&four) && (1.0..1.02).contains(&eight),
        "{two} {four} {eight}"
    );
    // 500 calls a second for 2 calls a file.
    let calls = Model { pfs_rate: 500.0, ..model() };
    assert!((of(16, &calls).as_secs_f64() - 4.0).abs() < 0.05, "{:?}", of(16, &calls));
    // Links of 0.1 GB/s.
    let links = Model { link: 1e8, ..model() };
    assert_eq!(of(1, &links), 13 * 1000 * MS);
}

#[test]
fn first_epoch_hits_its_share_in_every_later_epoch() {
    let s = Synthetic { workers: 3, batch: 16, ranks: 2, ..made(1000, 4) };
    for percent in [0, 10, 25, 55, 100] {
        let capacity = Workload::synthetic(&s, 1).bytes() / 100 * percent;
        let outcome = run(&s, &model(), 1, capacity);
        assert_eq!(outcome.epochs[0].pfs_bytes(), 1_000_000_000);
        for later in &outcome.epochs[1..] {
            assert_eq!((later.hits, later.pfs_bytes()), (percent * 10, (100 - percent) * 10_000_000));
        }
        assert_eq!(belady(&Workload::synthetic(&s, 1), 1, capacity)[3], outcome.epochs[3].pfs_bytes());
    }
}

#[test]
fn a_rank_that_computes_longer_than_it_reads_waits_only_for_the_first_batch() {
    let s = Synthetic { workers: 2, batch: 10, ..made(400, 3) };
    let outcome = run(&s, &Model { compute: Some(100 * MS), ..model() }, 1, u64::MAX);
    // The first batch: 10 files at 4 ms; two processes share the wire.
    let first = outcome.epochs[0].stall;
    assert!((40 * MS..60 * MS).contains(&first), "{first:?}");
    assert_eq!(outcome.epochs[0].time, 40 * 100 * MS + first);
    assert_eq!((outcome.epochs[2].stall, outcome.epochs[2].time), (Duration::ZERO, 4000 * MS));
    assert!((outcome.epochs[2].efficiency() - 1.0).abs() < 1e-9);
}

#[test]
fn a_rank_without_loader_processes_waits_for_every_file() {
    let outcome = run(&made(10, 1), &Model { compute: Some(5 * MS), ..model() }, 1, 0);
    assert_eq!((outcome.epochs[0].time, outcome.epochs[0].stall), (10 * 9 * MS, 10 * 4 * MS));
    assert!((outcome.epochs[0].stall_ratio() - 0.8).abs() < 1e-9);
}

#[test]
fn all_ranks_wait_for_the_slowest() {
    // Of two nodes that read in listing order, one gets the files with even numbers. One of these
    // is large.
    let mut sizes = vec![0; 8];
    sizes[2] = 100_000_000;
    let order = || workload::Order { files: vec![0, 2, 4, 6, 1, 3, 5, 7], ranks: vec![0..4, 4..8], gaps: vec![0; 8] };
    let work = Workload::recorded(sizes, 2, vec![order(), order()]);
    let timed = Model { compute: Some(10 * MS), app_io: u64::MAX, ..model() };
    let together = run_at(&work, &timed, 1, &[0], false);
    // Each file 2 calls, the large one a read call and 100 ms, and the other rank waits for that.
    assert_eq!(together.epochs[0].time, 4 * 12 * MS + 101 * MS);
    assert_eq!(together.epochs[0].sync_wait, 101 * MS);
    assert_eq!(together.epochs[0].compute, 80 * MS);
    let apart = run_at(&work, &Model { sync: false, ..timed }, 1, &[0], false);
    // (Empty files find room in an empty tier, and their second open is a hit.)
    assert_eq!((apart.epochs[0].sync_wait, apart.epochs[1].time), (Duration::ZERO, (10 + 10 + 10 + 113) * MS));
}

#[test]
fn readers_of_a_file_wait_for_one_copy() {
    let same = workload::Order { files: vec![0; 4], ranks: vec![0..1, 1..2, 2..3, 3..4], gaps: vec![0; 4] };
    let work = Workload::recorded(vec![1_000_000], 4, vec![same]);
    let outcome = run_at(&work, &model(), 1, &[u64::MAX], false);
    assert_eq!((outcome.total().waits, outcome.total().pfs_bytes(), outcome.total().pfs_calls()), (4, 1_000_000, 3));
    assert_eq!(outcome.total().time, 4 * MS);
}

#[test]
fn recorded_pauses_are_kept() {
    let order = workload::Order {
        files: vec![0, 1],
        ranks: std::iter::once(0..2).collect(),
        gaps: vec![7_000_000, 20_000_000],
    };
    let work = Workload::recorded(vec![1_000_000; 2], 1, vec![order.clone(), order]);
    let outcome = run_at(&work, &Model { compute: None, ..model() }, 1, &[u64::MAX], false);
    assert_eq!((outcome.epochs[0].time, outcome.epochs[1].time, outcome.epochs[1].ideal), (35 * MS, 27 * MS, 27 * MS));
}

#[test]
fn a_prefetched_file_is_resident_when_a_reader_opens_it() {
    let s = made(100, 2);
    let work = Workload::synthetic(&s, 1);
    let timed = Model { compute: Some(50 * MS), inflight: 8, ..model() };
    let ahead = run_at(&work, &timed, 1, &[u64::MAX], true);
    assert!(ahead.epochs[0].hits > 90 && ahead.epochs[0].prefetched > 90, "{:?}", ahead.epochs[0]);
    assert_eq!(ahead.total().pfs_bytes(), work.bytes(), "each byte once");
    // Room for half: files that are not read soon take it, and nothing more is read than without.
    let half = run_at(&work, &timed, 1, &[work.bytes() / 2], true);
    assert_eq!((half.epochs[1].hits, half.epochs[1].pfs_bytes()), (50, work.bytes() / 2));
    // The order is announced: fetched in that order, demands wait less.
    let setup = Setup {
        policy: "first_epoch",
        nodes: 1,
        capacities: &[u64::MAX],
        model: &timed,
        prefetch: true,
        hints: true,
        seed: 1,
    };
    let announced = simulate(&work, &setup, &mut |_| ()).expect("a policy");
    assert!(
        announced.epochs[0].hits >= 99 && announced.epochs[0].stall <= ahead.epochs[0].stall,
        "{:?}",
        announced.epochs[0]
    );
}

#[test]
fn files_without_bytes_or_calls_are_read_as_well() {
    let none = Calls { before: 0, after: 0 };
    let nothing = Model { agent_calls: none, app_calls: none, ..model() };
    let s = Synthetic { size: 0, batch: 100_000, ..made(100_000, 2) };
    for capacity in [0, 10] {
        let total = run(&s, &nothing, 1, capacity).total();
        assert_eq!((total.time, total.accesses, total.pfs_calls()), (Duration::ZERO, 200_000, 0));
    }
}

#[test]
fn the_seed_determines_all_and_unknown_policies_are_errors() {
    let s = Synthetic { files: 500, workers: 2, ranks: 2, batch: 8, ..made(500, 3) };
    let of = |seed| {
        let work = Workload::synthetic(&s, seed);
        run_at(&work, &model(), 3, &[work.bytes() / 3], true)
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    let model = model();
    let setup =
        Setup { policy: "best", nodes: 1, capacities: &[1], model: &model, prefetch: true, hints: true, seed: 1 };
    assert_eq!(simulate(&Workload::synthetic(&s, 1), &setup, &mut |_| ()), Err(UnknownPolicy("best".into())));
}

/// Small workloads of all kinds, under every policy there is.
#[test]
fn invariants_hold_for_every_policy() {
    let mut rng = rng::Rng::new(5, 5);
    for round in 0..400 {
        let shuffle = [Shuffle::Global, Shuffle::Local, Shuffle::Fixed, Shuffle::None][rng.below(4)];
        let mix = (rng.below(2) == 0).then_some(Mix { share: 0.5, size: 9000 });
        let s = Synthetic {
            files: 1 + rng.below(60) as u32,
            size: 1000,
            mix,
            epochs: 1 + rng.below(4) as u32,
            shuffle,
            ranks: 1 + rng.below(3) as u32,
            workers: rng.below(3) as u32,
            batch: 1 + rng.below(5) as u32,
            ahead: 1 + rng.below(2) as u32,
        };
        let work = Workload::synthetic(&s, round);
        let (sync, backoff) = (rng.below(2) == 0, rng.below(2) == 0);
        let compute = Some(rng.below(5) as u32 * MS);
        let timed = Model { compute, sync, backoff, inflight: rng.below(9), pfs_rate: 2e3, link: 1e9, ..model() };
        let (nodes, capacity) = (1 + rng.below(4) as u32, rng.below(work.bytes() as usize * 5 / 4) as u64);
        let capacities = if rng.below(2) == 0 { vec![capacity] } else { vec![capacity / 3, capacity - capacity / 3] };
        for policy in crate::NAMES {
            let (prefetch, hints) = (rng.below(2) == 0, rng.below(2) == 0);
            let setup = Setup { policy, nodes, capacities: &capacities, model: &timed, prefetch, hints, seed: round };
            let outcome = simulate(&work, &setup, &mut |_| ()).expect("a policy");
            let total = outcome.total();
            let case = format!("{round} {setup:?} {s:?}: {outcome:?}");
            assert_eq!(total.accesses, work.accesses(nodes), "{case}");
            assert_eq!(total.hits + total.waits + total.direct, total.accesses, "{case}");
            assert!(outcome.most_used.iter().zip(&capacities).all(|(used, there)| used <= there), "{case}");
            if sync {
                let least: u64 = belady(&work, nodes, capacity).iter().sum();
                assert!(total.pfs_bytes() >= least, "no policy beats the bound of {least}: {case}");
                let least = belady_later(&work, nodes, capacity);
                assert!(outcome.later().pfs_bytes() >= least, "nor that of later epochs, {least}: {case}");
            }
            assert!(total.time >= total.ideal, "{case}");
            let waited = total.stall + total.sync_wait;
            let ranks = nodes * s.ranks;
            assert!(!sync || total.compute + waited == total.time * ranks, "nothing else takes time: {case}");
            let direct: u64 = total.direct * 1000;
            assert!(total.bytes_direct >= direct && (mix.is_some() || total.bytes_direct == direct), "{case}");
        }
    }
}

/// Share of opens that hit in the last of a few shuffled epochs, and bytes read from the PFS in it
/// as a share of all; `None` without such a policy.
fn shuffled(policy: &str, c: f64, hints: bool) -> Option<(f64, f64)> {
    let s = Synthetic { files: 10_000, epochs: 4, ..Synthetic::default() };
    let work = Workload::synthetic(&s, 3);
    let timed = Model { compute: Some(20 * MS), ..Model::default() };
    let capacities = [(work.bytes() as f64 * c) as u64];
    let setup = Setup { policy, nodes: 1, capacities: &capacities, model: &timed, prefetch: hints, hints, seed: 1 };
    let outcome = simulate(&work, &setup, &mut |_| ()).ok()?;
    let last = outcome.epochs[3];
    Some((last.hit_ratio(), last.pfs_bytes() as f64 / work.bytes() as f64))
}

#[test]
fn on_shuffled_epochs_policies_reach_what_theory_says() {
    for c in [0.25, 0.5, 0.75] {
        let lru = c + (1.0 - c) * f64::ln(1.0 - c);
        let random = -c * f64::ln(1.0 - c + c * f64::exp(-1.0 / c));
        for (policy, hits) in [("first_epoch", c), ("static", c), ("ops_per_byte", c), ("lru", lru), ("random", random)]
        {
            if let Some((hit, bytes)) = shuffled(policy, c, false) {
                assert!(
                    (hit - hits).abs() < 0.02 && (bytes - (1.0 - hits)).abs() < 0.02,
                    "{policy} {c}: {hit} {bytes}"
                );
            }
        }
        // A policy that knows the order hits more, and reads as much.
        if let Some((hit, bytes)) = shuffled("clairvoyant", c, true) {
            assert!(hit > 0.9 && (bytes - (1.0 - c)).abs() < 0.02, "{c}: {hit} {bytes}");
        }
    }
}
