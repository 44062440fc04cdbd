//! How much of the time tasks of the job wait for memory: the kernel's pressure stall information
//! (PSI) of control groups of version 2, and of the node.
//!
//! The group that counts is the smallest one around this process that has a limit of memory, as its
//! tasks take memory from each other. Without a limit it is the group of this process. Everything
//! is read below a given directory, as in [`memory`](super::memory).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::memory::text;

/// How often [`PressureWatch`] looks which group counts: limits may be set while a job runs.
const GROUPS_PERIOD: Duration = Duration::from_secs(10);
/// Where control groups of version 2 are: alone, and beside version 1.
const MOUNTS: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];

/// Follows the memory pressure on the job, at the cost of reading one small file.
#[derive(Debug)]
pub struct PressureWatch {
    top: PathBuf,
    /// What is read; `None` where the kernel measures no pressure.
    file: Option<PathBuf>,
    looked: Option<Instant>,
}

impl Default for PressureWatch {
    fn default() -> Self {
        Self::below(Path::new("/"))
    }
}

impl PressureWatch {
    /// Reads `proc` and `sys` below a directory.
    #[must_use]
    pub fn below(top: &Path) -> Self {
        Self { top: top.to_owned(), file: None, looked: None }
    }

    /// Returns the share of the last 10 s in which at least one task waited for memory, from 0 to
    /// 1; `None` where that is not measured.
    pub fn memory(&mut self) -> Option<f64> {
        let now = Instant::now();
        if self.looked.is_none_or(|at| now.saturating_duration_since(at) >= GROUPS_PERIOD) {
            self.file = memory_file(&self.top);
            self.looked = Some(now);
        }
        some_avg10(self.file.as_deref()?)
    }
}

/// The file of the group that counts; that of the node where there are no such groups.
fn memory_file(top: &Path) -> Option<PathBuf> {
    let lines = text(&top.join("proc/self/cgroup")).unwrap_or_default();
    let group = lines.lines().find_map(|line| line.strip_prefix("0::")).map(|group| group.trim_start_matches('/'));
    // In a container the group's path may be the host's and not exist here; the mount itself is
    // then the group.
    let of_mount = |mount: &str| {
        let above = group.into_iter().flat_map(|group| Path::new(group).ancestors());
        let dirs = above.map(|group| top.join(mount).join(group));
        dirs.filter(|dir| some_avg10(&dir.join("memory.pressure")).is_some()).collect::<Vec<_>>()
    };
    let dirs = MOUNTS.iter().map(|mount| of_mount(mount)).find(|dirs| !dirs.is_empty()).unwrap_or_default();
    let has_limit = |dir: &&PathBuf| text(&dir.join("memory.max")).is_some_and(|max| max.trim().parse::<u64>().is_ok());
    let counts = dirs.iter().find(has_limit).or_else(|| dirs.first()).map(|dir| dir.join("memory.pressure"));
    counts.or_else(|| Some(top.join("proc/pressure/memory")).filter(|file| some_avg10(file).is_some()))
}

/// The average over 10 s of the line "some", as a fraction.
fn some_avg10(file: &Path) -> Option<f64> {
    let text = text(file)?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    percent.parse().ok().filter(|percent: &f64| percent.is_finite()).map(|percent| percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn pressure(percent: f64) -> String {
        format!(
            "some avg10={percent:.2} avg60=1.00 avg300=2.00 total=7\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n"
        )
    }

    /// A tree of files, in which a number stands for a file of pressure.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for (path, text) in files {
            fs::create_dir_all(top.path().join(path).parent().unwrap()).unwrap();
            let text = text.parse().map_or_else(|_| (*text).to_owned(), pressure);
            fs::write(top.path().join(path), text).unwrap();
        }
        top
    }

    fn seen(files: &[(&str, &str)]) -> Option<f64> {
        PressureWatch::below(tree(files).path()).memory()
    }

    #[test]
    fn the_smallest_group_with_a_limit_counts() {
        let mut files = vec![
            ("proc/self/cgroup", "3:memory:/elsewhere\n0::/slurm/job1/step0\n"),
            ("proc/pressure/memory", "1"),
            ("sys/fs/cgroup/memory.pressure", "2"),
            ("sys/fs/cgroup/slurm/memory.pressure", "3"),
            ("sys/fs/cgroup/slurm/job1/memory.pressure", "40.5"),
            ("sys/fs/cgroup/slurm/job1/memory.max", "max\n"),
            ("sys/fs/cgroup/slurm/job1/step0/memory.pressure", "50"),
            ("sys/fs/cgroup/slurm/job1/step0/memory.max", "max\n"),
        ];
        assert_eq!(seen(&files), Some(0.5), "its own without any");
        // (No number, so that it is written as it is.)
        files.push(("sys/fs/cgroup/slurm/job1/memory.max", "500000\n "));
        assert_eq!(seen(&files), Some(0.405));
    }

    #[test]
    fn beside_version_1_the_groups_of_version_2_are_elsewhere() {
        let files = [
            ("proc/self/cgroup", "4:memory:/x\n0::/job\n"),
            ("proc/pressure/memory", "1"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "x"),
            ("sys/fs/cgroup/unified/memory.pressure", "2"),
            ("sys/fs/cgroup/unified/job/memory.pressure", "30"),
        ];
        assert_eq!(seen(&files), Some(0.3));
    }

    #[test]
    fn a_container_whose_group_is_not_visible_has_that_of_its_mount() {
        let files = [("proc/self/cgroup", "0::/docker/abc\n"), ("sys/fs/cgroup/memory.pressure", "20")];
        assert_eq!(seen(&files), Some(0.2));
    }

    #[test]
    fn without_groups_the_node_counts_and_where_nothing_is_measured_there_is_no_pressure() {
        let node = [("proc/self/cgroup", "4:memory:/x\n"), ("proc/pressure/memory", "10")];
        assert_eq!(seen(&node), Some(0.1));
        assert_eq!(seen(&[("proc/self/cgroup", "0::/job\n"), ("proc/pressure/memory", "10")]), Some(0.1));
        assert_eq!((seen(&[]), seen(&[("proc/pressure/memory", "full avg10=50.00\n")])), (None, None));
        for damaged in ["some avg10=lots avg60=0.00\n", "some avg10=nan\n", "some\n", ""] {
            assert_eq!(seen(&[("proc/pressure/memory", damaged)]), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_watch_follows_a_file_and_looks_for_another_group_now_and_then() {
        let top = tree(&[("proc/self/cgroup", "0::/job\n"), ("sys/fs/cgroup/job/memory.pressure", "10")]);
        let file = top.path().join("sys/fs/cgroup/job/memory.pressure");
        let mut watch = PressureWatch::below(top.path());
        assert_eq!(watch.memory(), Some(0.1));
        fs::write(&file, pressure(60.0)).unwrap();
        assert_eq!(watch.memory(), Some(0.6));
        fs::remove_file(&file).unwrap();
        fs::write(top.path().join("sys/fs/cgroup/memory.pressure"), pressure(70.0)).unwrap();
        assert_eq!(watch.memory(), None, "not looked for yet");
        watch.looked = None;
        assert_eq!(watch.memory(), Some(0.7));
    }
}
