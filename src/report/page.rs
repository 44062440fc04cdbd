//! A report as a page of HTML: text, tables and drawings, complete in itself and without scripts.

use super::bars::{Part, filled, stacked};
use super::summary::{OTHERS, REASONS, Report};
use crate::chart::COLOURS;
use crate::say::count;
use bytesize::ByteSize;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use monarch_core::agent::protocol::{Directory, Epoch, Opens, RootStatus, TierStatus, Why};
use monarch_core::shown::ShowPath;
use std::time::Duration;

const STYLE: &str = "body{font:14px/1.45 sans-serif;margin:2em auto;max-width:980px;padding:0 1em;color:#222;background:#fff}h1{font-size:22px;margin-bottom:0}h1,h2{overflow-wrap:anywhere}\
h2{font-size:17px;margin:1.8em 0 .5em}.sub{color:#555;margin-top:.2em}pre{background:#f4f4f4;padding:.6em;overflow-x:auto;font-size:12px}\
table{border-collapse:collapse;margin:.5em 0;display:block;overflow-x:auto}svg{max-width:100%;height:auto}th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}\
th{font-weight:600;color:#444}td:first-child,th:first-child{text-align:left}td.w{text-align:left}td{white-space:nowrap}td svg{max-width:none}.big{display:flex;flex-wrap:wrap;gap:1em;margin:1em 0}\
.big div{background:#f4f4f4;padding:.6em 1em;min-width:9em}.big b{display:block;font-size:20px}.advice li{margin:.35em 0}\
svg text{font:12px sans-serif;fill:#222}svg .t{font-weight:bold;font-size:13px}svg .y{text-anchor:end}svg .x{text-anchor:middle}svg .l{fill:#555}\
svg .g{stroke:#ddd}svg .a{stroke:#444}.charts{display:flex;flex-wrap:wrap;gap:.5em}.note{color:#555}";

/// Most epochs with bars and lines of their own: the last ones.
const MAX_EPOCHS_SHOWN: usize = 60;

/// Renders a report.
pub(super) fn html(r: &Report) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "monarch: " (r.host) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (head(r))
                (advice(r))
                @for root in &r.status.roots { (epochs(root)) }
                (reasons(r))
                (saved(r))
                (tiers(r))
                (latencies(&r.pfs_opens))
                @for root in &r.status.roots { (directories(root)) }
                p.note {
                    "Monarch " (r.status.version) ", policy " (r.status.policy) ", engine " (r.status.engine)
                    ". Figures of this node"
                    @if r.shared_with_other_jobs { ", of all jobs that shared its agent" }
                    "; what the servers of the PFS counted is theirs to say."
                }
            }
        }
    };
    page.into_string() + "\n"
}

fn bytes(n: u64) -> String {
    ByteSize(n).to_string()
}

fn percent(part: u64, of: u64) -> String {
    // Rounded down: 100 % is all of them.
    format!("{:.1} %", (1000 * part).checked_div(of).unwrap_or(0) as f64 / 10.0)
}

fn seconds(s: f64) -> String {
    if s < 60.0 {
        return format!("{s:.1} s");
    }
    humantime::format_duration(Duration::from_secs(s.round() as u64)).to_string()
}

fn table(heads: &[&str], rows: &[Vec<Markup>]) -> Markup {
    html! {
        table {
            tr { @for head in heads { th { (head) } } }
            @for row in rows { tr { @for cell in row { td { (cell) } } } }
        }
    }
}

/// A cell with text.
fn cell(text: &str) -> Markup {
    html! { (text) }
}

fn head(r: &Report) -> Markup {
    let when = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_millis(r.ended_ms));
    let title = match r.opens() {
        0 => "No file below the roots was opened".to_owned(),
        all => format!("{} of {} opens were local", percent(r.opens_local, all), count(all)),
    };
    let figures = [
        (bytes(r.get("hit_bytes")), "in files opened as copies"),
        (bytes(r.agent("bytes_copied")), "copied from the PFS"),
        (bytes(r.get("miss_bytes") + r.get("chunk_miss_bytes")), "read from the PFS by the job"),
        (seconds(r.waited_s()), "readers waited, all together"),
    ];
    html! {
        h1 { (title) }
        p.sub { (seconds(r.seconds)) " on " (r.host) ", until " (when.to_string()) }
        @if !r.command.is_empty() { pre { (command_line(&r.command)) } }
        div.big { @for (n, what) in &figures { div { b { (n) } (what) } } }
    }
}

/// Returns the words of a command, with quotes where a shell needs them.
fn command_line(words: &[String]) -> String {
    // (No word of a command has a NUL.)
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_else(|_| words.join(" "))
}

fn advice(r: &Report) -> Markup {
    html! {
        @if !r.advice.is_empty() {
            h2 { "What to change" }
            ul.advice { @for line in &r.advice { li { (line) } } }
        }
    }
}

fn epochs(root: &RootStatus) -> Markup {
    let some = root.epochs.get(root.epochs.len().saturating_sub(MAX_EPOCHS_SHOWN)..).unwrap_or_default();
    html! {
        h2 { (root.path.shown().to_string()) }
        p { (count(root.files)) " files, " (bytes(root.bytes)) "; " (root.state) }
        @for notice in root.notices() { p { (notice) } }
        @if some.is_empty() {
            p { "Nothing was opened." }
        } @else {
            (epoch_charts(some))
            (epoch_table(some))
        }
    }
}

fn epoch_charts(some: &[Epoch]) -> Markup {
    let labels: Vec<String> = some.iter().map(|e| e.number.to_string()).collect();
    let part = |name, colour, of: &dyn Fn(&Epoch) -> f64| Part { name, colour, values: some.iter().map(of).collect() };
    let [blue, red, green, pink, ..] = COLOURS;
    let opens = [
        part("copy", green, &|e| e.local as f64),
        part("first touch", blue, &|e| e.waited as f64),
        part("chunks", pink, &|e| e.chunked as f64),
        part("PFS", red, &|e| e.pfs as f64),
    ];
    let mib = |b: u64| b as f64 / f64::from(1 << 20);
    let given = [part("copied", blue, &|e| mib(e.bytes_copied)), part("by the job", red, &|e| mib(e.pfs_bytes))];
    let time = [part("", green, &|e| e.seconds)];
    html! {
        div.charts {
            (PreEscaped(stacked("Opens, by where they were served", "epoch", "opens", &labels, &opens)))
            (PreEscaped(stacked("From the PFS", "epoch", "MiB", &labels, &given)))
            (PreEscaped(stacked("Duration", "epoch", "s", &labels, &time)))
        }
    }
}

fn epoch_table(some: &[Epoch]) -> Markup {
    let row = |e: &Epoch| {
        vec![
            cell(&format!("{}{}", e.number, if e.complete { "" } else { " (not ended)" })),
            cell(&format!("{:.1} s", e.seconds)),
            cell(&count(e.opens)),
            cell(&percent(e.local + e.waited, e.opens)),
            cell(&count(e.waited)),
            cell(&format!("{:.1} s", e.wait_s)),
            cell(&count(e.pfs)),
            cell(&bytes(e.pfs_bytes)),
            cell(&bytes(e.bytes_copied)),
            cell(&because(&e.why)),
        ]
    };
    let heads = [
        "Epoch",
        "took",
        "opens",
        "local",
        "of these at first touch",
        "readers waited",
        "to the PFS",
        "bytes",
        "copied meanwhile",
        "why to the PFS",
    ];
    table(&heads, &some.iter().map(row).collect::<Vec<_>>())
}

/// Returns why opens of an epoch went to the PFS, the most frequent reason first.
fn because(why: &Why) -> String {
    let number = |name| match name {
        "absent" => why.absent,
        "large" => why.large,
        "no_room" => why.no_room,
        "refused" => why.refused,
        "changed" => why.changed,
        "written" => why.written,
        "deadline" => why.deadline,
        _ => why.vanished,
    };
    let mut some: Vec<(u64, &str)> =
        REASONS.iter().map(|(name, words)| (number(*name), *words)).filter(|(n, _)| *n > 0).collect();
    some.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    some.iter().map(|(n, words)| format!("{} {words}", count(*n))).collect::<Vec<_>>().join("; ")
}

fn reasons(r: &Report) -> Markup {
    let rows = |of: &[(&str, &str)]| -> Vec<Vec<Markup>> {
        let some = of.iter().map(|(name, why)| (r.get(name), why)).filter(|(n, _)| *n > 0);
        some.map(|(n, why)| vec![cell(why), cell(&count(n)), cell(&percent(n, r.opens()))]).collect()
    };
    let (missed, others) = (rows(&REASONS), rows(&OTHERS));
    html! {
        h2 { "Opens that went to the PFS" }
        @if missed.is_empty() { p { "None." } } @else { (table(&["Why", "opens", "of all"], &missed)) }
        @if !others.is_empty() {
            p { "Beside them, not meant for copies:" }
            (table(&["What", "opens", "as many as"], &others))
        }
    }
}

fn saved(r: &Report) -> Markup {
    let (local, copied) = (r.opens_local, r.agent("copied_on_demand") + r.agent("copied_ahead"));
    let rows = [
        ("opens (each with its reads and its close), less one for each copy", count(local.saturating_sub(copied))),
        (
            "bytes in files opened as copies, less those copied",
            bytes(r.get("hit_bytes").saturating_sub(r.agent("bytes_copied"))),
        ),
        ("stat, access and the like", count(r.get("stats"))),
        ("directories listed", count(r.get("lists"))),
    ];
    let rows = rows.map(|(what, n)| vec![cell(what), cell(&n)]);
    html! {
        h2 { "What the PFS was spared" }
        (table(&["Answered on this node", ""], &rows))
        p.note {
            (count(r.get("meta_kernel"))) " calls about names went to the kernel; " (count(copied))
            " files were copied for " (count(local)) " opens."
        }
    }
}

fn tiers(r: &Report) -> Markup {
    let [.., green, _, _, _, _] = COLOURS;
    let row = |t: &TierStatus| {
        vec![
            cell(&format!("{} {}", t.name, t.path.shown())),
            cell(&format!("{} of {}", bytes(t.used), bytes(t.capacity))),
            PreEscaped(filled(t.used as f64 / t.capacity.max(1) as f64, green)),
            cell(&count(t.files)),
            cell(if t.resting { "resting" } else { "" }),
        ]
    };
    let rows: Vec<Vec<Markup>> = r.status.tiers.iter().map(row).collect();
    html! {
        h2 { "Tiers" }
        (table(&["Tier", "used", "", "copies", ""], &rows))
    }
}

/// Draws how long opens at the PFS took; nothing when there were none.
fn latencies(opens: &[Opens]) -> Markup {
    let some = |o: &&Opens| o.opens > 0;
    let Some((first, last)) = opens.iter().position(|o| some(&o)).zip(opens.iter().rposition(|o| some(&o))) else {
        return html! {};
    };
    let shown = opens.get(first..=last).unwrap_or_default();
    let label = |o: &Opens| match o.up_to_s {
        Some(s) if s < 0.001 => format!("{:.0}us", s * 1e6),
        Some(s) if s < 1.0 => format!("{}ms", (s * 1e4).round() / 10.0),
        Some(s) => format!("{s}s"),
        None => "more".to_owned(),
    };
    let labels: Vec<String> = shown.iter().map(label).collect();
    let values = shown.iter().map(|o| o.opens as f64).collect();
    let part = Part { name: "", colour: COLOURS[0], values };
    html! {
        h2 { "How fast the PFS answered" }
        (PreEscaped(stacked("Opens at the PFS by the agent", "took at most", "opens", &labels, &[part])))
    }
}

fn directories(root: &RootStatus) -> Markup {
    let row = |d: &Directory| {
        let path = root.path.join(&d.path).shown().to_string();
        vec![cell(&path), cell(&count(d.opens)), cell(&bytes(d.bytes)), cell(&count(d.pfs)), cell(&bytes(d.pfs_bytes))]
    };
    let heads = ["Directory", "opens", "bytes", "to the PFS", "bytes"];
    html! {
        @if !root.directories.is_empty() {
            h2 { "Directories that cost most" }
            (table(&heads, &root.directories.iter().map(row).collect::<Vec<_>>()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_job_are_text_and_not_markup() {
        let root = RootStatus { path: "/data/<b>".into(), state: "failed: <i>".into(), ..RootStatus::default() };
        let mut r = Report {
            host: "n\"<1".into(),
            command: vec!["sh".into(), "-c".into(), "echo '<x>'".into()],
            ..Report::default()
        };
        r.status.roots.push(root);
        let page = html(&r);
        assert!(
            !page.contains("<b>/") && !page.contains("<i>") && !page.contains("<x>") && !page.contains("n\"<1"),
            "{page}"
        );
        assert!(page.contains("sh -c &quot;echo '&lt;x&gt;'&quot;"), "{page}");
        // Nothing of another place.
        assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"), "{page}");
    }
}
