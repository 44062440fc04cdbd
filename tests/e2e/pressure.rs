//! Memory pressure as the kernel measures it (PSI): prefetch takes no memory from a job that waits
//! for memory, and readers get their copies as ever.

use crate::faults::wait_for;
use crate::harness::{Job, Running, World};
use crate::hierarchy::Group;
use monarch_core::agent::protocol::Ahead;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Percent that the kernel shows before the test begins, and the setting that it exceeds.
const PRESSED_PERCENT: f64 = 20.0;
const SETTING: &str = "prefetch.max_memory_pressure=10%";
/// Most time that pressure may need.
const PRESSURE_TIMEOUT: Duration = Duration::from_secs(60);

/// A control group of version 2, below that of this process.
struct Measured(PathBuf);

impl Measured {
    fn new() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let group = own.lines().find_map(|l| l.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let mount = mounts.into_iter().find(|mount| mount.join("cgroup.controllers").exists())?;
        let dir = mount.join(group).join(format!("monarch-e2e-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        let made = Self(dir);
        made.percent().is_some().then_some(made)
    }

    fn percent(&self) -> Option<f64> {
        let text = fs::read_to_string(self.0.join("memory.pressure")).ok()?;
        text.strip_prefix("some avg10=")?.split(' ').next()?.parse().ok()
    }

    /// Starts a command in this group, and in another one.
    fn start(&self, beside: Option<&Path>, command: &Command) -> Running {
        let groups: Vec<String> =
            [Some(&*self.0), beside].iter().flatten().map(|d| d.join("cgroup.procs").display().to_string()).collect();
        let script = "for group in $1; do echo $$ > \"$group\"; done; shift; exec \"$@\"";
        let mut c = Command::new("sh");
        c.args(["-c", script, "sh"]).arg(groups.join(" ")).arg(command.get_program()).args(command.get_args());
        c.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        if let Some(dir) = command.get_current_dir() {
            c.current_dir(dir);
        }
        Running::new(c)
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Reads a file through memory that does not hold it beside what the process has.
const SHORT_OF_MEMORY: &str = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for _ in range(64): os.write(f, bytes(range(256)) * 4096)
os.fsync(f); os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
hold = bytearray(b'x') * (56 << 20); m = mmap.mmap(f, 0, prot=mmap.PROT_READ); print('ready', flush=True)
while True: sum(m[i] for i in range(0, len(m), 65536))";

/// Reads ten files once it may, and ends with its input.
const READER: &str = "import os, sys
print('ready', flush=True); sys.stdin.readline(); names = []
for d, _, files in sorted(os.walk(sys.argv[1])): names += [os.path.join(d, f) for f in sorted(files)]
for name in names[-10:]: open(name, 'rb').read()
print('done', flush=True); sys.stdin.read()";

/// A control group in which a process waits for memory.
struct Short {
    hungry: Option<Running>,
    measured: Measured,
    _tight: Group,
}

impl Short {
    /// Begins to wait for memory; `None`, after a line that says why, where that cannot be had. The
    /// process writes a file into a directory on a disk.
    fn new(dir: &Path) -> Option<Self> {
        let Some(measured) = Measured::new() else {
            eprintln!("skipped: no control group of version 2 that measures pressure can be made here");
            return None;
        };
        let Some(tight) = Group::new(96 << 20) else {
            eprintln!("skipped: no memory control group can be made here");
            return None;
        };
        let mut command = Command::new("python3");
        command.args(["-c", SHORT_OF_MEMORY]).arg(dir.join("large"));
        let mut hungry = measured.start(Some(&tight.0), &command);
        hungry.until_written("ready");
        let since = Instant::now();
        while measured.percent().is_none_or(|percent| percent < PRESSED_PERCENT) {
            if since.elapsed() > PRESSURE_TIMEOUT {
                eprintln!("skipped: no pressure can be made here, {:?} %", measured.percent());
                return None;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(Self { hungry: Some(hungry), measured, _tight: tight })
    }

    /// Starts a job of a world in the group.
    fn start(&self, w: &World) -> Running {
        let job = w.monarch_run(&Job::new("python3").args(["-c", READER]).arg(w.root()));
        self.measured.start(None, &job)
    }

    /// The process has ended: there is memory again.
    fn end(&mut self) {
        self.hungry = None;
    }
}

#[test]
fn prefetch_takes_no_memory_from_a_job_that_waits_for_memory() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let Some(mut short) = Short::new(dir.path()) else { return };
    let plan = || World::plan().files(60).args(&["--plain"]).pfs(|b| b.data_latency(Duration::from_millis(50)));
    let (in_memory, both) =
        (plan().set(SETTING).patient().build(), plan().set(SETTING).second_tier("256MiB").patient().build());

    // With memory alone nothing more is prefetched, and what readers ask for is copied.
    let mut first = short.start(&in_memory);
    in_memory.until("a stop", |s| {
        s.load.ahead == 0 && matches!(s.prefetch, Ahead::MemoryPressure { stopped: true, percent: 5.. })
    });
    let before = in_memory.agent().expect("an agent");
    assert!(before.tiers[0].files < 50 && before.load.memory_pressure_percent >= 5, "{before:#?}");
    first.begin();
    first.until_written("done");
    let after = in_memory.agent().expect("an agent");
    assert_eq!((after.agent["copied_ahead"], after.agent["copied_on_demand"]), (before.agent["copied_ahead"], 10));
    wait_for("a line in the log", || in_memory.log().contains("prefetching held back: the job waits for memory"));

    // With a disk, prefetch goes on there.
    let second = short.start(&both);
    both.until("one at a time", |s| {
        s.load.ahead <= 1 && matches!(s.prefetch, Ahead::MemoryPressure { stopped: false, .. })
    });
    let before = both.agent().expect("an agent").tiers[0].files;
    both.until("all copies", |s| s.tiers.iter().map(|t| t.files).sum::<u64>() == 60);
    let after = both.agent().expect("an agent");
    assert_eq!(after.tiers[0].files, before, "{after:#?}");

    // And everywhere when the job has memory again.
    short.end();
    in_memory.until("all copies", |s| s.tiers[0].files == 60 && s.prefetch == Ahead::Idle);
    assert!(in_memory.agent().expect("an agent").agent["memory_pressure_ms"] > 0);
    first.end().good();
    second.end().good();
}

/// Copies that are to be compressed are made in memory first, and stay there for their readers.
#[test]
fn copies_in_front_of_a_tier_that_compresses_leave_memory_to_a_job_that_waits_for_it() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let Some(short) = Short::new(dir.path()) else { return };
    let maker = Job::new("python3").arg(crate::harness::sources().join("packdata.py"));
    let plan = World::plan().made_by(maker).tier_size("3MiB").second_tier("64MiB").set(SETTING).patient();
    let w = plan.set("tiers.1.compression=lz4").set("tiers.0.decompression_share=100%").build();
    let mut job = short.start(&w);
    w.until("a stop", |s| s.load.ahead == 0 && matches!(s.prefetch, Ahead::MemoryPressure { stopped: true, .. }));
    let before = w.agent().expect("an agent");
    job.begin();
    job.until_written("done");
    w.until("an empty tier", |s| s.agent["copied_on_demand"] == 10 && s.tiers[0].files == 0);
    let after = w.agent().expect("an agent");
    assert!(after.tiers[1].files >= 10 && after.tiers[1].packed.files > 0, "{after:#?}");
    assert_eq!((after.agent["copied_ahead"], after.agent["decoded_ahead"]), (before.agent["copied_ahead"], 0));
    job.end().good();
}
