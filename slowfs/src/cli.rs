//! The command line: `slowfs SOURCE MOUNTPOINT ...` mounts, `slowfs ctl SOCKET ...` talks to a
//! mount.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use serde_json::{Map, Value, json};

use crate::options::{CacheMode, Settings};
use crate::protocol;
use crate::server::{MountArgs, run as run_mount};
use crate::units::{Rate, Time};

/// A stand-in for a parallel file system: passes a directory through with latency, bandwidth,
/// counters and faults.
#[derive(Parser)]
#[command(name = "slowfs", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Sub>,
    #[command(flatten)]
    mount: Option<Mount>,
}

#[derive(Subcommand)]
enum Sub {
    /// Send one command to a mount's control socket and print the JSON answer
    #[command(after_help = CTL_HELP)]
    Ctl {
        /// The socket printed by the mount
        socket: PathBuf,
        /// counters, paths, reset, options, set, fault, faults, clear, mutate, unmount
        command: String,
        /// KEY=VALUE ...
        #[arg(value_parser = key_value)]
        fields: Vec<(String, String)>,
    },
}

const CTL_HELP: &str = "\
Examples:
  slowfs ctl S counters
  slowfs ctl S set meta_latency=2ms data_latency=500us bandwidth=115MiB/s cache=keep attr_ttl=5s flush=true
  slowfs ctl S fault kind=eio ops=open,read path='train/*' count=1 after=2
  slowfs ctl S fault kind=stall:30s ops=read      (also: stall, estale, errno:28, short_read:100, zeros)
  slowfs ctl S mutate path=a/b kind=replace_same when=after_read:1
     kind: change, shrink, delete, replace, replace_same    when: now, after_open, after_read:N";

#[derive(Args)]
struct Mount {
    /// The directory that is passed through
    source: PathBuf,
    /// Where it appears
    mountpoint: PathBuf,
    /// Latency of each metadata call (lookup, getattr, open, opendir, readdir, ...)
    #[arg(long, default_value = "0")]
    meta_latency: Time,
    /// Latency of each read and write
    #[arg(long, default_value = "0")]
    data_latency: Time,
    /// Bandwidth shared by all reads and writes; 0 is unlimited
    #[arg(long, default_value = "0")]
    bandwidth: Rate,
    /// What the kernel caches: direct (nothing), nokeep (dropped at each open), keep
    #[arg(long, default_value = "nokeep")]
    cache: CacheMode,
    /// How long the kernel may believe attributes
    #[arg(long, default_value = "1s")]
    attr_ttl: Time,
    /// How long the kernel may believe names [default: attr-ttl]
    #[arg(long)]
    entry_ttl: Option<Time>,
    /// List directories without attributes
    #[arg(long)]
    no_readdirplus: bool,
    /// Each close sends a FLUSH, which costs a metadata latency
    #[arg(long)]
    flush_latency: bool,
    /// Server threads (latency is slept elsewhere) [default: number of processors, at least 2]
    #[arg(long)]
    threads: Option<usize>,
    /// Descriptors kept for files that the kernel knows [default: three quarters of the limit]
    #[arg(long)]
    node_descriptors: Option<usize>,
    /// Control socket [default: slowfs-PID.sock in the temporary directory]
    #[arg(long)]
    control: Option<PathBuf>,
    /// Let other users in; the kernel then checks permissions
    #[arg(long)]
    allow_other: bool,
    /// Return as soon as the mount is ready and serve in the background
    #[arg(long)]
    daemonize: bool,
    /// Serve in the foreground (the default)
    #[arg(long, conflicts_with = "daemonize")]
    foreground: bool,
    /// Unmount when standard input ends: a parent that dies takes the mount with it
    #[arg(long, conflicts_with = "daemonize")]
    until_stdin_closes: bool,
}

/// Parses the arguments of this process and does what they say.
///
/// # Errors
/// Mounting and control errors, for the user.
pub fn run() -> io::Result<()> {
    let cli = Cli::parse();
    match (cli.command, cli.mount) {
        (Some(Sub::Ctl { socket, command, fields }), _) => ctl(&socket, &command, fields),
        (None, Some(mount)) if mount.daemonize => daemonize(),
        (None, Some(mount)) => run_mount(&mount.resolve()),
        (None, None) => Err(io::Error::other("SOURCE and MOUNTPOINT are missing; see --help")),
    }
}

impl Mount {
    fn resolve(self) -> MountArgs {
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        MountArgs {
            settings: Settings {
                meta_latency: Some(self.meta_latency),
                data_latency: Some(self.data_latency),
                bandwidth: Some(self.bandwidth),
                cache: Some(self.cache),
                attr_ttl: Some(self.attr_ttl),
                entry_ttl: self.entry_ttl,
                flush: Some(self.flush_latency),
            },
            source: self.source,
            mountpoint: self.mountpoint,
            control: self.control,
            threads: self.threads.unwrap_or(processors).max(2),
            node_descriptors: self.node_descriptors,
            readdirplus: !self.no_readdirplus,
            allow_other: self.allow_other,
            until_stdin_closes: self.until_stdin_closes,
        }
    }
}

/// Starts the same command in the foreground of a new process group, passes its "mounted" line on
/// and leaves it. The new process inherits nothing of this one: a shell that waits for the end of
/// this process's output must not wait for the mount.
fn daemonize() -> io::Result<()> {
    let args = std::env::args_os().skip(1).filter(|arg| arg != "--daemonize");
    let mut server = Command::new(std::env::current_exe()?)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let (mut line, mut errors) = (String::new(), String::new());
    if let Some(out) = server.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.is_empty() {
        if let Some(mut err) = server.stderr.take() {
            err.read_to_string(&mut errors)?;
        }
        return Err(io::Error::other(errors.trim_start_matches("slowfs: ").trim_end().to_string()));
    }
    print!("{line}");
    Ok(())
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not KEY=VALUE"))?;
    Ok((key.into(), value.into()))
}

/// Converts a field to the JSON that the protocol expects: lists, numbers and truth values, else
/// text.
fn json_value(key: &str, value: &str) -> Value {
    match key {
        "ops" => value.split(',').map(Value::from).collect(),
        "count" | "after" => value.parse::<u64>().map_or_else(|_| value.into(), Value::from),
        "flush" => value.parse::<bool>().map_or_else(|_| value.into(), Value::from),
        _ => value.into(),
    }
}

fn ctl(socket: &std::path::Path, command: &str, fields: Vec<(String, String)>) -> io::Result<()> {
    let mut object = Map::from_iter([("cmd".to_string(), json!(command))]);
    for (key, value) in fields {
        let value = json_value(&key, &value);
        object.insert(key, value);
    }
    let command = serde_json::from_value(Value::Object(object))?;
    let answer = protocol::call(socket, &command, Duration::from_secs(60))?;
    println!("{answer}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        assert!(
            Cli::try_parse_from(["slowfs"]).is_err()
                || Cli::try_parse_from(["slowfs"]).is_ok_and(|c| c.mount.is_none())
        );
        assert!(Cli::try_parse_from(["slowfs", "/a", "/b", "--meta-latency", "1ms", "--cache", "keep"]).is_ok());
        let ctl = ["slowfs", "ctl", "/s", "fault", "kind=eio", "ops=open,read", "count=1"];
        assert!(Cli::try_parse_from(ctl).is_ok_and(|c| c.command.is_some()));
    }
}
