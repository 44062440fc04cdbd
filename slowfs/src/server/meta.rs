//! Lookups and attributes.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fuser::{AccessFlags, Errno, FileAttr, INodeNo, TimeOrNow};
use rustix::fs::{self as sysfs, AtFlags, Mode, OFlags, Stat, StatVfs, Timestamps};
use rustix::process::{Gid, Uid};

use super::answer::Entry;
use super::attr::{attributes, timespec};
use super::backing::Backing;
use super::buffer::Buffer;
use super::node::Node;
use super::sys::{errno, proc_path};

/// User and group of the calling process.
#[derive(Clone, Copy)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// What a SETATTR asks for.
pub(super) struct Change {
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) atime: Option<TimeOrNow>,
    pub(super) mtime: Option<TimeOrNow>,
}

pub(super) fn lookup(backing: &Backing, parent: INodeNo, name: &OsStr) -> Result<Entry, Errno> {
    let parent = backing.nodes.get(parent)?;
    let (node, stat) = find(backing, &parent, name)?;
    node.counts(&backing.paths).lookups.fetch_add(1, Relaxed);
    Ok(entry(backing, &node, &stat))
}

/// The node of a name, with one more reference by the kernel.
pub(super) fn find(backing: &Backing, parent: &Node, name: &OsStr) -> Result<(Arc<Node>, Stat), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = sysfs::openat(parent.fd()?, name, flags, Mode::empty()).map_err(errno)?;
    enter(backing, fd)
}

/// The node of an `O_PATH` descriptor, with one more reference by the kernel.
pub(super) fn enter(backing: &Backing, fd: OwnedFd) -> Result<(Arc<Node>, Stat), Errno> {
    let stat = sysfs::fstat(&fd).map_err(errno)?;
    Ok((backing.nodes.enter(fd, &stat), stat))
}

/// The attributes of a node as the kernel is to keep them, and for how long.
pub(super) fn entry(backing: &Backing, node: &Node, stat: &Stat) -> Entry {
    node.sends(stat);
    Entry {
        attr: attributes(stat, node.number),
        attr_ttl: backing.options.attr_ttl(),
        entry_ttl: backing.options.entry_ttl(),
    }
}

/// Attributes of the present inode. An inode that was removed behind the mount's back is
/// `ESTALE`, which sends the kernel back to the name, unless a process has it open: the request
/// may be that process's `fstat`, which FUSE does not distinguish.
pub(super) fn getattr(
    backing: &Backing,
    ino: INodeNo,
    handle: Option<fuser::FileHandle>,
) -> Result<(FileAttr, Duration), Errno> {
    let node = backing.nodes.get(ino)?;
    let stat = match handle {
        Some(handle) => sysfs::fstat(&backing.files.get(handle)?.fd),
        None => sysfs::fstat(node.fd()?),
    };
    let stat = stat.map_err(errno)?;
    if handle.is_none() && node.is_stale(&stat) && node.open.load(Relaxed) == 0 {
        return Err(Errno::ESTALE);
    }
    node.counts(&backing.paths).getattrs.fetch_add(1, Relaxed);
    node.sends(&stat);
    Ok((attributes(&stat, node.number), backing.options.attr_ttl()))
}

pub(super) fn setattr(
    backing: &Backing,
    ino: INodeNo,
    handle: Option<fuser::FileHandle>,
    change: &Change,
) -> Result<(FileAttr, Duration), Errno> {
    let node = backing.nodes.get(ino)?;
    let fd = node.fd()?;
    let path = proc_path(&fd);
    if change.uid.is_some() || change.gid.is_some() {
        let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
        sysfs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
    }
    if let Some(mode) = change.mode {
        sysfs::chmod(&path, Mode::from_raw_mode(mode & 0o7777)).map_err(errno)?;
    }
    if let Some(size) = change.size {
        truncate(backing, &path, handle, size)?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        let times = Timestamps { last_access: timespec(change.atime), last_modification: timespec(change.mtime) };
        sysfs::utimensat(sysfs::CWD, &path, &times, AtFlags::empty()).map_err(errno)?;
    }
    let stat = sysfs::fstat(&fd).map_err(errno)?;
    node.sends(&stat);
    Ok((attributes(&stat, node.number), backing.options.attr_ttl()))
}

fn truncate(backing: &Backing, path: &str, handle: Option<fuser::FileHandle>, size: u64) -> Result<(), Errno> {
    match handle {
        Some(handle) => sysfs::ftruncate(&backing.files.get(handle)?.fd, size),
        None => {
            sysfs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).and_then(|fd| sysfs::ftruncate(fd, size))
        }
    }
    .map_err(errno)
}

pub(super) fn readlink(backing: &Backing, ino: INodeNo) -> Result<Buffer, Errno> {
    let node = backing.nodes.get(ino)?;
    let target = sysfs::readlinkat(node.fd()?, "", Vec::with_capacity(256)).map_err(errno)?;
    Ok(target.into_bytes().into())
}

pub(super) fn access(backing: &Backing, ino: INodeNo, mask: AccessFlags) -> Result<(), Errno> {
    let access = sysfs::Access::from_bits_truncate(mask.bits().cast_unsigned());
    let fd = backing.nodes.get(ino)?.fd()?;
    sysfs::access(proc_path(&fd), access).map_err(errno)
}

pub(super) fn statfs(backing: &Backing, ino: INodeNo) -> Result<StatVfs, Errno> {
    sysfs::fstatvfs(backing.nodes.get(ino)?.fd()?).map_err(errno)
}

/// Gives a new entry to the user who asked for it, as far as this process may.
pub(super) fn give_away(backing: &Backing, parent: &Node, name: &OsStr, caller: Caller) -> Result<(), Errno> {
    if !backing.give_away || (caller.uid, caller.gid) == (0, 0) {
        return Ok(());
    }
    let parent = parent.fd()?;
    let inherits_group = sysfs::fstat(&parent).map_err(errno)?.st_mode & libc::S_ISGID != 0;
    let gid = (!inherits_group).then(|| Gid::from_raw(caller.gid));
    let uid = Some(Uid::from_raw(caller.uid));
    sysfs::chownat(&parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)
}
