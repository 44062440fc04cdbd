//! What a stage came to: its summary and its exit code.

use super::unread::UnreadDirs;
use crate::exit_code::EX_NO;
use crate::say;
use bytesize::ByteSize;
use monarch_core::agent::protocol::{Census, Tally};
use monarch_core::shown::ShowPath;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;

/// Subtracts tallies from another.
pub(super) fn less(all: Tally, parts: &[Tally]) -> Tally {
    parts.iter().fold(all, |left, part| Tally {
        files: left.files.saturating_sub(part.files),
        bytes: left.bytes.saturating_sub(part.bytes),
    })
}

/// Adds two tallies.
pub(super) const fn sum(a: Tally, b: Tally) -> Tally {
    Tally { files: a.files + b.files, bytes: a.bytes.saturating_add(b.bytes) }
}

/// Returns the smaller numbers of two tallies.
pub(super) fn at_most(a: Tally, b: Tally) -> Tally {
    Tally { files: a.files.min(b.files), bytes: a.bytes.min(b.bytes) }
}

/// Formats a tally.
pub(super) fn shown(t: Tally) -> String {
    format!("{}, {}", say::counted(t.files, "file"), ByteSize(t.bytes))
}

/// Returns 0 when everything is staged, 1 when something failed, 3 when everything else is for lack
/// of room.
pub(super) fn code(after: &Census, unread: &UnreadDirs) -> ExitCode {
    let full = after.no_room.files + after.dropped.files + after.under_way.files;
    let missing = less(after.all, &[after.resident, after.owned_by_peers]).files;
    match (missing, missing - full.min(missing)) {
        _ if unread.has_failures() => ExitCode::FAILURE,
        (0, _) => ExitCode::SUCCESS,
        (_, 0) => ExitCode::from(EX_NO),
        _ => ExitCode::FAILURE,
    }
}

/// Returns the summary of a stage.
pub(super) fn summary(copied: Tally, after: &Census, unread: &UnreadDirs, took: Duration) -> String {
    let rate = (copied.bytes as f64 / took.as_secs_f64().max(1e-3)) as u64;
    let mut text = format!(
        "staged: {} of {}, {}; copied now: {} in {:.1} s, {}/s\n",
        say::count(after.resident.files),
        say::counted(after.all.files, "file"),
        ByteSize(after.resident.bytes),
        shown(copied),
        took.as_secs_f64(),
        ByteSize(rate)
    );
    let full = Tally {
        files: after.no_room.files + after.dropped.files,
        bytes: after.no_room.bytes.saturating_add(after.dropped.bytes),
    };
    let groups = [
        (full, "no room in the tiers: give them more capacity, or stage less"),
        (after.under_way, "no tier takes copies at present: its disk is full, or fails"),
        (after.unsettled, "changed a moment ago: stage them again once dataset.min_file_age has passed"),
        (after.failing, "failed: they are tried again while a job runs; stage again"),
        (after.bypassed, "read from the PFS: changed since they were indexed, gone, or not readable"),
        (after.on_tape, "on tape: name them to have them recalled"),
        (after.owned_by_peers, "staged by the nodes of the job that own them"),
    ];
    for (tally, why) in groups.into_iter().filter(|(t, _)| t.files > 0) {
        let _ = writeln!(text, "not staged: {}: {why}", shown(tally));
    }
    for t in &after.trouble {
        let _ = writeln!(text, "  {}: {}", t.path.shown(), t.why);
    }
    let more = (after.failing.files + after.bypassed.files).saturating_sub(after.trouble.len() as u64);
    if more > 0 && !after.trouble.is_empty() {
        let _ = writeln!(text, "  and {more} more");
    }
    text + &unread.text()
}
