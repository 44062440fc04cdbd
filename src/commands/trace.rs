//! `monarch trace show | stats | import`: what jobs opened, for people and for the simulator.

use crate::exit_code::EX_USAGE;
use crate::say;
use anyhow::{Context, Result};
use clap::Subcommand;
use monarch_core::shown::ShowPath;
use monarch_core::trace::{self, End, TraceError, TraceHeader, TraceReader};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

mod show;
mod stats;

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Print the accesses of a trace
    #[command(after_help = "Examples:\n  monarch trace show --limit 20 job.trace\n  \
        monarch trace show --csv job.trace > job.csv\n  \
        monarch trace show --json job.trace | jq -r 'select(.served == \"pfs\") | .path' | sort | uniq -c\n\n\
        Times are seconds since the trace was begun. Of a trace that was cut short (its job was killed), what is there is shown.")]
    Show {
        /// The trace
        file: PathBuf,
        /// Stop after this number of accesses
        #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
        limit: u64,
        /// Print an object per line
        #[arg(long, conflicts_with = "csv")]
        json: bool,
        /// Print comma-separated values that `trace import` reads
        #[arg(long)]
        csv: bool,
    },
    /// Count what is in a trace: files, epochs, from where they were served, what a cache would get
    #[command(after_help = "Examples:\n  monarch trace stats job.trace\n  \
        monarch trace stats --json job.trace | jq '.epochs[] | {number, duration_s, served}'\n\n\
        Epochs are found from the accesses alone: a new epoch begins when files are read again. The re-use distance of an access is \
        the number of distinct files since its file was opened before; least-recently-used caches are measured in files, as if all \
        had the same size.")]
    Stats {
        /// The trace
        file: PathBuf,
        /// Print an object
        #[arg(long)]
        json: bool,
    },
    /// Make a trace from comma-separated values
    #[command(after_help = "Example:\n  monarch trace import accesses.csv -o job.trace\n\n\
        The file begins with the line `time_s,stream,path,size,served`; a line per open follows: seconds since the start, number of \
        the process (0 to 65535), path, size in bytes, and from where it was served: tier, waited or pfs. The last column may be missing. \
        Fields with commas stand in quotes.")]
    Import {
        /// The comma-separated values; - is standard input
        file: PathBuf,
        /// Trace to write
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
}

pub(crate) fn main(command: &TraceCommand) -> Result<ExitCode> {
    match command {
        TraceCommand::Show { file, limit, json, csv } => {
            let mut reader = TraceReader::open(file)?;
            let mut to = BufWriter::new(io::stdout().lock());
            let done = match () {
                () if *csv => trace::export(&mut reader, *limit, &mut to),
                () if *json => show::json(&mut reader, *limit, &mut to),
                () => show::text(&mut reader, *limit, &mut to),
            };
            // A closed pipe means that its reader has read enough.
            if let Err(e) = done.and_then(|()| to.flush())
                && e.kind() != io::ErrorKind::BrokenPipe
            {
                return Err(e).context("cannot write the accesses");
            }
            Ok(warn_of_end(file, &reader))
        }
        TraceCommand::Stats { file, json } => {
            let mut reader = TraceReader::open(file)?;
            let stats = trace::stats(&mut reader);
            if *json {
                say::json(&stats)?;
            } else {
                say::out(format_args!("{}", stats::text(&stats, reader.header())))?;
            }
            Ok(warn_of_end(file, &reader))
        }
        TraceCommand::Import { file, output } => import(file, output),
    }
}

/// Warns when the end of a trace is missing or damaged. Returns the exit code.
fn warn_of_end<R>(file: &Path, reader: &TraceReader<R>) -> ExitCode
where
    TraceReader<R>: Iterator,
    R: io::Read,
{
    match reader.end() {
        End::Open | End::Whole => {}
        End::Unfinished => {
            say::warn(format_args!("{} has no end: its job still runs, or was killed", file.shown()));
        }
        End::Torn => say::warn(format_args!("{} ends within a block, which is left out", file.shown())),
        End::Damaged => {
            say::warn(format_args!("{} is damaged: what follows is left out", file.shown()));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn import(file: &Path, output: &Path) -> Result<ExitCode> {
    let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let header = TraceHeader {
        created_ms: u64::try_from(created.as_millis()).unwrap_or(u64::MAX),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        ..TraceHeader::default()
    };
    let done = if file == Path::new("-") {
        trace::import(io::stdin().lock(), file, output, &header)
    } else {
        let csv = File::open(file).with_context(|| format!("cannot read {}", file.shown()))?;
        trace::import(BufReader::with_capacity(1 << 20, csv), file, output, &header)
    };
    match done {
        Ok(count) => {
            say::out(format_args!("{}: {count} accesses\n", output.shown()))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(e @ TraceError::Csv { .. }) => {
            say::err(format_args!("monarch: {e}\n"));
            Ok(ExitCode::from(EX_USAGE))
        }
        Err(e) => Err(e.into()),
    }
}
