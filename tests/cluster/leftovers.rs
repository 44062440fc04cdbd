//! What runs that were killed have left: namespaces with processes in them, mounts, directories.
//!
//! Everything that a cluster makes carries the id of the process that made it. What belongs to a
//! process that is gone is removed before the next network comes up, and what is removed at the end
//! of a test goes the same way.

use crate::net::identity;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Namespaces are called this, the process id, a number and the node.
pub const NAMESPACE: &str = "mcl-";
/// Directories are called this, the process id and something that chance has chosen.
pub const DIRECTORY: &str = "monarch-cluster-";
/// Where they are.
const PLACES: [&str; 2] = ["/tmp", "/dev/shm"];

/// One at a time makes or removes namespaces.
pub fn lock() -> fs::File {
    let file = fs::File::create("/tmp/monarch-cluster.lock").expect("lock of the namespaces");
    file.lock().expect("lock of the namespaces");
    file
}

/// Removes what belongs to processes that are gone.
pub fn clear() {
    let names = |dir: &str| fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    names("/run/netns").filter(|p| is_orphan(p, NAMESPACE)).for_each(|p| remove(&named(&p)));
    for dir in PLACES.iter().flat_map(|d| names(d)).filter(|p| is_orphan(p, DIRECTORY)) {
        mounts_below(&dir).iter().for_each(|m| run("umount", &["-l", m]));
        let _ = fs::remove_dir_all(&dir);
    }
}

fn named(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_orphan(path: &Path, prefix: &str) -> bool {
    let name = named(path);
    let pid = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

fn mounts_below(dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|l| l.split(' ').nth(4));
    points.filter(|p| Path::new(p).starts_with(dir)).map(str::to_owned).collect()
}

fn run(program: &str, words: &[&str]) {
    // What cannot be removed now is tried again by the next run.
    let _ = Command::new(program).args(words).output();
}

/// The processes in a namespace whose command line `is` accepts.
pub fn processes(namespace: &str, is: impl Fn(&[&str]) -> bool) -> Vec<i32> {
    let Some(own) = identity(PathBuf::from("/run/netns").join(namespace)) else { return vec![] };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let inside = pids.filter(|pid| identity(format!("/proc/{pid}/ns/net")) == Some(own));
    inside.filter(|pid| command_line(*pid).is_some_and(|text| is(&words(&text)))).collect()
}

fn command_line(pid: i32) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).ok()?).into_owned())
}

fn words(text: &str) -> Vec<&str> {
    text.trim_end_matches('\0').split('\0').collect()
}

/// Kills every process in a namespace, and waits until they are gone.
pub fn end(namespace: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let pids = processes(namespace, |_| true);
        if pids.is_empty() || Instant::now() > deadline {
            return;
        }
        for pid in pids {
            // SAFETY: a process in a namespace that this program made.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends every process in a namespace and removes it.
pub fn remove(namespace: &str) {
    end(namespace);
    run("ip", &["netns", "del", namespace]);
}
