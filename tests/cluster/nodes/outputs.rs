//! What jobs on several nodes write: published in the order in which the job has written it.

use crate::harness::{Job, Running, built, sources};
use crate::plan::Plan;
use crate::world::Cluster;
use slowfs::{FaultKind, FaultSpec, Op, Rate, Settings, Slowfs};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SHARD_BYTES: u64 = 1 << 16;

/// The last round that is marked as complete.
fn marked(published: &Path) -> Option<usize> {
    fs::read_to_string(published.join("latest")).ok()?.parse().ok()
}

fn is_whole(published: &Path, round: usize, rank: usize) -> bool {
    let shard = published.join(format!("round{round}/shard{rank}"));
    shard.metadata().is_ok_and(|meta| meta.len() == SHARD_BYTES)
}

/// An output root on a slow file system of its own.
struct Outputs {
    cluster: Cluster,
    pfs: Slowfs,
    root: PathBuf,
    /// Behind the slow file system.
    published: PathBuf,
}

impl Outputs {
    fn new(nodes: usize) -> Option<Self> {
        Self::with(nodes, false)
    }

    /// With the output root in a data root.
    fn in_data(nodes: usize) -> Option<Self> {
        Self::with(nodes, true)
    }

    fn with(nodes: usize, is_in_data: bool) -> Option<Self> {
        let mut cluster = Plan::new(nodes).files(6).build()?;
        let dir = cluster.shared().join("outputs");
        let (backing, mount) = (dir.join("backing"), dir.join("pfs"));
        for made in [&dir, &backing, &mount, &backing.join("out")] {
            fs::create_dir(made).expect("own directory");
        }
        let b = Slowfs::builder(&backing, &mount).program(built("slowfs")).attr_ttl(Duration::ZERO).allow_other();
        let pfs = b.meta_latency(Duration::from_millis(1)).spawn().expect("slowfs");
        let root = mount.join("out");
        cluster.site.settings.push(format!("outputs.0.path={}", root.display()));
        cluster.site.settings.push("outputs.0.volatile=true".to_owned());
        if is_in_data {
            cluster.site.settings.push(format!("dataset.roots.1={}", mount.display()));
        }
        Some(Self { cluster, pfs, root, published: backing.join("out") })
    }

    /// Runs two ranks that look at what the other has written; what each says.
    fn readers(&self, start: impl Fn(usize, &Job) -> Running) -> Vec<String> {
        let barriers = self.cluster.barrier();
        let job = |rank: usize| {
            let script = sources().join("outputs/readers.py");
            Job::new("python3").arg(script).arg(rank.to_string()).arg(&self.root).arg(&barriers)
        };
        let running: Vec<Running> = (0..2).map(|rank| start(rank, &job(rank))).collect();
        running.into_iter().map(|running| running.end().good().text()).collect()
    }

    fn job(&self, rank: usize, rounds: usize, barriers: &Path) -> Job {
        let words = [rank, self.cluster.len(), rounds].map(|n| n.to_string());
        let script = sources().join("outputs/ranks.py");
        Job::new("python3").arg(script).args(words).arg(&self.root).arg(barriers)
    }

    fn start(&self, rounds: usize) -> Vec<Running> {
        let barriers = self.cluster.barrier();
        (0..self.cluster.len()).map(|rank| self.cluster.node(rank).start(&self.job(rank, rounds, &barriers))).collect()
    }

    fn marked(&self) -> Option<usize> {
        marked(&self.published)
    }

    fn is_whole(&self, round: usize, rank: usize) -> bool {
        is_whole(&self.published, round, rank)
    }

    /// Looks on until `work` is done: what the marker says is there.
    #[track_caller]
    fn marker_tells_the_truth(&self, work: impl FnOnce()) {
        let (is_over, published, ranks) = (AtomicBool::new(false), &self.published, self.cluster.len());
        std::thread::scope(|scope| {
            let look = scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let Some(round) = marked(published) else { continue };
                    for rank in 0..ranks {
                        assert!(is_whole(published, round, rank), "round {round} is marked, shard {rank} is not there");
                    }
                }
            });
            work();
            is_over.store(true, Ordering::Release);
            look.join().unwrap();
        });
    }
}

#[test]
fn a_marker_follows_the_shards_of_all_nodes() {
    let Some(w) = Outputs::new(3) else { return };
    // A shard takes many times as long as the marker.
    w.pfs.set(Settings { bandwidth: Some(Rate(1 << 20)), ..Settings::default() }).unwrap();
    w.marker_tells_the_truth(|| w.start(12).into_iter().for_each(|running| drop(running.end().good())));
    assert_eq!(w.marked(), Some(11));
    for round in 0..12 {
        assert!((0..3).all(|rank| w.is_whole(round, rank)), "round {round}");
    }
    let left = fs::read_dir(&w.published).unwrap().flatten().filter(|e| e.file_name().as_encoded_bytes()[0] == b'.');
    assert_eq!(left.count(), 0);
}

#[test]
fn a_marker_follows_the_shards_of_nodes_whose_agents_are_killed() {
    let Some(w) = Outputs::new(2) else { return };
    let slow = FaultSpec::new(FaultKind::Stall(Some(Duration::from_millis(40)))).ops(&[Op::Write, Op::CopyFileRange]);
    w.pfs.fault(slow.path("**.monarch-part-*")).unwrap();
    w.marker_tells_the_truth(|| {
        let running = w.start(30);
        for (node, round) in [(1, 3), (0, 8), (1, 14)] {
            let began = Instant::now();
            while w.marked().is_none_or(|marked| marked < round) {
                assert!(began.elapsed() < Duration::from_secs(60), "round {round}");
                std::thread::sleep(Duration::from_millis(5));
            }
            let old = w.cluster.node(node).signal(libc::SIGKILL);
            w.cluster.node(node).successor(old);
        }
        running.into_iter().for_each(|running| drop(running.end().good()));
    });
    assert_eq!(w.marked(), Some(29));
}

/// Each copy takes a while, so that all is pending when the other node looks for it.
fn readers_find_what_was_written(w: &Outputs) {
    let direct = w.readers(|rank, job| w.cluster.node(rank).start_bare(job));
    for left in fs::read_dir(&w.published).unwrap().flatten() {
        fs::remove_dir_all(left.path()).unwrap();
    }
    let slow = FaultSpec::new(FaultKind::Stall(Some(Duration::from_millis(50)))).ops(&[Op::Fsync]);
    w.pfs.fault(slow.path("**.monarch-part-*")).unwrap();
    let staged = w.readers(|rank, job| w.cluster.node(rank).start(job));
    for (direct, staged) in direct.iter().zip(&staged) {
        assert!(direct.lines().count() > 25 && !direct.contains("FileNotFound"), "{direct}");
        let lines = || direct.lines().zip(staged.lines());
        let others: Vec<_> = lines().filter(|(direct, staged)| direct != staged).collect();
        assert!(others.is_empty() && direct.len() == staged.len(), "{others:#?}");
    }
}

#[test]
fn what_another_node_has_written_is_found_as_with_direct_writing() {
    let Some(w) = Outputs::new(2) else { return };
    readers_find_what_was_written(&w);
}

#[test]
fn what_another_node_has_written_below_a_data_root_is_found() {
    let Some(w) = Outputs::in_data(2) else { return };
    readers_find_what_was_written(&w);
}

/// A node that is gone with what it had to publish: nothing of the others overtakes it, and they
/// say for whom they wait.
#[test]
fn a_lost_node_holds_the_markers_of_the_others() {
    let Some(w) = Outputs::new(2) else { return };
    let hold = || FaultSpec::new(FaultKind::EIO).ops(&[Op::Write, Op::CopyFileRange, Op::Fsync]);
    w.pfs.fault(hold().path("**.monarch-part-*")).unwrap();
    let mut running = w.start(1);
    let waiting = running.remove(0);
    let barriers = w.cluster.shared().join("barrier1/marked0.0");
    let began = Instant::now();
    while !barriers.exists() {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    w.cluster.lose(1);
    drop(running);
    w.pfs.clear().unwrap();
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(w.marked(), None, "the shard of the lost node is not there");
    let out = w.cluster.node(0).monarch("outputs").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("does not answer"), "{text}");
    drop(waiting);
}
