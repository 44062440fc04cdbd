//! Extended attributes, of the node itself (a link's own too, as far as the backing file system has
//! them).

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fuser::{Errno, INodeNo};
use rustix::fs::{self as sysfs, XattrFlags};

use super::Server;
use super::answer::Xattr;
use super::sys::{errno, proc_path};

impl Server {
    fn node_fd(&self, ino: INodeNo) -> Result<Arc<OwnedFd>, Errno> {
        self.nodes.get(ino)?.fd()
    }

    pub(super) fn setxattr(&self, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32) -> Result<(), Errno> {
        let flags = XattrFlags::from_bits_retain(flags.cast_unsigned());
        sysfs::setxattr(proc_path(&self.node_fd(ino)?), name, value, flags).map_err(errno)
    }

    pub(super) fn getxattr(&self, ino: INodeNo, name: &OsStr, size: u32) -> Result<Xattr, Errno> {
        let fd = self.node_fd(ino)?;
        let path = proc_path(&fd);
        if size == 0 {
            return sized(sysfs::getxattr_query(path, name));
        }
        filled(size, |buffer| sysfs::getxattr(path, name, buffer))
    }

    pub(super) fn listxattr(&self, ino: INodeNo, size: u32) -> Result<Xattr, Errno> {
        let fd = self.node_fd(ino)?;
        let path = proc_path(&fd);
        if size == 0 {
            return sized(sysfs::listxattr_query(path));
        }
        filled(size, |buffer| sysfs::listxattr(path, buffer))
    }

    pub(super) fn removexattr(&self, ino: INodeNo, name: &OsStr) -> Result<(), Errno> {
        sysfs::removexattr(proc_path(&self.node_fd(ino)?), name).map_err(errno)
    }
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
