//! Paths of descriptors where `/proc` is not mounted: the inode shows which entry of the index an
//! open file or directory is. Below a directory that is not in the index no entry lies.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use monarch_abi::PATH_MAX;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::Found;
use monarch_guest::absolute::pfs_path;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys;

fn find(ctx: &Ctx, fd: c_int) -> Option<Found<'static>> {
    let st = sys::fstat(fd)?;
    let on_device = |root: usize| ctx.map.roots().get(root).is_some_and(|r| r.dev.load(Ordering::Relaxed) == st.st_dev);
    let kind = |mode: u32| mode & libc::S_IFMT;
    ctx::live(*ctx).filter(|(root, ..)| on_device(*root)).find_map(|(root, number, segment)| {
        let is_it = |r: &monarch_abi::index::Record| r.ino == st.st_ino && kind(u32::from(r.mode)) == kind(st.st_mode);
        let id = segment.index.records().iter().position(is_it)?;
        let entry = segment.by_id(u32::try_from(id).ok()?)?;
        Some(Found { root, number, segment, entry })
    })
}

/// The path that an open file or directory had when it was indexed; `None` where `/proc` is
/// mounted.
#[cold]
#[inline(never)]
#[must_use]
pub fn path(ctx: &Ctx, fd: c_int) -> Option<PathBuffer> {
    if crate::descriptor_path::has_proc() {
        return None;
    }
    let found = pfs_path(ctx, &find(ctx, fd)?)?;
    let mut path = PathBuffer::front();
    path.append(found.get())?;
    Some(path)
}

/// [`path`], written into `out`; its length.
#[cold]
#[inline(never)]
#[must_use]
pub fn path_into(ctx: &Ctx, fd: c_int, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let found = path(ctx, fd)?;
    let text = found.get();
    // SAFETY: a path is no longer than the buffer.
    unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), out.as_mut_ptr().cast::<u8>(), text.len().min(PATH_MAX)) };
    Some(text.len().min(PATH_MAX))
}
