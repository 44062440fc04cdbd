//! `monarch verify`: reads the copies on this node and compares them with what was copied, and with
//! the parallel file system if asked to; with and without an agent.

mod known_files;

use crate::args::ConfigArgs;
use crate::exit_code::EX_USAGE;
use crate::progress::Bar;
use crate::say::UNEXPECTED_REPLY;
use crate::{agents, kept, say};
use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Args;
use known_files::KnownFiles;
use monarch_core::agent::client::Client;
use monarch_core::agent::protocol::{Range, Reply, Request};
use monarch_core::agent::runtime_dir;
use monarch_core::engine::Limits;
use monarch_core::kept::KeptCopies;
use monarch_core::reader::Reader;
use monarch_core::shown::ShowPath;
use monarch_core::tier::{CopyName, Fits, Health, Lying, TierDir, TierView};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Only copies of these files, and of what lies below these directories
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Also read the files on the parallel file system, and compare them with their copies; within
    /// source.bandwidth_limit
    #[arg(long)]
    source: bool,
    /// Have damaged copies made again, and wait for them
    #[arg(long)]
    repair: bool,
    /// Threads that read
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: u32,
    /// Print an object
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Most damaged copies that are named.
const MAX_COPIES_NAMED: usize = 20;
/// How long an agent may take to make damaged copies again.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(600);
/// How often progress is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What was found.
#[derive(Debug, Default, Serialize)]
struct Found {
    /// Copies that were read.
    copies: u64,
    /// Their bytes.
    bytes: u64,
    /// Copies that were compared with the parallel file system as well.
    with_source: u64,
    /// Copies without a checksum.
    unknown: u64,
    damaged: Vec<Damaged>,
    /// Damaged copies that were made again.
    repaired: u64,
}

#[derive(Debug, Serialize)]
struct Damaged {
    tier: String,
    copy: String,
    /// Whether it is a packed copy.
    packed: bool,
    /// The file that it is a copy of, if an index knows it.
    #[serde(serialize_with = "monarch_core::shown::serial::perhaps")]
    path: Option<PathBuf>,
    why: String,
    #[serde(skip)]
    file: Option<Range>,
}

/// A tier, held by an agent or by this process.
struct Tier {
    name: String,
    path: PathBuf,
    used: u64,
    held: Option<TierDir>,
}

pub(crate) fn main(args: &VerifyArgs) -> Result<ExitCode> {
    let limits = match args.config.limits() {
        Ok(limits) => limits,
        Err(code) => return Ok(code),
    };
    let places = match args.config.places() {
        Ok(places) => places,
        Err(code) => return Ok(code),
    };
    let mut found = Found::default();
    let mut any = false;
    let mut known = vec![false; args.paths.len()];
    for dir in agents::directories(&args.config, &places) {
        let Ok(mut client) = Client::connect(&dir) else { continue };
        let status = client.status()?;
        let reader = Reader::open(&dir.join(runtime_dir::CONTROL))?;
        any = true;
        let ranges = ranges(&reader, &args.paths, &mut known);
        if !args.paths.is_empty() && ranges.is_empty() {
            continue;
        }
        let within = (!args.paths.is_empty()).then_some(&ranges[..]);
        let files = KnownFiles::Indexed { files: reader.copy_names(within).collect(), reader: &reader };
        let beside: Vec<PathBuf> = status.tiers.iter().map(|t| t.path.clone()).collect();
        for t in status.tiers {
            let tier = Tier { name: t.name, path: t.path, used: t.used, held: None };
            let verify = Verify { tier: &tier, files: &files, limits: &limits, args, beside: &beside };
            let damaged = verify.all(&mut found)?;
            drop_damaged(&tier, Some(&mut client), &damaged)?;
            if args.repair {
                found.repaired += repair(&mut client, &damaged)?;
            }
            found.damaged.extend(damaged);
        }
    }
    if !any {
        let copies = match kept::need(&args.config) {
            Ok(copies) => copies,
            Err(code) => return Ok(code),
        };
        without_agent(args, &copies, &limits, &mut found)?;
    } else if let Some(path) = args.paths.iter().zip(&known).find_map(|(path, known)| (!known).then_some(path)) {
        say::err(format_args!(
            "monarch: {} is not below a root, or not in its index; see `monarch explain`\n",
            path.shown()
        ));
        return Ok(ExitCode::from(EX_USAGE));
    }
    say_found(args, &found)?;
    Ok(if found.damaged.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the entries of paths in an index, and marks the paths that it has.
fn ranges(reader: &Reader, paths: &[PathBuf], known: &mut [bool]) -> Vec<Range> {
    let mut ranges = Vec::new();
    for (path, known) in paths.iter().zip(known) {
        if let Ok(range) = reader.range(path) {
            ranges.push(range);
            *known = true;
        }
    }
    ranges
}

/// Reads what jobs have left.
fn without_agent(args: &VerifyArgs, copies: &KeptCopies, limits: &Limits, found: &mut Found) -> Result<()> {
    let files = KnownFiles::find(copies, &args.paths, args.source, &args.config, limits)?;
    let tiers: Vec<PathBuf> = copies.tiers.iter().map(|t| t.view.path().to_owned()).collect();
    for of_jobs in &copies.tiers {
        let held = kept::hold(of_jobs)?;
        let (name, path) = (of_jobs.name.clone(), held.path.clone());
        let tier = Tier { name, path, used: of_jobs.sum().bytes, held: Some(held) };
        let verify = Verify { tier: &tier, files: &files, limits, args, beside: &tiers };
        let damaged = verify.all(found)?;
        drop_damaged(&tier, None, &damaged)?;
        found.damaged.extend(damaged);
    }
    if args.repair && !found.damaged.is_empty() {
        say::note(format_args!("no agent is running: the next job makes the damaged copies again"));
    }
    Ok(())
}

/// A tier that is being read.
struct Verify<'a> {
    tier: &'a Tier,
    files: &'a KnownFiles<'a>,
    limits: &'a Limits,
    args: &'a VerifyArgs,
    /// The tiers of the same agent.
    beside: &'a [PathBuf],
}

impl Verify<'_> {
    /// Reads all copies. Returns those that are damaged.
    fn all(&self, found: &mut Found) -> Result<Vec<Damaged>> {
        let view = TierView::open(&self.tier.path)?.beside(self.beside.iter().map(PathBuf::as_path));
        let (next, done) = (AtomicU32::new(0), AtomicU64::new(0));
        let total: Mutex<Part> = Mutex::default();
        let bar = Bar::new(self.args.quiet);
        std::thread::scope(|s| {
            for _ in 0..self.args.threads {
                s.spawn(|| {
                    let mut part = Part::default();
                    while let Ok(directory) = u8::try_from(next.fetch_add(1, Ordering::Relaxed)) {
                        for copy in view.copies(directory).unwrap_or_default() {
                            self.check(&view, copy, &done, &mut part);
                        }
                    }
                    let mut all = total.lock().unwrap_or_else(PoisonError::into_inner);
                    all.found.add(part.found);
                    all.unknown.append(&mut part.unknown);
                });
            }
            while next.load(Ordering::Relaxed) < 256 {
                let done = done.load(Ordering::Relaxed);
                bar.at(done, self.tier.used.max(done), &format!("in tier {}", self.tier.name));
                std::thread::sleep(POLL_INTERVAL / 2);
            }
        });
        let Part { found: mut sum, unknown } = total.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Copies that were published after the log was read.
        let mut view = view;
        view.refresh()?;
        let mut rest = Part::default();
        unknown.into_iter().for_each(|copy| self.check(&view, copy, &done, &mut rest));
        rest.found.unknown = rest.unknown.len() as u64;
        sum.add(rest.found);
        let damaged = std::mem::take(&mut sum.damaged);
        found.add(sum);
        Ok(damaged)
    }

    /// Reads a copy and compares it with its checksum.
    fn check(&self, view: &TierView, copy: Lying, done: &AtomicU64, part: &mut Part) {
        let name = copy.name;
        if !self.args.paths.is_empty() && !self.files.has(name) {
            return;
        }
        let (mut health, size) = view.check(copy);
        if health == Health::Sound
            && self.args.source
            && let Some(path) = self.files.path(name)
            && let Some(logged) = view.logged(name)
        {
            part.found.with_source += 1;
            self.limits.before_call(logged.size, false);
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let opened = rustix::fs::open(&path, flags, Mode::empty()).map_err(std::io::Error::from);
            health = match opened.and_then(|fd| logged.sum.fits(fd, logged.size)) {
                Ok(true) => Health::Sound,
                Ok(false) => Health::Damaged("it is not what lies on the parallel file system".to_owned()),
                Err(e) => Health::Damaged(format!("its file on the parallel file system: {e}")),
            };
        }
        done.fetch_add(size, Ordering::Relaxed);
        match health {
            Health::Gone => return,
            Health::Unknown => return part.unknown.push(copy),
            Health::Sound => {}
            Health::Damaged(why) => part.found.damaged.push(Damaged {
                tier: self.tier.name.clone(),
                copy: String::from_utf8_lossy(&name.hex()).into_owned(),
                packed: copy.is_packed(),
                path: self.files.path(name),
                why,
                file: self.files.entry(name),
            }),
        }
        part.found.copies += 1;
        part.found.bytes = part.found.bytes.saturating_add(size);
    }
}

/// What a thread has found.
#[derive(Default)]
struct Part {
    found: Found,
    /// Copies that are not in the log.
    unknown: Vec<Lying>,
}

impl Found {
    fn add(&mut self, other: Self) {
        self.copies += other.copies;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.with_source += other.with_source;
        self.unknown += other.unknown;
        self.damaged.extend(other.damaged);
    }
}

/// Drops damaged copies, so that no process reads one again.
fn drop_damaged(tier: &Tier, client: Option<&mut Client>, damaged: &[Damaged]) -> Result<()> {
    if damaged.is_empty() {
        return Ok(());
    }
    let Some(client) = client else {
        let copies = damaged.iter().filter_map(|d| Some((CopyName::parse(d.copy.as_bytes())?, d.packed)));
        copies.for_each(|(name, packed)| {
            tier.held.iter().for_each(|t| t.copies.remove(name, packed));
        });
        return Ok(());
    };
    let ranges = damaged.iter().filter_map(|d| d.file).collect();
    // The agent may not have matched a copy with its file yet, although an index knows the file:
    // hence the names as well.
    let copies = damaged.iter().map(|d| d.copy.clone()).collect();
    client.tally(&Request::Evict { ranges, unclaimed: false, copies })?;
    Ok(())
}

/// Has damaged copies made again. Returns their number.
fn repair(client: &mut Client, damaged: &[Damaged]) -> Result<u64> {
    let ranges: Vec<Range> = damaged.iter().filter_map(|d| d.file).collect();
    if ranges.is_empty() {
        return Ok(0);
    }
    client.tally(&Request::Prefetch { ranges: ranges.clone() })?;
    let start = Instant::now();
    loop {
        let Reply::Census(census) = client.ask(&Request::Census { ranges: ranges.clone(), plan: false, list: 0 })?
        else {
            bail!("{UNEXPECTED_REPLY}")
        };
        if census.under_way.files == 0 || start.elapsed() > REPAIR_TIMEOUT {
            return Ok(census.resident.files);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn say_found(args: &VerifyArgs, found: &Found) -> Result<()> {
    if args.json {
        return say::json(found);
    }
    let source = if args.source {
        format!(", {} of them compared with the parallel file system", found.with_source)
    } else {
        String::new()
    };
    let mut text = format!("{}, {} read{source}: ", say::counted(found.copies, "copy"), ByteSize(found.bytes));
    text += &match (found.damaged.len(), found.repaired) {
        (0, _) => "no difference\n".to_owned(),
        (n, 0) => format!("{n} damaged and dropped\n"),
        (n, repaired) => format!("{n} damaged and dropped, {repaired} made again\n"),
    };
    for d in found.damaged.iter().take(MAX_COPIES_NAMED) {
        let name = d.path.as_deref().map_or_else(|| format!("copy {}", d.copy), |p: &Path| p.shown().to_string());
        text += &format!("  {name} (tier {}): {}\n", d.tier, d.why);
    }
    if found.damaged.len() > MAX_COPIES_NAMED {
        text += &format!("  and {} more\n", found.damaged.len() - MAX_COPIES_NAMED);
    }
    if found.unknown > 0 {
        text += &format!("{} without a checksum; the next agent drops them\n", say::counted(found.unknown, "copy"));
    }
    Ok(say::out(format_args!("{text}"))?)
}
