//! `monarch top`: what the agents of this user do at present, on a screen that is kept up to date,
//! or as tables.
//!
//! | module | what it holds |
//! |---|---|
//! | [`rates`] | figures a second, of two states of an agent: pure |
//! | [`bottleneck`] | what prefetch waits for: pure |
//! | [`model`] | samples and keys in, what is to be shown out: pure |
//! | [`bars`] | bars and graphs of characters: pure |
//! | [`view`] | lines of text of what is to be shown: pure |
//! | [`screen`] | the terminal: taken, and given back however the program ends |

mod bars;
mod bottleneck;
mod model;
mod rates;
mod screen;
#[cfg(test)]
mod tests;
mod view;

use crate::args::ConfigArgs;
use crate::job::child::EndSignal;
use crate::{agents, say};
use anyhow::Result;
use bars::Look;
use clap::Args;
use model::{Model, Sample};
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::Status;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Time between two samples, in seconds or with a unit (500ms), between 0.1 and 3600
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print one table of one interval and end, also on a terminal
    #[arg(long)]
    once: bool,
    /// Print this number of tables, one for each interval, and end
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "once")]
    count: Option<u64>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// How long an agent may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

fn interval(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let interval = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?,
        Err(_) => humantime::parse_duration(text).map_err(|e| e.to_string())?,
    };
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    if allowed.contains(&interval) { Ok(interval) } else { Err("must lie between 0.1 and 3600 seconds".to_owned()) }
}

pub(crate) fn main(args: &TopArgs) -> Result<ExitCode> {
    let is_screen = !args.once && args.count.is_none() && std::io::stdout().is_terminal() && screen::can_draw();
    // Signals are blocked before the first thread starts.
    let end_signal = is_screen.then(EndSignal::watch);
    let start = Instant::now();
    let first = match agents::need(&args.config, ANSWER_TIMEOUT, Client::status) {
        Ok(answers) if answers.given.is_empty() => return Ok(ExitCode::FAILURE),
        Ok(answers) => answers,
        Err(code) => return Ok(code),
    };
    let mut model = Model::default();
    model.take(sample(start, first));
    match end_signal {
        Some(end_signal) => screen::show(&mut model, &sampler(args, start), &end_signal, args.interval),
        None => tables(args, start, model),
    }
}

fn sample(start: Instant, answers: agents::Answers<Status>) -> Sample {
    Sample { at: start.elapsed(), agents: answers.given, silent: answers.missing }
}

/// Prints tables, the first after one interval.
fn tables(args: &TopArgs, start: Instant, mut model: Model) -> Result<ExitCode> {
    let count = args.count.unwrap_or(1);
    for at in 0..count {
        std::thread::sleep(args.interval);
        let next = match agents::ask(&args.config, ANSWER_TIMEOUT, Client::status) {
            Ok((answers, _)) => answers,
            Err(code) => return Ok(code),
        };
        agents::warn_of_silent(&next.missing);
        let mut later = model.clone();
        later.take(sample(start, next));
        let ended = !later.has_agents();
        if !ended {
            model = later;
        }
        // An agent that ended before the first table is shown as it was.
        if !ended || at == 0 {
            let gap = if at == 0 { "" } else { "\n" };
            say::out(format_args!("{gap}{}", view::table(&model.view(), &Look::of_pipe())))?;
        }
        if ended {
            say::note(format_args!("the agent has ended"));
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Takes samples on a thread of its own: an agent that does not answer must not delay keys.
fn sampler(args: &TopArgs, start: Instant) -> Receiver<Sample> {
    let (send, receive) = sync_channel(1);
    let (config, interval) = (args.config.clone(), args.interval);
    let work = move || {
        let mut next = Instant::now() + interval;
        loop {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            // (Without catching up on samples that were late.)
            next = (next + interval).max(Instant::now());
            let Ok((answers, _)) = agents::ask(&config, ANSWER_TIMEOUT, Client::status) else { return };
            if send.send(sample(start, answers)).is_err() {
                return;
            }
        }
    };
    // Without the thread the first sample stays on the screen.
    let _ = std::thread::Builder::new().name("samples".to_owned()).spawn(work);
    receive
}
