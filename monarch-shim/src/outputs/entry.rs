//! What the overlay of an output root says of a name.

use super::kernel::{self, Errno};
use super::roots::Root;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::REMOVED_DIR;
use monarch_abi::outputs::names::{Clean, Link, Staged};
use monarch_guest::absolute::Absolute;

/// What the overlay says of a name.
pub enum Entry {
    /// Nothing: the PFS knows.
    Nothing,
    /// A directory of the overlay, which the PFS has, too.
    Directory,
    /// A staged file that is not published.
    File(Staged),
    /// A clean copy.
    Clean(Clean),
    /// The job has removed the name.
    Removed,
    /// The job has removed the directory.
    RemovedDir,
    /// A symbolic link that is not published, with its target.
    Symlink(PathBuffer),
}

impl Entry {
    /// Whether the entry counts as pending.
    pub const fn is_pending(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Directory | Self::Clean(_))
    }

    /// Whether there is a link for it.
    pub const fn is_there(&self) -> bool {
        !matches!(self, Self::Nothing | Self::Directory)
    }
}

/// What the overlay says of the name at a relative path.
pub fn read(root: &Root, rel: &[u8]) -> Result<Entry, Errno> {
    // Names whose paths are too long there go through.
    let Some(mut path) = root.in_tree(rel) else { return Ok(Entry::Nothing) };
    let text = match kernel::read_link(path.c_str().ok_or(libc::ENAMETOOLONG)?) {
        Ok(text) => text,
        Err(libc::EINVAL) => {
            let is_removed = removed_marker(path).is_some_and(|mut p| p.c_str().is_some_and(is_link));
            return Ok(if is_removed { Entry::RemovedDir } else { Entry::Directory });
        }
        Err(_) => return Ok(Entry::Nothing),
    };
    Ok(match Link::parse(text.get()) {
        Some(Link::File(file)) => Entry::File(file),
        Some(Link::Clean(clean)) => Entry::Clean(clean),
        Some(Link::Whiteout) => Entry::Removed,
        Some(Link::Symlink(target)) => {
            let before = text.get().len() - target.len();
            let mut target = text;
            target.skip(before);
            Entry::Symlink(target)
        }
        None => Entry::Nothing,
    })
}

fn is_link(path: &core::ffi::CStr) -> bool {
    kernel::read_link(path).is_ok()
}

fn removed_marker(mut dir: Absolute) -> Option<Absolute> {
    dir.append(REMOVED_DIR.as_bytes())?;
    Some(dir)
}

/// Whether the overlay has a directory at a relative path: then the path has no symbolic links.
pub fn has_dir(root: &Root, rel: &[u8]) -> bool {
    let Some(mut path) = root.in_tree(rel) else { return false };
    path.c_str().and_then(|p| kernel::lstat(p).ok()).is_some_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFDIR)
}
