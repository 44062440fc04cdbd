//! The journal of a long job, and what is older than the PFS when nothing is left of the job.

use super::world::{Drain, Outputs, is_built};
use crate::faults::{agent_pid, kill};
use crate::harness::Job;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most bytes that a journal may have: those from which on processes wait until it is cut, and what
/// they append before the agent of a busy machine gets to that.
const MAX_BYTES: u64 = 8 << 20;

/// The files of this name in the staging directories of the tier.
fn staging_files(w: &Outputs, name: &str) -> Vec<PathBuf> {
    let below = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let users = below(w.world().tier().to_owned());
    users.flat_map(|user| below(user.join("outputs"))).map(|staging| staging.join(name)).collect()
}

fn journal_bytes(w: &Outputs) -> u64 {
    staging_files(w, "journal").iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum()
}

/// A file that is open for the whole run held the journal together: it grew without end.
#[test]
fn the_journal_stays_short_while_a_file_is_open_and_its_agent_is_killed() {
    let w = Outputs::disk();
    let script = r###"
import glob, os, time
journal = os.environ["TIER"] + "/*/outputs/*/journal"
name = "log-" + "x" * 200
log = open(name, "w")
for step in range(300):
    with open("model.tmp", "w") as f:
        f.write(f"step {step}\n")
    os.rename("model.tmp", "model")
    for n in range(200):
        os.chmod(name, 0o600 + n % 8)
    # The agent may have had no time yet, on a busy machine.
    until = time.monotonic() + 60
    while sum(map(os.path.getsize, glob.glob(journal))) > 5 << 20 and time.monotonic() < until:
        time.sleep(0.001)
    log.write(f"{step}\n")
log.close()
print("## end")
"###;
    let job = w.here(Job::new("python3").args(["-c", script])).env("TIER", w.world().tier());
    let direct = w.direct(&job);
    if !is_built() {
        return;
    }
    let running = w.start(&job);
    let is_over = AtomicBool::new(false);
    let watch = || {
        let (mut most, mut last, mut cuts) = (0, 0, 0);
        while !is_over.load(Ordering::Acquire) {
            let bytes = journal_bytes(&w);
            if bytes < last {
                cuts += 1;
                // What is open is known by the plan that was kept only.
                if cuts == 1 {
                    kill(agent_pid(w.world()), libc::SIGKILL);
                }
            }
            (most, last) = (most.max(bytes), bytes);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        (most, cuts)
    };
    let (most, cuts) = std::thread::scope(|scope| {
        let watcher = scope.spawn(watch);
        let ended = running.end();
        is_over.store(true, Ordering::Release);
        ended.good();
        watcher.join().unwrap()
    });
    assert!(cuts >= 2 && most < MAX_BYTES, "cut {cuts} times, {most} bytes");
    let differ = super::tree::differences(&direct.tree, &super::tree::tree(&w.published()));
    assert!(differ.is_empty(), "another tree:\n{}", differ.join("\n"));
}

/// Nothing is left of a job and its agent, and the PFS gets something newer under the names that
/// are pending: `recover` publishes the others only.
#[test]
fn recover_keeps_what_is_older_than_the_file_on_the_pfs() {
    let w = Outputs::disk();
    if !is_built() {
        return;
    }
    for name in ["model", "removed", "same"] {
        fs::write(w.published().join(name), "before\n").unwrap();
    }
    w.slow_down(Drain::Held);
    let script = "echo pending > model; echo pending > new; echo pending > same; rm removed; echo '## end'; sleep 100";
    let mut running = w.start(&w.here(Job::new("sh").args(["-c", script])));
    running.until_written("## end");
    let agent = agent_pid(w.world());
    let group = -(running.pid() as i32);
    kill(group, libc::SIGKILL);
    kill(agent, libc::SIGKILL);
    w.pfs().clear().unwrap();
    drop(running);
    for name in ["model", "removed", "new"] {
        fs::write(w.published().join(name), "newer than what is pending\n").unwrap();
    }
    let out = w.monarch("recover").output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(5), "{said}");
    for name in ["model", "removed", "new"] {
        assert_eq!(fs::read_to_string(w.published().join(name)).unwrap(), "newer than what is pending\n", "{name}");
    }
    assert_eq!(fs::read_to_string(w.published().join("same")).unwrap(), "pending\n");
    assert!(said.contains("model") && said.contains("new") && said.contains("kept/"), "{said}");
    let kept = staging_files(&w, "kept").into_iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let mut names: Vec<String> = kept.map(|entry| entry.file_name().to_string_lossy()[16..].to_owned()).collect();
    names.sort();
    assert_eq!(names, ["+model", "+new"]);
    for dir in staging_files(&w, "kept").into_iter().filter(|dir| dir.exists()) {
        fs::remove_dir_all(dir).unwrap();
    }
    let out = w.monarch("recover").output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(super::failures::leftovers(&w), [""; 0]);
}
