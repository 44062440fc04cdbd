//! The counters agree with the kernel's own: tracepoint `fuse:fuse_request_send`, counted by
//! bpftrace for this one mount.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use slowfs::{CacheMode, Op, Slowfs};

use crate::common::{Test, World};

const TRACEFS: &str = "/sys/kernel/tracing";

/// Mounts tracefs for the time of the test, unless it is there.
struct Tracefs {
    ours: bool,
}

impl Tracefs {
    fn new() -> Option<Self> {
        if Path::new(TRACEFS).join("events").exists() {
            return Some(Self { ours: false });
        }
        let mounted = Command::new("mount").args(["-t", "tracefs", "tracefs", TRACEFS]).stderr(Stdio::null()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self { ours: true })
    }
}

impl Drop for Tracefs {
    fn drop(&mut self) {
        if self.ours {
            let _ = Command::new("umount").arg(TRACEFS).status();
        }
    }
}

/// A running bpftrace that counts the requests of one FUSE connection.
struct Trace {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Trace {
    /// Starts it and waits until it counts; `None` where it cannot.
    fn start(mountpoint: &Path) -> io::Result<Option<Self>> {
        let device = fs::metadata(mountpoint)?.dev();
        let connection = libc::minor(device) | libc::major(device) << 20;
        let program = format!(
            "BEGIN {{ printf(\"ready\\n\"); }} \
             tracepoint:fuse:fuse_request_send /args->connection == {connection}/ {{ @op[args->opcode] = count(); }}"
        );
        let bpftrace =
            Command::new("bpftrace").args(["-q", "-e", &program]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let Ok(mut child) = bpftrace else {
            return Ok(None);
        };
        let Some(out) = child.stdout.take() else {
            return Ok(None);
        };
        let mut out = BufReader::new(out);
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            if out.read_line(&mut line)? == 0 {
                child.wait()?;
                return Ok(None);
            }
        }
        Ok(Some(Self { child, out }))
    }

    /// Stops it and returns the requests by opcode.
    fn finish(mut self) -> io::Result<BTreeMap<u32, u64>> {
        Command::new("kill").args(["-INT", &self.child.id().to_string()]).status()?;
        let mut text = String::new();
        self.out.read_to_string(&mut text)?;
        self.child.wait()?;
        let parse = |line: &str| {
            let (opcode, count) = line.strip_prefix("@op[")?.split_once("]: ")?;
            Some((opcode.parse().ok()?, count.trim().parse().ok()?))
        };
        Ok(text.lines().filter_map(parse).collect())
    }
}

/// Operations of most kinds.
fn workload(pfs: &Slowfs) -> Test {
    let root = pfs.mountpoint();
    for i in 0..40 {
        fs::read(root.join(format!("d/f{i}")))?;
        fs::metadata(root.join(format!("d/f{i}")))?;
    }
    for entry in fs::read_dir(root.join("d"))? {
        entry?.metadata()?;
    }
    fs::write(root.join("new"), [1; 300_000])?;
    fs::rename(root.join("new"), root.join("newer"))?;
    fs::create_dir(root.join("dir"))?;
    std::os::unix::fs::symlink("newer", root.join("soft"))?;
    fs::hard_link(root.join("newer"), root.join("hard"))?;
    let file = File::options().read(true).write(true).open(root.join("soft"))?;
    file.write_all_at(b"x", 5)?;
    file.set_len(100)?;
    file.sync_all()?;
    drop(file);
    assert!(fs::metadata(root.join("absent")).is_err());
    rustix::fs::statvfs(root)?;
    fs::remove_file(root.join("hard"))?;
    fs::remove_dir(root.join("dir"))?;
    Ok(())
}

#[test]
fn counters_agree_with_the_kernel() -> Test {
    let Some(world) = World::new()? else {
        return Ok(());
    };
    let Some(_tracefs) = Tracefs::new() else {
        println!("skipped: no tracefs");
        return Ok(());
    };
    for i in 0..40 {
        world.file(&format!("d/f{i}"), 1_000 * i)?;
    }
    for cache in [CacheMode::Direct, CacheMode::Keep] {
        let pfs = world.builder().cache(cache).attr_ttl(Duration::ZERO).spawn()?;
        let Some(trace) = Trace::start(pfs.mountpoint())? else {
            println!("skipped: bpftrace cannot trace here");
            return Ok(());
        };
        let before = pfs.counters()?;
        workload(&pfs)?;
        // RELEASE is sent in the background.
        for _ in 0..200 {
            let now = pfs.counters()?;
            if now.release == now.opens() && now.releasedir == now.opendir {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let counted = pfs.counters()? - before;
        let mut kernel = trace.finish()?;
        // RENAME has two opcodes; FORGET does not pass the tracepoint.
        let renames = kernel.remove(&12).unwrap_or(0) + kernel.get(&Op::Rename.opcode()).copied().unwrap_or(0);
        kernel.insert(Op::Rename.opcode(), renames);
        for op in Op::ALL.iter().copied().filter(|op| *op != Op::Forget) {
            assert_eq!(counted.get(op), kernel.remove(&op.opcode()).unwrap_or(0), "{op} in mode {cache}");
        }
        println!("{cache}: {} calls agree; opcodes we do not count: {kernel:?}", counted.calls());
        assert!(counted.calls() > 150);
        fs::remove_file(world.src().join("soft"))?;
        fs::remove_file(world.src().join("newer"))?;
    }
    Ok(())
}
