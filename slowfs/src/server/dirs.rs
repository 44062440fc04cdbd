//! Directories: opening and listing.

use std::os::unix::fs::DirEntryExt;
use std::sync::{Arc, Mutex};

use fuser::{Errno, FileType, FopenFlags, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};
use rustix::fs as sysfs;

use super::answer::Opened;
use super::attr::{attributes, kind};
use super::backing::Backing;
use super::files;
use super::handle::{DirHandle, Listed};
use super::meta;
use super::node::Node;
use super::sys::{errno, proc_path};
use crate::lock::lock;

pub(super) fn opendir(backing: &Backing, ino: INodeNo) -> Result<Opened, Errno> {
    let node = backing.nodes.get(ino)?;
    let stat = sysfs::fstat(node.fd()?).map_err(errno)?;
    if node.is_stale(&stat) {
        return Err(Errno::ESTALE);
    }
    files::revalidate(backing, &node, &stat);
    let entries = Mutex::default();
    Ok(Opened { handle: backing.dirs.add(DirHandle { node, entries }), flags: FopenFlags::empty() })
}

/// The entries of an open directory; reading from the start lists it again.
fn entries(
    backing: &Backing,
    handle: fuser::FileHandle,
    offset: u64,
) -> Result<(Arc<DirHandle>, Arc<Vec<Listed>>), Errno> {
    let dir = backing.dirs.get(handle)?;
    if offset == 0 {
        *lock(&dir.entries) = Arc::new(list(&dir.node)?);
    }
    let entries = Arc::clone(&lock(&dir.entries));
    Ok((dir, entries))
}

pub(super) fn readdir(
    backing: &Backing,
    reply: &mut ReplyDirectory,
    handle: fuser::FileHandle,
    offset: u64,
) -> Result<(), Errno> {
    let (_, entries) = entries(backing, handle, offset)?;
    for (next, entry) in rest(&entries, offset) {
        if reply.add(INodeNo(entry.ino), next, entry.kind, &entry.name) {
            break;
        }
    }
    Ok(())
}

/// Each entry sent is a lookup: the kernel holds a reference on its node, except for `.` and
/// `..`.
pub(super) fn readdirplus(
    backing: &Backing,
    reply: &mut ReplyDirectoryPlus,
    handle: fuser::FileHandle,
    offset: u64,
) -> Result<(), Errno> {
    let (dir, entries) = entries(backing, handle, offset)?;
    let own = sysfs::fstat(dir.node.fd()?).map_err(errno)?;
    let mut sent = false;
    for (next, listed) in rest(&entries, offset) {
        if listed.name == "." || listed.name == ".." {
            let attr = attributes(&own, listed.ino);
            if reply.add(INodeNo(listed.ino), next, &listed.name, &Default::default(), &attr, Generation(0)) {
                break;
            }
            sent = true;
            continue;
        }
        let (node, stat) = match meta::find(backing, &dir.node, &listed.name) {
            Ok(found) => found,
            // The entry vanished since the listing.
            Err(error) if error == Errno::ENOENT => continue,
            // The next request begins here and has nothing but the error to report.
            Err(_) if sent => break,
            Err(error) => return Err(error),
        };
        let entry = meta::entry(backing, &node, &stat);
        let number = INodeNo(node.number);
        if reply.add(number, next, &listed.name, &entry.ttl(), &entry.attr, Generation(0)) {
            backing.nodes.forget(number, 1);
            break;
        }
        sent = true;
    }
    Ok(())
}

/// The entries from `offset` on, each with the offset that follows it.
fn rest(entries: &[Listed], offset: u64) -> impl Iterator<Item = (u64, &Listed)> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(entries.len());
    (offset + 1..).zip(&entries[start..])
}

fn list(node: &Node) -> Result<Vec<Listed>, Errno> {
    let fd = node.fd()?;
    let above = sysfs::statat(&fd, "..", sysfs::AtFlags::empty()).map_or(node.number, |stat| stat.st_ino);
    let dot = |ino, name: &str| Listed { ino, kind: FileType::Directory, name: name.into() };
    let mut entries = vec![dot(node.number, "."), dot(above, "..")];
    for entry in std::fs::read_dir(proc_path(&fd))? {
        let entry = entry?;
        let kind = entry.file_type().ok().and_then(FileType::from_std).unwrap_or_else(|| kind(0));
        entries.push(Listed { ino: entry.ino(), kind, name: entry.file_name() });
    }
    Ok(entries)
}
