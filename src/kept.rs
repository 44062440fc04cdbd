//! Copies of earlier jobs, for commands that find no agent.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO_AGENT;
use crate::progress::while_scanning;
use crate::{agents, say};
use anyhow::Result;
use monarch_core::config::Places;
use monarch_core::engine::Limits;
use monarch_core::kept::{KeptCopies, KeptError, KeptFile, KeptTier};
use monarch_core::shown::ShowPath;
use monarch_core::tier::{TierDir, TierError};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long an agent that is ending may hold its tiers.
const TIER_LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// How often a tier that is held is tried again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Reads the tiers of a configuration. Returns `None`, after a message, when no agent has made any.
///
/// # Errors
/// The exit code, after a message: the configuration is wrong, or a tier cannot be read.
pub(crate) fn need(config: &ConfigArgs) -> Result<KeptCopies, ExitCode> {
    let places = config.places()?;
    let kept = read(&places)?;
    if kept.tiers.is_empty() {
        say::err(format_args!("monarch: {}\n", nothing(config, &places)));
        return Err(ExitCode::from(EX_NO_AGENT));
    }
    Ok(kept)
}

/// Reads the tiers of these places.
///
/// # Errors
/// The exit code, after a message, when a tier cannot be read.
pub(crate) fn read(places: &Places) -> Result<KeptCopies, ExitCode> {
    let dirs = dirs(places);
    KeptCopies::read(dirs.iter().map(PathBuf::as_path)).map_err(|(dir, e)| {
        say::err(format_args!("monarch: the copies in {} cannot be read: {e}\n", dir.shown()));
        ExitCode::FAILURE
    })
}

/// Returns the roots of the copies: all, or those that hold a directory of `--root`.
pub(crate) fn roots<'a>(config: &ConfigArgs, copies: &'a KeptCopies) -> Vec<&'a Path> {
    let wanted: Vec<PathBuf> = config.root.iter().map(|root| agents::real(root)).collect();
    let is_wanted = |root: &&Path| wanted.is_empty() || wanted.iter().any(|dir| dir.starts_with(root));
    copies.roots().into_iter().filter(is_wanted).collect()
}

/// Takes the lock of a tier. An agent that ends removes its socket first, and releases its tiers a
/// moment later.
///
/// # Errors
/// [`TierError`]; an agent may hold the tier.
pub(crate) fn hold(tier: &KeptTier) -> Result<TierDir, TierError> {
    let start = Instant::now();
    loop {
        match tier.hold() {
            Err(TierError::Locked { .. }) if start.elapsed() < TIER_LOCK_TIMEOUT => std::thread::sleep(POLL_INTERVAL),
            other => return other,
        }
    }
}

/// Says that there is neither an agent nor a copy, and what to do.
pub(crate) fn nothing(config: &ConfigArgs, places: &Places) -> String {
    let dirs: Vec<String> = dirs(places).iter().map(|d| d.shown().to_string()).collect();
    let looked = if dirs.is_empty() {
        "no job without a tier of its own has left copies".to_owned()
    } else {
        format!("there are no copies of earlier jobs in {}", dirs.join(", "))
    };
    format!("{}, and {looked}; name another tier with --tier or --config", agents::none(config, places))
}

/// The directories that may hold copies, fastest first.
fn dirs(places: &Places) -> Vec<PathBuf> {
    places.tiers.iter().map(|t| t.path.clone()).chain(places.default_tier.clone()).collect()
}

/// [`KeptCopies::each_file`] of a path, with progress and a warning about what cannot be read.
///
/// # Errors
/// See [`KeptError`].
pub(crate) fn each_file(
    kept: &KeptCopies,
    path: &Path,
    limits: &Limits,
    each: impl FnMut(KeptFile),
) -> Result<(), KeptError> {
    let what = format!("asking for attributes below {}", path.shown());
    let incomplete = while_scanning(&what, |progress| kept.each_file(path, limits, progress, each))?;
    if incomplete {
        say::warn(format_args!("parts of {} cannot be read; their files are left out", path.shown()));
    }
    Ok(())
}
