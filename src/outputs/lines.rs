//! Output roots as lines for people.

use super::found::Found;
use crate::say::{count, counted};
use bytesize::ByteSize;
use comfy_table::{Cell, CellAlignment, Table, presets};
use monarch_core::agent::protocol::{OutputStatus, PendingEntry, PendingState};
use monarch_core::shown::ShowPath;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// Most entries of an output root that are shown; the JSON has up to 100.
const MAX_SHOWN: usize = 20;

/// Returns the age in words: whole seconds, or less than one.
pub(crate) fn age(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        _ => humantime::format_duration(Duration::from_secs(ms / 1000)).to_string(),
    }
}

/// Returns how much is not published: "3 entries (1.2 GiB)".
pub(crate) fn amount(s: &OutputStatus) -> String {
    let bytes = if s.pending_bytes > 0 { format!(" ({})", ByteSize(s.pending_bytes)) } else { String::new() };
    match s.pending {
        0 => format!("{} open for writing", counted(s.open, "file")),
        n => format!("{}{bytes}", counted(n, "entry")),
    }
}

const fn state(state: PendingState) -> &'static str {
    match state {
        PendingState::Open => "open",
        PendingState::Waiting => "waiting",
        PendingState::Copying => "copying",
        PendingState::Copied => "copied",
        PendingState::Retrying => "retrying",
        PendingState::Removal => "removal",
        PendingState::Symlink => "symlink",
        PendingState::Kept => "kept",
    }
}

/// Returns what `monarch outputs` prints of an output root.
pub(crate) fn text(found: &Found) -> String {
    let s = &found.status;
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{}: {}", s.path.shown(), summary(s));
    let where_to = if found.is_drained { "" } else { ", left by an earlier job" };
    let volatile = if s.is_volatile { ", in memory: lost with the node" } else { "" };
    let _ = writeln!(out, "  staged in {} of tier {}{volatile}{where_to}", s.staging.shown(), s.tier);
    if found.is_drained && s.published + s.clean_bytes > 0 {
        let _ = writeln!(
            out,
            "  published {} ({}) since the agent started; clean copies {}",
            counted(s.published, "file"),
            ByteSize(s.published_bytes),
            ByteSize(s.clean_bytes)
        );
    }
    if s.no_space + s.waited_ms > 0 {
        let _ = writeln!(
            out,
            "  no space: {} went to the PFS, creates waited {:.1} s",
            counted(s.no_space, "file"),
            s.waited_ms as f64 / 1000.0
        );
    }
    if let Some(held) = &s.held {
        let _ = writeln!(out, "  held: {held}");
    }
    for note in &s.notes {
        let _ = writeln!(out, "  note: {note}");
    }
    if !found.is_drained && s.is_pending() && !is_kept_only(s) {
        let _ = writeln!(out, "  `{}` publishes it", recover_command(s));
    }
    out + &entries(&s.entries, s.pending)
}

/// Returns the state in a line: how much, since when, how fast.
pub(crate) fn summary(s: &OutputStatus) -> String {
    if !s.is_pending() {
        return "nothing pending".to_owned();
    }
    let oldest = s.oldest_ms.map_or_else(String::new, |ms| format!(", oldest {}", age(ms)));
    let open = match (s.pending, s.open) {
        (0, _) | (_, 0) => String::new(),
        (_, n) => format!(", {} open", count(n)),
    };
    let open_for = s.oldest_open_ms.map_or_else(String::new, |ms| format!(" (for {})", age(ms)));
    let rate = if s.rate > 0 { format!(", {}/s", ByteSize(s.rate)) } else { String::new() };
    let pending = if s.pending > 0 { " pending" } else { "" };
    format!("{}{pending}{oldest}{open}{open_for}{rate}", amount(s))
}

/// The table of the oldest entries.
fn entries(all: &[PendingEntry], pending: u64) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["STATE", "PATH", "SIZE", "COPIED", "AGE", "WHY"].map(Cell::new));
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if at == 0 { 2 } else { 0 }, 2));
        if (2..5).contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let percent = |e: &PendingEntry| e.copied.saturating_mul(100).checked_div(e.bytes).unwrap_or(0);
    for e in all.iter().take(MAX_SHOWN) {
        table.add_row([
            state(e.state).to_owned(),
            Path::new(&e.path).shown().to_string(),
            if e.bytes > 0 { ByteSize(e.bytes).to_string() } else { "-".to_owned() },
            if e.copied > 0 { format!("{} %", percent(e)) } else { "-".to_owned() },
            age(e.age_ms),
            e.why.clone().unwrap_or_default(),
        ]);
    }
    let mut out: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    let more = pending.saturating_sub(all.len().min(MAX_SHOWN) as u64);
    if more > 0 {
        let _ = writeln!(out, "  and {} more", count(more));
    }
    out
}

/// Whether all that is left are files whose records are lost, which no command publishes.
fn is_kept_only(s: &OutputStatus) -> bool {
    !s.entries.is_empty() && s.entries.iter().all(|e| e.state == PendingState::Kept)
}

/// The command that publishes what a staging directory holds. The directory of a tier that a
/// configuration names is two levels above its own `outputs`.
fn recover_command(s: &OutputStatus) -> String {
    let tier = s.staging.ancestors().nth(3).unwrap_or(Path::new("/"));
    format!("monarch recover --tier {}", shlex::try_quote(&tier.to_string_lossy()).unwrap_or_default())
}

/// Returns what is said of an output root when `run`, `flush` or `recover` leaves something there.
pub(crate) fn rest(s: &OutputStatus) -> String {
    let why = s.held.as_ref().map_or_else(String::new, |held| format!(": {held}"));
    let mut out = format!("monarch: not published: {} below {}{why}\n", amount(s), s.path.shown());
    for e in s.entries.iter().take(MAX_SHOWN) {
        let why = e.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let _ = writeln!(out, "monarch:   {} {}{why}", state(e.state), Path::new(&e.path).shown());
    }
    let more = s.pending.saturating_sub(s.entries.len().min(MAX_SHOWN) as u64);
    if more > 0 {
        let _ = writeln!(out, "monarch:   and {} more", count(more));
    }
    if is_kept_only(s) {
        let _ = writeln!(out, "monarch: it stays in {}/kept until you have decided", s.staging.shown());
        return out;
    }
    let volatile = if s.is_volatile { ", in memory, until this node restarts" } else { "" };
    let _ = writeln!(
        out,
        "monarch: kept in {}{volatile}; the next job here with this output root publishes it, or `{}` on this node",
        s.staging.shown(),
        recover_command(s)
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> OutputStatus {
        let entry = |path: &str, state, bytes, copied, why: Option<&str>| PendingEntry {
            path: path.into(),
            state,
            bytes,
            copied,
            age_ms: 61_500,
            why: why.map(str::to_owned),
        };
        OutputStatus {
            path: "/scratch/run".into(),
            staging: "/local/nvme/monarch-7/outputs/00ff".into(),
            tier: "nvme".into(),
            pending: 23,
            pending_bytes: 3 << 30,
            open: 1,
            oldest_ms: Some(61_500),
            oldest_open_ms: Some(900),
            published: 4,
            published_bytes: 1 << 30,
            rate: 200 << 20,
            clean_bytes: 1 << 20,
            held: Some("model.pt: Disk quota exceeded (os error 122); free space in your quota".into()),
            entries: vec![
                entry("model.pt", PendingState::Retrying, 2 << 30, 1 << 30, Some("Disk quota exceeded")),
                entry("old", PendingState::Removal, 0, 0, None),
            ],
            ..OutputStatus::default()
        }
    }

    #[test]
    fn an_output_root_is_lines_and_a_table() {
        let want = "\
/scratch/run: 23 entries (3.0 GiB) pending, oldest 1m 1s, 1 open (for 900ms), 200.0 MiB/s
  staged in /local/nvme/monarch-7/outputs/00ff of tier nvme
  published 4 files (1.0 GiB) since the agent started; clean copies 1.0 MiB
  held: model.pt: Disk quota exceeded (os error 122); free space in your quota
  STATE     PATH         SIZE  COPIED   AGE  WHY
  retrying  model.pt  2.0 GiB    50 %  1m 1s  Disk quota exceeded
  removal   old             -       -  1m 1s
  and 21 more
";
        let shown = text(&Found { status: status(), is_drained: true });
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(flat(&shown), flat(want), "{shown}");
    }

    #[test]
    fn what_an_earlier_job_left_names_the_command_that_publishes_it() {
        let left =
            OutputStatus { held: None, is_volatile: true, staging: "/a b/monarch-7/outputs/00ff".into(), ..status() };
        let shown = text(&Found { status: left, is_drained: false });
        assert!(shown.contains("in memory: lost with the node, left by an earlier job"), "{shown}");
        assert!(shown.contains("`monarch recover --tier '/a b'` publishes it"), "{shown}");
        let quiet = OutputStatus { pending: 0, open: 0, ..status() };
        assert_eq!(summary(&quiet), "nothing pending");
        let open = OutputStatus { pending: 0, pending_bytes: 0, open: 2, oldest_ms: None, rate: 0, ..status() };
        assert_eq!(summary(&open), "2 files open for writing (for 900ms)");
    }

    #[test]
    fn what_no_record_explains_is_named_and_no_command_publishes_it() {
        let kept = PendingEntry {
            path: "f05".into(),
            state: PendingState::Kept,
            bytes: 1,
            copied: 0,
            age_ms: 0,
            why: Some("its record in the journal is lost".into()),
        };
        let status = OutputStatus { pending: 1, open: 0, held: None, entries: vec![kept], ..status() };
        let shown = rest(&status);
        assert!(shown.contains("monarch:   kept f05: its record in the journal is lost"), "{shown}");
        assert!(shown.contains("/outputs/00ff/kept until you have decided"), "{shown}");
        assert!(!shown.contains("recover"), "{shown}");
        assert!(!text(&Found { status, is_drained: false }).contains("recover"));
    }

    #[test]
    fn what_is_left_at_the_end_says_where_it_lies_and_what_publishes_it() {
        let shown = rest(&status());
        for words in [
            "not published: 23 entries (3.0 GiB) below /scratch/run: model.pt: Disk quota exceeded",
            "monarch:   retrying model.pt: Disk quota exceeded",
            "monarch:   and 21 more",
            "kept in /local/nvme/monarch-7/outputs/00ff; the next job here",
            "`monarch recover --tier /local/nvme` on this node",
        ] {
            assert!(shown.contains(words), "no `{words}` in\n{shown}");
        }
    }
}
