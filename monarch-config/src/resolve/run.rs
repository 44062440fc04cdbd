//! The section `run`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::context::Context;
use super::super::error::{ConfigError, ErrorKind};
use super::super::key::Key;
use super::super::model::{Libraries, RawCalls, Run};
use super::super::paths;
use super::super::raw::RawRun;

/// The longest [`Run::output_wait`].
const MAX_OUTPUT_WAIT: Duration = Duration::from_hours(24 * 30);

pub(super) fn resolve(cx: &mut Context<'_>, raw: &RawRun) -> Result<Run, ConfigError> {
    Ok(Run {
        strict: strict(cx, raw)?,
        accounting: accounting(cx, raw)?,
        libraries: cx.or("run.libraries", raw.libraries.as_ref(), Libraries::Auto)?,
        output_wait: cx.limit("run.output_wait", raw.output_wait.as_ref(), Duration::ZERO..=MAX_OUTPUT_WAIT)?,
        raw_calls: cx.or("run.raw_calls", raw.raw_calls.as_ref(), RawCalls::Off)?,
    })
}

/// Whether a job that cannot be served is not started.
pub(super) fn strict(cx: &Context<'_>, raw: &RawRun) -> Result<bool, ConfigError> {
    cx.or("run.strict", raw.strict.as_ref(), false)
}

/// Where each job leaves a line about what it read.
fn accounting(cx: &mut Context<'_>, raw: &RawRun) -> Result<Option<PathBuf>, ConfigError> {
    let key = Key::new("run.accounting");
    let Some(path) = cx.get(&key, raw.accounting.as_ref())? else { return Ok(None) };
    let path = paths::clean(cx, ErrorKind::WrongType, &key, &path)?;
    let is_dir = |path: &Path| cx.probe.meta(path).is_ok_and(|meta| meta.is_dir);
    if !is_dir(&path) && !path.parent().is_some_and(is_dir) {
        cx.warn(&key, "its directory is not there on this node: no line is written");
    }
    Ok(Some(path))
}
