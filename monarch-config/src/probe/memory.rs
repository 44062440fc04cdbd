//! How much memory a job has: control groups of both versions, and `/proc/meminfo`.
//!
//! The limit that counts is the tightest on the way from the job's group up to the top. Everything
//! is read below a given directory, so that the tests can lay out trees of files instead of control
//! groups.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Memory;

/// Reads the memory of this process, with `/proc` and `/sys` below `top`.
pub(super) fn read(top: &Path) -> Memory {
    read_but(top, false)
}

/// How often [`MemoryWatch`] looks which groups have a limit: it may be set while a job runs.
const GROUPS_PERIOD: Duration = Duration::from_secs(10);

/// Follows how much memory is left to the job, at little cost: twice a second as long as it runs.
#[derive(Debug)]
pub struct MemoryWatch {
    top: PathBuf,
    /// The groups with a limit, from the job's group up.
    groups: Vec<Group>,
    looked: Option<Instant>,
}

impl Default for MemoryWatch {
    fn default() -> Self {
        Self { top: PathBuf::from("/"), groups: Vec::new(), looked: None }
    }
}

impl MemoryWatch {
    /// Bytes that the job can still use before memory is short, and bytes of all its memory. Page
    /// cache in use counts as free, as the kernel drops it first.
    pub fn left(&mut self) -> (u64, u64) {
        let now = Instant::now();
        if self.looked.is_none_or(|at| now.saturating_duration_since(at) >= GROUPS_PERIOD) {
            self.groups = groups(&self.top).filter(|group| group.limit().is_some()).collect();
            self.looked = Some(now);
        }
        let memory = of_groups(&self.top, self.groups.iter(), true);
        (memory.remaining(), memory.whole())
    }
}

/// With `active` cache that is in use is left out, too.
fn read_but(top: &Path, active: bool) -> Memory {
    of_groups(top, groups(top), active)
}

fn of_groups(top: &Path, groups: impl Iterator<Item = impl std::borrow::Borrow<Group>>, active: bool) -> Memory {
    let meminfo = text(&top.join("proc/meminfo")).unwrap_or_default();
    let tightest = groups
        .filter_map(|group| group.borrow().limit_and_usage(active))
        .min_by_key(|(limit, used)| limit.saturating_sub(*used));
    Memory {
        limit: tightest.map(|(limit, _)| limit),
        used: tightest.map_or(0, |(_, used)| used),
        total: field(&meminfo, "MemTotal:").unwrap_or(0) * 1024,
        available: field(&meminfo, "MemAvailable:").unwrap_or(0) * 1024,
    }
}

/// A small file, in two reads: the kernel makes some of these anew for each reader.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut text = Vec::with_capacity(8 << 10);
    fs::File::open(path).ok()?.read_to_end(&mut text).ok()?;
    String::from_utf8(text).ok()
}

/// Names of the files of one version of control groups.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
    active: &'static str,
}

static V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
    active: "total_active_file",
};
static V2: Files =
    Files { limit: "memory.max", usage: "memory.current", inactive: "inactive_file", active: "active_file" };

/// A control group.
#[derive(Debug)]
struct Group {
    path: PathBuf,
    files: &'static Files,
}

/// The groups of this process, from its own up to the top.
fn groups(top: &Path) -> impl Iterator<Item = Group> {
    let lines = text(&top.join("proc/self/cgroup")).unwrap_or_default();
    let all: Vec<Group> = lines.lines().flat_map(|line| groups_of(top, line)).collect();
    all.into_iter()
}

/// The groups that a line of `/proc/self/cgroup` names, if it is about memory.
fn groups_of(top: &Path, line: &str) -> Vec<Group> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (mount, files) = match controllers {
        "" => (top.join("sys/fs/cgroup"), &V2),
        names if names.split(',').any(|name| name == "memory") => (top.join("sys/fs/cgroup/memory"), &V1),
        _ => return Vec::new(),
    };
    // In a container the group's path may be the host's and not exist here; the mount itself is
    // then the group.
    let above = Path::new(group.trim_start_matches('/')).ancestors();
    above.map(|group| Group { path: mount.join(group), files }).collect()
}

impl Group {
    fn number(&self, name: &str) -> Option<u64> {
        text(&self.path.join(name))?.trim().parse().ok()
    }

    /// Version 1 writes "no limit" as the largest number of pages.
    fn limit(&self) -> Option<u64> {
        self.number(self.files.limit).filter(|limit| *limit < 1 << 60)
    }

    /// Its limit, if it has one, and what is used of that.
    fn limit_and_usage(&self, active: bool) -> Option<(u64, u64)> {
        let limit = self.limit()?;
        let stat = text(&self.path.join("memory.stat")).unwrap_or_default();
        let active = if active { field(&stat, self.files.active).unwrap_or(0) } else { 0 };
        let cache = field(&stat, self.files.inactive).unwrap_or(0) + active;
        Some((limit, self.number(self.files.usage).unwrap_or(0).saturating_sub(cache)))
    }
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable:  600 kB\n")].iter().chain(files) {
            fs::create_dir_all(top.path().join(path).parent().unwrap()).unwrap();
            fs::write(top.path().join(path), text).unwrap();
        }
        top
    }

    #[test]
    fn version_2_takes_the_tightest_group_and_leaves_out_inactive_cache() {
        let top = tree(&[
            ("proc/self/cgroup", "0::/slurm/job1/step0\n"),
            ("sys/fs/cgroup/slurm/job1/step0/memory.max", "max\n"),
            ("sys/fs/cgroup/slurm/job1/memory.max", "500000\n"),
            ("sys/fs/cgroup/slurm/job1/memory.current", "300000\n"),
            ("sys/fs/cgroup/slurm/job1/memory.stat", "anon 1\ninactive_file 100000\n"),
            ("sys/fs/cgroup/slurm/memory.max", "900000\n"),
        ]);
        let memory = read(top.path());
        assert_eq!(memory, Memory { limit: Some(500_000), used: 200_000, total: 1_024_000, available: 614_400 });
        assert_eq!((memory.whole(), memory.remaining()), (500_000, 300_000));
        fs::write(
            top.path().join("sys/fs/cgroup/slurm/job1/memory.stat"),
            "anon 1\ninactive_file 100000\nactive_file 50000\n",
        )
        .unwrap();
        assert_eq!((read(top.path()).remaining(), read_but(top.path(), true).remaining()), (300_000, 350_000));
    }

    #[test]
    fn version_1_in_a_container_whose_group_is_not_visible() {
        let top = tree(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/docker/abc\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "400000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n"),
        ]);
        assert_eq!(read(top.path()).remaining(), 300_000);
    }

    #[test]
    fn without_a_limit_the_node_counts() {
        let top = tree(&[
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        let memory = read(top.path());
        assert_eq!((memory.limit, memory.whole(), memory.remaining()), (None, 1_024_000, 614_400));
    }

    #[test]
    fn a_watch_follows_usage_at_once_and_new_limits_soon() {
        let top = tree(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/memory.max", "500000\n"),
            ("sys/fs/cgroup/job/memory.current", "300000\n"),
            ("sys/fs/cgroup/job/step/memory.max", "max\n"),
        ]);
        let file = |name: &str, text: &str| fs::write(top.path().join("sys/fs/cgroup").join(name), text).unwrap();
        let mut watch = MemoryWatch { top: top.path().to_owned(), ..MemoryWatch::default() };
        assert_eq!(watch.left(), (200_000, 500_000));
        file("job/memory.current", "450000\n");
        assert_eq!(watch.left(), (50_000, 500_000));
        file("job/memory.max", "600000\n");
        assert_eq!(watch.left(), (150_000, 600_000));
        file("job/step/memory.max", "400000\n");
        file("job/step/memory.current", "399000\n");
        assert_eq!(watch.left(), (150_000, 600_000), "not looked for yet");
        watch.looked = None;
        assert_eq!(watch.left(), (1000, 400_000));
    }
}
