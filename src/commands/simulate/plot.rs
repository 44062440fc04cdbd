//! Results as a page, or as charts alone.
//!
//! A chart for each number of nodes: bytes from the PFS and stall against capacity. Then one for
//! each capacity: efficiency against nodes. A chart with a single value on an axis is left out.

use super::best::{self, Best};
use super::row::Row;
use super::table::{self, percent, time};
use crate::chart::{COLOURS, Chart, PANEL, Scale, Series, legend};
use crate::page::{self, cell};
use bytesize::ByteSize;
use maud::{Markup, PreEscaped, html};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Colour of bounds: that of text.
const TEXT: &str = "currentColor";
/// Colour of closed forms.
const GREY: &str = "#888888";
/// Charts side by side in a drawing.
const MAX_COLUMNS: usize = 4;
/// Bytes of a GiB.
const GIB: f64 = 1_073_741_824.0;

const STYLE: &str = "text{font:12px sans-serif;fill:#222}.t{font-weight:bold;font-size:13px}.y{text-anchor:end}.x{text-anchor:middle}\
.l{fill:#555}.g{stroke:#ddd}.a{stroke:#444}.s{fill:none;stroke-width:2.2}";

/// Draws all charts in one SVG.
pub(super) fn svg(rows: &[Row]) -> String {
    let grid = [bytes(rows), stall(rows), scaling(rows)];
    // Charts of one kind begin on a new line.
    let lines: Vec<&[Chart]> = grid.iter().flat_map(|charts| charts.chunks(MAX_COLUMNS)).collect();
    let names = names(rows);
    let columns = lines.iter().map(|charts| charts.len()).max().unwrap_or(0);
    let (wide, high) = ((columns as f64 * PANEL.0).max(legend_width(&names)), lines.len() as f64 * PANEL.1 + 40.0);
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" color="black">"#
    );
    let _ = write!(out, r#"<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>"#);
    out += &legend(&names, 20.0, 20.0);
    for (line, charts) in lines.into_iter().enumerate() {
        for (column, chart) in charts.iter().enumerate() {
            out += &chart.svg(column as f64 * PANEL.0, line as f64 * PANEL.1 + 36.0);
        }
    }
    out + "</svg>\n"
}

/// Returns the space that the names of lines take.
fn legend_width(names: &[Series]) -> f64 {
    names.iter().map(|s| s.name.chars().count() as f64 * 7.2 + 54.0).sum::<f64>() + 40.0
}

/// A page: the best policy in a sentence, a short table, the charts, all figures.
pub(super) fn html(rows: &[Row], about: &str, command: &str) -> String {
    let names = names(rows);
    let head = best::sentence(rows).unwrap_or_else(|| "Nothing was simulated".to_owned());
    let (title, rest) = head.split_once(". ").unwrap_or((&head, ""));
    let charts = [bytes(rows), stall(rows), scaling(rows)];
    let body = html! {
        h1 { (title) }
        @if !rest.is_empty() { p { (rest) } }
        p.sub { (about) }
        pre { (command) }
        h2 { "The best policy for each capacity" }
        (short_table(&best::best(rows)))
        @if nodes(rows).into_iter().any(|n| n > 1) { (about_nodes()) }
        @if charts.iter().any(|some| !some.is_empty()) {
            h2 { "All policies" }
            div.legend { (PreEscaped(names.iter().map(name).collect::<String>())) }
            @for some in charts.iter().filter(|some| !some.is_empty()) {
                div.charts { @for chart in some { (drawn(chart)) } }
            }
            p.note {
                "Dashed: the bound is the least that any policy could read (Belady); a static cache is one that keeps what it has. \
                Nothing is measured: the model and what it leaves out are in docs/POLICIES.md."
            }
        }
        details {
            summary { "All figures" }
            pre { (table::table(rows)) }
            p.note { (table::LEGEND) }
        }
    };
    page::document("monarch simulate", &body)
}

fn short_table(all: &[Best<'_>]) -> Markup {
    let row = |b: &Best<'_>| {
        let (row, later) = (b.row, b.row.outcome.later());
        vec![
            cell(&row.nodes.to_string()),
            cell(&row.label),
            cell(&ByteSize(row.capacities.iter().sum()).to_string()),
            cell(&row.policy),
            cell(&time(row.later_time())),
            cell(&percent(later.efficiency())),
            cell(&percent(later.hit_ratio())),
            cell(&ByteSize(row.later_bytes()).to_string()),
            cell(&ByteSize(row.later_bound()).to_string()),
        ]
    };
    let heads = [
        "Nodes",
        "capacity",
        "a node",
        "policy",
        "a later epoch",
        "computing",
        "hits",
        "from the PFS",
        "least possible",
    ];
    page::table(&heads, &all.iter().map(row).collect::<Vec<_>>())
}

/// Explains what more nodes do to bytes.
fn about_nodes() -> Markup {
    html! {
        p.note {
            "Bytes are those of all nodes together. With the whole order shuffled, each of N nodes reads another N-th of the files in \
            each epoch, and meets a file that it kept with probability 1/N: the more nodes, the less its copies help, and what it \
            prefetches of the rest is read by other nodes as well. With an order shuffled within each node's share, capacity counts \
            for that share: the more nodes, the less room each needs. Nodes that give each other their copies are not simulated; there \
            the PFS sends each file once while the capacities of all nodes together hold the data set."
        }
    }
}

/// A chart as a drawing of its own.
fn drawn(chart: &Chart) -> Markup {
    let (wide, high) = PANEL;
    html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(wide) height=(high) viewBox=(format!("0 0 {wide} {high}"))
            role="img" aria-label=(chart.title) { (PreEscaped(chart.svg(0.0, 0.0))) }
    }
}

/// The name of a line beside its colour, as a drawing of its own, so that names wrap.
fn name(series: &Series) -> String {
    let one = std::slice::from_ref(series);
    let wide = legend_width(one) - 40.0;
    format!(r#"<svg width="{wide:.0}" height="20" viewBox="0 0 {wide:.0} 20">{}</svg>"#, legend(one, 2.0, 10.0))
}

fn policies(rows: &[Row]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    rows.iter().map(|r| r.policy.as_str()).filter(|p| seen.insert(*p)).collect()
}

fn nodes(rows: &[Row]) -> BTreeSet<u32> {
    rows.iter().map(|r| r.nodes).collect()
}

fn labels(rows: &[Row]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    rows.iter().map(|r| r.label.as_str()).filter(|l| seen.insert(*l)).collect()
}

/// Lines of the legend.
fn names(rows: &[Row]) -> Vec<Series> {
    let mut lines = by_policy(rows, |_| true, |_| (0.0, 0.0));
    if labels(rows).len() > 1 {
        lines.push(line("bound (Belady)", TEXT, Vec::new()));
        lines.push(line("static cache", GREY, Vec::new()));
    }
    lines
}

fn line(name: &str, colour: &'static str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), colour, dashed: true, points }
}

/// A line for each policy, of the rows that count.
fn by_policy(rows: &[Row], counts: impl Fn(&Row) -> bool, point: impl Fn(&Row) -> (f64, f64)) -> Vec<Series> {
    let of = |(policy, colour): (&str, &&'static str)| {
        let own = rows.iter().filter(|r| r.policy == policy && counts(r));
        Series { name: policy.to_owned(), colour, dashed: false, points: sorted(own.map(&point).collect()) }
    };
    policies(rows).into_iter().zip(COLOURS.iter().cycle()).map(of).collect()
}

fn sorted(mut points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Room of a node in GiB.
fn room(row: &Row) -> f64 {
    row.capacities.iter().sum::<u64>() as f64 / GIB
}

fn room_ticks(rows: &[Row]) -> Vec<(f64, String)> {
    let mut seen = BTreeSet::new();
    rows.iter().filter(|r| seen.insert(r.label.as_str())).map(|r| (room(r), r.label.clone())).collect()
}

fn against_capacity(rows: &[Row], chart: impl Fn(u32) -> Chart) -> Vec<Chart> {
    if labels(rows).len() > 1 { nodes(rows).into_iter().map(chart).collect() } else { Vec::new() }
}

fn on(nodes: u32) -> String {
    if nodes == 1 { "on 1 node".to_owned() } else { format!("on {nodes} nodes") }
}

fn bytes(rows: &[Row]) -> Vec<Chart> {
    let most = rows.iter().map(Row::later_bytes).max().unwrap_or(0) as f64;
    let (unit, name) = if most >= 2.0 * 1024.0 * GIB {
        (1024.0 * GIB, "TiB")
    } else if most >= 2.0 * GIB {
        (GIB, "GiB")
    } else {
        (GIB / 1024.0, "MiB")
    };
    against_capacity(rows, |nodes| {
        let mut series = by_policy(rows, |r| r.nodes == nodes, |r| (room(r), r.later_bytes() as f64 / unit));
        let own: Vec<&Row> = rows.iter().filter(|r| r.nodes == nodes && r.policy == rows[0].policy).collect();
        let bound = own.iter().map(|r| (room(r), r.later_bound() as f64 / unit)).collect();
        let fixed =
            own.iter().map(|r| (room(r), r.uncached_bytes() as f64 * (1.0 - r.bound.static_share) / unit)).collect();
        series.push(line("bound", TEXT, sorted(bound)));
        series.push(line("static", GREY, sorted(fixed)));
        Chart {
            title: format!("PFS bytes of a later epoch, {}", on(nodes)),
            x_label: "capacity of a node",
            y_label: name.to_owned(),
            x: Scale::Linear,
            ticks: room_ticks(rows),
            series,
        }
    })
}

fn stall(rows: &[Row]) -> Vec<Chart> {
    against_capacity(rows, |nodes| Chart {
        title: format!("Waiting for data, {}", on(nodes)),
        x_label: "capacity of a node",
        y_label: "% of computing, later epochs".to_owned(),
        x: Scale::Linear,
        ticks: room_ticks(rows),
        series: by_policy(rows, |r| r.nodes == nodes, |r| (room(r), r.outcome.later().stall_ratio() * 100.0)),
    })
}

fn scaling(rows: &[Row]) -> Vec<Chart> {
    if nodes(rows).len() < 2 {
        return Vec::new();
    }
    let chart = |label: &str| Chart {
        title: format!("Efficiency, capacity {label}"),
        x_label: "nodes",
        y_label: "% of computing only, later epochs".to_owned(),
        x: Scale::Log2,
        ticks: nodes(rows).into_iter().map(|n| (f64::from(n), n.to_string())).collect(),
        series: by_policy(rows, |r| r.label == label, |r| (f64::from(r.nodes), r.outcome.later().efficiency() * 100.0)),
    };
    labels(rows).into_iter().map(chart).collect()
}
