//! Asks all agents of this user on this node at the same time: an agent that does not answer does
//! not delay the answers of the other agents.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO_AGENT;
use crate::say;
use monarch_core::agent::client::{Client, agent_alive};
use monarch_core::agent::runtime_dir;
use monarch_core::config::Places;
use monarch_core::reader::Reader;
use monarch_core::shown::ShowPath;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// What the agents said.
pub(crate) struct Answers<T> {
    pub(crate) given: Vec<T>,
    /// Runtime directories of agents that are alive and did not answer.
    pub(crate) missing: Vec<PathBuf>,
    /// Whether an agent has refused, as a warning has said.
    refused: bool,
}

impl<T> Answers<T> {
    /// Whether no agent is running.
    pub(crate) const fn is_none(&self) -> bool {
        self.given.is_empty() && self.all_answered()
    }

    /// Whether each agent has done what it was asked for.
    pub(crate) const fn all_answered(&self) -> bool {
        self.missing.is_empty() && !self.refused
    }
}

/// How long an agent that is ending is waited for.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Asks all agents and waits for `patience` at most. Returns their answers, and the directories
/// that the configuration names.
///
/// # Errors
/// The exit code for a configuration that is wrong.
pub(crate) fn ask<T: Send + 'static>(
    config: &ConfigArgs,
    patience: Duration,
    question: impl Fn(&mut Client) -> io::Result<T> + Clone + Send + 'static,
) -> Result<(Answers<T>, Places), ExitCode> {
    let places = config.places()?;
    let dirs = directories(config, &places);
    let (send, receive) = channel();
    for (at, dir) in dirs.iter().cloned().enumerate() {
        let (send, question) = (send.clone(), question.clone());
        // A connect may hang as well.
        let work = move || send.send((at, Client::connect(&dir).and_then(|mut c| question(&mut c))));
        let _ = std::thread::Builder::new().spawn(work);
    }
    drop(send);
    let deadline = Instant::now() + patience;
    let (mut answers, mut refused) = (dirs.iter().map(|_| None).collect::<Vec<Option<T>>>(), vec![false; dirs.len()]);
    while let Ok((at, answer)) = receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        match answer {
            Ok(answer) => answers[at] = Some(answer),
            // The agent's own words; all other kinds are those of a connection.
            Err(e) if e.kind() == io::ErrorKind::Other => {
                say::warn(format_args!("{e}"));
                refused[at] = true;
            }
            Err(_) => {}
        }
    }
    let is_silent = |at: &usize| answers[*at].is_none() && !refused[*at] && !has_ended_soon(&dirs[*at]);
    let missing = (0..dirs.len()).filter(is_silent).map(|at| dirs[at].clone()).collect();
    let refused = refused.contains(&true);
    Ok((Answers { given: answers.into_iter().flatten().collect(), missing, refused }, places))
}

/// Whether no agent lives in a runtime directory. An agent that is ending, and one that is
/// starting, holds its lock without a socket: it is waited for.
fn has_ended_soon(dir: &Path) -> bool {
    let start = Instant::now();
    while agent_alive(dir) {
        if Client::connect(dir).is_ok() || start.elapsed() > END_TIMEOUT {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    true
}

/// Warns about each agent that does not answer.
pub(crate) fn warn_of_silent(missing: &[PathBuf]) {
    for dir in missing {
        say::warn(format_args!("an agent does not answer; see {}", dir.join(runtime_dir::LOG).shown()));
    }
}

/// [`ask`] for commands that need an answer: warns about each agent that does not answer.
///
/// # Errors
/// Those of [`ask`]; the exit code for no agent, after a message, when none is running.
pub(crate) fn need<T: Send + 'static>(
    config: &ConfigArgs,
    patience: Duration,
    question: impl Fn(&mut Client) -> io::Result<T> + Clone + Send + 'static,
) -> Result<Answers<T>, ExitCode> {
    let (answers, places) = ask(config, patience, question)?;
    warn_of_silent(&answers.missing);
    if answers.is_none() {
        say::err(format_args!("monarch: {}; an agent ends 3 s after its last job\n", none(config, &places)));
        return Err(ExitCode::from(EX_NO_AGENT));
    }
    Ok(answers)
}

/// Says that there is no agent: none at all, or none with these tiers and roots.
pub(crate) fn none(config: &ConfigArgs, places: &Places) -> String {
    let are_others = !(config.tier.is_empty() && config.root.is_empty())
        && runtime_dir::all(&bases(places)).iter().any(|dir| agent_alive(dir));
    if !are_others {
        return "no agent of yours is running on this node".to_owned();
    }
    let listed = |dirs: &mut dyn Iterator<Item = &PathBuf>| {
        dirs.map(|dir| dir.shown().to_string()).collect::<Vec<_>>().join(", ")
    };
    let serves = (!config.root.is_empty()).then(|| format!("serves {}", listed(&mut config.root.iter())));
    let tiers = &mut places.tiers.iter().map(|t| &t.path);
    let holds = (!config.tier.is_empty()).then(|| format!("holds a tier in {}", listed(tiers)));
    let wanted: Vec<String> = serves.into_iter().chain(holds).collect();
    format!("no agent of yours on this node {}", wanted.join(" and "))
}

/// The runtime directories of the agents of this user, including agents that died under a job: of
/// all of them, or of those that hold a tier of `--tier` and serve a directory of `--root`.
pub(crate) fn directories(config: &ConfigArgs, places: &Places) -> Vec<PathBuf> {
    let mut dirs = runtime_dir::all(&bases(places));
    if config.tier.is_empty() && config.root.is_empty() {
        return dirs;
    }
    let tiers: Vec<PathBuf> = places.tiers.iter().map(|t| real(&t.path)).collect();
    let roots: Vec<PathBuf> = config.root.iter().map(|root| real(root)).collect();
    dirs.retain(|dir| {
        let Ok(reader) = Reader::open(&dir.join(runtime_dir::CONTROL)) else { return false };
        // A tier's own directory lies in the configured directory.
        let held = reader.tiers();
        let holds = |dir: &PathBuf| held.iter().any(|t| t == dir || t.parent() == Some(dir));
        let served = reader.roots();
        (config.tier.is_empty() || tiers.iter().any(holds))
            && (roots.is_empty() || roots.iter().any(|root| served.iter().any(|of| root.starts_with(of))))
    });
    dirs
}

/// The path with links followed, if it exists.
pub(crate) fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Where runtime directories may be.
fn bases(places: &Places) -> Vec<PathBuf> {
    if let Some(dir) = &places.runtime_dir {
        return vec![dir.clone()];
    }
    let tmp = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    vec![Path::new("/dev/shm").to_owned(), tmp]
}
