//! [`ConcurrencyLimit`]: how many copies from the PFS run at a time while files are prefetched: the
//! fewest that reach its throughput. Demands are counted in it; prefetch gets what they leave.
//!
//! A copy in flight delays the next demand: 56 files of 1 MB on a link of 1 Gbit/s delay it by half
//! a second, and give no more throughput than four files. How many are needed depends on the PFS:
//! four on a link that a job has for itself, more than are allowed on many disks that answer in 200
//! ms. Hence the limit is found by hill climbing on throughput:
//!
//! - * where copies take long, fewer are tried, and kept if the throughput stays;
//! * where the throughput falls, the number before is restored, and later more are tried;
//! * where copies are quick, as many run as are allowed;
//! * it starts low and doubles for as long as the throughput grows (slow start).

use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A mean copy time up to this does not delay demands: with a longer one a job of two readers that
/// takes four fifths of a link would have to wait.
const MAX_QUICK_COPY: Duration = Duration::from_millis(5);
/// Lower bound of the limit: one file is read while the next is looked up.
const MIN_LIMIT: usize = 2;
/// First limit where nodes share, without slow start: data from peers takes slots as well, and a
/// rate at two would say nothing.
const START_LIMIT_SHARED: usize = 16;
/// While starting, a rate is measured over this time and this number of copies.
const START_SPAN: Duration = Duration::from_millis(100);
const START_COPIES: usize = 8;
/// With fewer copies the throughput is kept if it is at least this part of that before.
const KEEPS_RATE: f64 = 0.95;
/// With more copies the throughput has grown if it is at least this many times that before.
const RAISES_RATE: f64 = 1.1;
/// Otherwise a rate is measured over this time at least, and over two generations of copies.
const RATE_SPAN: Duration = Duration::from_millis(400);
/// A rate that speaks for more copies, but by less than this factor, is in doubt: it is measured
/// over this many times the time and copies.
const DOUBT_FACTOR: f64 = 1.2;
const DOUBT_REPEATS: u32 = 3;
/// How long a limit is kept before another is tried. Doubles each time that no better one is found,
/// up to [`MAX_HOLD`].
const FIRST_HOLD: Duration = Duration::from_secs(5);
const MAX_HOLD: Duration = Duration::from_secs(60);

/// A limit that is being tried: the limit before, and its throughput in bytes a second.
#[derive(Clone, Copy, Debug)]
enum Trial {
    None,
    Fewer { from: usize, rate: f64 },
    More { from: usize, rate: f64 },
}

/// Copies that ended while the limit was used up.
#[derive(Debug, Default)]
struct Window {
    /// Number of copies to skip, as they began before the last change of the limit.
    skip: usize,
    since: Option<Instant>,
    bytes: u64,
    count: usize,
    took: Duration,
    /// Sum over the copies of how many were in flight when each ended.
    running: usize,
}

impl Window {
    /// Bytes a second, by Little's law: bytes of a copy times copies in flight, divided by the time
    /// of a copy. (Copies end in bunches. Whether a bunch falls inside the window would change a
    /// plain count by more than the effect that is measured.)
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.count as f64 * self.running as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

#[derive(Debug)]
struct Climb {
    limit: usize,
    most: usize,
    /// Whether this is the slow start.
    starting: bool,
    trial: Trial,
    window: Window,
    hold: Duration,
    until: Option<Instant>,
    /// The throughput at the limit that is kept, once it is measured.
    held: Option<f64>,
    /// Whether a higher limit is tried next, because a lower one was not enough.
    upwards: bool,
}

impl Climb {
    /// `most`: copies that are allowed at a time. `shares`: whether nodes share files, so that
    /// there is no slow start.
    fn new(most: usize, shares: bool) -> Self {
        let limit = most.min(if shares { START_LIMIT_SHARED } else { MIN_LIMIT });
        Self {
            limit,
            most,
            starting: !shares,
            trial: Trial::None,
            // The first copies differ from later ones: cold caches, slow starts, bursts that links
            // and servers let through.
            window: Window { skip: limit, ..Window::default() },
            hold: FIRST_HOLD,
            until: None,
            held: None,
            upwards: false,
        }
    }

    /// Notes a copy of `bytes` bytes that took `took` while `running` were in flight and `kept`
    /// slots were reserved for readers that will ask again at once.
    fn note(&mut self, bytes: u64, took: Duration, running: usize, kept: usize, now: Instant) {
        let w = &mut self.window;
        if running * 4 < self.limit * 3 {
            // (One copy may just have ended, and the next not begun.)
            if (running + kept + 1) * 4 < self.limit * 3 {
                // Something else limits the copies.
                *w = Window::default();
            }
            return;
        }
        if w.skip > 0 {
            w.skip -= 1;
            return;
        }
        let Some(since) = w.since else {
            w.since = Some(now);
            return;
        };
        w.bytes += bytes;
        w.count += 1;
        w.took += took;
        w.running += running;
        let (span, rate, count) = (now.saturating_duration_since(since), w.rate(), w.count);
        let (mean, ran, before) = (w.took / count as u32, w.running.div_ceil(count), self.limit);
        let repeats = if self.in_doubt(rate) { DOUBT_REPEATS } else { 1 };
        let (copies, long) = match self.starting {
            true if span < RATE_SPAN => (before.max(START_COPIES), START_SPAN),
            true => (before.max(START_COPIES).min(2 * before), START_SPAN),
            false => (2 * before, RATE_SPAN),
        };
        if count < copies * repeats as usize || span < long * repeats {
            return;
        }
        self.decide(rate, mean, ran, now);
        if self.limit != before {
            tracing::debug!(
                limit = self.limit,
                before,
                ran,
                ?mean,
                mb_s = rate / 1e6,
                "how many copies are made at a time"
            );
        }
        self.window = Window { skip: if self.limit == before { 0 } else { running }, ..Window::default() };
    }

    /// Whether `rate` would end the trial in favour of more copies than now, or as many, by so
    /// little that it may be noise. While starting: whether it is not clear that twice as many
    /// copies give more throughput.
    fn in_doubt(&self, rate: f64) -> bool {
        match self.trial {
            Trial::None => false,
            Trial::More { rate: all, .. } if self.starting => rate < RAISES_RATE * all * DOUBT_FACTOR,
            Trial::Fewer { rate: all, .. } => rate < KEEPS_RATE * all && rate > KEEPS_RATE * all / DOUBT_FACTOR,
            Trial::More { rate: all, .. } => rate >= RAISES_RATE * all && rate < RAISES_RATE * all * DOUBT_FACTOR,
        }
    }

    fn decide(&mut self, rate: f64, mean: Duration, ran: usize, now: Instant) {
        let long = mean > MAX_QUICK_COPY;
        // Demands alone exceed the limit: a lower one cannot be tried, but a higher one may give
        // more.
        let demands = ran > 1 + self.limit + self.limit / 4;
        if self.starting {
            return self.start(rate, long, if demands { ran } else { self.limit }, now);
        }
        let rests = matches!(self.trial, Trial::None) && self.rests(rate, now);
        match self.trial {
            Trial::Fewer { from, rate: all } if rate < KEEPS_RATE * all => self.back(from, true, now),
            Trial::Fewer { rate: all, .. } if long && self.limit > MIN_LIMIT && !demands => self.fewer(all),
            Trial::More { from, rate: all } if rate < RAISES_RATE * all => self.back(from, false, now),
            Trial::More { .. } if self.limit < self.most => self.more(self.limit, rate),
            Trial::Fewer { .. } | Trial::More { .. } => {
                self.trial = Trial::None;
                self.hold = FIRST_HOLD;
                self.rest(now);
            }
            Trial::None if rests => {}
            Trial::None if !long && self.limit < self.most => self.more(self.limit, rate),
            Trial::None if demands && self.limit < self.most => self.more(ran, rate),
            Trial::None if self.upwards => self.more(self.limit, rate),
            Trial::None if self.limit > MIN_LIMIT && !demands => self.fewer(rate),
            // At so low a limit a lower one cannot be tried, but what the PFS needs may have
            // changed.
            Trial::None if self.limit < self.most => self.more(self.limit, rate),
            Trial::None => {}
        }
    }

    /// Doubles the limit from `than`, until the throughput grows no more.
    fn start(&mut self, rate: f64, long: bool, than: usize, now: Instant) {
        match self.trial {
            Trial::More { from, rate: all } if long && rate < RAISES_RATE * all => self.limit = from,
            _ if self.limit < self.most => {
                self.trial = if long { Trial::More { from: self.limit, rate } } else { Trial::None };
                self.limit = (than * 2).min(self.most);
                return;
            }
            _ => {}
        }
        (self.starting, self.trial) = (false, Trial::None);
        self.rest(now);
    }

    /// Tries a lower limit. `rate`: the throughput to keep.
    fn fewer(&mut self, rate: f64) {
        self.trial = Trial::Fewer { from: self.limit, rate };
        self.limit = (self.limit * 2 / 3).max(MIN_LIMIT);
    }

    /// Tries a higher limit than `than`.
    fn more(&mut self, than: usize, rate: f64) {
        self.trial = Trial::More { from: self.limit, rate };
        let next = (than * 3).div_ceil(2);
        // A smaller last step could not be measured.
        self.limit = if next + next / 4 < self.most { next } else { self.most };
    }

    /// Returns to the limit before a trial. If a lower one did not suffice, a higher one is tried
    /// at once; if a higher one gave no more, none for a while.
    fn back(&mut self, to: usize, upwards: bool, now: Instant) {
        (self.limit, self.trial, self.upwards) = (to, Trial::None, upwards && to < self.most);
        if !self.upwards {
            self.rest(now);
            self.hold = (self.hold * 2).min(MAX_HOLD);
        }
    }

    fn rest(&mut self, now: Instant) {
        (self.until, self.held) = (Some(now + self.hold), None);
    }

    /// Whether the limit is kept: for its time, unless the throughput of the PFS has changed by a
    /// factor of two.
    fn rests(&mut self, rate: f64, now: Instant) -> bool {
        let held = *self.held.get_or_insert(rate);
        if rate > 2.0 * held || rate < held / 2.0 {
            (self.hold, self.until) = (FIRST_HOLD, self.until.map(|_| now));
        }
        self.until.is_some_and(|until| now < until)
    }
}

/// The limit on copies in flight from the PFS, found by hill climbing.
#[derive(Debug)]
pub(super) struct ConcurrencyLimit {
    limit: AtomicUsize,
    climb: Mutex<Climb>,
}

impl ConcurrencyLimit {
    /// `most`: copies that are allowed at a time. `shares`: whether nodes share files, so that
    /// there is no slow start.
    pub(super) fn new(most: usize, shares: bool) -> Self {
        let climb = Climb::new(most.max(1), shares);
        Self { limit: AtomicUsize::new(climb.limit), climb: Mutex::new(climb) }
    }

    /// The limit now.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Notes a copy, or a chunk, that came from the PFS while `running` were in flight. `kept`:
    /// slots that prefetch leaves to readers that will ask again at once. Returns whether the limit
    /// has grown.
    pub(super) fn note(&self, bytes: u64, took: Duration, running: usize, kept: usize) -> bool {
        let mut climb = lock(&self.climb);
        climb.note(bytes, took, running, kept, Instant::now());
        self.limit.swap(climb.limit, Ordering::Relaxed) < climb.limit
    }
}

#[cfg(test)]
mod tests {
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
        let one =
            |seed| go_on_with(seed, &mut Climb::new(most, false), &mut Instant::now(), demands, seconds, &takes).mean;
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
        assert!(
            seen.least >= 5 && seen.most <= 24 && seen.mean > 7.5,
            "{} to {}, {}",
            seen.least,
            seen.most,
            seen.mean
        );
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
}
