//! How much memory a job has: control groups of both versions, and `/proc/meminfo`.
//!
//! The limit that counts is the tightest on the way from the job's group up to the top. Everything
//! is read below a given directory, so that the tests can lay out trees of files instead of control
//! groups.

use std::fs;
use std::path::Path;

use super::Memory;

/// Reads the memory of this process, with `/proc` and `/sys` below `top`.
pub(super) fn read(top: &Path) -> Memory {
    read_but(top, false)
}

/// Bytes that the job can still use before memory is short, and bytes of all its memory. Page cache
/// in use counts as free, as the kernel drops it first.
pub fn left() -> (u64, u64) {
    let memory = read_but(Path::new("/"), true);
    (memory.remaining(), memory.whole())
}

/// With `active` cache that is in use is left out, too.
fn read_but(top: &Path, active: bool) -> Memory {
    let meminfo = fs::read_to_string(top.join("proc/meminfo")).unwrap_or_default();
    let groups = fs::read_to_string(top.join("proc/self/cgroup")).unwrap_or_default();
    let tightest = groups
        .lines()
        .flat_map(|line| limits(top, line, active))
        .min_by_key(|(limit, used)| limit.saturating_sub(*used));
    Memory {
        limit: tightest.map(|(limit, _)| limit),
        used: tightest.map_or(0, |(_, used)| used),
        total: field(&meminfo, "MemTotal:").unwrap_or(0) * 1024,
        available: field(&meminfo, "MemAvailable:").unwrap_or(0) * 1024,
    }
}

/// Names of the files of one version of control groups.
struct Files {
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
    active: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
    active: "total_active_file",
};
const V2: Files =
    Files { limit: "memory.max", usage: "memory.current", inactive: "inactive_file", active: "active_file" };

/// Limit and usage of each limited group above this process; `line` is one of `/proc/self/cgroup`.
fn limits(top: &Path, line: &str, active: bool) -> Vec<(u64, u64)> {
    let mut fields = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (mount, files) = match controllers {
        "" => (top.join("sys/fs/cgroup"), V2),
        names if names.split(',').any(|name| name == "memory") => (top.join("sys/fs/cgroup/memory"), V1),
        _ => return Vec::new(),
    };
    // In a container the group's path may be the host's and not exist here; the mount itself is
    // then the group.
    Path::new(group.trim_start_matches('/'))
        .ancestors()
        .filter_map(|group| limit(&mount.join(group), &files, active))
        .collect()
}

fn limit(group: &Path, files: &Files, active: bool) -> Option<(u64, u64)> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // Version 1 writes "no limit" as the largest number of pages.
    let limit = number(files.limit).filter(|limit| *limit < 1 << 60)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let active = if active { field(&stat, files.active).unwrap_or(0) } else { 0 };
    let cache = field(&stat, files.inactive).unwrap_or(0) + active;
    Some((limit, number(files.usage).unwrap_or(0).saturating_sub(cache)))
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
}
