//! How each kind of reply is sent, so that one path ([`Server::serve`](super::Server::serve)) can
//! serve them all.

use std::time::Duration;

use fuser::{
    Errno, FileAttr, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};
use rustix::fs::StatVfs;

use super::buffer::Buffer;

/// An inode number's generation: nodes pin their inodes, so a number means one file as long as the
/// kernel knows it.
const GENERATION: Generation = Generation(0);

/// A reply that can carry a `T`.
pub(super) trait Answer<T>: Send + 'static {
    /// Sends the result to the kernel.
    fn answer(self, result: Result<T, Errno>);

    /// Bytes of file content in the answer: what the bandwidth is charged for.
    fn payload(_value: &T) -> u64 {
        0
    }

    /// Makes the content zeros.
    fn blank(_value: &mut T) {}
}

/// A directory entry as sent to the kernel.
pub(super) struct Entry {
    pub(super) attr: FileAttr,
    pub(super) attr_ttl: Duration,
    pub(super) entry_ttl: Duration,
}

impl Entry {
    /// For the replies that have room for one time only.
    pub(super) fn ttl(&self) -> Duration {
        self.attr_ttl.min(self.entry_ttl)
    }
}

/// An open file or directory: its handle and the flags for the kernel.
pub(super) struct Opened {
    pub(super) handle: u64,
    pub(super) flags: FopenFlags,
}

/// An extended attribute's value or, when asked with size 0, its length.
pub(super) enum Xattr {
    Size(u32),
    Data(Vec<u8>),
}

macro_rules! answers {
    ($($reply:ty, $value:ty: |$r:ident, $v:ident| $send:expr;)*) => {$(
        impl Answer<$value> for $reply {
            fn answer(self, result: Result<$value, Errno>) {
                let $r = self;
                match result {
                    Ok($v) => $send,
                    Err(errno) => $r.error(errno),
                }
            }
        }
    )*};
}

answers! {
    ReplyEmpty, (): |reply, _v| reply.ok();
    ReplyEntry, Entry: |reply, e| reply.entry_with_ttls(&e.attr_ttl, &e.entry_ttl, &e.attr, GENERATION);
    ReplyAttr, (FileAttr, Duration): |reply, a| reply.attr(&a.1, &a.0);
    ReplyOpen, Opened: |reply, o| reply.opened(fuser::FileHandle(o.handle), o.flags);
    ReplyCreate, (Entry, Opened): |reply, c|
        reply.created(&c.0.ttl(), &c.0.attr, GENERATION, fuser::FileHandle(c.1.handle), c.1.flags);
    ReplyDirectory, (): |reply, _v| reply.ok();
    ReplyDirectoryPlus, (): |reply, _v| reply.ok();
    ReplyLseek, u64: |reply, offset| reply.offset(offset.cast_signed());
    ReplyIoctl, (): |reply, _v| reply.ioctl(0, &[]);
    ReplyXattr, Xattr: |reply, value| match value {
        Xattr::Size(size) => reply.size(size),
        Xattr::Data(data) => reply.data(&data),
    };
    ReplyStatfs, StatVfs: |reply, s| reply.statfs(
        s.f_blocks,
        s.f_bfree,
        s.f_bavail,
        s.f_files,
        s.f_ffree,
        u32::try_from(s.f_bsize).unwrap_or(4096),
        u32::try_from(s.f_namemax).unwrap_or(255),
        u32::try_from(s.f_frsize).unwrap_or(4096),
    );
}

impl Answer<Buffer> for ReplyData {
    fn answer(self, result: Result<Buffer, Errno>) {
        match result {
            Ok(data) => self.data(&data),
            Err(errno) => self.error(errno),
        }
    }

    fn payload(data: &Buffer) -> u64 {
        data.len() as u64
    }

    fn blank(data: &mut Buffer) {
        data.fill(0);
    }
}

impl Answer<u32> for ReplyWrite {
    fn answer(self, result: Result<u32, Errno>) {
        match result {
            Ok(bytes) => self.written(bytes),
            Err(errno) => self.error(errno),
        }
    }

    fn payload(bytes: &u32) -> u64 {
        (*bytes).into()
    }
}
