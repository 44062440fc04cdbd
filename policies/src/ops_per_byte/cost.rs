//! Learns from fetches what files cost at the PFS.

use std::time::Duration;

const DECAY: f64 = 0.998;
const OUTLIER_FACTOR: f64 = 20.0;
const MIN_SAMPLES: u32 = 16;
/// Seconds: no open of a shared file system is cheaper.
const MIN_OPEN_SECONDS: f64 = 1e-5;

/// Seconds that a file of some size costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) a: f64,
    pub(super) b: f64,
}

/// The cost assumed before anything is known of a PFS.
pub(super) const PRIOR: Line = Line { a: 1e-3, b: 1e-8 };

impl Line {
    pub(super) fn seconds(self, size: u64) -> f64 {
        self.a + self.b * size as f64
    }

    /// Whether the ratio of a to b, from which the ranks of files follow, differs by more than a
    /// quarter, or the scale by more than half.
    pub(super) fn differs(self, other: Self) -> bool {
        let far = |x: f64, y: f64, by: f64| x > y * by || y > x * by;
        far(self.a * other.b, other.a * self.b, 1.25) || far(self.a, other.a, 1.5)
    }
}

/// The model: time = a + b size; a stands for open, metadata and the first request, b for
/// bandwidth.
///
/// Least squares with exponentially decaying sums (each sample weighs [`DECAY`] less than the
/// next), so that a PFS that slows down under the load of other jobs is noticed within some hundred
/// files. A file that took more than [`OUTLIER_FACTOR`] times the expected time counts as that
/// multiple: a stalled request says nothing of files.
///
/// Both are costs: a >= [`MIN_OPEN_SECONDS`], b >= 0. Where sizes hardly differ the two cannot be
/// separated; then the model is the prior, scaled to the mean. Before [`MIN_SAMPLES`] samples it is
/// the prior itself: 1 ms and 100 MB/s, a loaded parallel file system.
#[derive(Clone, Debug, Default)]
pub(super) struct Cost {
    samples: u32,
    n: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Cost {
    pub(super) fn learn(&mut self, size: u64, took: Duration) {
        let x = size as f64;
        let most = if self.samples < MIN_SAMPLES { f64::MAX } else { OUTLIER_FACTOR * self.line().seconds(size) };
        let y = took.as_secs_f64().min(most);
        for (sum, new) in
            [(&mut self.n, 1.0), (&mut self.x, x), (&mut self.y, y), (&mut self.xx, x * x), (&mut self.xy, x * y)]
        {
            *sum = *sum * DECAY + new;
        }
        self.samples = self.samples.saturating_add(1);
    }

    /// The model at present.
    pub(super) fn line(&self) -> Line {
        if self.samples < MIN_SAMPLES {
            return PRIOR;
        }
        let spread = self.n * self.xx - self.x * self.x;
        if spread <= 1e-3 * self.n * self.xx {
            return self.scaled_prior();
        }
        let b = (self.n * self.xy - self.x * self.y) / spread;
        if b <= 0.0 {
            return Line { a: (self.y / self.n).max(MIN_OPEN_SECONDS), b: 0.0 };
        }
        let a = (self.y - b * self.x) / self.n;
        if a >= MIN_OPEN_SECONDS {
            return Line { a, b };
        }
        Line { a: MIN_OPEN_SECONDS, b: ((self.y - MIN_OPEN_SECONDS * self.n) / self.x).max(0.0) }
    }

    fn scaled_prior(&self) -> Line {
        let by = self.y / (PRIOR.a * self.n + PRIOR.b * self.x);
        Line { a: (PRIOR.a * by).max(MIN_OPEN_SECONDS), b: PRIOR.b * by }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(samples: impl Iterator<Item = (u64, f64)>) -> Line {
        let mut c = Cost::default();
        samples.for_each(|(size, s)| c.learn(size, Duration::from_secs_f64(s)));
        c.line()
    }

    fn near(l: Line, a: f64, b: f64) -> bool {
        (l.a / a - 1.0).abs() < 0.05 && (l.b / b - 1.0).abs() < 0.05
    }

    #[test]
    fn finds_both_parts_of_the_cost_and_follows_when_they_change() {
        let of = |a: f64, b: f64| {
            (0..2_000u64).map(move |n| (n * 7_919 % 1_000_000, a + b * (n * 7_919 % 1_000_000) as f64))
        };
        assert!(near(learned(of(5e-3, 2e-8)), 5e-3, 2e-8));
        assert!(near(learned(of(5e-3, 2e-8).chain(of(2e-2, 1e-8))), 2e-2, 1e-8));
    }

    #[test]
    fn odd_samples_give_usable_costs() {
        assert_eq!(learned((0..10).map(|n| (n, 1.0))), PRIOR);
        let one_size = learned((0..100).map(|_| (100_000, 4e-3)));
        assert!(near(one_size, 2e-3, 2e-8), "{one_size:?}");
        let falling = learned((0..100).map(|n| (n * 1_000, 1.0 - n as f64 * 1e-3)));
        assert!(falling.b == 0.0 && falling.a > 0.5, "{falling:?}");
        let no_start = learned((1..100).map(|n| (n * 1_000_000, n as f64 * 1e-2 - 5e-3)));
        assert!(no_start.a >= MIN_OPEN_SECONDS && no_start.b > 9e-9, "{no_start:?}");
        let nothing = learned((0..100).map(|n| (n, 0.0)));
        assert!(nothing.a >= MIN_OPEN_SECONDS && nothing.b.is_finite());
        assert!(learned((0..100).map(|_| (0, 1.0))).a.is_finite());
        assert!(learned((0..100).map(|n| (u64::MAX - n, 1e9))).b.is_finite());
    }

    #[test]
    fn a_stall_counts_little() {
        let stall = learned((0..500u64).map(|n| (n * 7_919 % 1_000_000, if n == 490 { 60.0 } else { 5e-3 })));
        assert!(stall.a < 8e-3, "{stall:?}");
    }
}
