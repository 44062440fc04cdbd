//! `monarch explain`: would an open of a path get a copy, and why not.

mod kept_copy;

use crate::args::ConfigArgs;
use crate::exit_code::EX_NO;
use crate::{agents, say};
use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use monarch_core::agent::runtime_dir;
use monarch_core::index::root_id;
use monarch_core::reader::{Explanation, Reader, ReaderError, Verdict};
use monarch_core::shown::ShowPath;
use monarch_core::tier::working_sets_in;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// Files or directories, as the job names them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print an array of objects, one per path
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Lines of the agent's log that are shown for a file.
const MAX_LOG_LINES: usize = 3;

pub(crate) fn main(args: &ExplainArgs) -> Result<ExitCode> {
    let readers = match readers(&args.config) {
        Ok(readers) => readers,
        Err(code) => return Ok(code),
    };
    if readers.is_empty() {
        return kept_copy::main(&args.config, &args.paths, args.json);
    }
    let said: Vec<(Explanation, &Reader)> = args.paths.iter().filter_map(|p| ask(&readers, p)).collect();
    if args.json {
        let all: Vec<&Explanation> = said.iter().map(|(e, _)| e).collect();
        say::json(&all)?;
    } else {
        let text: Vec<String> = said.iter().map(|(e, reader)| text(e, reader, &readers)).collect();
        say::out(format_args!("{}", text.join("\n")))?;
    }
    let all_local = said.iter().all(|(e, _)| e.verdict.is_local());
    Ok(if all_local { ExitCode::SUCCESS } else { ExitCode::from(EX_NO) })
}

/// Maps the shared memory of all agents of this user, including agents that died or do not answer:
/// their jobs still read the copies that exist.
fn readers(config: &ConfigArgs) -> Result<Vec<Reader>, ExitCode> {
    let open = |dir: PathBuf| match Reader::open(&dir.join(runtime_dir::CONTROL)) {
        Ok(reader) => Some(reader),
        // The agent is just starting or ending.
        Err(ReaderError::Map { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
        Err(e) => {
            say::warn(format_args!("{e}"));
            None
        }
    };
    // A process of a job asks the agent of that job alone.
    if let Some(control) = std::env::var_os("MONARCH_CTL") {
        return Ok(Path::new(&control).parent().map(Path::to_owned).and_then(open).into_iter().collect());
    }
    let places = config.places()?;
    let wanted =
        (!places.tiers.is_empty()).then(|| runtime_dir::tiers_key(places.tiers.iter().map(|t| t.path.as_path())));
    let is_wanted = |dir: &PathBuf| wanted.as_ref().is_none_or(|key| dir.file_name() == Some(OsStr::new(key)));
    Ok(agents::directories(config, &places).into_iter().filter(is_wanted).filter_map(open).collect())
}

/// Returns the explanation of the agent that knows most about a path.
fn ask<'a>(readers: &'a [Reader], path: &Path) -> Option<(Explanation, &'a Reader)> {
    let rank = |e: &Explanation| match &e.verdict {
        v if v.is_local() => 3,
        Verdict::Outside => 0,
        Verdict::OtherSpelling { .. } => 1,
        _ => 2,
    };
    readers.iter().map(|r| (r.explain(path), r)).max_by_key(|(e, _)| rank(e))
}

fn text(e: &Explanation, reader: &Reader, all: &[Reader]) -> String {
    // Writing to a string does not fail.
    let mut out = format!("{}\n  {}\n", e.path.shown(), e.verdict);
    if let Some(root) = &e.root {
        let _ = writeln!(out, "  root     {}", root.shown());
    }
    if let Some(file) = &e.file {
        let size = if e.verdict == Verdict::Directory { String::new() } else { format!(", {}", ByteSize(file.size)) };
        let _ = writeln!(out, "  index    {}{size}, inode {}", shown(&file.path), file.ino);
    }
    if let Some(served) = &e.served {
        let verified = if served.verify_on_open { ", copies verified at each open" } else { "" };
        let _ = writeln!(out, "  mode     {}{verified}", served.consistency);
    }
    if all.len() > 1 && e.root.is_some() {
        let _ = writeln!(out, "  agent    {}", reader.runtime_dir().shown());
    }
    if let Some(copy) = &e.copy {
        let _ = writeln!(out, "  copy     {}", copy.shown());
    }
    if let Some(maps_copy) = e.library {
        let what = if maps_copy { "the copy, in processes with the audit library" } else { "the file on the PFS" };
        let _ = writeln!(out, "  loader   maps {what}");
    }
    if let Some((place, of)) = place_in_working_set(e, reader) {
        let _ = writeln!(out, "  set      file {place} of {of} in the working set of the last job");
    }
    if e.verdict == Verdict::Outside {
        for root in all.iter().flat_map(Reader::roots) {
            let _ = writeln!(out, "  a root   {}", root.shown());
        }
    }
    if let Some(remedy) = e.verdict.remedy() {
        let _ = writeln!(out, "  help     {remedy}");
    }
    for line in e.file.iter().filter(|_| !e.verdict.is_local()).flat_map(|f| log_lines(reader, &f.path)) {
        let _ = writeln!(out, "  log      {line}");
    }
    out
}

/// Returns the place of a file in the working set of the last job of its root, from 1 on, and the
/// number of files in it.
fn place_in_working_set(e: &Explanation, reader: &Reader) -> Option<(usize, usize)> {
    let (root, path) = (root_id(e.root.as_ref()?), e.file.as_ref()?.path.as_os_str().as_bytes());
    let sets = reader.tiers().iter().flat_map(|tier| working_sets_in(tier)).collect::<Vec<_>>();
    let files = sets.iter().find(|set| set.root == root)?.files.iter().filter(|f| f.history & 1 == 1);
    let paths: Vec<&[u8]> = files.map(|f| &f.path[..]).collect();
    Some((paths.iter().position(|p| *p == path)? + 1, paths.len()))
}

fn shown(path: &Path) -> String {
    if path.as_os_str().is_empty() { ".".to_owned() } else { path.shown().to_string() }
}

/// Returns the last lines of an agent's log that name a file.
fn log_lines(reader: &Reader, path: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(reader.runtime_dir().join(runtime_dir::LOG)).unwrap_or_default();
    let name = format!("file={}", path.shown());
    let names_it = |l: &&str| l.contains(&format!("{name} ")) || l.ends_with(&name);
    let mut lines: Vec<String> = log.lines().rev().filter(names_it).take(MAX_LOG_LINES).map(str::to_owned).collect();
    lines.reverse();
    lines
}
