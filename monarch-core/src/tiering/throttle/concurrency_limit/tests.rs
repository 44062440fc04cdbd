use super::*;

const SIZE: u64 = 1_000_000;

struct Seen {
    /// The limit at the end.
    end: usize,
    /// In the last third of the time.
    least: usize,
    most: usize,
    mean: f64,
}

/// Prefetches always run up to the limit, for some seconds, on a PFS where `takes` gives the
/// time of a copy by the number in flight.
fn run(most: usize, seconds: u64, takes: impl Fn(usize) -> Duration) -> Seen {
    run_beside(0, most, seconds, takes)
}

/// The same beside this number of demands, which leave prefetches what they do not need.
fn run_beside(demands: usize, most: usize, seconds: u64, takes: impl Fn(usize) -> Duration) -> Seen {
    go_on(&mut Climb::new(most, false), &mut Instant::now(), demands, seconds, takes)
}

/// The mean of that in ten runs.
fn mean_beside(demands: usize, most: usize, seconds: u64, takes: impl Fn(usize) -> Duration) -> f64 {
    let one = |seed| go_on_with(seed, &mut Climb::new(most, false), &mut Instant::now(), demands, seconds, &takes).mean;
    (1..=10).map(one).sum::<f64>() / 10.0
}

fn go_on(
    climb: &mut Climb,
    now: &mut Instant,
    demands: usize,
    seconds: u64,
    takes: impl Fn(usize) -> Duration,
) -> Seen {
    go_on_with(1, climb, now, demands, seconds, takes)
}

fn go_on_with(
    mut noise: u64,
    climb: &mut Climb,
    now: &mut Instant,
    demands: usize,
    seconds: u64,
    takes: impl Fn(usize) -> Duration,
) -> Seen {
    let (end, third) = (*now + Duration::from_secs(seconds), *now + Duration::from_secs(seconds * 2 / 3));
    let (mut seen, mut span, mut sum) = (Seen { end: 0, least: usize::MAX, most: 0, mean: 0.0 }, 0.0, 0.0);
    while *now < end {
        let limit = climb.limit;
        let running = limit.max(demands);
        // All end at once, and take now more and now less.
        noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let took = takes(running).mul_f64(0.75 + (noise >> 40) as f64 / (1 << 25) as f64);
        *now += took;
        for _ in 0..running {
            climb.note(SIZE, took, running, 0, *now);
        }
        if *now > third {
            (seen.least, seen.most) = (seen.least.min(limit), seen.most.max(limit));
            (span, sum) = (span + took.as_secs_f64(), sum + took.as_secs_f64() * limit as f64);
        }
    }
    Seen { end: climb.limit, mean: sum / span, ..seen }
}

/// 119 MB/s and 2 ms: as many as keep it busy, and no queue.
fn link(n: usize) -> Duration {
    Duration::from_secs_f64((n as f64 * SIZE as f64 / 119e6).max(0.002 + SIZE as f64 / 119e6))
}

#[test]
fn a_link_that_is_full_is_kept_full_by_few() {
    let seen = run(56, 60, link);
    assert!(
        seen.least >= MIN_LIMIT && seen.most <= 18 && seen.mean < 8.0,
        "{} to {}, {}",
        seen.least,
        seen.most,
        seen.mean
    );
    // Soon: a job that has just started is not held up.
    assert!(run(56, 2, link).end <= 8);
    // Also where nodes share.
    assert!(go_on(&mut Climb::new(56, true), &mut Instant::now(), 0, 2, link).end <= 8);
}

#[test]
fn disks_that_answer_late_get_as_many_as_may_run() {
    let seen = run(56, 120, |_| Duration::from_millis(200));
    // Now and then fewer are tried.
    assert!(seen.least >= 36 && seen.mean > 53.0, "{}, {}", seen.least, seen.mean);
    // Soon: an epoch is not held up.
    assert_eq!(run(56, 5, |_| Duration::from_millis(200)).end, 56);
}

#[test]
fn many_readers_do_not_keep_prefetches_from_disks_that_answer_late() {
    let seen = run_beside(24, 56, 120, |_| Duration::from_millis(200));
    assert!(seen.mean > 50.0, "{} to {}, {}", seen.least, seen.most, seen.mean);
}

#[test]
fn many_readers_who_fill_a_link_have_it_for_themselves() {
    let mean = mean_beside(24, 56, 120, link);
    assert!(mean < 28.0, "{mean}");
}

/// Found by a job that needed 80 of 100 Mbit/s: its two readers had a third of them while four
/// were prefetched, none of which took longer than 50 ms.
#[test]
fn small_files_do_not_take_a_slow_link_from_two_readers() {
    let small = |n: usize| Duration::from_micros(8400) * n as u32;
    let seen = run_beside(2, 56, 60, small);
    assert!(seen.mean < 4.0, "{} to {}, {}", seen.least, seen.most, seen.mean);
    assert!(run_beside(2, 56, 4, small).end <= 3);
}

/// Found by a job that needed 78 % of a link of 200 Mbit/s: it began with 16 at a time, and its
/// first files came late by two seconds.
#[test]
fn a_job_that_begins_does_not_stand_behind_many_that_are_of_no_use() {
    let (mut climb, mut now) = (Climb::new(56, false), Instant::now());
    for _ in 0..100 {
        let running = climb.limit;
        assert!(running <= 4, "{running}");
        let took = Duration::from_millis(40) * running as u32;
        now += took;
        (0..running).for_each(|_| climb.note(SIZE, took, running, 0, now));
    }
    assert_eq!(climb.limit, 2);
}

/// Found by a review: of two copies one has always ended when the other does, and its successor
/// not begun.
#[test]
fn two_that_take_turns_are_two() {
    for took in [Duration::from_micros(200), Duration::from_millis(200)] {
        let (mut climb, start) = (Climb::new(56, false), Instant::now());
        let mut now = start;
        while now - start < Duration::from_secs(10) {
            now += took / climb.limit as u32;
            for gone in 0..2 {
                climb.note(SIZE, took, climb.limit - gone, 0, now);
            }
        }
        assert_eq!(climb.limit, 56, "{took:?}");
    }
}

#[test]
fn a_pfs_that_becomes_another_one_gets_what_it_needs_then() {
    // A full link of 20 MB/s, on which two at a time take long.
    let narrow = |n: usize| Duration::from_secs_f64(n as f64 * SIZE as f64 / 20e6);
    for (then, within) in [(200, 60), (3, 30)] {
        let (mut climb, mut now) = (Climb::new(56, false), Instant::now());
        assert!(go_on(&mut climb, &mut now, 0, 60, narrow).end <= 4);
        let seen = go_on(&mut climb, &mut now, 0, within, |_| Duration::from_millis(then));
        assert_eq!(seen.end, 56, "copies that take {then} ms");
        // And back.
        assert!(go_on(&mut climb, &mut now, 0, 120, narrow).mean < 9.0);
    }
}

#[test]
fn quick_copies_hold_nobody_up() {
    assert_eq!(run(56, 1, |_| Duration::from_millis(3)).end, 56);
}

#[test]
fn a_pfs_of_few_servers_gets_what_keeps_them_busy() {
    // Eight at a time in 100 ms each; more wait.
    let servers = |n: usize| Duration::from_millis(100).mul_f64((n as f64 / 8.0).max(1.0));
    let seen = run(56, 120, servers);
    assert!(seen.least >= 5 && seen.most <= 24 && seen.mean > 7.5, "{} to {}, {}", seen.least, seen.most, seen.mean);
}

/// Prefetches leave two readers that compute in between a link for themselves: often only one
/// of them waits. Found by reading: no window of such copies was ever completed, and the limit
/// stayed the same.
#[test]
fn readers_who_compute_in_between_do_not_keep_the_width_from_what_the_pfs_needs() {
    let narrow = |n: usize| Duration::from_secs_f64(n as f64 * SIZE as f64 / 20e6);
    let (mut climb, mut now) = (Climb::new(56, false), Instant::now());
    assert!(go_on(&mut climb, &mut now, 0, 60, narrow).end <= 4);
    // It is a fast one now.
    for i in 0..20_000 {
        let computes = usize::from(i % 3 > 0);
        let running = 2 - computes + climb.limit.saturating_sub(2);
        now += Duration::from_millis(3);
        climb.note(SIZE, Duration::from_millis(3), running, computes, now);
    }
    assert_eq!(climb.limit, 56);
}

#[test]
fn what_is_held_up_by_something_else_says_nothing() {
    let (mut climb, now) = (Climb::new(56, false), Instant::now());
    for i in 0..1000 {
        climb.note(SIZE, Duration::from_secs(1), 1, 0, now + Duration::from_secs(i));
    }
    assert_eq!(climb.limit, MIN_LIMIT);
}
