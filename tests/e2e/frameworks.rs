//! Real frameworks, unmodified: the same data and the same losses, each file once from the PFS,
//! none once it is resident.
//!
//! A row of the matrix is a program of `tests/programs/frameworks` in an environment of
//! `tests/venvs.sh`; the first word of a test's name is the environment (`tensorflow` is `tf`).
//! [`Row::check`] is what every row must show. docs/FRAMEWORKS.md is this matrix in words. Without
//! its environment a row fails and says what to run; `./test --quick` leaves rows out by name.

use crate::harness::{Ended, Job, Plan, World, assert_same, cases, sources};
use crate::traffic::traffic;
use slowfs::{Counters, FaultKind, FaultSpec, PathCounts};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, str};

/// The interpreter of an environment.
pub fn interpreter(venv: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/venvs.sh");
    let found = Command::new(script).args(["--python", venv]).output().expect("tests/venvs.sh");
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    str::from_utf8(&found.stdout).expect("a path").trim().into()
}

/// A program with one or several of its ways of reading.
#[derive(Clone, Copy)]
struct Row {
    venv: &'static str,
    program: &'static str,
    how: &'static str,
    /// Directory of the files that are only read, relative to the root.
    inputs: &'static str,
}

impl Row {
    const fn new(venv: &'static str, program: &'static str, how: &'static str) -> Self {
        Self { venv, program, how, inputs: "" }
    }

    fn python(self) -> Job {
        let job = Job::new(interpreter(self.venv)).arg(sources().join("frameworks").join(self.program));
        job.env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1")
    }

    /// A world with the row's data, and timeouts that a busy machine does not reach.
    fn plan(self, maker: Job) -> Plan {
        World::plan().made_by(maker).patient()
    }

    /// A world without prefetch: every first read of a file is a demand.
    fn world(self) -> World {
        self.plan(self.python().arg("prepare")).set("prefetch.enabled=false").build()
    }

    fn job(self, w: &World, epochs: u32) -> Job {
        // HDF5 locks what it opens, on the PFS; see `io_hdf5_that_locks_its_files` for what that
        // costs.
        self.locking_job(w, epochs).env("HDF5_USE_FILE_LOCKING", "FALSE")
    }

    fn locking_job(self, w: &World, epochs: u32) -> Job {
        let job = self.python().args(["run", "--how", self.how, "--epochs", &epochs.to_string()]);
        job.arg(w.root()).env("CHECKPOINTS", "checkpoints")
    }

    /// Counts of the PFS for the files that are only read. The sums are shown with `--no-capture`.
    fn counts(self, w: &World) -> BTreeMap<String, PathCounts> {
        let inputs = w.backing().join(self.inputs);
        let is_input = |path: &String| {
            let path = w.backing().join(path);
            path.starts_with(&inputs) && path.is_file()
        };
        let all = w.pfs().paths().unwrap();
        let counts: BTreeMap<_, _> = all.into_iter().filter(|(path, _)| is_input(path)).collect();
        let sum = |of: fn(&PathCounts) -> u64| counts.values().map(of).sum::<u64>();
        let (opens, bytes) = (sum(|c| c.opens), sum(|c| c.bytes_read));
        println!("{} {} {}: {} files, {opens} opens, {bytes} bytes", self.venv, self.program, self.how, counts.len());
        counts
    }

    /// All assertions of a row.
    fn check(self) {
        let w = self.world();
        let bare = self.bare(&w, &self.job(&w, 3));
        self.cold(&w, &self.job(&w, 3), &bare);
        let w = self.resident_world(&w);
        let c = self.resident(&w, &self.job(&w, 3), &bare);
        assert_eq!(c.calls(), 0, "{c:?}");
    }

    /// Without Monarch every file is opened in every epoch, except files that the program holds
    /// open.
    fn bare(self, w: &World, job: &Job) -> Ended {
        w.pfs().reset().unwrap();
        let bare = w.bare(job).good();
        assert!(!bare.text().is_empty(), "{}", bare.errors());
        let counts = self.counts(w);
        let opens: u64 = counts.values().map(|c| c.opens).sum();
        assert!(counts.len() >= 4 && opens >= 3 * counts.len() as u64, "{opens} opens: {counts:?}");
        bare
    }

    /// Three epochs from nothing: the same output, and each file at most once from the PFS. The job
    /// begins when the index is ready: files opened before are read from the PFS, and these
    /// programs end in a moment.
    fn cold(self, w: &World, job: &Job, bare: &Ended) {
        w.pfs().reset().unwrap();
        let mut ours = w.start_indexed(job).end();
        ours.out.drain(.."ready\n".len());
        assert_same(bare, &ours);
        let counts = self.counts(w);
        assert!(counts.len() >= 4, "{counts:?}");
        for (path, c) in counts {
            let size = fs::metadata(w.backing().join(&path)).unwrap().len();
            assert!(c.opens <= 1 && c.bytes_read <= size, "{path}, {size} bytes: {c:?}");
            assert!(c.lookups + c.getattrs <= 2, "{path}: {c:?}");
        }
    }

    /// The same data, all of them resident, and zeros under their identities on the PFS. The kernel
    /// caches no attributes: its questions reach the PFS.
    fn resident_world(self, w: &World) -> World {
        let maker = Job::new("cp").arg("-a").arg(w.backing());
        let mut w = self.plan(maker).pfs(|b| b.attr_ttl(Duration::ZERO)).build();
        w.settle();
        let inputs = Path::new(self.inputs).join("**");
        w.pfs().fault(FaultSpec::new(FaultKind::Zeros).path(inputs.to_string_lossy())).unwrap();
        w
    }

    /// Three epochs on resident data: the same output, and the PFS is not asked for any input.
    /// Without Monarch the zeros are read, so the bytes came from the copies.
    fn resident(self, w: &World, job: &Job, bare: &Ended) -> Counters {
        let (text, c) = traffic(w, job);
        assert_eq!(text.strip_prefix("ready\n"), Some(&*bare.text()));
        for (path, c) in self.counts(w) {
            assert_eq!((c.opens, c.reads), (0, 0), "{path}: {c:?}");
        }
        self.blind(w, bare);
        c
    }

    /// Without Monarch every way of reading gets the zeros: it fails, or digests something else.
    fn blind(self, w: &World, bare: &Ended) {
        let seen = w.bare(&self.job(w, 1).env("CHECKPOINTS", "blind")).text();
        for way in self.how.split(',') {
            assert!(seen.contains(&format!("way {way} ")), "{way} says nothing: {seen}");
        }
        let bare = bare.text();
        assert!(seen.lines().all(|line| bare.lines().all(|right| line != right)), "not zeros:\n{seen}");
    }
}

const PICTURES: Row = Row::new("io", "pictures.py", "pillow,pillow_file,opencv,opencv_bytes");
const NUMPY: Row = Row::new("io", "arrays.py", "load,load_file,mapped,mapped_private,archive,fromfile,memmap,text");
const HDF5: Row = Row::new("io", "hdf5.py", "reopened,held,virtual");
const ARROW: Row = Row::new("io", "tables.py", "parquet,parquet_mapped,parquet_groups,dataset,arrow,arrow_mapped");
const SHARDS: Row = Row::new("io", "shards.py", "plain");

#[test]
fn io_pictures() {
    PICTURES.check();
}

#[test]
fn io_numpy() {
    NUMPY.check();
}

#[test]
fn io_numpy_maps_that_may_be_written() {
    // Files that are opened for writing are the PFS's: nothing is saved, and the written bytes are
    // there.
    let row = Row::new("io", "arrays.py", "mapped_shared");
    let (bare, ours) = (row.world(), row.world());
    assert_same(&bare.bare(&row.job(&bare, 3)).good(), &ours.run(&row.job(&ours, 3)));
    same_files(bare.backing(), ours.backing(), ".npy");
}

#[test]
fn io_hdf5() {
    HDF5.check();
}

/// A lock is taken on the PFS's file, which is opened for that each time, as without Monarch; the
/// bytes come from the copy all the same.
#[test]
fn io_hdf5_that_locks_its_files() {
    let w = HDF5.world();
    let bare = HDF5.bare(&w, &HDF5.locking_job(&w, 3));
    let native: u64 = HDF5.counts(&w).values().map(|c| c.opens).sum();
    w.pfs().reset().unwrap();
    let mut ours = w.start_indexed(&HDF5.locking_job(&w, 3)).end();
    ours.out.drain(.."ready\n".len());
    assert_same(&bare, &ours);
    let counts = HDF5.counts(&w);
    for (path, c) in &counts {
        let size = fs::metadata(w.backing().join(path)).unwrap().len();
        assert!(c.bytes_read <= size, "{path}, {size} bytes: {c:?}");
    }
    // One more for each file: that of its copy.
    let opens: u64 = counts.values().map(|c| c.opens).sum();
    assert!(opens <= native + counts.len() as u64, "{opens} opens, {native} natively: {counts:?}");
}

#[test]
fn io_arrow() {
    ARROW.check();
}

#[test]
fn io_webdataset() {
    SHARDS.check();
}

#[test]
fn io_demands_while_a_prefetch_runs() {
    // Programs that start so fast that they read before the prefetch has ended.
    let ms = Duration::from_millis(2);
    for row in [PICTURES, NUMPY, HDF5, ARROW, SHARDS] {
        let w = row.plan(row.python().arg("prepare")).pfs(move |b| b.meta_latency(ms).data_latency(ms)).build();
        let job = row.job(&w, 3);
        row.cold(&w, &job, &row.bare(&w, &job));
    }
}

/// The same rows with files that count as large: they are served in chunks while their copies are
/// made, and each byte leaves the PFS once. The bare program gives the right output.
fn in_chunks(row: Row) {
    let ms = Duration::from_millis(1);
    let both = &["prefetch.enabled=false", "prefetch.enabled=true"];
    for prefetch in cases(&both[..1], &both[..]) {
        let plan =
            row.plan(row.python().arg("prepare")).set("source.chunk_threshold=4KiB").set("source.chunk_size=8KiB");
        let w = plan.set("wait.complete=20s").set(prefetch).pfs(move |b| b.data_latency(ms)).build();
        let job = row.job(&w, 3);
        let bare = row.bare(&w, &job);
        w.pfs().reset().unwrap();
        let mut ours = w.start_indexed(&job).end();
        ours.out.drain(.."ready\n".len());
        assert_same(&bare, &ours);
        for (path, c) in row.counts(&w) {
            let size = fs::metadata(w.backing().join(&path)).unwrap().len();
            assert!(c.bytes_read <= size, "{prefetch}: {path}, {size} bytes: {c:?}");
        }
    }
}

#[test]
fn io_numpy_in_chunks() {
    in_chunks(NUMPY);
}

#[test]
fn io_hdf5_in_chunks() {
    in_chunks(HDF5);
}

#[test]
fn io_arrow_in_chunks() {
    in_chunks(ARROW);
}

#[test]
fn io_webdataset_in_chunks() {
    in_chunks(SHARDS);
}

#[test]
fn torch_tensors_in_chunks() {
    in_chunks(Row::new("torch", "torch_tensors.py", "load,safetensors,safetensors_slices,decoder"));
}

#[test]
fn torch2_tensors_in_chunks() {
    in_chunks(Row::new("torch2", "torch_tensors.py", "load,load_mapped,safetensors,safetensors_slices,decoder"));
}

/// Each way of loading weights alone, on files that are large by themselves: the same bytes, hardly
/// one of them twice.
#[test]
fn torch2_weights_that_are_being_copied() {
    let ms = Duration::from_millis(1);
    let all = ["whole", "part", "slices", "in_memory", "saved", "saved_mapped", "saved_in_memory"];
    for how in cases(&["whole", "slices", "saved_mapped"][..], &all[..]) {
        let row = Row::new("torch2", "torch_weights.py", how);
        let plan = row.plan(row.python().arg("prepare")).set("prefetch.enabled=false");
        let w = plan.pfs(move |b| b.data_latency(ms).bandwidth(200_000_000).cache(slowfs::CacheMode::Keep)).build();
        let job = row.job(&w, 1);
        let bare = w.bare(&job).good();
        w.pfs().reset().unwrap();
        let mut ours = w.start_indexed(&job).end();
        ours.out.drain(.."ready\n".len());
        assert_same(&bare, &ours);
        for (path, c) in row.counts(&w) {
            let size = fs::metadata(w.backing().join(&path)).unwrap().len();
            assert!(c.bytes_read <= size + size / 20, "{how}: {path}, {size} bytes: {c:?}");
        }
    }
}

#[test]
fn tensorflow_records_in_chunks() {
    in_chunks(Row { inputs: "records", ..Row::new("tf", "tensorflow_records.py", "parallel,interleaved") });
}

#[test]
fn torch_images_without_workers() {
    Row::new("torch", "torch_images.py", "inline").check();
}

#[test]
fn torch_images_with_forked_workers() {
    Row::new("torch", "torch_images.py", "forked").check();
}

#[test]
fn torch_images_with_spawned_workers() {
    Row::new("torch", "torch_images.py", "spawned").check();
}

#[test]
fn torch_images_with_persistent_workers() {
    Row::new("torch", "torch_images.py", "persistent").check();
}

#[test]
fn torch_images_on_two_ranks() {
    Row::new("torch", "torch_images.py", "ranks").check();
}

#[test]
fn torch_tensors() {
    // PyTorch 1.13 cannot map.
    Row::new("torch", "torch_tensors.py", "load,safetensors,safetensors_slices,decoder").check();
}

#[test]
fn torch_webdataset_with_workers() {
    Row::new("torch", "shards.py", "workers").check();
}

#[test]
fn torch2_images_with_forked_workers() {
    Row::new("torch2", "torch_images.py", "forked").check();
}

#[test]
fn torch2_images_on_two_ranks() {
    Row::new("torch2", "torch_images.py", "ranks").check();
}

#[test]
fn torch2_tensors() {
    Row::new("torch2", "torch_tensors.py", "load,load_mapped,safetensors,safetensors_slices,decoder").check();
}

#[test]
fn tensorflow_records() {
    Row { inputs: "records", ..Row::new("tf", "tensorflow_records.py", "parallel,interleaved") }.check();
}

#[test]
fn tensorflow_files() {
    Row::new("tf", "tensorflow_files.py", "whole,gfile").check();
}

#[test]
fn tensorflow_checkpoints_below_the_root() {
    // The files that the job writes go to the PFS and are read back from there; its inputs are
    // served as before.
    let row = Row { inputs: "records", ..Row::new("tf", "tensorflow_records.py", "checkpoints") };
    let job = |w: &World, to: &str| row.job(w, 3).env("CHECKPOINTS", to);
    let w = row.world();
    let bare = row.bare(&w, &job(&w, "bare"));
    let later = row.resident_world(&w);
    row.cold(&w, &job(&w, "cold"), &bare);
    row.resident(&later, &job(&later, "resident"), &bare);
    // Not `checkpoint`, which contains the time.
    for kind in [".index", ".data-00000-of-00001"] {
        let written = w.backing().join("checkpoints-bare");
        same_files(&written, &w.backing().join("checkpoints-cold"), kind);
        same_files(&written, &later.backing().join("checkpoints-resident"), kind);
    }
}

/// Asserts that two directories have the same files with this suffix: the same names and bytes.
#[track_caller]
fn same_files(a: &Path, b: &Path, suffix: &str) {
    let files = |dir: &Path| -> BTreeMap<_, _> {
        let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
        let wanted = entries.filter(|path| path.to_string_lossy().ends_with(suffix));
        wanted.map(|path| (path.file_name().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
    };
    let (a, b) = (files(a), files(b));
    assert!(!a.is_empty() && a == b, "{:?} and {:?}", a.keys(), b.keys());
}
