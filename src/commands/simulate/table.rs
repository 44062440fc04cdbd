//! Results as a table of text.

use super::row::Row;
use crate::say::count;
use bytesize::ByteSize;
use std::time::Duration;

const HEADINGS: [&str; 14] = [
    "policy", "capacity", "nodes", "epoch 1", "PFS 1", "later", "stall", "hits", "calls", "PFS", "all PFS", "bound",
    "effic.", "scaling",
];

/// What headings mean.
pub(super) const LEGEND: &str = "later, stall (waiting in units of computing), hits, calls, PFS: one epoch after the first; \
    bound: least PFS bytes of all epochs (Belady)";

/// The table. `later` and what follows up to `PFS` are about one later epoch, `all PFS` and its
/// bound about the whole job.
pub(super) fn table(rows: &[Row]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(rows.iter().map(cells));
    let mut widths = [0; HEADINGS.len()];
    for line in &lines {
        widths.iter_mut().zip(line).for_each(|(w, cell)| *w = (*w).max(cell.chars().count()));
    }
    lines.iter().map(|line| aligned(line, &widths)).collect()
}

fn aligned(line: &[String], widths: &[usize]) -> String {
    let cell = |(at, (text, width)): (usize, (&String, &usize))| match at {
        0 => format!("{text:<width$}"),
        _ => format!("{text:>width$}"),
    };
    let cells: Vec<String> = line.iter().zip(widths).enumerate().map(cell).collect();
    cells.join("  ").trim_end().to_owned() + "\n"
}

fn cells(row: &Row) -> [String; HEADINGS.len()] {
    let (later, each) = (row.outcome.later(), row.outcome.later_epochs());
    let first = row.outcome.epochs.first().copied().unwrap_or_default();
    [
        row.policy.clone(),
        row.label.clone(),
        row.nodes.to_string(),
        time(first.time),
        bytes(first.pfs_bytes()),
        time(row.later_time()),
        percent(later.stall_ratio()),
        percent(later.hit_ratio()),
        count(later.pfs_calls() / each),
        bytes(row.later_bytes()),
        bytes(row.outcome.total().pfs_bytes()),
        bytes(row.bound.total()),
        percent(later.efficiency()),
        percent(row.scaling),
    ]
}

pub(super) fn bytes(b: u64) -> String {
    ByteSize(b).to_string()
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

pub(super) fn time(t: Duration) -> String {
    let s = t.as_secs_f64();
    match s {
        _ if s < 1.0 => format!("{:.1} ms", s * 1e3),
        _ if s < 10_000.0 => format!("{s:.1} s"),
        _ => format!("{:.1} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!([0, 999, 1000, 1_281_167].map(count), ["0", "999", "1,000", "1,281,167"]);
        assert_eq!([1, 5000, 60_000_000].map(|ms| time(Duration::from_millis(ms))), ["1.0 ms", "5.0 s", "16.7 h"]);
        assert_eq!((bytes(140 << 30).as_str(), percent(0.1234).as_str()), ("140.0 GiB", "12.3%"));
    }
}
