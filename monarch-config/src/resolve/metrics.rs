//! The section `metrics`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::context::Context;
use super::super::error::{ConfigError, ErrorKind};
use super::super::key::Key;
use super::super::model::Metrics;
use super::super::paths;
use super::super::raw::RawMetrics;
use super::super::units::HOUR;

const LEAST_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn resolve(cx: &mut Context<'_>, raw: &RawMetrics) -> Result<Metrics, ConfigError> {
    let default = Metrics::default();
    let listen = cx.or("metrics.listen", raw.listen.as_ref(), default.listen)?;
    if listen.is_some_and(|address| !address.ip().is_loopback()) {
        let key = Key::new("metrics.listen");
        cx.warn(
            &key,
            "is not on the loopback interface: every process that reaches it can read names of roots and figures of the job",
        );
    }
    let textfile = textfile(cx, raw)?;
    let interval = cx.within("metrics.interval", raw.interval.as_ref(), default.interval, LEAST_INTERVAL..=HOUR)?;
    if textfile.is_none() && interval != default.interval {
        cx.warn(&Key::new("metrics.interval"), "is of no use without metrics.textfile");
    }
    Ok(Metrics { listen, textfile, interval })
}

fn textfile(cx: &mut Context<'_>, raw: &RawMetrics) -> Result<Option<PathBuf>, ConfigError> {
    let key = Key::new("metrics.textfile");
    let Some(path) = cx.get(&key, raw.textfile.as_ref())? else { return Ok(None) };
    let path = paths::clean(cx, ErrorKind::WrongType, &key, &path)?;
    let is_dir = |path: &Path| cx.probe.meta(path).is_ok_and(|meta| meta.is_dir);
    if is_dir(&path) {
        return Ok(Some(path));
    }
    if path.extension().is_none_or(|suffix| suffix != "prom") {
        let message = format!("{} is neither a directory nor a name with the suffix .prom", path.display());
        let remedy = "node_exporter reads files *.prom only: write such a name, or the directory that it collects from";
        return Err(cx.error(ErrorKind::OutOfBounds, &key, message, remedy));
    }
    if !path.parent().is_some_and(is_dir) {
        cx.warn(&key, "its directory is not there on this node; the file is written once it is");
    }
    Ok(Some(path))
}
