//! The file of a secret, a user's or a job's: read with care, made by exactly one of many nodes.
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
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, linkat, open, renameat_with};
use rustix::io::Errno;

use super::error::{Holder, LEAST, SecretError};

/// Most bytes of the file: more than any secret has; a longer file is another one.
const MAX_FILE_BYTES: usize = 4096;
/// Attempts to make and read the file: a network file system may not show for a while what another
/// node has just made.
const MAX_TRIES: u32 = 12;
/// Pause before the third attempt; each further one is twice as long. All of them together: 10 s.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The file of a secret.
#[derive(Clone, Copy, Debug)]
pub(super) struct SecretFile<'a> {
    pub(super) path: &'a Path,
    /// Whose secret it holds.
    pub(super) holder: Holder,
}

impl SecretFile<'_> {
    /// Reads the file, and makes it first if it is missing. Waits at most 10 s for a file that
    /// another node has made to be seen here.
    pub(super) fn load(self) -> Result<Vec<u8>, SecretError> {
        for attempt in 0..MAX_TRIES {
            if attempt > 1 {
                thread::sleep(FIRST_PAUSE * (1 << (attempt - 2)));
            }
            if let Some(secret) = self.read()? {
                return Ok(secret);
            }
            self.make().map_err(|error| self.failed("make", error))?;
        }
        Err(self.failed("make", io::Error::other("it is gone each time it was made")))
    }

    /// Makes the directory of the default file, for this user alone.
    pub(super) fn make_directory(self) -> Result<(), SecretError> {
        let Some(parent) = self.path.parent() else { return Ok(()) };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|error| self.failed("make", error))
    }

    /// Reads the file, if it is there and no other user could have read or written it.
    pub(super) fn read(self) -> Result<Option<Vec<u8>>, SecretError> {
        // NONBLOCK: a pipe at this path must not block the agent.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut file: File = match open(self.path, flags, Mode::empty()) {
            Ok(file) => file.into(),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(self.not_safe("is a symbolic link", "name the file that it leads to")),
            Err(error) => return Err(self.failed("read", error.into())),
        };
        let found = file.metadata().map_err(|error| self.failed("read", error))?;
        if !found.is_file() {
            return Err(self.not_safe("is not a regular file", "remove it, or name another file"));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(self.not_safe("belongs to another user", "name a file of yours"));
        }
        if found.mode() & 0o077 != 0 {
            return Err(self.not_safe(
                "is open to others",
                "remove it and let it be made again; or, if no other user has read it, chmod 600",
            ));
        }
        let mut bytes = Vec::new();
        let limit = MAX_FILE_BYTES as u64 + 1;
        io::Read::by_ref(&mut file).take(limit).read_to_end(&mut bytes).map_err(|error| self.failed("read", error))?;
        self.sound(bytes).map(Some)
    }

    /// Without the end of the line that an editor leaves.
    fn sound(self, mut bytes: Vec<u8>) -> Result<Vec<u8>, SecretError> {
        while bytes.last().is_some_and(|last| matches!(last, b'\n' | b'\r')) {
            bytes.pop();
        }
        match bytes.len() {
            length if length < LEAST => Err(SecretError::Short { place: self.path.display().to_string(), length }),
            length if length > MAX_FILE_BYTES => {
                Err(self.not_safe("is longer than any secret", "check that it is the right file"))
            }
            _ => Ok(bytes),
        }
    }

    /// Makes the file, unless another node is quicker: its file is as good.
    fn make(self) -> io::Result<()> {
        let new = self.written(random_line()?.as_bytes())?;
        name_it(&new.0, self.path)?;
        self.sync_directory()
    }

    /// Gives the file another content. A reader sees the former content or this one.
    pub(super) fn replace(self, content: &[u8]) -> Result<(), SecretError> {
        // What could not be read again must not take its place.
        self.sound(content.to_vec())?;
        let replaced = || {
            let new = self.written(content)?;
            std::fs::rename(&new.0, self.path)?;
            self.sync_directory()
        };
        replaced().map_err(|error| self.failed("replace", error))
    }

    /// Writes `content` to a file of another name in the same directory.
    fn written(self, content: &[u8]) -> io::Result<Temporary> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut name = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut name)?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".cluster-secret.{}-{count}-{}", process::id(), hex(&name));
        let new = Temporary(self.path.with_file_name(name));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file: File = open(&new.0, flags, Mode::RUSR | Mode::WUSR)?.into();
        file.write_all(content)?;
        file.sync_all()?;
        Ok(new)
    }

    fn sync_directory(self) -> io::Result<()> {
        match self.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }

    pub(super) fn failed(self, doing: &'static str, error: io::Error) -> SecretError {
        SecretError::Io { doing, holder: self.holder, path: self.path.to_owned(), error }
    }

    fn not_safe(self, why: &'static str, remedy: &'static str) -> SecretError {
        SecretError::Unsafe { path: self.path.to_owned(), why, remedy }
    }
}

/// Makes a secret of 32 random bytes, in hexadecimal digits, and the end of its line.
pub(super) fn random_line() -> io::Result<String> {
    let mut secret = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut secret)?;
    Ok(hex(&secret) + "\n")
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

/// A file that is removed at the end, with or without success, unless it has another name by then.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(bytes)
}
