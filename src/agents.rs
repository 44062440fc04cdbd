//! Asks all agents of this user on this node at the same time: an agent that does not answer does
//! not delay the answers of the other agents.

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO_AGENT;
use crate::say;
use monarch_core::agent::client::{Client, agent_alive};
use monarch_core::agent::runtime_dir;
use monarch_core::config::Places;
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
}

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
    let dirs = directories(&places);
    let (send, receive) = channel();
    for (at, dir) in dirs.iter().cloned().enumerate() {
        let (send, question) = (send.clone(), question.clone());
        // A connect may hang as well.
        let work = move || send.send((at, Client::connect(&dir).and_then(|mut c| question(&mut c)).ok()));
        let _ = std::thread::Builder::new().spawn(work);
    }
    drop(send);
    let deadline = Instant::now() + patience;
    let mut answers: Vec<Option<T>> = dirs.iter().map(|_| None).collect();
    while let Ok((at, answer)) = receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        answers[at] = answer;
    }
    let silent = |(dir, answer): (&PathBuf, &Option<T>)| (answer.is_none() && agent_alive(dir)).then(|| dir.clone());
    let missing = dirs.iter().zip(&answers).filter_map(silent).collect();
    Ok((Answers { given: answers.into_iter().flatten().collect(), missing }, places))
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
    let (answers, _) = ask(config, patience, question)?;
    for dir in &answers.missing {
        say::warn(format_args!("an agent does not answer; see {}", dir.join(runtime_dir::LOG).shown()));
    }
    if answers.given.is_empty() && answers.missing.is_empty() {
        say::err(format_args!("monarch: no agent of yours is running on this node\n"));
        return Err(ExitCode::from(EX_NO_AGENT));
    }
    Ok(answers)
}

/// The runtime directories of all agents of this user, including agents that died under a job.
pub(crate) fn directories(places: &Places) -> Vec<PathBuf> {
    runtime_dir::all(&bases(places))
}

/// Where runtime directories may be.
fn bases(places: &Places) -> Vec<PathBuf> {
    if let Some(dir) = &places.runtime_dir {
        return vec![dir.clone()];
    }
    let tmp = std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    vec![Path::new("/dev/shm").to_owned(), tmp]
}
