//! What a run saved, in at most twelve lines of text.

use super::summary::{REASONS, Report};
use bytesize::ByteSize;
use monarch_core::agent::runtime_dir;
use monarch_core::shown::ShowPath;
use std::fmt::Write;

/// Returns why opens went to the PFS, with counts.
fn reasons(r: &Report) -> String {
    let some = REASONS.iter().map(|(name, text)| (r.get(name), text)).filter(|(n, _)| *n > 0);
    some.map(|(n, text)| format!(" {n} {text}")).collect::<Vec<_>>().join(",")
}

/// Returns what was saved, in at most twelve lines.
pub(crate) fn text(r: &Report) -> String {
    let (local, pfs, chunked, after) = (r.opens_local, r.opens_pfs, r.opens_chunked, &r.status);
    let (mut out, all) = (String::new(), r.opens());
    // Rounded down: 100 % is all of them.
    let share = (1000 * local).checked_div(all).unwrap_or(0) as f64 / 10.0;
    let _ = writeln!(out, "monarch: {local} of {all} opens below the roots were local ({share:.1} %)");
    let _ = writeln!(
        out,
        "monarch: {} in files opened as copies, {} copied from the PFS; {} stats and {} listings answered from memory",
        ByteSize(r.get("hit_bytes")),
        ByteSize(r.agent("bytes_copied")),
        r.get("stats"),
        r.get("lists")
    );
    if pfs > 0 {
        let _ = writeln!(out, "monarch: {pfs} opens went to the PFS:{}", reasons(r));
    }
    if chunked > 0 {
        let _ = writeln!(
            out,
            "monarch: {chunked} opens of large files were served in chunks: {} from what there was of copies, {} from the PFS",
            ByteSize(r.get("chunk_bytes")),
            ByteSize(r.get("chunk_miss_bytes"))
        );
    }
    let fresh = r.agent("unsettled");
    if fresh > 0 {
        let _ = writeln!(
            out,
            "monarch: {fresh} files had just been changed and were left alone at first (dataset.min_file_age)"
        );
    }
    for root in after.roots.iter().filter(|root| root.epochs.len() > 1) {
        let Some((first, last)) = root.epochs.first().zip(root.epochs.last()) else { continue };
        let _ = writeln!(out, "monarch: {first}");
        let _ = writeln!(out, "monarch: {last}");
    }
    for t in &after.tiers {
        let _ = writeln!(
            out,
            "monarch: tier {}: {} of {} used by {} copies{}",
            t.name,
            ByteSize(t.used),
            ByteSize(t.capacity),
            t.files,
            if t.resting { ", resting (its disk is full, an error, or the job's memory is short)" } else { "" }
        );
    }
    for root in &after.roots {
        for notice in root.notices() {
            let _ = writeln!(out, "monarch: root {}: {notice}", root.path.shown());
        }
        if root.state != "ready" {
            let _ = writeln!(out, "monarch: root {}: {} ({} entries)", root.path.shown(), root.state, root.entries);
        } else if r.is_unused(root) {
            let _ = writeln!(
                out,
                "monarch: warning: no file below {} was opened; does the job use another path to it? (dataset.aliases)",
                root.path.shown()
            );
        }
    }
    if r.agent_restarts > 0 {
        let log = after.runtime_dir.join(runtime_dir::LOG);
        let _ = writeln!(
            out,
            "monarch: warning: the agent was started again {} time(s); see {}, removed 3 s after the last job",
            r.agent_restarts,
            log.shown()
        );
    }
    if r.shared_with_other_jobs {
        let _ = writeln!(out, "monarch: other jobs share this agent; the figures are those of all of them");
    }
    let lines: Vec<&str> = out.lines().take(12).collect();
    lines.join("\n") + "\n"
}

/// Returns the advice, a line each.
pub(crate) fn advice_lines(r: &Report) -> String {
    r.advice.iter().map(|line| format!("monarch: advice: {line}\n")).collect()
}
