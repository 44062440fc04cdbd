//! Open files: open, read, write and the other calls that need a descriptor.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fuser::{Errno, FopenFlags, INodeNo};
use rustix::fs::{self as sysfs, Mode, OFlags, SeekFrom, Stat};

use super::answer::Opened;
use super::backing::Backing;
use super::buffer::Buffer;
use super::handle::FileHandle;
use super::node::Node;
use super::sys::{errno, proc_path};
use crate::mutation;
use crate::options::CacheMode;

/// Open flags that the kernel alone handles, or that are wrong on a magic link. `O_DIRECT` would
/// demand aligned buffers.
const KERNEL_ONLY_FLAGS: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_NOFOLLOW | libc::O_DIRECT;

pub(super) fn open(backing: &Backing, ino: INodeNo, flags: i32) -> Result<Opened, Errno> {
    let node = backing.nodes.get(ino)?;
    let path_fd = node.fd()?;
    let stat = sysfs::fstat(&path_fd).map_err(errno)?;
    if node.is_stale(&stat) {
        return Err(Errno::ESTALE);
    }
    let oflags = OFlags::from_bits_retain((flags & !KERNEL_ONLY_FLAGS).cast_unsigned()) | OFlags::CLOEXEC;
    let fd = sysfs::open(proc_path(&path_fd), oflags, Mode::empty()).map_err(errno)?;
    if flags & libc::O_TRUNC == 0 {
        revalidate(backing, &node, &stat);
    }
    let opened = opened(backing, node, fd);
    mutate_due(backing, false, || backing.path_of(ino));
    Ok(opened)
}

/// Registers an open descriptor.
pub(super) fn opened(backing: &Backing, node: Arc<Node>, fd: std::os::fd::OwnedFd) -> Opened {
    let counts = node.fresh_counts(&backing.paths);
    counts.opens.fetch_add(1, Relaxed);
    node.open.fetch_add(1, Relaxed);
    Opened { handle: backing.files.add(FileHandle { fd, node, counts }), flags: open_flags(backing) }
}

fn open_flags(backing: &Backing) -> FopenFlags {
    let cache = match backing.options.cache() {
        CacheMode::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        CacheMode::NoKeep => FopenFlags::empty(),
        CacheMode::Keep => FopenFlags::FOPEN_KEEP_CACHE,
    };
    if backing.options.flush() { cache } else { cache | FopenFlags::FOPEN_NOFLUSH }
}

/// Close-to-open: if the kernel has other attributes than these, it must ask again. (Attributes
/// only: pages go when the kernel sees the new ones.)
pub(super) fn revalidate(backing: &Backing, node: &Node, stat: &Stat) {
    if let (true, Some(notifier)) = (node.sends(stat), backing.notifier.get()) {
        // Fails when the kernel has dropped the inode meanwhile: then there is nothing to
        // invalidate.
        let _ = notifier.inval_inode(INodeNo(node.number), -1, 0);
    }
}

pub(super) fn read(backing: &Backing, handle: fuser::FileHandle, offset: u64, size: usize) -> Result<Buffer, Errno> {
    let file = backing.files.get(handle)?;
    file.counts.reads.fetch_add(1, Relaxed);
    let data = Buffer::fill(size, |memory| pread_all(&file, memory, offset))?;
    let bytes = data.len() as u64;
    file.counts.bytes_read.fetch_add(bytes, Relaxed);
    backing.counters.bytes_read.fetch_add(bytes, Relaxed);
    mutate_due(backing, true, || file.node.path(&backing.paths));
    Ok(data)
}

pub(super) fn write(backing: &Backing, handle: fuser::FileHandle, offset: u64, data: &[u8]) -> Result<u32, Errno> {
    let file = backing.files.get(handle)?;
    file.counts.writes.fetch_add(1, Relaxed);
    // On a descriptor with O_APPEND Linux appends whatever the offset, so a stale size in the
    // kernel does no harm.
    let bytes = rustix::io::pwrite(&file.fd, data, offset).map_err(errno)?;
    file.counts.bytes_written.fetch_add(bytes as u64, Relaxed);
    backing.counters.bytes_written.fetch_add(bytes as u64, Relaxed);
    u32::try_from(bytes).map_err(|_| Errno::EIO)
}

pub(super) fn fsync(backing: &Backing, handle: fuser::FileHandle, data_only: bool) -> Result<(), Errno> {
    let file = backing.files.get(handle)?;
    if data_only { sysfs::fdatasync(&file.fd) } else { sysfs::fsync(&file.fd) }.map_err(errno)
}

pub(super) fn fallocate(
    backing: &Backing,
    handle: fuser::FileHandle,
    offset: u64,
    len: u64,
    mode: i32,
) -> Result<(), Errno> {
    let mode = sysfs::FallocateFlags::from_bits_retain(mode.cast_unsigned());
    sysfs::fallocate(&backing.files.get(handle)?.fd, mode, offset, len).map_err(errno)
}

pub(super) fn lseek(backing: &Backing, handle: fuser::FileHandle, offset: i64, whence: i32) -> Result<u64, Errno> {
    let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
    let position = match whence {
        libc::SEEK_DATA => SeekFrom::Data(offset),
        libc::SEEK_HOLE => SeekFrom::Hole(offset),
        _ => return Err(Errno::EINVAL),
    };
    sysfs::seek(&backing.files.get(handle)?.fd, position).map_err(errno)
}

pub(super) fn copy_file_range(
    backing: &Backing,
    (from, mut from_offset): (fuser::FileHandle, u64),
    (to, mut to_offset): (fuser::FileHandle, u64),
    len: u64,
) -> Result<u32, Errno> {
    let (from, to) = (backing.files.get(from)?, backing.files.get(to)?);
    let len = usize::try_from(len).unwrap_or(usize::MAX).min(1 << 30);
    let copied = sysfs::copy_file_range(&from.fd, Some(&mut from_offset), &to.fd, Some(&mut to_offset), len);
    u32::try_from(copied.map_err(errno)?).map_err(|_| Errno::EIO)
}

/// Does the mutations that are due.
fn mutate_due(backing: &Backing, read: bool, path: impl FnOnce() -> Option<String>) {
    for spec in backing.armed.due(read, path) {
        if let Err(error) = mutation::apply(&backing.root, &spec) {
            // Standard error may be closed: the mount survives that.
            let _ = writeln!(io::stderr(), "slowfs: {:?} of {}: {error}", spec.kind, spec.path);
        }
    }
}

/// Reads until `memory` is full or the file ends: to the kernel a short answer means the end.
fn pread_all(file: &FileHandle, memory: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < memory.len() {
        match rustix::io::pread(&file.fd, &mut memory[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(errno(error)),
        }
    }
    Ok(done)
}
