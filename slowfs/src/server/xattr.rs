//! Extended attributes, of the node itself (a link's own too, as far as the backing file system has
//! them).

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fuser::{Errno, INodeNo};
use rustix::fs::{self as sysfs, XattrFlags};

use super::answer::Xattr;
use super::backing::Backing;
use super::sys::{errno, proc_path};

fn node_fd(backing: &Backing, ino: INodeNo) -> Result<Arc<OwnedFd>, Errno> {
    backing.nodes.get(ino)?.fd()
}

pub(super) fn setxattr(backing: &Backing, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32) -> Result<(), Errno> {
    let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
    sysfs::setxattr(proc_path(&node_fd(backing, ino)?), name, value, flags).map_err(errno)
}

pub(super) fn getxattr(backing: &Backing, ino: INodeNo, name: &OsStr, size: u32) -> Result<Xattr, Errno> {
    let fd = node_fd(backing, ino)?;
    let path = proc_path(&fd);
    if size == 0 {
        return sized(sysfs::getxattr_query(path, name));
    }
    filled(size, |buffer| sysfs::getxattr(path, name, buffer))
}

pub(super) fn listxattr(backing: &Backing, ino: INodeNo, size: u32) -> Result<Xattr, Errno> {
    let fd = node_fd(backing, ino)?;
    let path = proc_path(&fd);
    if size == 0 {
        return sized(sysfs::listxattr_query(path));
    }
    filled(size, |buffer| sysfs::listxattr(path, buffer))
}

pub(super) fn removexattr(backing: &Backing, ino: INodeNo, name: &OsStr) -> Result<(), Errno> {
    sysfs::removexattr(proc_path(&node_fd(backing, ino)?), name).map_err(errno)
}

fn sized(length: rustix::io::Result<usize>) -> Result<Xattr, Errno> {
    u32::try_from(length.map_err(errno)?).map(Xattr::Size).map_err(|_| Errno::E2BIG)
}

fn filled(size: u32, read: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Xattr, Errno> {
    let mut buffer = vec![0; size as usize];
    let length = read(&mut buffer).map_err(errno)?;
    buffer.truncate(length);
    Ok(Xattr::Data(buffer))
}
