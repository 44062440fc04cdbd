//! The report of a run, as `run --report` writes it: JSON or a page.
//!
//! | module | what it does |
//! |---|---|
//! | [`summary`] | the figures of a run |
//! | [`advice`] | what to change |
//! | [`lines`] | at most twelve lines of text at the end of a run |
//! | [`page`] | a page of HTML with charts, complete in itself |
//! | [`bars`] | the charts |

mod advice;
mod bars;
mod lines;
mod page;
mod summary;

pub(crate) use lines::{advice_lines, failures, text};
pub(crate) use summary::Report;

use monarch_core::agent::protocol::Status;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// Reports what happened between two states of the agent, with advice.
/// `ended`: the job has ended; otherwise these are figures so far. `not_served`: why processes of
/// the command cannot be served, if that is known.
pub(crate) fn between(
    before: &Status,
    after: Status,
    took: Duration,
    command: &[OsString],
    (ended, not_served): (bool, Option<String>),
) -> Report {
    let mut new = Report { ended, not_served, ..Report::between(before, after, took, command) };
    new.advice = advice::of(&new);
    new
}

/// Renders a report for a file of this name: HTML for `.html` and `.htm`, otherwise JSON.
pub(crate) fn document(report: &Report, path: &Path) -> String {
    let is_page = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("html") || e.eq_ignore_ascii_case("htm"));
    if is_page { page::html(report) } else { serde_json::to_string_pretty(report).unwrap_or_default() + "\n" }
}
