//! Staged files that are neither published nor removed: those that no record explains, since their
//! place in the order is not known, and those that are older than what the PFS has by now.
//!
//! They lie in the directory [`KEPT`] of the staging directory. The name of each is its number, and
//! the name that it had for the job: behind `-`, or behind `+` if it is older. With them lies a
//! copy of a damaged journal. A staging directory that has any is not removed.

use crate::errors::OutputsError;
use crate::staging::StagingDir;
use crate::status::{PendingEntry, PendingState};
use monarch_abi::outputs::names::Staged;
use monarch_abi::outputs::{DATA, JOURNAL};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The directory of a staging directory that holds them.
pub const KEPT: &str = "kept";
/// Hexadecimal digits of a number.
const ID_DIGITS: usize = 16;
/// Most bytes of a name that are kept.
const MAX_NAME_BYTES: usize = 200;

/// What is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where it lies.
    pub path: PathBuf,
    /// The number of the staged file; `None` for a copy of the journal.
    pub id: Option<u64>,
    /// The name below the output root, if it is known.
    pub name: Option<Vec<u8>>,
    /// Whether the PFS had something newer at that name.
    pub is_older: bool,
    /// Its bytes.
    pub bytes: u64,
    /// When it was written.
    pub modified: Option<SystemTime>,
}

impl Kept {
    /// Says what it is and what to do, for people.
    #[must_use]
    pub fn why(&self) -> String {
        let path = self.path.display();
        match (self.id, &self.name) {
            (None, _) => format!(
                "the journal was damaged: a removal, a rename or a link may be missing on the PFS; compare the output \
                 root, then remove {path}"
            ),
            (Some(_), Some(_)) if self.is_older => format!(
                "the output root has had something newer at this name since the job wrote it: it is not published; \
                 move {path} to its name if it is the one you want, or remove it"
            ),
            (Some(_), Some(_)) => {
                format!("its record in the journal is lost: it is not published; move {path} to its name, or remove it")
            }
            (Some(_), None) => format!(
                "a staged file whose record and name are lost: it is not published; move {path} to where it belongs, \
                 or remove it"
            ),
        }
    }

    /// The name of it in messages.
    #[must_use]
    pub fn shown(&self) -> String {
        let own = || self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.name.as_ref().map_or_else(own, |name| String::from_utf8_lossy(name).into_owned())
    }

    /// It as an entry that is not published.
    #[must_use]
    pub fn entry(&self) -> PendingEntry {
        let age = self.modified.and_then(|since| SystemTime::now().duration_since(since).ok()).unwrap_or_default();
        PendingEntry {
            path: self.shown(),
            state: PendingState::Kept,
            bytes: self.bytes,
            copied: 0,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            why: Some(self.why()),
        }
    }
}

fn escaped(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for &c in name {
        match c {
            b'/' => out.extend(b"%2F"),
            b'%' => out.extend(b"%25"),
            _ => out.push(c),
        }
    }
    // (The end of a path says more than its begin.)
    out.split_off(out.len().saturating_sub(MAX_NAME_BYTES))
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((&c, behind)) = rest.split_first() {
        let known = [(&b"2F"[..], b'/'), (b"25", b'%')];
        let found = known.iter().find_map(|(code, plain)| Some((behind.strip_prefix(*code)?, *plain)));
        match found.filter(|_| c == b'%') {
            Some((behind, plain)) => {
                out.push(plain);
                rest = behind;
            }
            None => {
                out.push(c);
                rest = behind;
            }
        }
    }
    out
}

/// Before the name of a file that is older than what the PFS has.
const OLDER: u8 = b'+';
/// Before the name of another one.
const UNEXPLAINED: u8 = b'-';

fn file_name(id: u64, before: u8, name: Option<&[u8]>) -> PathBuf {
    let mut text = format!("{id:0ID_DIGITS$x}").into_bytes();
    if let Some(name) = name {
        text.push(before);
        text.extend(escaped(name));
    }
    PathBuf::from(std::ffi::OsString::from_vec(text))
}

/// What is kept in a staging directory, in the order of the files' numbers.
///
/// # Errors
/// What the kernel said.
pub fn list(staging: &Path) -> io::Result<Vec<Kept>> {
    let dir = match std::fs::read_dir(staging.join(KEPT)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        dir => dir?,
    };
    let mut found = Vec::new();
    for entry in dir {
        let (path, meta) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        let text = path.file_name().unwrap_or_default().as_bytes();
        let digits = text.get(..ID_DIGITS).and_then(|digits| std::str::from_utf8(digits).ok());
        let id = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let (before, name) = text.get(ID_DIGITS..).and_then(<[u8]>::split_first).unwrap_or((&0, b""));
        let is_name = id.is_some() && matches!(*before, OLDER | UNEXPLAINED);
        found.push(Kept {
            id,
            name: is_name.then(|| unescaped(name)),
            is_older: is_name && *before == OLDER,
            bytes: meta.len(),
            modified: meta.modified().ok(),
            path,
        });
    }
    found.sort_by(|a, b| (a.id, &a.path).cmp(&(b.id, &b.path)));
    Ok(found)
}

/// Keeps staged files apart, each with the name that is known, and a copy of the journal if it is
/// damaged. The caller holds the lock of the journal.
///
/// # Errors
/// [`OutputsError`]: what could not be moved is where it was.
pub fn keep(
    staging: &StagingDir,
    files: &[(Staged, Option<Vec<u8>>)],
    is_journal_damaged: bool,
) -> Result<(), OutputsError> {
    if files.is_empty() && !is_journal_damaged {
        return Ok(());
    }
    let dir = staging.path().join(KEPT);
    let fail = |what| move |e: io::Error| OutputsError::Io { what, path: staging.path().join(KEPT), source: e };
    match rustix::fs::mkdirat(staging.dir(), KEPT, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(fail("make")(e.into())),
    }
    if is_journal_damaged {
        let journal = staging.path().join(JOURNAL);
        let bytes = std::fs::read(&journal).map_err(OutputsError::io("read", &journal))?;
        let copy = dir.join(format!("{JOURNAL}-{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes)));
        let write = || -> io::Result<()> {
            std::fs::write(&copy, &bytes)?;
            File::open(&copy)?.sync_all()
        };
        write().map_err(OutputsError::io("write", &copy))?;
    }
    for (file, name) in files {
        let from = staging.path().join(DATA).join(std::ffi::OsStr::from_bytes(&file.name()));
        let to = dir.join(file_name(file.id, UNEXPLAINED, name.as_deref()));
        move_to(&from, &to).map_err(OutputsError::io("keep", &from))?;
    }
    File::open(&dir).and_then(|dir| dir.sync_all()).map_err(fail("sync"))
}

fn move_to(from: &Path, to: &Path) -> rustix::io::Result<()> {
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, from, cwd, to, RenameFlags::NOREPLACE) {
        Err(Errno::NOENT) => Ok(()),
        moved => moved,
    }
}

/// Keeps a staged file apart that is older than what the PFS has at its name. The caller holds the
/// lock of the journal.
///
/// # Errors
/// What the kernel said.
pub fn keep_older(staging: &StagingDir, file: &Staged, name: &[u8]) -> rustix::io::Result<Kept> {
    match rustix::fs::mkdirat(staging.dir(), KEPT, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e),
    }
    let st = staging.stat_data(file);
    let dir = staging.path().join(KEPT);
    let path = dir.join(file_name(file.id, OLDER, Some(name)));
    move_to(&staging.path().join(DATA).join(std::ffi::OsStr::from_bytes(&file.name())), &path)?;
    rustix::fs::fsync(rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?;
    let bytes = st.map_or(0, |st| st.st_size as u64);
    Ok(Kept { path, id: Some(file.id), name: Some(name.to_vec()), is_older: true, bytes, modified: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staging::RootInfo;

    #[test]
    fn what_is_kept_is_found_again_with_its_name() {
        let tier = tempfile::tempdir().unwrap();
        let info = RootInfo::of(Path::new("/scratch/run"), "tier0", false);
        let staging = StagingDir::attach(&tier.path().join("outputs"), info).unwrap();
        assert!(list(staging.path()).unwrap().is_empty());
        let of = |id| Staged { id, dev: 1, ino: 2, uid: 3, gid: 4 };
        let long = [b"d/".repeat(300), b"end".to_vec()].concat();
        let names = [Some(b"run/100%/a b\xff".to_vec()), None, Some(long)];
        let files: Vec<_> = (0u64..).map(of).zip(names.clone()).collect();
        for (file, _) in &files {
            std::fs::write(staging.path().join(DATA).join(std::ffi::OsStr::from_bytes(&file.name())), "abc").unwrap();
        }
        keep(&staging, &files, true).unwrap();
        keep(&staging, &files, true).unwrap();
        assert!(staging.data_files().unwrap().is_empty());
        let kept = list(staging.path()).unwrap();
        assert_eq!(kept.iter().map(|k| k.id).collect::<Vec<_>>(), [None, Some(0), Some(1), Some(2)]);
        assert_eq!(kept[1].name, names[0]);
        assert_eq!((kept[2].name.clone(), kept[2].bytes), (None, 3));
        assert!(kept[3].name.as_ref().unwrap().ends_with(b"/end"));
        assert!(kept.iter().all(|k| k.why().contains("kept/") && k.entry().state == PendingState::Kept));
        assert!(!kept.iter().any(|k| k.is_older));

        let name = std::ffi::OsStr::from_bytes(&of(9).name()).to_owned();
        std::fs::write(staging.path().join(DATA).join(&name), "abcd").unwrap();
        let older = keep_older(&staging, &of(9), b"run/+model").unwrap();
        let found = list(staging.path()).unwrap().pop().unwrap();
        assert_eq!(Kept { modified: None, ..found }, older);
        assert!(older.is_older && older.bytes == 4 && older.why().contains("newer"));
    }
}
