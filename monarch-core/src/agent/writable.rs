//! Files below a root that a job can write from its start, because it inherits a descriptor: `>>
//! ROOT/log`, `3<>ROOT/f`.
//!
//! The preload library sees what is opened for writing, and not what is written through a
//! descriptor that was there before. So the process that starts the job looks at its descriptors
//! first, and the agent enters these files as changed before the job begins.

use super::protocol::Writable;
use crate::config::Config;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Flags of a descriptor that is no access to the file.
const O_PATH: u32 = 0o10_000_000;

/// The regular files that a process has open for writing, on the device of a root or below a root's
/// path.
pub(super) fn of(process: u32, config: &Config) -> Vec<Writable> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    let roots = &config.dataset.roots;
    let mut devices: Option<Vec<u64>> = None;
    let numbers = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    let open = numbers.filter_map(|fd: u32| is_written(process, fd).then(|| look(process, fd)).flatten());
    open.filter(|f| {
        let device = |path: &Path| std::fs::metadata(path).ok().map(|m| m.dev());
        let devices = devices.get_or_insert_with(|| roots.iter().filter_map(|r| device(&r.real_path)).collect());
        let path = Path::new(std::ffi::OsStr::from_bytes(&f.path));
        devices.contains(&f.dev) || roots.iter().any(|r| path.starts_with(&r.real_path))
    })
    .collect()
}

/// Whether a descriptor may be written through.
fn is_written(process: u32, fd: u32) -> bool {
    let info = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{fd}")).unwrap_or_default();
    let flags = info.lines().find_map(|l| u32::from_str_radix(l.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|f| f & O_PATH == 0 && matches!(f & 3, 1 | 2))
}

/// The file of a descriptor. Does not ask the PFS.
fn look(process: u32, fd: u32) -> Option<Writable> {
    let link = format!("/proc/{process}/fd/{fd}");
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::NLINK;
    let st = rustix::fs::statx(CWD, &link, AtFlags::STATX_DONT_SYNC, wanted).ok()?;
    if FileType::from_raw_mode(st.stx_mode.into()) != FileType::RegularFile {
        return None;
    }
    let path = std::fs::read_link(&link).ok()?.into_os_string();
    let dev = rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor);
    Some(Writable { path: path.as_bytes().to_vec(), dev, ino: st.stx_ino, links: st.stx_nlink.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};

    #[test]
    fn descriptors_that_write_are_told_from_those_that_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            File::create(&path).unwrap();
            path
        };
        let [read, write, append, both] = ["read", "write", "append", "both"].map(file);
        let _open = [
            File::open(&read).unwrap(),
            OpenOptions::new().write(true).open(&write).unwrap(),
            OpenOptions::new().append(true).open(&append).unwrap(),
            OpenOptions::new().read(true).write(true).open(&both).unwrap(),
        ];
        let config = crate::config::load(
            None,
            std::iter::empty(),
            &crate::config::Overrides {
                roots: vec![dir.path().to_owned()],
                tiers: vec!["/dev/shm:1MiB".into()],
                ..Default::default()
            },
            &crate::config::SystemProbe,
        );
        let mut found = of(std::process::id(), &config.unwrap().config);
        found.retain(|f| f.path.starts_with(dir.path().as_os_str().as_bytes()));
        let mut names: Vec<_> = found.iter().map(|f| f.path.rsplit(|&c| c == b'/').next().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, [b"append".as_slice(), b"both", b"write"]);
        let meta = std::fs::metadata(&both).unwrap();
        assert!(found.iter().any(|f| (f.dev, f.ino, f.links) == (meta.dev(), meta.ino(), 1)));
    }
}
