//! The shell that the FUSE library calls: one line per operation, no logic.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::AtFlags;

use super::Server;
use super::backing::Backing;
use super::meta::{Caller, Change};
use super::{change, dirs, files, meta, xattr};
use crate::counters::Op;

/// Bytes of the largest READ and WRITE; what the kernel allows by default.
const MAX_IO_BYTES: u32 = 1 << 20;
/// Requests without a waiting process, such as read-ahead: a low limit would hide the latency's
/// concurrency.
const MAX_BACKGROUND: u16 = 1024;

/// The file system as the FUSE library sees it.
pub(super) struct Shell {
    pub(super) server: Arc<Server>,
    pub(super) readdirplus: bool,
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid() }
}

impl Shell {
    /// Features wanted of the kernel, as far as it has them: parallel lookups in a directory,
    /// O_TRUNC as part of the open, page cache dropped when attributes show a change, shared
    /// mappings of direct files.
    fn wanted_features(&self) -> Vec<InitFlags> {
        let mut wanted_features = vec![
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        if self.readdirplus {
            wanted_features.extend([InitFlags::FUSE_DO_READDIRPLUS, InitFlags::FUSE_READDIRPLUS_AUTO]);
        }
        wanted_features
    }
}

impl Filesystem for Shell {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each is asked for alone: an older kernel lacks some, and refusals are no error.
        for wish in self.wanted_features() {
            let _ = config.add_capabilities(wish);
        }
        let _ = config.set_max_write(MAX_IO_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.server.backing.counters.call(Op::Forget);
        self.server.backing.nodes.forget(ino, nlookup);
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.server.serve(Op::Lookup, reply, |s| s.path_in(parent, name), |s, _, _| meta::lookup(s, parent, name));
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        self.server.serve(Op::Getattr, reply, |s| s.path_of(ino), |s, _, _| meta::getattr(s, ino, fh));
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { mode, uid, gid, size, atime, mtime };
        self.server.serve(Op::Setattr, reply, |s| s.path_of(ino), |s, _, _| meta::setattr(s, ino, fh, &change));
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.server.serve(Op::Readlink, reply, |s| s.path_of(ino), |s, _, _| meta::readlink(s, ino));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let caller = caller(req);
        let work = |s: &Backing, _: &mut _, _| change::mknod(s, caller, parent, name, mode, rdev);
        self.server.serve(Op::Mknod, reply, |s| s.path_in(parent, name), work);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let caller = caller(req);
        self.server.serve(
            Op::Mkdir,
            reply,
            |s| s.path_in(parent, name),
            |s, _, _| change::mkdir(s, caller, parent, name, mode),
        );
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let work = |s: &Backing, _: &mut _, _| change::remove(s, parent, name, AtFlags::empty());
        self.server.serve(Op::Unlink, reply, |s| s.path_in(parent, name), work);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let work = |s: &Backing, _: &mut _, _| change::remove(s, parent, name, AtFlags::REMOVEDIR);
        self.server.serve(Op::Rmdir, reply, |s| s.path_in(parent, name), work);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let caller = caller(req);
        let work = |s: &Backing, _: &mut _, _| change::symlink(s, caller, parent, name, target);
        self.server.serve(Op::Symlink, reply, |s| s.path_in(parent, name), work);
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let work = |s: &Backing, _: &mut _, _| change::rename(s, (parent, name), (newparent, newname), flags);
        self.server.serve(Op::Rename, reply, |s| s.path_in(parent, name), work);
    }

    fn link(&self, _req: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.server.serve(Op::Link, reply, |s| s.path_of(ino), |s, _, _| change::link(s, ino, newparent, newname));
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.server.serve(Op::Open, reply, |s| s.path_of(ino), |s, _, _| files::open(s, ino, flags.0));
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let work = |s: &Backing, _: &mut _, limit| files::read(s, fh, offset, (size as usize).min(limit));
        self.server.serve(Op::Read, reply, |s| s.path_of(ino), work);
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.server.serve(Op::Write, reply, |s| s.path_of(ino), |s, _, _| files::write(s, fh, offset, data));
    }

    /// Comes only from files opened while option `flush` was on, or from a kernel without
    /// `FOPEN_NOFLUSH` (before 5.16).
    fn flush(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        self.server.serve(Op::Flush, reply, |s| s.path_of(ino), |_, _, _| Ok(()));
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.server.backing.files.remove(fh);
        self.server.serve(Op::Release, reply, |s| s.path_of(ino), |_, _, _| Ok(()));
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.server.serve(Op::Fsync, reply, |s| s.path_of(ino), |s, _, _| files::fsync(s, fh, datasync));
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.server.serve(Op::Opendir, reply, |s| s.path_of(ino), |s, _, _| dirs::opendir(s, ino));
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.server.serve(Op::Readdir, reply, |s| s.path_of(ino), |s, reply, _| dirs::readdir(s, reply, fh, offset));
    }

    fn readdirplus(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        self.server.serve(
            Op::Readdirplus,
            reply,
            |s| s.path_of(ino),
            |s, reply, _| dirs::readdirplus(s, reply, fh, offset),
        );
    }

    fn releasedir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.server.backing.dirs.remove(fh);
        self.server.serve(Op::Releasedir, reply, |s| s.path_of(ino), |_, _, _| Ok(()));
    }

    fn fsyncdir(&self, _req: &Request, ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.server.serve(Op::Fsyncdir, reply, |s| s.path_of(ino), |_, _, _| Ok(()));
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.server.serve(Op::Statfs, reply, |s| s.path_of(ino), |s, _, _| meta::statfs(s, ino));
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.server.serve(
            Op::Setxattr,
            reply,
            |s| s.path_of(ino),
            |s, _, _| xattr::setxattr(s, ino, name, value, flags),
        );
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.server.serve(Op::Getxattr, reply, |s| s.path_of(ino), |s, _, _| xattr::getxattr(s, ino, name, size));
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.server.serve(Op::Listxattr, reply, |s| s.path_of(ino), |s, _, _| xattr::listxattr(s, ino, size));
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.server.serve(Op::Removexattr, reply, |s| s.path_of(ino), |s, _, _| xattr::removexattr(s, ino, name));
    }

    fn access(&self, _req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        self.server.serve(Op::Access, reply, |s| s.path_of(ino), |s, _, _| meta::access(s, ino, mask));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let caller = caller(req);
        let work = |s: &Backing, _: &mut _, _| change::create(s, caller, parent, name, mode, flags);
        self.server.serve(Op::Create, reply, |s| s.path_in(parent, name), work);
    }

    fn ioctl(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        self.server.serve(Op::Ioctl, reply, |s| s.path_of(ino), |_, _, _| Err(Errno::ENOTTY));
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.server.serve(
            Op::Fallocate,
            reply,
            |s| s.path_of(ino),
            |s, _, _| files::fallocate(s, fh, offset, len, mode),
        );
    }

    fn lseek(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.server.serve(Op::Lseek, reply, |s| s.path_of(ino), |s, _, _| files::lseek(s, fh, offset, whence));
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        _ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let work = |s: &Backing, _: &mut _, _| files::copy_file_range(s, (fh_in, offset_in), (fh_out, offset_out), len);
        self.server.serve(Op::CopyFileRange, reply, |s| s.path_of(ino_in), work);
    }
}
