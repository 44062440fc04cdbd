//! Changes to a file made "by another client": on the backing directory, behind the kernel's
//! caches, now or at a moment of a reader's life. Each is done once.

use std::fmt;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

use crate::units::string_conversions;

/// What happens to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MutationKind {
    /// Other content ([`mutated`]) of the same size, written in place.
    Change,
    /// Cut to half its size, in place.
    Shrink,
    /// Removed.
    Delete,
    /// Replaced by a rename of a new file: [`mutated`] content and then the six bytes `slowfs`.
    Replace,
    /// Replaced by a rename of a new file of the same size and the same mtime to the nanosecond,
    /// with [`mutated`] content.
    ReplaceSame,
}

/// When it happens. Written `now`, `after_open`, `after_read:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// When the file is opened next: after the server has opened it, before the open is answered.
    AfterOpen,
    /// After the server has done the n-th READ of the file from now, before that read is answered.
    AfterRead(u64),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "now" => Ok(Self::Now),
            None if text == "after_open" => Ok(Self::AfterOpen),
            None if text == "after_read" => Ok(Self::AfterRead(1)),
            Some(("after_read", n)) => n.parse().map(Self::AfterRead).map_err(|e| format!("{text:?}: {e}")),
            _ => Err(format!("{text:?} is no moment (now, after_open, after_read:N)")),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now => f.write_str("now"),
            Self::AfterOpen => f.write_str("after_open"),
            Self::AfterRead(n) => write!(f, "after_read:{n}"),
        }
    }
}
string_conversions!(When);

/// A change of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MutateSpec {
    /// The file, relative to the root of the mount.
    pub path: String,
    /// What happens to it.
    pub kind: MutationKind,
    /// When.
    #[serde(default)]
    pub when: When,
}

/// The content that a mutation gives to a file that had `content`: every byte XOR 0x5A.
pub fn mutated(content: &[u8]) -> Vec<u8> {
    content.iter().map(|byte| byte ^ 0x5A).collect()
}

/// The mutations that wait for their moment.
#[derive(Default)]
pub(crate) struct Armed {
    any: AtomicBool,
    list: Mutex<Vec<MutateSpec>>,
}

impl Armed {
    /// Adds one to wait for its moment.
    pub(crate) fn add(&self, spec: MutateSpec) {
        let mut list = crate::lock::lock(&self.list);
        list.push(spec);
        self.any.store(true, Relaxed);
    }

    /// Forgets all that have not happened.
    pub(crate) fn clear(&self) {
        let mut list = crate::lock::lock(&self.list);
        self.any.store(false, Relaxed);
        list.clear();
    }

    /// The mutations that are due now that `path` was opened (`read` false) or read once more;
    /// `path` is only computed when any wait.
    pub(crate) fn due(&self, read: bool, path: impl FnOnce() -> Option<String>) -> Vec<MutateSpec> {
        if !self.any.load(Relaxed) {
            return Vec::new();
        }
        let Some(path) = path() else {
            return Vec::new();
        };
        let mut list = crate::lock::lock(&self.list);
        let due = list.extract_if(.., |spec| spec.path == path && spec.when.count_down(read)).collect();
        self.any.store(!list.is_empty(), Relaxed);
        due
    }
}

impl When {
    /// Counts an open or a read down; true when the moment has come.
    fn count_down(&mut self, read: bool) -> bool {
        match self {
            Self::Now => true,
            Self::AfterOpen => !read,
            Self::AfterRead(left) => {
                *left = left.saturating_sub(u64::from(read));
                *left == 0
            }
        }
    }
}

/// Does the change below `root`.
pub(crate) fn apply(root: &Path, spec: &MutateSpec) -> io::Result<()> {
    let path = below(root, &spec.path)?;
    let before = fs::symlink_metadata(&path)?;
    if !before.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "only regular files can be mutated"));
    }
    match spec.kind {
        MutationKind::Change => {
            let content = mutated(&fs::read(&path)?);
            OpenOptions::new().write(true).open(&path)?.write_all(&content)
        }
        MutationKind::Shrink => OpenOptions::new().write(true).open(&path)?.set_len(before.len() / 2),
        MutationKind::Delete => fs::remove_file(&path),
        MutationKind::Replace => {
            let mut content = mutated(&fs::read(&path)?);
            content.extend_from_slice(b"slowfs");
            replace(&path, &before, &content, None)
        }
        MutationKind::ReplaceSame => {
            let content = mutated(&fs::read(&path)?);
            replace(&path, &before, &content, Some(FileTimes::new().set_modified(before.modified()?)))
        }
    }
}

/// `root/relative`, refusing absolute paths and `..`.
fn below(root: &Path, relative: &str) -> io::Result<PathBuf> {
    if relative.is_empty() || !Path::new(relative).components().all(|c| matches!(c, Component::Normal(_))) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path must be relative and without .."));
    }
    Ok(root.join(relative))
}

/// Writes a new file beside `path` with the mode and owner of the old one and renames it over
/// `path`.
fn replace(path: &Path, before: &fs::Metadata, content: &[u8], times: Option<FileTimes>) -> io::Result<()> {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let name = format!(".slowfs-{}-{}", std::process::id(), SERIAL.fetch_add(1, Relaxed));
    let fresh = path.with_file_name(name);
    let result = write_like(&fresh, before, content, times).and_then(|()| fs::rename(&fresh, path));
    if result.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    result
}

fn write_like(path: &Path, like: &fs::Metadata, content: &[u8], times: Option<FileTimes>) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(like.mode() & 0o7777).open(path)?;
    file.write_all(content)?;
    std::os::unix::fs::fchown(&file, Some(like.uid()), Some(like.gid()))?;
    times.map_or(Ok(()), |times| file.set_times(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_root() {
        let root = Path::new("/r");
        assert_eq!(below(root, "a/b").ok(), Some(PathBuf::from("/r/a/b")));
        for bad in ["", "/etc/passwd", "a/../../b", "./a/.."] {
            assert!(below(root, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn replace_same_keeps_size_and_mtime_but_not_the_inode() -> io::Result<()> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("f");
        fs::write(&file, b"content")?;
        let before = fs::metadata(&file)?;
        let spec = MutateSpec { path: "f".into(), kind: MutationKind::ReplaceSame, when: When::Now };
        apply(dir.path(), &spec)?;
        let after = fs::metadata(&file)?;
        assert_eq!(fs::read(&file)?, mutated(b"content"));
        assert_eq!((before.len(), before.modified()?), (after.len(), after.modified()?));
        assert_ne!(before.ino(), after.ino());
        Ok(())
    }

    #[test]
    fn moments_arrive_once() {
        let armed = Armed::default();
        let spec = |when| MutateSpec { path: "f".into(), kind: MutationKind::Delete, when };
        armed.add(spec(When::AfterOpen));
        armed.add(spec(When::AfterRead(2)));
        let due = |read, path: &str| armed.due(read, || Some(path.into())).len();
        assert_eq!((due(false, "g"), due(false, "f"), due(false, "f")), (0, 1, 0));
        assert_eq!((due(true, "f"), due(true, "f"), due(true, "f")), (0, 1, 0));
    }
}
