//! `monarch index build | show`.

use crate::say;
use anyhow::{Context, Result};
use clap::Subcommand;
use monarch_core::index::{self, ScanOptions, ScanProgress};
use monarch_core::shm::IndexBytes;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum IndexCommand {
    /// Scan a root and save its index
    #[command(after_help = "Example:\n  monarch index build -o imagenet.idx /scratch/imagenet\n  \
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
    },
    /// Show what a saved index holds
    #[command(after_help = "Example:\n  monarch index show imagenet.idx")]
    Show {
        /// The saved index
        file: PathBuf,
    },
}

pub(crate) fn main(command: &IndexCommand) -> Result<ExitCode> {
    match command {
        IndexCommand::Build { root, output, threads } => {
            let root = root.canonicalize().with_context(|| format!("root {}", root.display()))?;
            let start = std::time::Instant::now();
            let options = ScanOptions { threads: *threads, max_memory: u64::MAX };
            let tree = index::scan(&root, options, &ScanProgress::default())?;
            if tree.incomplete {
                say::warn(format_args!("parts of {} could not be read and are left to the kernel", root.display()));
            }
            let built = index::build(tree, monarch_core::sys::random_u64(), monarch_core::sys::random_uuid());
            index::save(&built, output)?;
            let h = built.header();
            say::out(format_args!(
                "{}: {} files, {} directories and links, {} of data, index {} in {:.1} s\n",
                output.display(),
                h.files,
                u64::from(h.entries) - h.files,
                bytesize::ByteSize(h.bytes),
                bytesize::ByteSize(h.len),
                start.elapsed().as_secs_f64()
            ))?;
        }
        IndexCommand::Show { file } => {
            let saved = index::load(file)?;
            let index = IndexBytes(saved.index()).open().context("the index does not make sense")?;
            let h = index.header;
            let (table, complete) = (saved.buckets().len(), h.flags & 1 == 0);
            say::out(format_args!(
                "entries {}\nfiles {}\ndirectories {}\nbytes {}\nindex_bytes {}\ntable_bytes {table}\ncomplete {complete}\n",
                h.entries, h.files, h.dirs, h.bytes, h.len
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
