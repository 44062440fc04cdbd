//! Runs over many seeds, and the mistakes that they must find.

use crate::events::{Event, Mutant, Plan, file_key};
use crate::node::Copy;
use crate::world::World;
use monarch_cluster::directory::members::ME;
use proptest::prelude::*;

const CALM: Plan = Plan {
    seed: 0,
    nodes: 5,
    files: 40,
    loss: 0,
    double: 0,
    capacity: usize::MAX,
    keep_all: true,
    mutant: Mutant::None,
};

/// Each node reads `count` files once, in an order of its own, from `begin` on, a file every `pace`
/// milliseconds.
fn epoch(world: &mut World, begin: &[u64], pace: u64, count: usize) {
    for (node, begin) in begin.iter().enumerate() {
        let mut files: Vec<u32> = (0..world.plan.files).collect();
        for n in (1..files.len()).rev() {
            let other = world.below(n as u64 + 1) as usize;
            files.swap(n, other);
        }
        for (n, file) in files.into_iter().take(count).enumerate() {
            world.at(begin + 1 + n as u64 * pace, node, Event::Read(file));
        }
    }
}

/// Nodes start within `skew` of each other and read at once; nothing fails.
fn calm(plan: Plan, skew: u64, pace: u64) -> World {
    let mut world = World::new(plan);
    let times: Vec<u64> = (0..plan.nodes).map(|_| world.below(skew + 1)).collect();
    world.start_at(&times);
    epoch(&mut world, &times, pace, usize::MAX);
    world.run(60_000);
    world.check();
    assert_eq!(world.done, plan.nodes as u64 * u64::from(plan.files));
    world
}

fn exactly_once(plan: Plan, skew: u64, pace: u64) {
    let world = calm(plan, skew, pace);
    assert!(world.pfs.iter().all(|n| *n == 1), "files were read from the PFS more or less than once: {:?}", world.pfs);
}

/// Faults for 30 s: loss, doubles, a partition, crashes, evictions, changes; then none.
fn faulty(plan: Plan, changes: bool) -> World {
    let mut world = World::new(plan);
    world.faulty = true;
    let times: Vec<u64> = (0..plan.nodes).map(|_| world.below(3000)).collect();
    world.start_at(&times);
    // A part of the files each, so that many are on one side of a partition alone.
    epoch(&mut world, &times, 1500, plan.files as usize / 3);
    for _ in 0..plan.nodes {
        trouble(&mut world, changes);
    }
    world.at(30_000, 0, Event::Heal);
    for n in 0..plan.nodes {
        world.at(30_001, n, Event::Start);
    }
    world.run(60_000);
    world.check();
    world
}

fn trouble(world: &mut World, changes: bool) {
    let (a, b) = (world.below(world.plan.nodes as u64) as usize, world.below(world.plan.nodes as u64) as usize);
    let (when, file) = (world.below(25_000), world.below(u64::from(world.plan.files)) as u32);
    match world.below(if changes { 4 } else { 3 }) {
        0 => {
            let (warm, down) = (world.below(2) == 0, world.below(6_000));
            world.at(when, a, Event::Crash { warm });
            world.at(when + down, a, Event::Start);
            let begin = when + down;
            for n in 0..world.plan.files / 4 {
                world.at(begin + 1 + u64::from(n) * 100, a, Event::Read(n * 4));
            }
        }
        1 if a != b => world.at(when, a, Event::Cut(a, b)),
        1 => (0..world.plan.nodes).filter(|b| *b != a).for_each(|b| world.at(when, a, Event::Cut(a, b))),
        2 => world.at(when, a, Event::Evict(file)),
        _ if changes => world.at(when, a, Event::Change(file)),
        _ => {}
    }
}

/// Files with a copy on some node, whose answerer has it too or knows which node does.
fn found(world: &World) -> Vec<u32> {
    let held = |n: usize, file: u32| matches!(world.nodes[n].copies.get(&file), Some(Copy::Resident));
    (0..world.plan.files)
        .filter(|file| {
            let f = file_key(*file);
            let first = world.nodes[0].global(world.nodes[0].view.answerer(f.fp));
            let node = &world.nodes[first];
            assert_eq!(node.view.answerer(f.fp), ME, "views agree once the faults are over");
            held(first, *file) || node.known.second(&f, &node.view).is_some_and(|s| held(node.global(s), *file))
        })
        .collect()
}

fn settled(plan: Plan) -> World {
    let mut world = faulty(plan, false);
    let (found, before) = (found(&world), world.pfs.clone());
    let somewhere = |f: &u32| world.nodes.iter().any(|n| n.copies.contains_key(f));
    let lost = (0..plan.files).filter(|f| somewhere(f) && !found.contains(f) && !world.evicted.contains(f)).count();
    assert!(lost == 0 || plan.capacity != usize::MAX, "{lost} files are held and their answerers do not know");
    epoch(&mut world, &vec![0; plan.nodes], 50, usize::MAX);
    world.run(100_000);
    world.check();
    for file in 0..plan.files {
        let extra = world.pfs[file as usize] - before[file as usize];
        let room = plan.capacity == usize::MAX;
        assert!(
            extra == 0 || !found.contains(&file),
            "file {file} was held, its answerer knew, and it was read {extra} times"
        );
        assert!(extra <= 1 || !room, "file {file} was read {extra} times after the faults");
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn each_file_is_read_once_when_all_start_at_once(seed: u64, nodes in 2..9usize, keep_all: bool) {
        exactly_once(Plan { seed, nodes, keep_all, ..CALM }, 0, 10);
    }

    #[test]
    fn each_file_is_read_once_when_nodes_start_one_after_the_other(
        seed: u64, nodes in 2..9usize, keep_all: bool, skew in 0..6000u64, pace in 1..150u64,
    ) {
        exactly_once(Plan { seed, nodes, keep_all, ..CALM }, skew, pace);
    }

    #[test]
    fn reads_end_and_copies_fit_when_there_is_little_room(seed: u64, nodes in 2..7usize, capacity in 0..20usize, keep_all: bool) {
        calm(Plan { seed, nodes, capacity, keep_all, ..CALM }, 1000, 20);
    }

    #[test]
    fn copies_are_found_once_the_faults_are_over(seed: u64, nodes in 2..8usize, loss in 0..200u64, small: bool, keep_all: bool) {
        let capacity = if small { 12 } else { usize::MAX };
        settled(Plan { seed, nodes, capacity, loss, keep_all, double: 100, ..CALM });
    }

    #[test]
    fn no_reader_gets_a_changed_version_from_a_copy(seed: u64, nodes in 2..8usize, loss in 0..300u64, capacity in 5..60usize) {
        faulty(Plan { seed, nodes, capacity, loss, double: 50, keep_all: seed % 2 == 0, ..CALM }, true);
    }
}

#[test]
fn simulated_nodes_own_files_by_exception() {
    let world = calm(CALM, 0, 10);
    let view = &world.nodes[0].view;
    let plain = view.with_exceptions(std::sync::Arc::default());
    let fps = || (0..world.plan.files).map(|id| file_key(id).fp);
    let exceptions = fps().filter(|fp| view.owner(*fp) != plain.owner(*fp)).count();
    assert!((1..20).contains(&exceptions), "{exceptions}");
}

fn seeds(run: impl Fn(u64)) {
    (0..40).for_each(run);
}

#[test]
#[should_panic(expected = "more or less than once")]
fn the_simulation_detects_a_join_that_announces_nothing() {
    seeds(|seed| exactly_once(Plan { seed, mutant: Mutant::JoinWithoutTelling, ..CALM }, 3000, 50));
}

#[test]
#[should_panic(expected = "more or less than once")]
fn the_simulation_detects_a_node_that_acts_before_its_join_is_over() {
    seeds(|seed| exactly_once(Plan { seed, mutant: Mutant::ActBeforeJoin, ..CALM }, 300, 10));
}

#[test]
#[should_panic(expected = "a copy of a version that the index does not name")]
fn the_simulation_detects_a_node_that_serves_a_changed_version() {
    seeds(|seed| drop(faulty(Plan { seed, mutant: Mutant::ServeChanged, ..CALM }, true)));
}

#[test]
#[should_panic(expected = "more than it has room for")]
fn the_simulation_detects_copies_kept_without_a_ledger() {
    seeds(|seed| drop(calm(Plan { seed, capacity: 3, mutant: Mutant::NoLedger, ..CALM }, 0, 10)));
}

#[test]
#[should_panic(expected = "their answerers do not know")]
fn the_simulation_detects_changes_of_view_that_are_not_announced() {
    seeds(|seed| drop(settled(Plan { seed, mutant: Mutant::ForgetAnnouncements, loss: 50, ..CALM })));
}

#[test]
#[should_panic(expected = "reads that never ended")]
fn the_simulation_detects_a_reader_that_waits_forever() {
    seeds(|seed| drop(faulty(Plan { seed, loss: 300, mutant: Mutant::NeverGiveUp, ..CALM }, false)));
}
