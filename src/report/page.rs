//! A report as one page of HTML: text, tables and drawings, nothing from elsewhere, no scripts.

use super::bars::{Part, filled, stacked};
use super::summary::{OTHERS, REASONS, Report};
use crate::chart::{COLOURS, escaped};
use crate::say::count;
use bytesize::ByteSize;
use monarch_core::agent::protocol::{Opens, RootStatus, Why};
use monarch_core::shown::ShowPath;
use std::fmt::Write;
use std::time::Duration;

const STYLE: &str = "body{font:14px/1.45 sans-serif;margin:2em auto;max-width:980px;padding:0 1em;color:#222;background:#fff}h1{font-size:22px;margin-bottom:0}h1,h2{overflow-wrap:anywhere}\
h2{font-size:17px;margin:1.8em 0 .5em}.sub{color:#555;margin-top:.2em}pre{background:#f4f4f4;padding:.6em;overflow-x:auto;font-size:12px}\
table{border-collapse:collapse;margin:.5em 0;display:block;overflow-x:auto}svg{max-width:100%;height:auto}th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}\
th{font-weight:600;color:#444}td:first-child,th:first-child{text-align:left}td.w{text-align:left}td{white-space:nowrap}td svg{max-width:none}.big{display:flex;flex-wrap:wrap;gap:1em;margin:1em 0}\
.big div{background:#f4f4f4;padding:.6em 1em;min-width:9em}.big b{display:block;font-size:20px}.advice li{margin:.35em 0}\
svg text{font:12px sans-serif;fill:#222}svg .t{font-weight:bold;font-size:13px}svg .y{text-anchor:end}svg .x{text-anchor:middle}svg .l{fill:#555}\
svg .g{stroke:#ddd}svg .a{stroke:#444}.charts{display:flex;flex-wrap:wrap;gap:.5em}.note{color:#555}";

/// Epochs that have bars and lines of their own; of more than these the last ones.
const EPOCHS: usize = 60;

/// See the module.
pub(super) fn html(r: &Report) -> String {
    let mut out = format!(
        r#"<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>monarch: {host}</title><style>{STYLE}</style></head><body>"#,
        host = escaped(&r.host)
    );
    out += &head(r);
    out += &advice(r);
    for root in &r.status.roots {
        out += &epochs(root);
    }
    out += &reasons(r);
    out += &saved(r);
    out += &tiers(r);
    out += &latencies(&r.pfs_opens);
    for root in &r.status.roots {
        out += &directories(root);
    }
    let _ = write!(
        out,
        r#"<p class="note">Monarch {}, policy {}, engine {}. Figures of this node{}; what the servers of the PFS counted is theirs to say.</p></body></html>"#,
        escaped(&r.status.version),
        escaped(&r.status.policy),
        escaped(&r.status.engine),
        if r.shared_with_other_jobs { ", of all jobs that shared its agent" } else { "" }
    );
    out + "\n"
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

fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, row: &[String]| row.iter().map(|c| format!("<{tag}>{c}</{tag}>")).collect::<String>();
    let heads: Vec<String> = heads.iter().map(|h| escaped(h)).collect();
    let body: String = rows.iter().map(|row| format!("<tr>{}</tr>", cells("td", row))).collect();
    format!("<table><tr>{}</tr>{body}</table>", cells("th", &heads))
}

fn head(r: &Report) -> String {
    let when = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_millis(r.ended_ms));
    let title = match r.opens() {
        0 => "No file below the roots was opened".to_owned(),
        all => format!("{} of {} opens were local", percent(r.opens_local, all), count(all)),
    };
    let mut out =
        format!(r#"<h1>{title}</h1><p class="sub">{} on {}, until {when}</p>"#, seconds(r.seconds), escaped(&r.host));
    if !r.command.is_empty() {
        let _ = write!(out, "<pre>{}</pre>", escaped(&shlex(&r.command)));
    }
    let figures = [
        (bytes(r.get("hit_bytes")), "in files opened as copies"),
        (bytes(r.agent("bytes_copied")), "copied from the PFS"),
        (bytes(r.get("miss_bytes") + r.get("chunk_miss_bytes")), "read from the PFS by the job"),
        (seconds(r.waited_s()), "readers waited, all together"),
    ];
    let boxes: String = figures.iter().map(|(n, what)| format!("<div><b>{n}</b>{what}</div>")).collect();
    out + &format!(r#"<div class="big">{boxes}</div>"#)
}

/// Words of a command line, with quotes where they are needed.
fn shlex(words: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
    let quoted = |w: &String| {
        if !w.is_empty() && w.chars().all(plain) { w.clone() } else { format!("'{}'", w.replace('\'', r"'\''")) }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn advice(r: &Report) -> String {
    if r.advice.is_empty() {
        return String::new();
    }
    let items: String = r.advice.iter().map(|a| format!("<li>{}</li>", escaped(a))).collect();
    format!(r#"<h2>What to change</h2><ul class="advice">{items}</ul>"#)
}

fn epochs(root: &RootStatus) -> String {
    let path = escaped(&root.path.shown().to_string());
    let mut out =
        format!("<h2>{path}</h2><p>{} files, {}; {}</p>", count(root.files), bytes(root.bytes), escaped(&root.state));
    for notice in root.notices() {
        let _ = write!(out, "<p>{}</p>", escaped(&notice));
    }
    let Some(some) = root.epochs.get(root.epochs.len().saturating_sub(EPOCHS)..).filter(|e| !e.is_empty()) else {
        return out + "<p>Nothing was opened.</p>";
    };
    let labels: Vec<String> = some.iter().map(|e| e.number.to_string()).collect();
    let part = |name, colour, of: &dyn Fn(&monarch_core::agent::protocol::Epoch) -> f64| Part {
        name,
        colour,
        values: some.iter().map(of).collect(),
    };
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
    out += r#"<div class="charts">"#;
    out += &stacked("Opens, by where they were served", "epoch", "opens", &labels, &opens);
    out += &stacked("From the PFS", "epoch", "MiB", &labels, &given);
    out += &stacked("Duration", "epoch", "s", &labels, &time);
    out += "</div>";
    let rows: Vec<Vec<String>> = some
        .iter()
        .map(|e| {
            vec![
                format!("{}{}", e.number, if e.complete { "" } else { " (not ended)" }),
                format!("{:.1} s", e.seconds),
                count(e.opens),
                percent(e.local + e.waited, e.opens),
                count(e.waited),
                format!("{:.1} s", e.wait_s),
                count(e.pfs),
                bytes(e.pfs_bytes),
                bytes(e.bytes_copied),
                because(&e.why),
            ]
        })
        .collect();
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
    out + &table(&heads, &rows)
}

/// Why opens of an epoch went to the PFS, the most frequent first.
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

fn reasons(r: &Report) -> String {
    let rows = |of: &[(&str, &str)]| -> Vec<Vec<String>> {
        let some = of.iter().map(|(name, why)| (r.get(name), why)).filter(|(n, _)| *n > 0);
        some.map(|(n, why)| vec![(*why).to_owned(), count(n), percent(n, r.opens())]).collect()
    };
    let (missed, others) = (rows(&REASONS), rows(&OTHERS));
    let mut out = "<h2>Opens that went to the PFS</h2>".to_owned();
    out += &if missed.is_empty() { "<p>None.</p>".to_owned() } else { table(&["Why", "opens", "of all"], &missed) };
    if !others.is_empty() {
        out += "<p>Beside them, not meant for copies:</p>";
        out += &table(&["What", "opens", "as many as"], &others);
    }
    out
}

fn saved(r: &Report) -> String {
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
    let rows: Vec<Vec<String>> = rows.map(|(what, n)| vec![what.to_owned(), n]).to_vec();
    format!(
        "<h2>What the PFS was spared</h2>{}<p class=\"note\">{} calls about names went to the kernel; {} files were copied for {} opens.</p>",
        table(&["Answered on this node", ""], &rows),
        count(r.get("meta_kernel")),
        count(copied),
        count(local)
    )
}

fn tiers(r: &Report) -> String {
    let [.., green, _, _, _, _] = COLOURS;
    let rows: Vec<Vec<String>> = r
        .status
        .tiers
        .iter()
        .map(|t| {
            vec![
                format!("{} {}", escaped(&t.name), escaped(&t.path.shown().to_string())),
                format!("{} of {}", bytes(t.used), bytes(t.capacity)),
                filled(t.used as f64 / t.capacity.max(1) as f64, green),
                count(t.files),
                if t.resting { "resting".to_owned() } else { String::new() },
            ]
        })
        .collect();
    format!("<h2>Tiers</h2>{}", table(&["Tier", "used", "", "copies", ""], &rows))
}

/// How long opens at the PFS took, as far as there were some.
fn latencies(opens: &[Opens]) -> String {
    let some = |o: &&Opens| o.opens > 0;
    let Some((first, last)) = opens.iter().position(|o| some(&o)).zip(opens.iter().rposition(|o| some(&o))) else {
        return String::new();
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
    let drawn = stacked("Opens at the PFS by the agent", "took at most", "opens", &labels, &[part]);
    format!("<h2>How fast the PFS answered</h2>{drawn}")
}

fn directories(root: &RootStatus) -> String {
    if root.directories.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = root
        .directories
        .iter()
        .map(|d| {
            let path = root.path.join(&d.path);
            vec![escaped(&path.shown().to_string()), count(d.opens), bytes(d.bytes), count(d.pfs), bytes(d.pfs_bytes)]
        })
        .collect();
    let heads = ["Directory", "opens", "bytes", "to the PFS", "bytes"];
    format!("<h2>Directories that cost most</h2>{}", table(&heads, &rows))
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
        assert!(page.contains(r"sh -c 'echo '\''&lt;x&gt;'\'''"), "{page}");
        // Nothing from elsewhere.
        assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"), "{page}");
    }
}
