//! The type of a mounted file system, from `/proc/self/mountinfo` (proc(5)).

use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The type of the file system that holds `path` (which must be real): the mount with this device
/// number, or else the innermost mount above the path (btrfs gives its files other device numbers
/// than its mount).
pub(super) fn fs_type(mountinfo: &str, path: &Path, dev: u64) -> Option<String> {
    let device = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let above = || mounts(mountinfo).filter(|mount| path.starts_with(&mount.point));
    let best = |found: Option<Mount<'_>>| found.map(|mount| mount.fs_type.to_owned());
    best(above().filter(|mount| mount.device == device).max_by_key(|mount| mount.point.len()))
        .or_else(|| best(mounts(mountinfo).find(|mount| mount.device == device)))
        .or_else(|| best(above().max_by_key(|mount| mount.point.len())))
}

/// Whether something is mounted below a directory (which must be real) in this process's view; also
/// `true` when that cannot be read.
pub fn any_below(dir: &Path) -> bool {
    std::fs::read_to_string("/proc/self/mountinfo").map_or(true, |info| below(&info, dir))
}

fn below(mountinfo: &str, dir: &Path) -> bool {
    mounts(mountinfo).any(|mount| Path::new(&mount.point) != dir && Path::new(&mount.point).starts_with(dir))
}

/// All places where something is mounted in this process's view, each with the number of its mount;
/// `None` when that cannot be told.
pub fn points() -> Option<Points> {
    let info = std::fs::read("/proc/self/mountinfo").ok()?;
    let info = String::from_utf8_lossy(&info);
    let id = |line: &str| line.split(' ').next().and_then(|id| id.parse().ok());
    Some(info.lines().filter_map(|line| Some((id(line)?, mounts(line).next()?.point.into()))).collect())
}

/// Mount numbers and directories.
pub type Points = HashSet<(u64, PathBuf)>;

struct Mount<'a> {
    device: &'a str,
    point: String,
    fs_type: &'a str,
}

fn mounts(mountinfo: &str) -> impl Iterator<Item = Mount<'_>> {
    mountinfo.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(2);
        let device = fields.next()?;
        Some(Mount { device, point: unescape(fields.nth(1)?), fs_type: after.split(' ').next()? })
    })
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(point: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(point.to_owned(), |point, (code, character)| point.replace(code, character))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        30 22 0:28 / /dev/shm rw shared:5 - tmpfs tmpfs rw\n\
        40 22 0:50 / /scratch/my\\040data rw shared:9 - lustre 10.0.0.1@o2ib:/fs rw\n\
        41 22 0:60 /sub /pool rw - btrfs /dev/sdb rw\n";

    #[test]
    fn mounts_below_a_directory_and_not_on_it() {
        let is = |dir: &str| below(INFO, Path::new(dir));
        assert!(is("/scratch") && is("/dev") && is("/"));
        assert!(!is("/scratch/my data") && !is("/pool") && !is("/scratch/my"));
    }

    #[test]
    fn by_device_or_else_by_the_innermost_mount() {
        let check = |path: &str, dev: (u32, u32), expected: &str| {
            let dev = rustix::fs::makedev(dev.0, dev.1);
            assert_eq!(fs_type(INFO, Path::new(path), dev).as_deref(), Some(expected), "{path}");
        };
        check("/home/me", (8, 1), "ext4");
        check("/scratch/my data/x", (0, 50), "lustre");
        check("/pool/x", (0, 61), "btrfs");
        check("/dev/shm/monarch", (0, 28), "tmpfs");
    }
}
