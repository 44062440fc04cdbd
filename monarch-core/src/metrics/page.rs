//! An answer to Prometheus.

use super::declare::{Counter, Declared, Gauge, Kind, Seconds};
use super::defs;
use metrics::{Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

static META: Metadata<'static> = Metadata::new("monarch", Level::INFO, None);

/// Returns the series of a metric. (The types of declarations ensure as many values as labels.)
pub(super) fn key(of: &Declared, values: &[&str]) -> Key {
    let labels = of.labels.iter().zip(values).map(|(label, value)| Label::new(label.name, (*value).to_owned()));
    Key::from_parts(of.name, labels.collect::<Vec<_>>())
}

/// Gives a recorder the help text of a metric.
pub(super) fn describe(recorder: &PrometheusRecorder, of: &'static Declared) {
    let (name, meaning) = (KeyName::from(of.name), of.meaning.into());
    match of.kind {
        Kind::Counter => recorder.describe_counter(name, None, meaning),
        Kind::Gauge => recorder.describe_gauge(name, None, meaning),
        Kind::Histogram => recorder.describe_histogram(name, None, meaning),
    }
}

/// A page of metrics.
pub(super) struct Page(PrometheusRecorder);

impl Page {
    pub(super) fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        defs::ALL.iter().for_each(|of| describe(&recorder, of));
        Self(recorder)
    }

    pub(super) fn counter<const N: usize>(&self, of: Counter<N>, labels: [&str; N], value: u64) {
        self.0.register_counter(&key(of.0, &labels), &META).absolute(value);
    }

    /// Sets a counter of seconds. (It is a gauge to the facade, whose counters are whole numbers.)
    pub(super) fn seconds<const N: usize>(&self, of: Seconds<N>, labels: [&str; N], value: f64) {
        self.0.register_gauge(&key(of.0, &labels), &META).set(value);
    }

    pub(super) fn gauge<const N: usize>(&self, of: Gauge<N>, labels: [&str; N], value: f64) {
        self.0.register_gauge(&key(of.0, &labels), &META).set(value);
    }

    /// Sets the series of the present state to 1, and those of the other states to 0.
    pub(super) fn one_of<const N: usize>(
        &self,
        of: Gauge<N>,
        labels: impl Fn(&'static str) -> [&'static str; N],
        states: &[&'static str],
        is: &str,
    ) {
        for state in states {
            self.gauge(of, labels(state), f64::from(u8::from(*state == is)));
        }
    }

    /// Returns the text of this page and of `more`, sorted by name so that two pages can be
    /// compared.
    pub(super) fn text(&self, more: &str) -> String {
        let all = self.0.handle().render() + "\n" + more;
        let mut blocks: Vec<String> =
            all.split("\n\n").map(str::trim).filter(|block| !block.is_empty()).map(tidy).collect();
        blocks.sort_unstable();
        blocks.concat()
    }
}

/// Sorts the series of a metric, and states its kind as declared.
fn tidy(block: &str) -> String {
    let (head, mut series): (Vec<&str>, Vec<&str>) = block.lines().partition(|line| line.starts_with('#'));
    // Buckets are sorted already.
    if !series.iter().any(|line| line.contains("le=\"")) {
        series.sort_unstable();
    }
    let line = |line: &str| {
        let declared = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
            .and_then(|(name, _)| defs::ALL.iter().find(|of| of.name == name));
        declared.map_or_else(|| format!("{line}\n"), |of| format!("# TYPE {} {}\n", of.name, of.kind.name()))
    };
    head.into_iter().chain(series).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_order_and_says_what_was_declared() {
        let page = Page::new();
        page.seconds(defs::READER_WAIT, [], 1.5);
        page.counter(defs::OPENS, ["waited"], 3);
        page.counter(defs::OPENS, ["tier"], 4);
        page.gauge(defs::ROOT_FILES, ["/a \"b\"\\c\nd"], 2.0);
        let expected = "# HELP monarch_opens_total Opens below the roots that were served without a read of the PFS by the process.\n\
                        # TYPE monarch_opens_total counter\n\
                        monarch_opens_total{served=\"tier\"} 4\n\
                        monarch_opens_total{served=\"waited\"} 3\n\
                        # HELP monarch_reader_wait_seconds_total How long readers waited for copies, all together.\n\
                        # TYPE monarch_reader_wait_seconds_total counter\n\
                        monarch_reader_wait_seconds_total 1.5\n\
                        # HELP monarch_root_files Regular files of a root.\n\
                        # TYPE monarch_root_files gauge\n\
                        monarch_root_files{root=\"/a \\\"b\\\"\\\\c\\nd\"} 2\n";
        assert_eq!(page.text(""), expected);
    }
}
