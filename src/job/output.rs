//! Opens the files that a job leaves: reports and traces. This process opens them (and not the
//! agent), with the rights and mounts of the job's user.
//!
//! * A new file is made with `O_EXCL`, so that no link at its name is followed: other users may
//!   write to the directory.
//! * A file of this user at that name is replaced by a new file, never written over.
//! * A device or a pipe (`/dev/stdout`) is written to as it is.
//! * A link to a file, and a file of another user, are refused.

use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Makes a file at a name where nothing is.
fn create(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(mode))?.into())
}

/// Opens a file to be written from its beginning, and replaces a file that is there.
fn open(path: &Path, mode: u32) -> io::Result<File> {
    match create(path, mode) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let refuse = |why| Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    let at = std::fs::symlink_metadata(path)?;
    if at.is_symlink() && std::fs::metadata(path).map_or(true, |m| m.is_file()) {
        return refuse("a symbolic link is there; name the file that it leads to, or remove it");
    }
    if at.is_file() {
        if at.uid() != rustix::process::geteuid().as_raw() {
            return refuse("a file of another user is there");
        }
        std::fs::remove_file(path)?;
        return create(path, mode);
    }
    let file: File =
        rustix::fs::openat(CWD, path, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())?.into();
    // The file at the name may have changed since.
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => refuse("another file has just appeared there"),
        _ => Ok(file),
    }
}

/// Opens the file of a trace, readable for this user alone, on a thread of its own.
///
/// # Errors
/// When the file cannot be opened, or its file system does not answer within `limit`.
pub(super) fn open_in_time(path: &Path, limit: Duration) -> io::Result<File> {
    let (send, receive) = channel();
    let path = path.to_owned();
    std::thread::Builder::new().spawn(move || send.send(open(&path, 0o600)))?;
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the file system does not answer");
    receive.recv_timeout(limit).map_err(late)?
}

/// Writes a file such that no reader sees a part of it: the tasks of a job may write a file of the
/// same name at the same time.
pub(super) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let is_replaceable = match std::fs::symlink_metadata(path) {
        Ok(found) => found.is_file(),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    };
    let Some(name) = path.file_name().filter(|_| is_replaceable) else {
        return open(path, 0o666)?.write_all(text.as_bytes());
    };
    let mut beside = OsString::from(".");
    beside.push(name);
    // Process numbers repeat on other nodes, tasks do not.
    let task = std::env::var("SLURM_PROCID").unwrap_or_default();
    beside.push(format!(".{}-{task}", std::process::id()));
    let beside = path.with_file_name(beside);
    let mut file = create(&beside, 0o666)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_file_of_ours_is_replaced_and_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, dangling] = ["file", "link", "dangling"].map(|n| dir.path().join(n));
        std::fs::write(&file, "before").unwrap();
        let second = dir.path().join("second name");
        std::fs::hard_link(&file, &second).unwrap();
        open(&file, 0o600).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert_eq!(std::fs::read(&second).unwrap(), b"before", "written over");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        symlink(&file, &link).unwrap();
        symlink(dir.path().join("elsewhere"), &dangling).unwrap();
        for path in [&link, &dangling] {
            assert!(open(path, 0o600).is_err(), "{path:?}");
            assert!(write_whole(path, "text").is_err(), "{path:?}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert!(!dir.path().join("elsewhere").exists());
        let device = dir.path().join("device");
        symlink("/dev/null", &device).unwrap();
        open(&device, 0o600).unwrap().write_all(b"text").unwrap();
    }

    #[test]
    fn a_report_takes_no_name_that_others_have_laid_out() {
        let dir = tempfile::tempdir().unwrap();
        let beside = format!(".report.{}-{}", std::process::id(), std::env::var("SLURM_PROCID").unwrap_or_default());
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "mine").unwrap();
        symlink(&victim, dir.path().join(beside)).unwrap();
        assert!(write_whole(&dir.path().join("report"), "text").is_err());
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(open_in_time(&path, Duration::from_millis(50)).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
