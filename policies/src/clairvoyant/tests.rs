//! The rules of `clairvoyant`, one by one; its bounds are measured in `tests/epochs.rs`.

use super::*;
use crate::hints::Priority;
use crate::{Access, Served};
use std::time::Duration;

fn order(files: std::ops::Range<u64>) -> Vec<FileKey> {
    files.map(FileKey).collect()
}

fn placed(p: &mut Clairvoyant, n: u64, hints: &Hints) {
    p.event(&Event::Placed { file: FileKey(n), size: 1, cost: 1, tier: 0 }, hints);
}

fn read(p: &mut Clairvoyant, n: u64, hints: &mut Hints) {
    hints.accessed(FileKey(n));
    let access = Access { file: FileKey(n), size: 1, at: Duration::ZERO, stream: 0, served: Served::Pfs };
    p.event(&Event::Access(access), hints);
}

fn place(p: &mut Clairvoyant, n: u64, source: RequestSource, hints: &Hints) -> Decision {
    p.place(&Candidate { file: FileKey(n), size: 1, source }, &[TierRoom { cost: 1, free: 0, usable: true }], hints)
}

fn replaces(n: u64) -> Decision {
    Decision::Replace { tier: 0, victims: vec![FileKey(n)] }
}

/// Files 0 to 7 resident, 0 to 15 announced.
fn eight_of_sixteen() -> (Clairvoyant, Hints) {
    let (mut p, mut hints) = (Clairvoyant::default(), Hints::default());
    hints.announce(1, order(0..16));
    (0..8).for_each(|n| placed(&mut p, n, &hints));
    (p, hints)
}

#[test]
fn only_read_files_are_victims_and_the_last_read_are_guarded() {
    let (mut p, mut hints) = eight_of_sixteen();
    assert_eq!(p.next(0, &hints), None);
    assert_eq!(place(&mut p, 8, RequestSource::Prefetch, &hints), Decision::Refuse(Why::NoRoom));
    (0..2).for_each(|n| read(&mut p, n, &mut hints));
    // A quarter of eight is guarded.
    assert_eq!(p.next(0, &hints), None);
    read(&mut p, 2, &mut hints);
    assert_eq!(p.next(0, &hints), Some(FileKey(8)));
    assert_eq!(place(&mut p, 8, RequestSource::Prefetch, &hints), replaces(0));
    placed(&mut p, 8, &hints);
    assert_eq!(place(&mut p, 9, RequestSource::Prefetch, &hints), Decision::Refuse(Why::NoRoom));
    // A second open moves the file behind the others.
    read(&mut p, 1, &mut hints);
    read(&mut p, 3, &mut hints);
    assert_eq!(place(&mut p, 9, RequestSource::Prefetch, &hints), replaces(2));
}

#[test]
fn a_demand_without_known_use_replaces_nothing() {
    let (mut p, mut hints) = eight_of_sixteen();
    (0..8).for_each(|n| read(&mut p, n, &mut hints));
    assert_eq!(place(&mut p, 99, RequestSource::Demand, &hints), Decision::Refuse(Why::NoRoom));
    assert_eq!(place(&mut p, 9, RequestSource::Demand, &hints), replaces(0));
}

#[test]
fn a_refused_file_is_given_again_after_a_read_and_before_the_files_behind_it() {
    let (mut p, mut hints) = eight_of_sixteen();
    (0..3).for_each(|n| read(&mut p, n, &mut hints));
    assert_eq!(p.next(0, &hints), Some(FileKey(8)));
    assert_eq!(p.next(0, &hints), Some(FileKey(9)));
    placed(&mut p, 8, &hints);
    assert_eq!(place(&mut p, 9, RequestSource::Prefetch, &hints), replaces(0));
    assert_eq!(place(&mut p, 10, RequestSource::Prefetch, &hints), Decision::Refuse(Why::NoRoom));
    assert_eq!(p.next(1, &hints), None);
    read(&mut p, 3, &mut hints);
    assert_eq!(p.next(0, &hints), Some(FileKey(10)));
    assert_eq!(p.next(1, &hints), Some(FileKey(11)));
}

#[test]
fn files_no_longer_announced_are_victims() {
    let (mut p, mut hints) = eight_of_sixteen();
    hints.announce(1, order(4..16));
    p.event(&Event::Hinted, &hints);
    let gone: Vec<_> = (8..10).map(|n| place(&mut p, n, RequestSource::Prefetch, &hints)).collect();
    for decision in gone {
        assert!(matches!(&decision, Decision::Replace { victims, .. } if victims.len() == 1 && victims[0].0 < 4));
    }
}

#[test]
fn a_file_dropped_before_its_use_is_given_again() {
    let (mut p, hints) = eight_of_sixteen();
    assert_eq!(p.next(1, &hints), Some(FileKey(8)));
    p.event(&Event::Dropped { file: FileKey(5) }, &hints);
    assert_eq!(p.next(1, &hints), Some(FileKey(5)));
    assert_eq!(p.next(1, &hints), Some(FileKey(9)));
}

#[test]
fn streams_are_merged_by_distance() {
    let (mut p, mut hints) = (Clairvoyant::default(), Hints::default());
    hints.announce(2, order(100..103));
    hints.announce(1, order(0..3));
    hints.announce(3, Vec::new());
    let given: Vec<_> = std::iter::from_fn(|| p.next(1, &hints)).map(|f| f.0).collect();
    assert_eq!(given, [0, 100, 1, 101, 2, 102]);
}

#[test]
fn favoured_files_claim_the_most_distant_and_are_no_victims() {
    let (mut p, mut hints) = eight_of_sixteen();
    hints.prioritise(FileKey(99), Priority::High);
    hints.prioritise(FileKey(7), Priority::High);
    assert_eq!(place(&mut p, 99, RequestSource::Demand, &hints), replaces(6));
    placed(&mut p, 99, &hints);
    for n in 0..6 {
        read(&mut p, n, &mut hints);
    }
    read(&mut p, 7, &mut hints);
    let victims: Vec<_> = (8..16).map(|n| place(&mut p, n, RequestSource::Prefetch, &hints)).collect();
    assert!(!victims.contains(&replaces(99)) && !victims.contains(&replaces(7)), "{victims:?}");
    assert_eq!(victims[0], replaces(0));
}

#[test]
fn never_is_neither_given_nor_admitted() {
    let (mut p, mut hints) = (Clairvoyant::default(), Hints::default());
    hints.announce(1, order(0..3));
    hints.prioritise(FileKey(0), Priority::Never);
    assert_eq!(p.next(1, &hints), Some(FileKey(1)));
    let c = Candidate { file: FileKey(0), size: 1, source: RequestSource::Demand };
    assert_eq!(p.place(&c, &[TierRoom { cost: 1, free: 9, usable: true }], &hints), Decision::Refuse(Why::Unwanted));
}

#[test]
fn a_call_passes_over_a_bounded_number_of_residents_and_the_next_continues() {
    let (mut p, mut hints) = (Clairvoyant::default(), Hints::default());
    hints.announce(1, order(0..5_001));
    hints.announce(2, order(10_000..10_001));
    (0..5_000).for_each(|n| placed(&mut p, n, &hints));
    let mut given = Vec::new();
    let mut calls = 0;
    loop {
        calls += 1;
        match p.next(1, &hints) {
            Some(file) => given.push(file.0),
            None if p.unfinished() => assert!(given.is_empty()),
            None => break,
        }
    }
    assert_eq!(given, [10_000, 5_000]);
    assert!((6..9).contains(&calls), "{calls}");
}

#[test]
fn an_index_that_is_gone_is_forgotten_in_all_stages() {
    let (mut p, mut hints) = (Clairvoyant::default(), Hints::default());
    let other = |n: u64| 1 << 32 | n;
    hints.announce(1, (0..8).flat_map(|n| [FileKey(n), FileKey(other(n))]).collect());
    (0..8).flat_map(|n| [n, other(n)]).take(8).for_each(|n| placed(&mut p, n, &hints));
    (0..4).for_each(|n| read(&mut p, other(n), &mut hints));
    assert_eq!(p.next(9, &hints), Some(FileKey(4)));
    assert_eq!(p.next(9, &hints), Some(FileKey(other(4))));
    p.event(&Event::Dropped { file: FileKey(other(4)) }, &hints);
    hints.forget_index(1);
    p.event(&Event::IndexGone { index: 1 }, &hints);
    // There are no victims: due files stay.
    assert_eq!(p.next(0, &hints), None);
    assert_eq!(place(&mut p, 4, RequestSource::Prefetch, &hints), Decision::Refuse(Why::NoRoom));
    read(&mut p, 0, &mut hints);
    let given: Vec<_> = std::iter::from_fn(|| p.next(9, &hints)).map(|f| f.0).collect();
    assert_eq!(given, [4, 5, 6, 7]);
    // The number comes again, for other files.
    hints.announce(2, vec![FileKey(other(0))]);
    let given = [p.next(9, &hints), p.next(9, &hints)];
    assert_eq!(given, [Some(FileKey(4)), Some(FileKey(other(0)))]);
}
