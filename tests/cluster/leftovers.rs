//! Leftovers of runs that were killed: namespaces with processes in them, mounts, directories.
//!
//! Everything that a cluster makes carries the id of the process that made it. Leftovers of a
//! process that is gone are removed before the next network comes up, and a test removes its own at
//! its end in the same way.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Prefix of the names of namespaces; the process id, a number and the node follow.
pub const NAMESPACE_PREFIX: &str = "mcl-";
/// Prefix of the names of directories; the process id and random characters follow.
pub const DIRECTORY_PREFIX: &str = "monarch-cluster-";
/// The directories in which they lie.
const PARENTS: [&str; 2] = ["/tmp", "/dev/shm"];

/// Locks the namespaces: one process at a time makes or removes them.
pub fn lock() -> fs::File {
    let file = fs::File::create("/tmp/monarch-cluster.lock").expect("lock of the namespaces");
    file.lock().expect("lock of the namespaces");
    file
}

/// Removes the leftovers of processes that are gone.
pub fn clear() {
    let names = |dir: &str| fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    names("/run/netns").filter(|p| is_orphan(p, NAMESPACE_PREFIX)).for_each(|p| remove(&named(&p)));
    for dir in PARENTS.iter().flat_map(|d| names(d)).filter(|p| is_orphan(p, DIRECTORY_PREFIX)) {
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
    // The next run tries again what cannot be removed now.
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

/// Device and inode of a network namespace, which no other namespace has.
pub fn identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}
