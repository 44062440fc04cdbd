//! What a reader of the PFS sees while a job saves checkpoints through a slow drain: whatever a
//! marker names is complete, and one complete checkpoint is there at all times.

use super::world::{Outputs, is_built};
use crate::harness::Job;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Checkpoints of a run.
const STEPS: usize = 6;
/// Bytes of each of the three files of a checkpoint.
const SIZE: usize = 1_500_000;
/// Bytes a second that the PFS takes.
const BANDWIDTH: u64 = 30_000_000;
/// The files of a checkpoint.
const FILES: [&str; 3] = ["model.bin", "optimizer.bin", "rng.bin"];

/// How the newest checkpoint is found on the PFS.
type Newest = fn(&Path) -> Option<(usize, PathBuf)>;

/// The folder with the highest number that has this marker.
fn highest(top: &Path, prefix: &str, marker: &str) -> Option<(usize, PathBuf)> {
    let number = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok();
    let folders = fs::read_dir(top).ok()?.flatten().map(|e| e.path()).filter(|path| path.join(marker).exists());
    folders.filter_map(|path| Some((number(&path)?, path))).max()
}

fn by_state(top: &Path) -> Option<(usize, PathBuf)> {
    highest(top, "checkpoint-", "trainer_state.json")
}

fn by_metadata(top: &Path) -> Option<(usize, PathBuf)> {
    highest(top, "step", ".metadata")
}

fn by_latest(top: &Path) -> Option<(usize, PathBuf)> {
    let name = fs::read_to_string(top.join("latest")).ok()?;
    // (An empty one is a torn one: it names nothing.)
    Some((name.strip_prefix("step")?.parse().ok()?, top.join(name)))
}

fn by_link(top: &Path) -> Option<(usize, PathBuf)> {
    let target = fs::read_link(top.join("latest")).ok()?;
    Some((target.to_str()?.strip_prefix("step")?.parse().ok()?, top.join(target)))
}

/// What is wrong with a checkpoint.
fn fault_of(step: usize, folder: &Path) -> Option<String> {
    FILES.iter().find_map(|name| {
        let path = folder.join(name);
        let Ok(bytes) = fs::read(&path) else { return Some(format!("{} is missing", path.display())) };
        let line = format!("{step:08} {name}\n").into_bytes();
        let good = bytes.len() == SIZE && bytes.chunks(line.len()).all(|c| c == &line[..c.len()]);
        (!good).then(|| format!("{} is torn: {} bytes", path.display(), bytes.len()))
    })
}

/// A reader of the PFS that looks all the time.
struct Reader {
    over: Arc<AtomicBool>,
    thread: JoinHandle<(BTreeSet<usize>, Vec<String>)>,
}

impl Reader {
    fn start(top: PathBuf, newest: Newest) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let look = move || {
            let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
            while !until.load(Ordering::Acquire) && wrong.len() < 5 {
                let found = newest(&top);
                let fault = match (&found, seen.last()) {
                    (None, None) => None,
                    (None, Some(last)) => Some(format!("no checkpoint after step {last}")),
                    (Some((step, _)), Some(last)) if step < last => Some(format!("step {step} after step {last}")),
                    (Some((step, folder)), _) => fault_of(*step, folder),
                };
                match (fault, found) {
                    // (A checkpoint that is no longer the newest may be removed while it is read.)
                    (Some(fault), found) if newest(&top) == found => wrong.push(fault),
                    (None, Some((step, _))) => drop(seen.insert(step)),
                    _ => {}
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            (seen, wrong)
        };
        Self { over, thread: std::thread::spawn(look) }
    }

    /// Steps that were seen complete, and what was wrong.
    fn end(self) -> (BTreeSet<usize>, Vec<String>) {
        self.over.store(true, Ordering::Release);
        self.thread.join().expect("the reader")
    }
}

fn job(w: &Outputs, style: &str) -> Job {
    w.program("checkpoints.py").args([style, &STEPS.to_string(), &SIZE.to_string()])
}

fn world() -> Outputs {
    Outputs::plan(|plan| plan, |pfs| pfs.bandwidth(BANDWIDTH).meta_latency(Duration::from_millis(1)))
}

/// Runs a style staged, while a reader looks.
#[track_caller]
fn in_order(w: &Outputs, style: &str, newest: Newest) {
    let direct = w.direct(&job(w, style));
    assert!(direct.ended.status.success(), "{}", direct.ended.errors());
    if !is_built() {
        return;
    }
    let reader = Reader::start(w.published(), newest);
    let staged = w.start(&job(w, style)).end().good();
    let left = super::tree::tree(&w.published());
    let (seen, wrong) = reader.end();
    assert!(wrong.is_empty(), "{style}: {wrong:#?}; seen {seen:?}");
    assert!(seen.len() >= 3 && seen.contains(&STEPS), "{style}: only seen {seen:?}");
    let differ = super::tree::differences(&direct.tree, &left);
    assert!(differ.is_empty(), "{style}: {differ:#?}");
    // The job did not wait for the PFS: a direct save of these bytes takes at least this time.
    let direct_ms = (SIZE * FILES.len()) as u64 * 1000 / BANDWIDTH;
    println!("{style}: seen {seen:?}; direct >= {direct_ms} ms, staged {}", staged.text().trim());
    w.clear();
}

#[test]
fn a_state_file_written_last_appears_last() {
    in_order(&world(), "hf", by_state);
}

#[test]
fn a_text_file_never_names_what_is_not_there() {
    in_order(&world(), "latest", by_latest);
    in_order(&world(), "tensorflow", by_latest);
}

#[test]
fn a_renamed_marker_takes_the_place_of_its_rename() {
    in_order(&world(), "dcp", by_metadata);
}

#[test]
fn a_link_never_names_what_is_not_there() {
    in_order(&world(), "link", by_link);
}

/// Shards and markers are copied in parallel; a shard that is slow holds what follows it.
#[test]
fn a_slow_shard_holds_its_marker() {
    use slowfs::{FaultKind, FaultSpec};
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    let first = FaultSpec::new(FaultKind::Stall(Some(Duration::from_secs(3)))).ops(super::world::PART_OPS);
    w.pfs().fault(first.path(super::world::PARTS).count(1)).unwrap();
    let reader = Reader::start(w.published(), by_latest);
    let script = "mkdir step1; for f in model.bin optimizer.bin rng.bin; do yes \"00000001 $f\" | head -c 1500000 > step1/$f; done;\n\
        printf step1 > latest; echo '## end'; while [ ! -e \"$0/latest\" ]; do sleep 0.01; done; date +%s.%N";
    let running = w.start(&w.here(Job::new("sh").args(["-c", script]).arg(w.published())));
    let ended = running.end().good();
    let (seen, wrong) = reader.end();
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1], "{}", ended.text());
}

/// The marker follows the last byte of the data at once.
#[test]
fn a_marker_follows_its_data_at_once() {
    let w = world();
    if !is_built() {
        return;
    }
    w.start(&job(&w, "latest")).end().good();
    let changed = |path: PathBuf| {
        let m = fs::metadata(path).unwrap();
        Duration::new(m.ctime() as u64, m.ctime_nsec() as u32)
    };
    // (The change time of a published file is that of its rename.)
    let data = FILES.map(|name| changed(w.published().join(format!("step{STEPS}/{name}"))));
    let marker = changed(w.published().join("latest"));
    let last = data.into_iter().max().unwrap();
    assert!(marker >= last, "the marker was published before its data");
    // (Twenty times what it is on an idle machine.)
    assert!(marker - last < Duration::from_secs(2), "{:?} after the data", marker - last);
}
