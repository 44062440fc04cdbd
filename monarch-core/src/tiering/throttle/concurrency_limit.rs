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
mod tests;
