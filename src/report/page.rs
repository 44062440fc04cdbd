//! A report as a page of HTML: text, tables and drawings, complete in itself and without scripts.

use super::bars::{Part, filled, stacked};
use super::lines::jobs;
use super::summary::{OTHERS, REASONS, Report};
use crate::chart::COLOURS;
use crate::page::{self, cell, table};
use crate::say::count;
use bytesize::ByteSize;
use maud::{Markup, PreEscaped, html};
use monarch_core::agent::protocol::{Directory, Epoch, Opens, RootStatus, TierStatus, Why, percent};
use monarch_core::shown::ShowPath;
use std::time::Duration;

/// Most epochs with bars and lines of their own: the last ones.
const MAX_EPOCHS_SHOWN: usize = 60;

/// Renders a report.
pub(super) fn html(r: &Report) -> String {
    let body = html! {
        (head(r))
        (advice(r))
        @for root in &r.status.roots { (epochs(root, r.ended && !r.shared_with_other_jobs)) }
        (reasons(r))
        (saved(r))
        (tiers(r))
        (latencies(&r.pfs_opens))
        @for root in &r.status.roots { (directories(root)) }
        p.note {
            "Monarch " (r.status.version) ", policy " (r.status.policy) ", engine " (r.status.engine)
            ". Figures of this node"
            @if r.shared_with_other_jobs { ", of the " (jobs(r)) " that shared its agent" }
            "; what the servers of the PFS counted is theirs to say."
        }
    };
    page::document(&format!("monarch: {}", r.host), &body)
}

fn bytes(n: u64) -> String {
    ByteSize(n).to_string()
}

fn seconds(s: f64) -> String {
    if s < 60.0 {
        return format!("{s:.1} s");
    }
    humantime::format_duration(Duration::from_secs(s.round() as u64)).to_string()
}

fn head(r: &Report) -> Markup {
    let when = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_millis(r.ended_ms));
    let savings = r.savings();
    let title = if r.is_empty() {
        "No file below the roots was opened".to_owned()
    } else {
        format!("The{}", savings.bytes().trim_start_matches("the"))
    };
    let figures = [
        (bytes(savings.sent_bytes), "sent by the PFS"),
        (bytes(savings.read_bytes), "read below the roots"),
        (seconds(savings.wait_s), "readers waited, all together"),
        (count(savings.pfs_opens), "opens at the PFS, by job and agent"),
        (count(savings.opens), "opens below the roots"),
    ];
    html! {
        h1 { (title) }
        @if let Some(own) = &r.own {
            p {
                "This job alone read " (bytes(own.read_bytes)) " in " (count(own.opens)) " opens, " (count(own.pfs_opens))
                " of them at the PFS; its readers waited " (seconds(own.wait_s)) ". The figures below are those of "
                (jobs(r)) "."
            }
        }
        p.sub { (seconds(r.seconds)) " on " (r.host) ", until " (when.to_string()) }
        @if !r.command.is_empty() { pre { (command_line(&r.command)) } }
        @if savings.uncertain_bytes > 0 {
            p.note {
                (bytes(savings.uncertain_bytes)) " of the bytes read are the sizes of large files that were opened or mapped as complete \
                copies. How much of them was read is not known: the savings may be smaller."
            }
        }
        @if savings.unknown_opens > 0 {
            p.note { (count(savings.unknown_opens)) " opens of files that are not in the index are in none of these figures." }
        }
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

fn epochs(root: &RootStatus, ended: bool) -> Markup {
    let some = root.epochs.get(root.epochs.len().saturating_sub(MAX_EPOCHS_SHOWN)..).unwrap_or_default();
    html! {
        h2 { (root.path.shown().to_string()) }
        p { (count(root.files)) " files, " (bytes(root.bytes)) "; " (root.state) }
        @for notice in root.notices() { p { (notice) } }
        @if some.is_empty() {
            p { "Nothing was opened." }
        } @else {
            (epoch_charts(some))
            (epoch_table(some, ended))
        }
    }
}

fn epoch_charts(some: &[Epoch]) -> Markup {
    let labels: Vec<String> = some.iter().map(|e| e.number.to_string()).collect();
    let part = |name, colour, of: &dyn Fn(&Epoch) -> f64| Part { name, colour, values: some.iter().map(of).collect() };
    let [blue, red, green, pink, ..] = COLOURS;
    let opens = [
        part("hit", green, &|e| e.local as f64),
        part("waited for a copy", blue, &|e| e.waited as f64),
        part("in chunks", pink, &|e| e.chunked as f64),
        part("PFS", red, &|e| e.pfs as f64),
    ];
    let (unit, scale) = unit(some.iter().map(|e| e.bytes_copied + e.pfs_bytes).max().unwrap_or(0));
    let given = [
        part("for copies", blue, &|e| e.bytes_copied as f64 / scale),
        part("to the job", red, &|e| e.pfs_bytes as f64 / scale),
    ];
    let time = [part("", green, &|e| e.seconds)];
    html! {
        div.charts {
            (PreEscaped(stacked("Bytes from the PFS", "epoch", unit, &labels, &given)))
            (PreEscaped(stacked("Duration", "epoch", "seconds", &labels, &time)))
            (PreEscaped(stacked("Opens, by what served them", "epoch", "opens", &labels, &opens)))
        }
    }
}

/// Returns the unit in which bytes up to `most` are drawn, and its bytes.
const fn unit(most: u64) -> (&'static str, f64) {
    match most {
        0..0x4_0000 => ("bytes", 1.0),
        0x4_0000..0x1000_0000 => ("MiB", 1_048_576.0),
        _ => ("GiB", 1_073_741_824.0),
    }
}

fn epoch_table(some: &[Epoch], ended: bool) -> Markup {
    let row = |e: &Epoch| {
        vec![
            cell(&format!("{}{}", e.number, if e.complete || ended { "" } else { " (not ended)" })),
            cell(&bytes(e.bytes)),
            cell(&bytes(e.pfs_bytes)),
            cell(&bytes(e.bytes_copied)),
            cell(&format!("{:.1} s", e.seconds)),
            cell(&format!("{:.1} s", e.wait_s)),
            cell(&count(e.opens)),
            cell(e.local_percent().as_deref().unwrap_or("in chunks")),
            cell(&count(e.waited)),
            cell(&count(e.pfs)),
            cell(&because(&e.why)),
        ]
    };
    let heads = [
        "Epoch",
        "opened",
        "from the PFS to the job",
        "copied meanwhile",
        "took",
        "readers waited",
        "opens",
        "got a copy",
        "of these after waiting",
        "to the PFS",
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
    let savings = r.savings();
    let copied = r.agent("copied_on_demand") + r.agent("copied_ahead");
    let rows = [
        ("bytes read, less those that the PFS sent", bytes(savings.read_bytes.saturating_sub(savings.sent_bytes))),
        (
            "opens (each with its reads and its close), less those at the PFS",
            count(savings.opens.saturating_sub(savings.pfs_opens)),
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
            " files were copied for " (count(r.opens_local)) " opens; " (bytes(r.get("chunk_bytes")))
            " of large files were served in chunks."
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
        Some(s) if s < 0.001 => format!("{:.0} µs", s * 1e6),
        Some(s) if s < 1.0 => format!("{} ms", (s * 1e4).round() / 10.0),
        Some(s) => format!("{s} s"),
        None => "more".to_owned(),
    };
    let labels: Vec<String> = shown.iter().map(label).collect();
    let values = shown.iter().map(|o| o.opens as f64).collect();
    let part = Part { name: "", colour: COLOURS[0], values };
    html! {
        h2 { "How fast the PFS answered" }
        div.charts { (PreEscaped(stacked("Opens at the PFS by the agent", "took at most", "opens", &labels, &[part]))) }
    }
}

fn directories(root: &RootStatus) -> Markup {
    let row = |d: &Directory| {
        let path = root.path.join(&d.path).shown().to_string();
        vec![cell(&path), cell(&bytes(d.bytes)), cell(&bytes(d.pfs_bytes)), cell(&count(d.opens)), cell(&count(d.pfs))]
    };
    let heads = ["Directory", "opened", "from the PFS to the job", "opens", "to the PFS"];
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
