//! `monarch index build | show | verify`: saved indexes.

use crate::args::SourceArgs;
use crate::exit_code::EX_NO;
use crate::progress::while_scanning;
use crate::say;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use monarch_core::engine::Limits;
use monarch_core::index::{self, Differences, ScanOptions};
use monarch_core::shm::IndexBytes;
use monarch_core::shown::ShowPath;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum IndexCommand {
    /// Scan a root and save its index
    #[command(after_help = "Examples:\n  monarch index build -o imagenet.idx /scratch/imagenet\n  \
        monarch index build --set source.iops_limit=500 -o imagenet.idx /scratch/imagenet    # slowly\n  \
        monarch run --root /scratch/imagenet --set index.file=imagenet.idx -- python train.py")]
    Build {
        /// The root
        root: PathBuf,
        /// File to write
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
        /// Threads that scan
        #[arg(long, default_value_t = 16)]
        threads: usize,
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Show what a saved index holds
    #[command(after_help = "Example:\n  monarch index show imagenet.idx")]
    Show {
        /// The saved index
        file: PathBuf,
    },
    /// Check a saved index, and whether its root is still as it says
    #[command(
        after_help = "Examples:\n  monarch index verify imagenet.idx                               # the file only\n  \
        monarch index verify imagenet.idx /scratch/imagenet             # scans the root again\n  \
        monarch index verify --sample 1000 imagenet.idx /scratch/imagenet\n\n\
        Exit code 0 when they agree, 3 when they differ: then build the index again. A job does not need this: unless \
        index.trust is `frozen`, each file is checked before its first copy is used."
    )]
    Verify {
        /// The saved index
        file: PathBuf,
        /// The root to compare it with
        root: Option<PathBuf>,
        /// Compare only this number of files, chosen at random; each takes one metadata call
        #[arg(long, value_name = "FILES", requires = "root")]
        sample: Option<usize>,
        /// Threads that ask the parallel file system
        #[arg(long, default_value_t = 16)]
        threads: usize,
        /// Print an object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        source: SourceArgs,
    },
}

pub(crate) fn main(command: &IndexCommand) -> Result<ExitCode> {
    match command {
        IndexCommand::Build { root, output, threads, source } => {
            let limits = match source.limits() {
                Ok(limits) => limits,
                Err(code) => return Ok(code),
            };
            let root = root.canonicalize().with_context(|| format!("cannot use the root {}", root.shown()))?;
            let start = std::time::Instant::now();
            let options = ScanOptions { threads: *threads, max_memory: u64::MAX };
            let what = format!("scanning {}", root.shown());
            let tree = while_scanning(&what, |progress| index::scan_within(&root, options, &limits, progress))?;
            if tree.incomplete {
                say::warn(format_args!("parts of {} could not be read and are left to the kernel", root.shown()));
            }
            let built = index::try_build(tree, monarch_core::sys::random_u64(), monarch_core::sys::random_uuid())?;
            index::save(&built, output)?;
            let h = built.header();
            say::out(format_args!(
                "{}: {}, {} directories and links, {} of data, index {} in {:.1} s\n",
                output.shown(),
                say::counted(h.files, "file"),
                say::count(u64::from(h.entries) - h.files),
                bytesize::ByteSize(h.bytes),
                bytesize::ByteSize(h.len),
                start.elapsed().as_secs_f64()
            ))?;
        }
        IndexCommand::Show { file } => {
            let saved = index::load(file)?;
            let index = IndexBytes(saved.index()).open().context("the index is malformed")?;
            let h = index.header;
            let (table, complete) = (saved.buckets().len(), h.flags & 1 == 0);
            say::out(format_args!(
                "entries {}\nfiles {}\ndirectories {}\nbytes {}\nindex_bytes {}\ntable_bytes {table}\ncomplete {complete}\n",
                h.entries, h.files, h.dirs, h.bytes, h.len
            ))?;
        }
        IndexCommand::Verify { file, root, sample, threads, json, source } => {
            let limits = match source.limits() {
                Ok(limits) => limits,
                Err(code) => return Ok(code),
            };
            return verify(file, root.as_deref(), *sample, *threads, &limits, *json);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn verify(
    file: &Path,
    root: Option<&Path>,
    sample: Option<usize>,
    threads: usize,
    limits: &Limits,
    json: bool,
) -> Result<ExitCode> {
    let saved = index::load(file)?;
    let index = IndexBytes(saved.index()).open().context("the index is malformed")?;
    let Some(root) = root else {
        say::out(format_args!(
            "{}: whole, {}; name the root to compare it with\n",
            file.shown(),
            say::counted(index.len(), "entry")
        ))?;
        return Ok(ExitCode::SUCCESS);
    };
    let root = root.canonicalize().with_context(|| format!("cannot use the root {}", root.shown()))?;
    if index.header.root_id != index::root_id(&root) {
        bail!(
            "{} was built for a root with another path than {}; build one for this root with `monarch index build`",
            file.shown(),
            root.shown()
        );
    }
    let what = format!("comparing {}", root.shown());
    let found = while_scanning(&what, |progress| match sample {
        Some(count) => index::verify_sample(&index, &root, count, threads, limits, progress),
        None => index::verify(&index, &root, ScanOptions { threads, max_memory: u64::MAX }, limits, progress),
    })?;
    if json {
        say::json(&found)?;
    } else {
        say::out(format_args!("{}", summary(&found, sample.is_some())))?;
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EX_NO) })
}

fn summary(found: &Differences, sampled: bool) -> String {
    let what = if sampled { "files chosen at random" } else { "entries" };
    let mut out = format!("{} {what} compared", found.compared);
    if found.is_empty() {
        return out + ", no difference\n";
    }
    out += &format!(
        ": {} changed, {} missing, {} not in the index\n",
        found.changed.count, found.missing.count, found.new.count
    );
    for (what, paths) in [("changed", &found.changed), ("missing", &found.missing), ("new", &found.new)] {
        for path in &paths.examples {
            out += &format!("  {what:<8} {}\n", path.shown());
        }
        let more = paths.count - paths.examples.len() as u64;
        if more > 0 {
            out += &format!("  {what:<8} and {more} more\n");
        }
    }
    out
}
