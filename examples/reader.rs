//! Reads a data set three times in random order through the library: no preload, no command line.
//!
//! ```sh
//! cargo run --release --example reader -- /scratch/imagenet/val /dev/shm:2GiB
//! ```
//! The second argument is the tier; without it Monarch takes a quarter of the node's free local
//! disk. Like a training program in Rust: attaches to the node's agent (or hosts one), lets
//! prefetch copy what the epoch needs, opens files by path, and asks for the explanation of one
//! file.

use anyhow::{Context, Result};
use monarch_core::config::{self, Overrides, SystemProbe};
use monarch_core::reader::Place;
use monarch_core::session::Session;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let root = PathBuf::from(args.next().context("usage: reader ROOT [TIER[:SIZE]]")?);
    let given = Overrides { roots: vec![std::path::absolute(&root)?], tiers: args.collect(), ..Overrides::default() };
    let environment = std::env::vars_os().filter(|(k, _)| k != "MONARCH_CONFIG");
    let config =
        config::load(None, environment, &given, &SystemProbe).map_err(|e| anyhow::anyhow!(config::screen(&e)))?.config;

    let session = Session::start(&config)?;
    session.wait_for_index(Duration::from_secs(600))?;
    let mut files = Vec::new();
    list(&root, &mut files)?;
    for epoch in 1..=3 {
        shuffle(&mut files, epoch);
        let (start, mut bytes, mut local) = (Instant::now(), 0, 0);
        for path in &files {
            let mut opened = session.open(path).with_context(|| path.display().to_string())?;
            bytes += std::io::copy(&mut opened.file, &mut std::io::sink())?;
            local += usize::from(opened.place != Place::Pfs);
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("epoch {epoch}: {} files, {bytes} bytes, {local} from copies, {seconds:.2} s", files.len());
    }
    if let Some(path) = files.first() {
        let said = session.explain(path);
        println!("{}: {}", path.display(), said.verdict);
    }
    Ok(())
}

/// All regular files below a directory.
fn list(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Fisher and Yates' shuffle with a linear congruential generator (Knuth's MMIX constants).
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for last in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(last, (state >> 33) as usize % (last + 1));
    }
}
