//! Which policy is best, and how much room is enough: pure.

use super::row::Row;
use super::table::{bytes, percent, time};
use std::cmp::Ordering;

/// Times that differ by less than this share count as equal.
const SAME_TIME: f64 = 0.02;
/// Bytes that differ by less than this share of the data set count as equal.
const SAME_BYTES: f64 = 0.01;
/// Most other policies that are named as equal.
const MAX_EQUALS_NAMED: usize = 3;

/// The best policy for a capacity on a number of nodes.
#[derive(Clone, Debug)]
pub(super) struct Best<'a> {
    pub(super) row: &'a Row,
    /// Other policies that are as good.
    pub(super) equals: Vec<&'a str>,
}

/// Returns the best policies: a row for each number of nodes and capacity, in the order of `rows`.
///
/// The shortest later epoch is best; among equals the fewest bytes from the PFS, then the policy
/// that was named first.
pub(super) fn best(rows: &[Row]) -> Vec<Best<'_>> {
    let mut cases: Vec<(u32, &str)> = Vec::new();
    for case in rows.iter().map(|r| (r.nodes, r.label.as_str())) {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    cases.sort_by_key(|(nodes, _)| *nodes);
    let of = |(nodes, label): (u32, &str)| {
        let own: Vec<&Row> = rows.iter().filter(|r| (r.nodes, r.label.as_str()) == (nodes, label)).collect();
        let shortest = own.iter().map(|r| later_s(r)).min_by(f64::total_cmp)?;
        let quick: Vec<&&Row> = own.iter().filter(|r| is_near(later_s(r), shortest)).collect();
        let row = quick.iter().copied().min_by(|a, b| compare_bytes(a, b)).copied()?;
        let is_equal = |r: &&&&Row| r.policy != row.policy && compare_bytes(r, row) == Ordering::Equal;
        let equals = quick.iter().filter(is_equal).map(|r| r.policy.as_str()).collect();
        Some(Best { row, equals })
    };
    cases.into_iter().filter_map(of).collect()
}

/// Returns the least capacity with which a later epoch is as short as with any, on the most nodes
/// of `all`.
pub(super) fn enough<'a, 'b>(all: &'b [Best<'a>]) -> Option<&'b Best<'a>> {
    let most = all.iter().map(|b| b.row.nodes).max()?;
    let own = || all.iter().filter(|b| b.row.nodes == most);
    let shortest = own().map(|b| later_s(b.row)).min_by(f64::total_cmp)?;
    own().filter(|b| is_near(later_s(b.row), shortest)).min_by_key(|b| room(b.row))
}

/// Says which policy is best and how much room is enough.
pub(super) fn sentence(rows: &[Row]) -> Option<String> {
    let all = best(rows);
    let enough = enough(&all)?;
    let row = enough.row;
    if row.outcome.epochs.len() < 2 {
        return Some(
            "The job has one epoch: each file is read once, and no policy can spare the PFS a byte.".to_owned(),
        );
    }
    let on = if row.nodes == 1 { String::new() } else { format!(" on {} nodes", row.nodes) };
    let each = if row.nodes == 1 { "" } else { " a node" };
    let label = if row.label.ends_with('%') {
        format!("{} ({}{each})", row.label, bytes(room(row)))
    } else {
        format!("{}{each}", bytes(room(row)))
    };
    let mut text = format!(
        "Best policy{on}: {}{}; room needed: {label}. A later epoch takes {}, {} of it computing; the PFS sends {} for \
         it, and {} without copies.",
        row.policy,
        equals(&enough.equals),
        time(row.later_time()),
        percent(row.outcome.later().efficiency()),
        bytes(row.later_bytes()),
        bytes(row.uncached_bytes()),
    );
    let most = all.iter().filter(|b| b.row.nodes == row.nodes).max_by_key(|b| room(b.row));
    if let Some(most) = most.filter(|m| m.row.later_bytes() < row.later_bytes()) {
        text += &format!(
            " More room spares the PFS bytes, and the job no time: {} with {}.",
            bytes(most.row.later_bytes()),
            most.row.label
        );
    }
    Some(text)
}

fn equals(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        some if some.len() > MAX_EQUALS_NAMED => format!(" (as good: {} others)", some.len()),
        some => format!(" (as good: {})", some.join(", ")),
    }
}

fn later_s(row: &Row) -> f64 {
    row.later_time().as_secs_f64()
}

fn is_near(seconds: f64, shortest: f64) -> bool {
    seconds <= shortest * (1.0 + SAME_TIME)
}

fn compare_bytes(a: &Row, b: &Row) -> Ordering {
    let near = a.uncached_bytes() as f64 * SAME_BYTES;
    let (a, b) = (a.later_bytes(), b.later_bytes());
    if a.abs_diff(b) as f64 <= near { Ordering::Equal } else { a.cmp(&b) }
}

/// Room of a node in bytes.
fn room(row: &Row) -> u64 {
    row.capacities.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::super::row::Bound;
    use super::*;
    use monarch_policies::sim::{EpochFigures, Outcome};
    use std::time::Duration;

    const GIB: u64 = 1 << 30;

    fn row(policy: &str, nodes: u32, percent: u64, seconds: u64, sent: u64) -> Row {
        let later = EpochFigures {
            time: Duration::from_secs(seconds),
            ideal: Duration::from_secs(50),
            bytes_copied: sent * GIB,
            ..EpochFigures::default()
        };
        Row {
            policy: policy.into(),
            label: format!("{percent}%"),
            capacities: vec![percent * GIB],
            nodes,
            outcome: Outcome { epochs: vec![EpochFigures::default(), later], most_used: Vec::new(), events: 0 },
            bound: Bound { pfs_bytes: vec![100 * GIB], later: 0, static_share: 0.0 },
            scaling: 1.0,
        }
    }

    #[test]
    fn the_shortest_epoch_is_best_then_the_fewest_bytes_then_the_first() {
        let rows = [
            row("lru", 1, 25, 100, 90),
            row("static", 1, 25, 101, 75),
            row("first", 1, 25, 100, 75),
            row("slow", 1, 25, 200, 10),
            row("lru", 1, 100, 100, 0),
        ];
        let all = best(&rows);
        assert_eq!(all.iter().map(|b| b.row.policy.as_str()).collect::<Vec<_>>(), ["static", "lru"]);
        assert_eq!(all[0].equals, ["first"]);
        assert_eq!(enough(&all).unwrap().row.label, "25%");
        let said = sentence(&rows).unwrap();
        assert_eq!(
            said,
            "Best policy: static (as good: first); room needed: 25% (25.0 GiB). A later epoch takes 101.0 s, 49.5% of it \
             computing; the PFS sends 75.0 GiB for it, and 100.0 GiB without copies. More room spares the PFS bytes, \
             and the job no time: 0 B with 100%."
        );
    }

    #[test]
    fn room_is_that_of_the_most_nodes() {
        let rows =
            [row("a", 1, 10, 100, 90), row("a", 8, 10, 30, 90), row("a", 8, 50, 20, 50), row("a", 8, 90, 20, 50)];
        let all = best(&rows);
        let enough = enough(&all).unwrap().row;
        assert_eq!((enough.nodes, enough.label.as_str()), (8, "50%"));
        let said = sentence(&rows).unwrap();
        assert!(said.starts_with("Best policy on 8 nodes: a; room needed: 50% (50.0 GiB a node). "), "{said}");
        assert!(!said.contains("More room"), "{said}");
    }
}
