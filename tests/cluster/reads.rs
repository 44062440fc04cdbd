//! The job that tests run on every node, `tests/programs/nodes.py`, and its results.

use crate::harness::{Ended, Job, sources};
use serde_json::Value;
use std::path::Path;

/// The data set, as `nodes.py` has to know it.
#[derive(Clone)]
pub struct Data {
    pub files: usize,
    pub dirs: usize,
    pub size: usize,
}

impl Data {
    /// The arguments for `nodes.py`.
    pub fn words(&self) -> Vec<String> {
        let words = [("--files", self.files), ("--dirs", self.dirs), ("--size", self.size)];
        words.iter().flat_map(|(k, v)| [(*k).to_owned(), v.to_string()]).collect()
    }
}

/// How the data set is read.
#[derive(Clone)]
pub struct Reads {
    words: Vec<String>,
}

impl Reads {
    /// Reads all files `n` times, the ranks independent of each other.
    pub fn epochs(n: usize) -> Self {
        Self { words: vec!["--epochs".to_owned(), n.to_string()] }
    }
    /// Reads until that file exists.
    pub fn until(file: &Path) -> Self {
        Self { words: vec!["--until".to_owned(), file.display().to_string()] }
    }
    /// Epochs begin together.
    pub fn barrier(self, dir: &Path) -> Self {
        self.with(&["--barrier", &dir.display().to_string()])
    }
    /// Further options of `nodes.py`.
    pub fn with(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(|w| (*w).to_owned()));
        self
    }
    pub(crate) fn job(&self, root: &Path, data: &Data, rank: usize, world: usize) -> Job {
        let job = Job::new("python3").arg(sources().join("nodes.py")).arg("read").arg(root).args(data.words());
        job.args(["--rank", &rank.to_string(), "--world", &world.to_string()]).args(&self.words)
    }
}

/// The results of one rank.
#[derive(Debug)]
pub struct Outcome {
    lines: Vec<Value>,
}

impl Outcome {
    pub fn of(ended: &Ended) -> Self {
        let lines = ended.text().lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
        Self { lines }
    }
    fn epochs(&self) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(|l| l["epoch"].is_u64())
    }
    /// Epochs that it read.
    pub fn count(&self) -> usize {
        self.epochs().count()
    }
    /// Its slowest open, read and close, milliseconds.
    pub fn slowest(&self) -> f64 {
        self.epochs().filter_map(|l| l["slowest_ms"].as_f64()).fold(0.0, f64::max)
    }
    /// Seconds that an epoch took.
    pub fn seconds(&self, epoch: usize) -> f64 {
        self.epochs().nth(epoch).and_then(|l| l["seconds"].as_f64()).unwrap_or(0.0)
    }
    /// Files that had the bytes of this version, over all epochs.
    pub fn version(&self, seed: &str) -> u64 {
        self.epochs().filter_map(|l| l["versions"][seed].as_u64()).sum()
    }
}
