//! The output roots of this user on this node: those that agents drain, and those that earlier jobs
//! have left in the tiers.

use super::named::{self, is_about};
use crate::args::ConfigArgs;
use crate::{agents, say};
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::OutputStatus;
use monarch_core::config::Places;
use monarch_core::left_outputs;
use monarch_core::shown::ShowPath;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long an agent may take to answer. It looks at files that are open for half a second at most.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// An output root.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    #[serde(flatten)]
    pub(crate) status: OutputStatus,
    /// Whether an agent drains it. Otherwise it was left by an earlier job.
    pub(crate) is_drained: bool,
}

/// What is known of the output roots.
pub(crate) struct Outputs {
    /// By their paths.
    pub(crate) found: Vec<Found>,
    /// The directories that were named, comparable with paths of output roots.
    pub(crate) dirs: Vec<PathBuf>,
    /// Whether each agent has answered and each tier could be read.
    pub(crate) is_complete: bool,
    /// A tier of the command line that does not exist.
    pub(crate) missing_tier: Option<PathBuf>,
}

/// Asks the agents, and reads the tiers that they and the configuration name, for output roots that
/// hold one of these directories or lie in one; all if none is named.
///
/// # Errors
/// The exit code, after a message, for a configuration that is wrong, and for a directory that does
/// not exist.
pub(crate) fn all(config: &ConfigArgs, dirs: &[PathBuf]) -> Result<Outputs, ExitCode> {
    let all = known(config)?;
    let statuses: Vec<&OutputStatus> = all.found.iter().map(|f| &f.status).collect();
    let dirs = named::existing(dirs, &statuses)?;
    Ok(about(all, dirs))
}

/// [`all`] once more: these directories are comparable with paths of output roots.
///
/// # Errors
/// The exit code, after a message, for a configuration that is wrong.
pub(crate) fn again(config: &ConfigArgs, dirs: Vec<PathBuf>) -> Result<Outputs, ExitCode> {
    Ok(about(known(config)?, dirs))
}

fn about(mut all: Outputs, dirs: Vec<PathBuf>) -> Outputs {
    all.found.retain(|f| is_about(&dirs, &f.status.path));
    Outputs { dirs, ..all }
}

/// All output roots.
fn known(config: &ConfigArgs) -> Result<Outputs, ExitCode> {
    let ask = |client: &mut Client| client.outputs(&[]);
    let (agents, places) = agents::ask(config, ANSWER_TIMEOUT, ask)?;
    let is_missing = |tier: &PathBuf| !config.tier.is_empty() && !tier.exists();
    let missing_tier = places.tiers.iter().map(|tier| tier.path.clone()).find(is_missing);
    agents::warn_of_silent(&agents.missing);
    let mut is_complete = agents.all_answered();
    let drained = agents.given.into_iter().flatten();
    let mut found: Vec<Found> = drained.map(|status| Found { status, is_drained: true }).collect();
    let (left, all_read) = left(&tier_dirs(&places));
    is_complete &= all_read;
    let known: Vec<PathBuf> = found.iter().map(|f| f.status.staging.clone()).collect();
    let left = left.into_iter().filter(|status| !known.contains(&status.staging));
    found.extend(left.map(|status| Found { status, is_drained: false }));
    found.sort_by(|a, b| a.status.path.cmp(&b.status.path));
    Ok(Outputs { found, dirs: Vec::new(), is_complete, missing_tier })
}

/// The directories of a configuration that may hold tiers.
fn tier_dirs(places: &Places) -> Vec<PathBuf> {
    places.tiers.iter().map(|tier| tier.path.clone()).chain(places.default_tier.clone()).collect()
}

/// Returns what earlier jobs have left in the tiers in these directories, and whether all of them
/// could be read. Warns of those that could not.
pub(crate) fn left(dirs: &[PathBuf]) -> (Vec<OutputStatus>, bool) {
    let (mut all, mut is_complete) = (Vec::new(), true);
    for dir in dirs {
        match left_outputs::read_configured(dir) {
            Ok(found) => all.extend(found),
            Err(e) => {
                say::warn(format_args!("the staging directories in {} cannot be read: {e}", dir.shown()));
                is_complete = false;
            }
        }
    }
    (all, is_complete)
}
