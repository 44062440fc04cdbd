//! The file of the secret: read with care, made by exactly one of many nodes.
//!
//! A new secret is written to a file of another name, synced, and given its real name
//! with link(2), which fails if that name is there: also over NFS, where exclusive creation once
//! was not safe. So the name never leads to half a secret, the first node wins, and all of them,
//! the winner too, read what has the name in the end. Where there are no hard links, renaming
//! without replacing does it.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, linkat, open, renameat_with};
use rustix::io::Errno;

use super::error::{LEAST, SecretError};

/// Most bytes of the file: more than any secret has; a longer file is another one.
const MAX_FILE_BYTES: usize = 4096;
/// Attempts to make and read the file: a network file system may not show for a moment what was
/// just made.
const MAX_TRIES: usize = 8;

/// Reads the file, and makes it first if it is missing.
pub(super) fn load(path: &Path) -> Result<Vec<u8>, SecretError> {
    let mut tries = 0;
    loop {
        match read(path)? {
            Some(secret) => return Ok(secret),
            None if tries < MAX_TRIES => make(path).map_err(|error| failed("make", path, error))?,
            None => return Err(failed("make", path, io::Error::other("it is gone each time it was made"))),
        }
        tries += 1;
    }
}

/// Makes the directory of the default file, for this user alone.
pub(super) fn make_directory(path: &Path) -> Result<(), SecretError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(|error| failed("make", path, error))
}

/// Reads the file, if it is there and no other user could have read or written it.
fn read(path: &Path) -> Result<Option<Vec<u8>>, SecretError> {
    // NONBLOCK: a pipe at this path must not block the agent.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file: File = match open(path, flags, Mode::empty()) {
        Ok(file) => file.into(),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(not_safe(path, "is a symbolic link", "name the file that it leads to")),
        Err(error) => return Err(failed("read", path, error.into())),
    };
    let found = file.metadata().map_err(|error| failed("read", path, error))?;
    if !found.is_file() {
        return Err(not_safe(path, "is not a regular file", "remove it, or set cluster.secret_file to another file"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(not_safe(path, "belongs to another user", "set cluster.secret_file to a file of yours"));
    }
    if found.mode() & 0o077 != 0 {
        return Err(not_safe(
            path,
            "is open to others",
            "remove it and let it be made again; or, if no other user has read it, chmod 600",
        ));
    }
    let mut bytes = Vec::new();
    let limit = MAX_FILE_BYTES as u64 + 1;
    io::Read::by_ref(&mut file).take(limit).read_to_end(&mut bytes).map_err(|error| failed("read", path, error))?;
    sound(path, bytes).map(Some)
}

/// Without the end of the line that an editor leaves.
fn sound(path: &Path, mut bytes: Vec<u8>) -> Result<Vec<u8>, SecretError> {
    while bytes.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
        bytes.pop();
    }
    match bytes.len() {
        length if length < LEAST => Err(SecretError::Short { place: path.display().to_string(), length }),
        length if length > MAX_FILE_BYTES => {
            Err(not_safe(path, "is longer than any secret", "check that it is the right file"))
        }
        _ => Ok(bytes),
    }
}

/// Makes the file, unless another node is quicker: its file is as good.
fn make(path: &Path) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut random = [0; 40];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let (secret, name) = random.split_at(32);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let new = path.with_file_name(format!(".cluster-secret.{}-{count}-{}", process::id(), hex(name)));
    let new = Temporary(new);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file: File = open(&new.0, flags, Mode::RUSR | Mode::WUSR)?.into();
    writeln!(file, "{}", hex(secret))?;
    file.sync_all()?;
    drop(file);
    name_it(&new.0, path)?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

fn name_it(new: &Path, path: &Path) -> io::Result<()> {
    let linked = linkat(CWD, new, CWD, path, rustix::fs::AtFlags::empty());
    let done = match linked {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
            renameat_with(CWD, new, CWD, path, RenameFlags::NOREPLACE)
        }
        linked => linked,
    };
    match done {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A file that is removed at the end, with or without success.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}

fn failed(doing: &'static str, path: &Path, error: io::Error) -> SecretError {
    SecretError::Io { doing, path: path.to_owned(), error }
}

fn not_safe(path: &Path, why: &'static str, remedy: &'static str) -> SecretError {
    SecretError::Unsafe { path: path.to_owned(), why, remedy }
}
