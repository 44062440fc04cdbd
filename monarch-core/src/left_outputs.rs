//! What jobs have left in the staging directories of a tier, for commands that find no agent which
//! drains them.
//!
//! The overlay of a staging directory has a link for each entry that is not published
//! ([`monarch_abi::outputs`]), so neither the journal nor the PFS is read.

use crate::held_dir::HeldDir;
use crate::private_dir;
use crate::snapshot::{OutputStatus, PendingEntry, PendingState};
use monarch_abi::outputs::names::{Link, Staged};
use monarch_abi::outputs::{DATA, OUTPUTS, REMOVED_DIR, TREE};
use monarch_outputs::errors::OutputsError;
use monarch_outputs::kept;
use monarch_outputs::retire::retire;
use monarch_outputs::status::MAX_NAMED_ENTRIES;
use serde::Deserialize;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The file of a staging directory that says which output root it belongs to.
const ROOT: &str = "root";

/// What that file says, as far as it is needed.
#[derive(Debug, Deserialize)]
struct LeftRoot {
    /// The root's real path.
    root: String,
    /// The same in hexadecimal digits, when it is not UTF-8.
    #[serde(default)]
    root_bytes: Option<String>,
    #[serde(default)]
    tier: String,
    #[serde(default)]
    is_volatile: bool,
}

impl LeftRoot {
    fn path(&self) -> PathBuf {
        let Some(hex) = &self.root_bytes else { return PathBuf::from(&self.root) };
        let byte = |at: usize| hex.get(at..at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        PathBuf::from(OsString::from_vec((0..hex.len()).step_by(2).filter_map(byte).collect()))
    }
}

/// Returns what is in the staging directories of a tier, given the directory that holds its copies.
/// Directories that no agent has completed are left out.
///
/// # Errors
/// When a staging directory cannot be read.
pub fn read(tier: &Path) -> io::Result<Vec<OutputStatus>> {
    let dirs = match std::fs::read_dir(tier.join(OUTPUTS)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        dirs => dirs?,
    };
    let mut found = Vec::new();
    for dir in dirs {
        let staging = dir?.path();
        if let Some(root) = read_root(&staging) {
            found.push(status(staging, &root)?);
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// [`read`] for a directory that a configuration names: what lies in the directory of this user
/// there, whether or not it still holds copies.
///
/// # Errors
/// As [`read`].
pub fn read_configured(configured: &Path) -> io::Result<Vec<OutputStatus>> {
    // The path of the default tier is already that of the private directory.
    let is_private = configured.file_name() == Some(private_dir::name("monarch", 0).as_ref());
    let base = if is_private { configured.parent().unwrap_or(configured) } else { configured };
    let base = match HeldDir::open(base) {
        Ok(base) => Arc::new(base),
        Err(e) => {
            let e = io::Error::from(e);
            return if e.kind() == io::ErrorKind::NotFound { Ok(Vec::new()) } else { Err(e) };
        }
    };
    let tiers = (0..private_dir::MAX_NAMES).filter_map(|n| private_dir::existing(&base, "monarch", n));
    let all: Vec<Vec<OutputStatus>> = tiers.map(|tier| read(tier.path())).collect::<io::Result<_>>()?;
    Ok(all.into_iter().flatten().collect())
}

/// Removes the staging directories of a tier in which nothing is pending, and which no agent
/// drains.
///
/// # Errors
/// When one cannot be read or removed.
pub fn remove_published(tier: &Path) -> io::Result<()> {
    for left in read(tier)?.into_iter().filter(|left| !left.is_pending()) {
        let is_pending = || {
            let root = read_root(&left.staging);
            let now = root.map_or_else(|| Ok(left.clone()), |root| status(left.staging.clone(), &root));
            now.map(|now| now.is_pending()).map_err(OutputsError::io("read", &left.staging))
        };
        retire(&left.staging, is_pending).map_err(io::Error::other)?;
    }
    match std::fs::remove_dir(tier.join(OUTPUTS)) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => Err(e),
        _ => Ok(()),
    }
}

fn read_root(staging: &Path) -> Option<LeftRoot> {
    std::fs::read(staging.join(ROOT)).ok().and_then(|text| serde_json::from_slice(&text).ok())
}

fn status(staging: PathBuf, root: &LeftRoot) -> io::Result<OutputStatus> {
    let mut left = Left {
        data: staging.join(DATA),
        now: SystemTime::now(),
        status: OutputStatus::default(),
        dirs: Vec::new(),
        named: HashSet::new(),
    };
    let tree = staging.join(TREE);
    if tree.exists() {
        left.dirs.push(PathBuf::new());
    }
    while let Some(rel) = left.dirs.pop() {
        left.directory(&tree, &rel)?;
    }
    left.unnamed()?;
    for kept in kept::list(&staging)? {
        left.status.pending += 1;
        left.status.pending_bytes += kept.bytes;
        left.status.entries.push(kept.entry());
    }
    let mut entries = std::mem::take(&mut left.status.entries);
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.age_ms));
    entries.truncate(MAX_NAMED_ENTRIES);
    Ok(OutputStatus {
        path: root.path(),
        staging,
        tier: root.tier.clone(),
        is_volatile: root.is_volatile,
        oldest_ms: entries.first().map(|entry| entry.age_ms),
        entries,
        ..left.status
    })
}

/// A staging directory while it is read.
struct Left {
    data: PathBuf,
    now: SystemTime,
    status: OutputStatus,
    /// Directories of the overlay that are still to be read.
    dirs: Vec<PathBuf>,
    /// Staged files that a link names.
    named: HashSet<u64>,
}

impl Left {
    /// Staged files that no link names: their links are lost, or an agent was killed before it
    /// removed them. `recover` finds out.
    fn unnamed(&mut self) -> io::Result<()> {
        let dir = match std::fs::read_dir(&self.data) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            dir => dir?,
        };
        for entry in dir {
            let entry = entry?;
            let name = entry.file_name();
            let is_named = Staged::parse(name.as_bytes()).is_none_or(|file| self.named.contains(&file.id));
            let Some(meta) = entry.metadata().ok().filter(|meta| !is_named && meta.len() > 0) else { continue };
            self.add(Path::new(DATA).join(name).as_path(), PendingState::Waiting, meta.len(), meta.modified());
        }
        Ok(())
    }

    fn directory(&mut self, tree: &Path, rel: &Path) -> io::Result<()> {
        for entry in std::fs::read_dir(tree.join(rel))? {
            let entry = entry?;
            let name = rel.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.dirs.push(name);
            } else if kind.is_symlink() {
                let target = std::fs::read_link(entry.path())?;
                let name = if entry.file_name() == REMOVED_DIR { rel } else { name.as_path() };
                self.link(name, &entry.metadata()?, Link::parse(target.as_os_str().as_bytes()));
            }
        }
        Ok(())
    }

    fn link(&mut self, name: &Path, own: &Metadata, link: Option<Link<'_>>) {
        let (state, bytes, since) = match link {
            Some(Link::File(file)) => {
                self.named.insert(file.id);
                let data = std::fs::metadata(self.data.join(std::ffi::OsStr::from_bytes(&file.name())));
                let Ok(data) = data else { return };
                (PendingState::Waiting, data.len(), data.modified())
            }
            Some(Link::Clean(clean)) => {
                self.named.insert(clean.file.id);
                self.status.clean_bytes += clean.size;
                return;
            }
            Some(Link::Whiteout) => (PendingState::Removal, 0, own.modified()),
            Some(Link::Symlink(_)) => (PendingState::Symlink, 0, own.modified()),
            None => return,
        };
        self.add(name, state, bytes, since);
    }

    fn add(&mut self, name: &Path, state: PendingState, bytes: u64, since: io::Result<SystemTime>) {
        let age = since.ok().and_then(|since| self.now.duration_since(since).ok()).unwrap_or_default();
        self.status.pending += 1;
        self.status.pending_bytes += bytes;
        self.status.entries.push(PendingEntry {
            path: name.to_string_lossy().into_owned(),
            state,
            bytes,
            copied: 0,
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            why: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_abi::outputs::names::{Clean, WHITEOUT, clean_text, file_text};
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A tier with a staging directory, and that directory.
    fn tier() -> (tempfile::TempDir, PathBuf) {
        let tier = tempfile::tempdir().unwrap();
        let staging = tier.path().join("outputs/0123456789abcdef");
        fs::create_dir_all(staging.join("data")).unwrap();
        fs::create_dir_all(staging.join("tree/run/gone")).unwrap();
        (tier, staging)
    }

    fn link(at: &Path, text: &[u8]) {
        symlink(OsStr::from_bytes(text), at).unwrap();
    }

    #[test]
    fn files_deletions_and_links_that_are_not_published_are_found() {
        let (tier, staging) = tier();
        fs::write(staging.join("root"), r#"{"root":"/scratch/run","tier":"nvme","node":"n1","uid":7}"#).unwrap();
        let file = Staged { id: 3, dev: 1, ino: 2, uid: 7, gid: 7 };
        fs::write(staging.join("data").join(OsStr::from_bytes(&file.name())), "12345").unwrap();
        let clean = Clean { file: Staged { id: 1, ..file }, size: 1000, mtime_ns: 0, ctime_ns: 0 };
        let tree = staging.join("tree");
        link(&tree.join("run/model.pt"), &file_text(&file));
        link(&tree.join("run/old.pt"), WHITEOUT);
        link(&tree.join("latest"), b"Lrun");
        link(&tree.join("published.pt"), &clean_text(&clean));
        link(&tree.join("run/gone").join(REMOVED_DIR), WHITEOUT);
        let found = read(tier.path()).unwrap();
        let [status] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((status.path.as_path(), &status.staging), (Path::new("/scratch/run"), &staging));
        assert_eq!((status.tier.as_str(), status.is_volatile), ("nvme", false));
        assert_eq!((status.pending, status.pending_bytes, status.clean_bytes), (4, 5, 1000));
        let mut names: Vec<_> = status.entries.iter().map(|e| (e.path.as_str(), e.state, e.bytes)).collect();
        names.sort_unstable_by_key(|(path, ..)| *path);
        assert_eq!(
            names,
            [
                ("latest", PendingState::Symlink, 0),
                ("run/gone", PendingState::Removal, 0),
                ("run/model.pt", PendingState::Waiting, 5),
                ("run/old.pt", PendingState::Removal, 0),
            ]
        );
        assert!(status.is_pending() && status.oldest_ms.is_some_and(|ms| ms < 60_000), "{status:?}");
    }

    #[test]
    fn only_what_is_published_is_removed() {
        let (tier, staging) = tier();
        fs::write(staging.join("root"), r#"{"root":"/scratch/run"}"#).unwrap();
        let done = tier.path().join("outputs/00");
        fs::create_dir_all(done.join("tree")).unwrap();
        fs::write(done.join("root"), r#"{"root":"/scratch/done"}"#).unwrap();
        link(&staging.join("tree/old.pt"), WHITEOUT);
        remove_published(tier.path()).unwrap();
        assert!(staging.exists() && !done.exists());
        fs::remove_file(staging.join("tree/old.pt")).unwrap();
        remove_published(tier.path()).unwrap();
        assert!(!tier.path().join("outputs").exists());
        remove_published(tier.path()).unwrap();
    }

    #[test]
    fn staged_files_without_a_link_or_a_record_are_pending_and_stay() {
        let (tier, staging) = tier();
        fs::write(staging.join("root"), r#"{"root":"/scratch/run"}"#).unwrap();
        let file = |id| Staged { id, dev: 1, ino: 2, uid: 7, gid: 7 };
        let data = |id| staging.join("data").join(OsStr::from_bytes(&file(id).name()));
        fs::write(data(3), "12345").unwrap();
        fs::write(data(4), "").unwrap();
        fs::create_dir(staging.join("kept")).unwrap();
        fs::write(staging.join("kept/0000000000000007-run%2Fmodel.pt"), "weights").unwrap();
        let status = read(tier.path()).unwrap().remove(0);
        assert_eq!((status.pending, status.pending_bytes), (2, 12));
        assert!(status.entries.iter().any(|e| (e.path.as_str(), e.state) == ("run/model.pt", PendingState::Kept)));
        remove_published(tier.path()).unwrap();
        fs::remove_file(data(3)).unwrap();
        remove_published(tier.path()).unwrap();
        assert!(staging.exists(), "a file is kept");
        fs::remove_dir_all(staging.join("kept")).unwrap();
        remove_published(tier.path()).unwrap();
        assert!(!staging.exists());
    }

    #[test]
    fn a_tier_that_holds_no_copies_any_more_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let tier = dir.path().join(private_dir::name("monarch", 0));
        fs::create_dir_all(tier.join("outputs/1/tree")).unwrap();
        fs::write(tier.join("outputs/1/root"), r#"{"root":"/scratch/run"}"#).unwrap();
        fs::set_permissions(&tier, fs::Permissions::from_mode(0o700)).unwrap();
        for configured in [dir.path(), &tier] {
            assert_eq!(read_configured(configured).unwrap().len(), 1, "{configured:?}");
        }
        assert!(read_configured(&dir.path().join("nowhere")).unwrap().is_empty());
    }

    #[test]
    fn a_root_whose_name_is_not_utf_8_is_told_exactly() {
        let (tier, staging) = tier();
        fs::write(staging.join("root"), r#"{"root":"/a�","root_bytes":"2f61ff"}"#).unwrap();
        assert_eq!(read(tier.path()).unwrap()[0].path, Path::new(OsStr::from_bytes(b"/a\xff")));
    }

    #[test]
    fn a_tier_without_outputs_has_none_and_unfinished_directories_are_left_out() {
        let (tier, _) = tier();
        assert!(read(tier.path()).unwrap().is_empty(), "no file `root`");
        assert!(read(&tier.path().join("nowhere")).unwrap().is_empty());
    }
}
