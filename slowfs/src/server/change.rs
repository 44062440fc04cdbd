//! Changes of the tree: create, remove, rename, link.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use fuser::{Errno, INodeNo, RenameFlags};
use rustix::fs::{self as sysfs, AtFlags, FileType, Mode, OFlags};

use super::answer::{Entry, Opened};
use super::attr::device_number;
use super::backing::Backing;
use super::files;
use super::meta;
use super::meta::Caller;
use super::node::Node;
use super::sys::{errno, proc_path};

fn permissions(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o7777)
}

pub(super) fn create(
    backing: &Backing,
    caller: Caller,
    parent: INodeNo,
    name: &OsStr,
    mode: u32,
    flags: i32,
) -> Result<(Entry, Opened), Errno> {
    let parent = backing.nodes.get(parent)?;
    let parent_fd = &parent.fd()?;
    let oflags =
        OFlags::from_bits_retain((flags & !libc::O_DIRECT).cast_unsigned()) | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match sysfs::openat(parent_fd, name, oflags | OFlags::CREATE | OFlags::EXCL, permissions(mode)) {
        Ok(fd) => {
            meta::give_away(backing, &parent, name, caller)?;
            fd
        }
        // Another client was faster.
        Err(rustix::io::Errno::EXIST) if !oflags.contains(OFlags::EXCL) => {
            sysfs::openat(parent_fd, name, oflags - OFlags::CREATE, Mode::empty()).map_err(errno)?
        }
        Err(error) => return Err(errno(error)),
    };
    let handle_path = proc_path(&fd);
    let path = sysfs::open(handle_path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(errno)?;
    let (node, stat) = meta::enter(backing, path)?;
    let entry = meta::entry(backing, &node, &stat);
    Ok((entry, files::opened(backing, node, fd)))
}

/// Completes a new entry: gives it to its owner and reports it to the kernel.
fn made(backing: &Backing, caller: Caller, parent: &Node, name: &OsStr) -> Result<Entry, Errno> {
    meta::give_away(backing, parent, name, caller)?;
    let (node, stat) = meta::find(backing, parent, name)?;
    Ok(meta::entry(backing, &node, &stat))
}

pub(super) fn mkdir(
    backing: &Backing,
    caller: Caller,
    parent: INodeNo,
    name: &OsStr,
    mode: u32,
) -> Result<Entry, Errno> {
    let parent = backing.nodes.get(parent)?;
    let parent_fd = &parent.fd()?;
    sysfs::mkdirat(parent_fd, name, permissions(mode)).map_err(errno)?;
    made(backing, caller, &parent, name)
}

pub(super) fn mknod(
    backing: &Backing,
    caller: Caller,
    parent: INodeNo,
    name: &OsStr,
    mode: u32,
    rdev: u32,
) -> Result<Entry, Errno> {
    let parent = backing.nodes.get(parent)?;
    let parent_fd = &parent.fd()?;
    let kind = FileType::from_raw_mode(mode);
    sysfs::mknodat(parent_fd, name, kind, permissions(mode), device_number(rdev)).map_err(errno)?;
    made(backing, caller, &parent, name)
}

pub(super) fn symlink(
    backing: &Backing,
    caller: Caller,
    parent: INodeNo,
    name: &OsStr,
    target: &Path,
) -> Result<Entry, Errno> {
    let parent = backing.nodes.get(parent)?;
    let parent_fd = &parent.fd()?;
    sysfs::symlinkat(target, parent_fd, name).map_err(errno)?;
    made(backing, caller, &parent, name)
}

pub(super) fn link(backing: &Backing, ino: INodeNo, parent: INodeNo, name: &OsStr) -> Result<Entry, Errno> {
    let (node, parent) = (backing.nodes.get(ino)?, backing.nodes.get(parent)?);
    let (node_fd, parent_fd) = (node.fd()?, parent.fd()?);
    let path = proc_path(&node_fd);
    sysfs::linkat(sysfs::CWD, path, parent_fd, name, AtFlags::SYMLINK_FOLLOW).map_err(errno)?;
    let (node, stat) = meta::find(backing, &parent, name)?;
    Ok(meta::entry(backing, &node, &stat))
}

pub(super) fn remove(backing: &Backing, parent: INodeNo, name: &OsStr, flags: AtFlags) -> Result<(), Errno> {
    let parent = backing.nodes.get(parent)?;
    let parent_fd = &parent.fd()?;
    removing(backing, &parent, name, || sysfs::unlinkat(parent_fd, name, flags))
}

pub(super) fn rename(
    backing: &Backing,
    (parent, name): (INodeNo, &OsStr),
    (new_parent, new_name): (INodeNo, &OsStr),
    flags: RenameFlags,
) -> Result<(), Errno> {
    let (parent, new_parent) = (backing.nodes.get(parent)?, backing.nodes.get(new_parent)?);
    let (parent_fd, new_parent_fd) = (parent.fd()?, new_parent.fd()?);
    let flags = sysfs::RenameFlags::from_bits_retain(flags.bits());
    removing(backing, &new_parent, new_name, || sysfs::renameat_with(parent_fd, name, new_parent_fd, new_name, flags))
}

/// Does a change that may remove the last name of the file that `name` is now. The kernel knows
/// of it, so the node is not stale.
fn removing(
    backing: &Backing,
    parent: &Node,
    name: &OsStr,
    change: impl FnOnce() -> rustix::io::Result<()>,
) -> Result<(), Errno> {
    let victim = sysfs::statat(parent.fd()?, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let victim = victim.and_then(|stat| backing.nodes.find(&stat));
    // (Before the change: a look beside it finds no name left, too.)
    let was = victim.as_ref().map(|node| node.removed_here.swap(true, Relaxed));
    let done = change().map_err(errno);
    if let (Err(_), Some(node), Some(was)) = (&done, victim, was) {
        node.removed_here.store(was, Relaxed);
    }
    done
}
