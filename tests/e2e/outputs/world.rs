//! A PFS with an output root on it, and jobs that write there: direct, and staged.
//!
//! The output root has the same path in both runs: what the direct run leaves is moved aside. A
//! staged run is compared on the side of the PFS, behind slowfs.

use super::tree::{Tree, differences, tree};
use crate::harness::{Ended, Job, Plan, Running, World, assert_same, built, sources};
use slowfs::{FaultKind, FaultSpec, Op, Slowfs};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// Names of part files, for fault rules.
pub const PARTS: &str = "**.monarch-part-*";
/// What the drain does to a part file.
pub const PART_OPS: &[Op] = &[Op::Write, Op::Fsync, Op::CopyFileRange];
/// The last line of every replayed program.
const END: &str = "## end";

/// How fast the PFS takes what is drained, while the job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// At full speed: most is published when the job looks at it again.
    Quick,
    /// Each write takes a while: some is published, some is pending.
    Slow,
    /// Not at all: each write fails, and is tried again later. Everything is pending.
    Held,
}

impl Drain {
    pub const ALL: [Self; 3] = [Self::Quick, Self::Slow, Self::Held];

    fn fault(self) -> Option<FaultKind> {
        match self {
            Self::Quick => None,
            Self::Slow => Some(FaultKind::Stall(Some(Duration::from_millis(20)))),
            Self::Held => Some(FaultKind::EIO),
        }
    }
}

/// A job's end, and what it left on the PFS.
pub struct Written {
    pub ended: Ended,
    pub tree: Tree,
}

/// A PFS with an output root.
pub struct Outputs {
    world: World,
    pfs: Slowfs,
    dir: TempDir,
    settings: Vec<String>,
}

impl Outputs {
    /// A tier in memory.
    pub fn new() -> Self {
        Self::plan(|plan| plan, |pfs| pfs)
    }

    /// A tier on disk.
    pub fn disk() -> Self {
        let tier = tempfile::Builder::new().prefix("monarch-e2e-").tempdir().expect("temporary directory").keep();
        Self::plan(|plan| plan.tier_dir(tier), |pfs| pfs)
    }

    pub fn plan(world: impl FnOnce(Plan) -> Plan, pfs: impl FnOnce(slowfs::Builder) -> slowfs::Builder) -> Self {
        let world = world(World::plan().files(3).disk()).build();
        // Its path has not the first characters of the data root's.
        let dir = tempfile::Builder::new().prefix("e2e-output-").tempdir().expect("temporary directory");
        let (backing, mount) = (dir.path().join("backing"), dir.path().join("pfs"));
        for made in [&backing, &mount, &backing.join("out"), &backing.join("sibling")] {
            fs::create_dir(made).expect("own directory");
        }
        let b = Slowfs::builder(&backing, &mount).program(built("slowfs")).attr_ttl(Duration::ZERO).allow_other();
        let pfs = pfs(b).spawn().expect("slowfs");
        Self { world, pfs, dir, settings: vec!["outputs.0.volatile=true".to_owned()] }
    }

    /// With a setting of Monarch.
    pub fn set(mut self, setting: &str) -> Self {
        self.settings.push(setting.to_owned());
        self
    }

    pub fn world(&self) -> &World {
        &self.world
    }
    pub fn pfs(&self) -> &Slowfs {
        &self.pfs
    }
    /// The output root, as jobs name it.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("pfs/out")
    }
    /// The output root behind the slow file system: what other nodes see.
    pub fn published(&self) -> PathBuf {
        self.dir.path().join("backing/out")
    }

    /// A program of `tests/programs/outputs`, in the output root.
    pub fn program(&self, name: &str) -> Job {
        let path = sources().join("outputs").join(name);
        let script = name.ends_with(".py");
        let job = if script { Job::new("python3").arg(path) } else { Job::new(path) };
        self.here(job)
    }

    /// A job in the output root.
    pub fn here(&self, job: Job) -> Job {
        job.dir(self.root()).env("SIBLING", self.dir.path().join("pfs/sibling")).env("PYTHONDONTWRITEBYTECODE", "1")
    }

    /// The words by which commands of Monarch know the output root and its settings.
    pub fn words(&self) -> Vec<OsString> {
        let settings = self.settings.iter().flat_map(|s| ["--set".into(), s.into()]);
        ["--output".into(), self.root().into()].into_iter().chain(settings).collect()
    }

    /// A command of Monarch about what is staged in this world's tier.
    pub fn monarch(&self, command: &str) -> Command {
        let mut c = self.world.monarch(command);
        c.arg("--tier").arg(self.world.tier());
        c
    }

    /// Starts a job under `monarch run`.
    pub fn start(&self, job: &Job) -> Running {
        self.world.start(&self.words().iter().fold(job.clone(), Job::option))
    }

    /// Runs a job without Monarch; what it leaves is moved aside.
    pub fn direct(&self, job: &Job) -> Written {
        let ended = self.world.bare(job);
        let tree = tree(&self.published());
        self.clear();
        Written { ended, tree }
    }

    /// Removes what lies in the output root.
    pub fn clear(&self) {
        for entry in fs::read_dir(self.root()).expect("own directory").flatten() {
            let path = entry.path();
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("own file");
        }
    }

    /// Slows the drain.
    pub fn slow_down(&self, drain: Drain) {
        if let Some(kind) = drain.fault() {
            self.pfs.fault(FaultSpec::new(kind).ops(PART_OPS).path(PARTS)).expect("slowfs");
        }
    }

    /// Runs a replayed program under `monarch run`, while the drain is so fast.
    pub fn staged(&self, job: &Job, drain: Drain) -> Written {
        self.pfs.reset().expect("slowfs");
        self.slow_down(drain);
        let mut running = self.start(job);
        if drain == Drain::Held {
            running.until_written(END);
        }
        if drain != Drain::Slow {
            self.pfs.clear().expect("slowfs");
        }
        let ended = running.end();
        self.pfs.clear().expect("slowfs");
        let written = Written { ended, tree: tree(&self.published()) };
        self.clear();
        written
    }

    /// Part files that were written since the last staged run began: files that were staged.
    pub fn parts(&self) -> usize {
        let paths = self.pfs.paths().expect("slowfs");
        paths.keys().filter(|path| path.contains(".monarch-part-")).count()
    }

    /// Runs a job direct, then staged in each way: the same output, end and tree. At least `least`
    /// files have been staged each time.
    #[track_caller]
    pub fn same(&self, job: &Job, drains: &[Drain], least: usize) {
        let direct = self.direct(job);
        assert!(direct.ended.text().contains(END), "the program failed: {}", direct.ended.errors());
        assert!(!direct.ended.text().contains("DISAGREES"), "{}", direct.ended.text());
        if !is_built() {
            println!("not run staged: `monarch run` has no --output");
            return;
        }
        for &drain in drains {
            let staged = self.staged(job, drain);
            println!("{drain:?}: {} files staged", self.parts());
            assert_same(&direct.ended, &staged.ended);
            let differ = differences(&direct.tree, &staged.tree);
            assert!(differ.is_empty(), "{drain:?}: another tree:\n{}", differ.join("\n"));
            assert!(self.parts() >= least, "{drain:?}: {} files were staged", self.parts());
        }
    }
}

/// Whether the command line knows output roots.
pub fn is_built() -> bool {
    let help = Command::new(built("monarch")).args(["run", "--help"]).output().expect("monarch");
    String::from_utf8_lossy(&help.stdout).contains("--output")
}

/// Whether a path is one of Monarch's own names.
pub fn is_own(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".monarch-"))
}
