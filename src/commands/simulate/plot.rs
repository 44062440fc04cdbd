//! Results as a page of charts, or as the charts alone.
//!
//! A column for each number of nodes: bytes from the PFS and stall against capacity. Below, a chart
//! for each capacity: efficiency against nodes. A chart with a single value on an axis is left out.

use super::row::Row;
use super::table;
use crate::chart::{COLOURS, Chart, PANEL, Scale, Series, escaped, legend};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Colour of bounds.
const BLACK: &str = "#222222";
/// Colour of closed forms.
const GREY: &str = "#888888";

const STYLE: &str = "text{font:12px sans-serif;fill:#222}.t{font-weight:bold;font-size:13px}.y{text-anchor:end}.x{text-anchor:middle}\
.l{fill:#555}.g{stroke:#ddd}.a{stroke:#444}.s{fill:none;stroke-width:2.2}";

/// Draws all charts in one SVG.
pub(super) fn svg(rows: &[Row]) -> String {
    let grid = [bytes(rows), stall(rows), scaling(rows)];
    let names = names(rows);
    let columns = grid.iter().map(Vec::len).max().unwrap_or(0);
    let used: Vec<&Vec<Chart>> = grid.iter().filter(|charts| !charts.is_empty()).collect();
    let room = names.iter().map(|s| s.name.len() as f64 * 7.2 + 54.0).sum::<f64>() + 40.0;
    let (wide, high) = ((columns as f64 * PANEL.0).max(room), used.len() as f64 * PANEL.1 + 40.0);
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">"#
    );
    let _ = write!(out, r#"<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>"#);
    out += &legend(&names, 20.0, 20.0);
    for (line, charts) in used.into_iter().enumerate() {
        for (column, chart) in charts.iter().enumerate() {
            out += &chart.svg(column as f64 * PANEL.0, line as f64 * PANEL.1 + 36.0);
        }
    }
    out + "</svg>\n"
}

/// A page with the charts, the table, and what they are about.
pub(super) fn html(rows: &[Row], about: &str, command: &str) -> String {
    let head = r#"<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>monarch simulate</title>"#;
    let style = "<style>body{font:14px sans-serif;margin:1.5em;color:#222}pre{font-size:12px}</style></head><body>";
    format!(
        "{head}{style}<h1>Simulated policies</h1><p>{}</p><pre>{}</pre>\n{}<pre>{}</pre></body></html>\n",
        escaped(about),
        escaped(command),
        svg(rows),
        escaped(&table::table(rows))
    )
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
        lines.push(line("bound (Belady)", BLACK, Vec::new()));
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

/// Room of a node in GB.
fn room(row: &Row) -> f64 {
    row.capacities.iter().sum::<u64>() as f64 / 1e9
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
    let (unit, name) = if most >= 2e12 {
        (1e12, "TB")
    } else if most >= 2e9 {
        (1e9, "GB")
    } else {
        (1e6, "MB")
    };
    against_capacity(rows, |nodes| {
        let mut series = by_policy(rows, |r| r.nodes == nodes, |r| (room(r), r.later_bytes() as f64 / unit));
        let own: Vec<&Row> = rows.iter().filter(|r| r.nodes == nodes && r.policy == rows[0].policy).collect();
        let bound = own.iter().map(|r| (room(r), r.later_bound() as f64 / unit)).collect();
        let read = |r: &Row| r.bound.pfs_bytes.first().copied().unwrap_or(0) as f64;
        let fixed = own.iter().map(|r| (room(r), read(r) * (1.0 - r.bound.static_share) / unit)).collect();
        series.push(line("bound", BLACK, sorted(bound)));
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
