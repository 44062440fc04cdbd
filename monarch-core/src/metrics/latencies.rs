//! Histograms of the durations of copies and opens.

use super::defs::{COPY_SECONDS, PFS_OPEN_SECONDS};
use super::page::{describe, key};
use crate::snapshot::Opens;
use metrics::{Histogram, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bounds of the buckets, seconds: from an open that the client's cache answers to a PFS that
/// stalls. Steps of about 2.2.
const BUCKET_BOUNDS_SECONDS: [f64; 17] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

static META: Metadata<'static> = Metadata::new("monarch", Level::INFO, None);

/// Where the bytes of a copy come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The PFS.
    Pfs,
    /// Another node.
    Node,
    /// A packed copy on this node.
    Packed,
}

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOf {
    /// A file as a whole.
    File,
    /// A chunk of a large file.
    Chunk,
}

/// Histograms of copies and opens. Without metrics it keeps only counts of opens by duration, for
/// the report of a job.
#[derive(Debug)]
pub struct Latencies {
    open: Histogram,
    /// Opens by [`BUCKET_BOUNDS_SECONDS`]; the last count is of opens above all bounds.
    opens: [AtomicU64; BUCKET_BOUNDS_SECONDS.len() + 1],
    /// By [`Origin`] and [`CopyOf`].
    copies: [[Histogram; 2]; 3],
    handle: Option<PrometheusHandle>,
}

impl Latencies {
    /// Keeps counts of opens alone.
    #[must_use]
    pub fn off() -> Self {
        Self {
            open: Histogram::noop(),
            opens: Default::default(),
            copies: std::array::from_fn(|_| [Histogram::noop(), Histogram::noop()]),
            handle: None,
        }
    }

    /// Keeps all durations.
    #[must_use]
    pub fn on() -> Self {
        let names = [COPY_SECONDS.0, PFS_OPEN_SECONDS.0];
        let bounded = names.iter().try_fold(PrometheusBuilder::new(), |builder, of| {
            builder.set_buckets_for_metric(Matcher::Full(of.name.to_owned()), &BUCKET_BOUNDS_SECONDS)
        });
        // (The builder refuses only an empty list of bounds.)
        let recorder = bounded.unwrap_or_default().build_recorder();
        names.iter().for_each(|of| describe(&recorder, of));
        let histogram = |of, labels: &[&str]| recorder.register_histogram(&key(of, labels), &META);
        let copy = |origin| ["file", "chunk"].map(|piece| histogram(COPY_SECONDS.0, &[origin, piece]));
        Self {
            open: histogram(PFS_OPEN_SECONDS.0, &[]),
            opens: Default::default(),
            copies: ["pfs", "node", "packed"].map(copy),
            handle: Some(recorder.handle()),
        }
    }

    /// Counts an open at the PFS.
    pub fn opened(&self, took: Duration) {
        self.open.record(took);
        let seconds = took.as_secs_f64();
        let at =
            BUCKET_BOUNDS_SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKET_BOUNDS_SECONDS.len());
        if let Some(count) = self.opens.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the opens by duration.
    #[must_use]
    pub fn opens(&self) -> Vec<Opens> {
        let bounds = BUCKET_BOUNDS_SECONDS.into_iter().map(Some).chain([None]);
        bounds.zip(&self.opens).map(|(up_to_s, n)| Opens { up_to_s, opens: n.load(Ordering::Relaxed) }).collect()
    }

    /// Counts a copy.
    pub fn copied(&self, origin: Origin, of: CopyOf, took: Duration) {
        self.copies[origin as usize][of as usize].record(took);
    }

    /// Moves recorded values into their buckets: until then each value takes memory of its own.
    pub(crate) fn settle(&self) {
        if let Some(handle) = &self.handle {
            handle.run_upkeep();
        }
    }

    pub(super) fn text(&self) -> String {
        self.handle.as_ref().map(PrometheusHandle::render).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opens_are_counted_by_how_long_they_took() {
        for latencies in [Latencies::off(), Latencies::on()] {
            [0, 100, 101, 31_000_000].map(Duration::from_micros).into_iter().for_each(|took| latencies.opened(took));
            let counts: Vec<(Option<f64>, u64)> = latencies.opens().iter().map(|o| (o.up_to_s, o.opens)).collect();
            assert_eq!((counts[0], counts[1], counts[17]), ((Some(0.0001), 2), (Some(0.00025), 1), (None, 1)));
        }
    }

    #[test]
    fn durations_fall_into_buckets() {
        let all = Latencies::on();
        all.opened(Duration::from_micros(300));
        all.opened(Duration::from_secs(60));
        all.settle();
        all.opened(Duration::from_millis(20));
        all.copied(Origin::Node, CopyOf::Chunk, Duration::from_millis(2));
        let text = all.text();
        for line in [
            "# TYPE monarch_pfs_open_seconds histogram",
            "monarch_pfs_open_seconds_bucket{le=\"0.00025\"} 0",
            "monarch_pfs_open_seconds_bucket{le=\"0.0005\"} 1",
            "monarch_pfs_open_seconds_bucket{le=\"0.025\"} 2",
            "monarch_pfs_open_seconds_bucket{le=\"30\"} 2",
            "monarch_pfs_open_seconds_bucket{le=\"+Inf\"} 3",
            "monarch_pfs_open_seconds_count 3",
            "monarch_copy_seconds_count{origin=\"node\",piece=\"chunk\"} 1",
            "monarch_copy_seconds_count{origin=\"pfs\",piece=\"file\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
        }
    }

    #[test]
    fn nothing_is_kept_while_metrics_are_off() {
        let none = Latencies::off();
        none.opened(Duration::from_secs(1));
        none.copied(Origin::Pfs, CopyOf::File, Duration::from_secs(1));
        none.settle();
        assert_eq!(none.text(), "");
    }
}
