//! Entries that a change reaches by a path that has nothing to do with the root: another name of a
//! hard-linked file, a mount at another place, a container that has the root elsewhere.
//!
//! The device and the inode identify the entry. Directories are few and are searched by inode.
//! A file is searched in the directory that the kernel says it lies in; among all entries only if
//! it has several names, and only in an index that holds such files.

use crate::descriptor_path::real_path;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering};
use monarch_abi::control::MAX_SEGMENTS;
use monarch_abi::demand;
use monarch_abi::resolve::{Found, Parent, child, split_last};
use monarch_abi::segment::Segment;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys;

/// By segment: whether it holds files with several names.
static LINKED: [AtomicU8; MAX_SEGMENTS] = [const { AtomicU8::new(0) }; MAX_SEGMENTS];
const NONE: u8 = 1;
const SOME: u8 = 2;

/// The indexes of roots on a device.
fn indexes(ctx: &Ctx, dev: u64) -> impl Iterator<Item = (usize, usize, &'static Segment<'static>)> {
    let ctx = *ctx;
    ctx::live(ctx)
        .filter(move |&(root, _, _)| ctx.map.roots().get(root).is_some_and(|r| r.dev.load(Ordering::Relaxed) == dev))
}

/// The directory with this inode.
pub(super) fn directory(ctx: &Ctx, dev: u64, ino: u64) -> Option<Found<'static>> {
    indexes(ctx, dev).find_map(|(root, number, segment)| {
        let is = |id: u32| segment.index.record(id).is_some_and(|r| r.ino == ino);
        let dir = segment.index.dirs().iter().find(|d| is(d.id))?;
        Some(Found { root, number, segment, entry: segment.by_id(dir.id)? })
    })
}

/// Whether inodes may find more than paths: not in the agent's mounts, of which one leads to each
/// device.
pub(super) fn may_tell(ctx: &Ctx) -> bool {
    ctx::may_have_other_mounts(ctx.map) || monarch_guest::mounts::any_twice(ctx)
}

/// The directory in which an open file lies, and its entry there.
#[inline(never)]
pub(super) fn parent(ctx: &Ctx, fd: c_int) -> Option<Parent<'static>> {
    let path = real_path(fd)?;
    let (parent, name) = split_last(path.get())?;
    let (dev, ino) = sys::identity_of(parent)?;
    let dir = directory(ctx, dev, ino)?;
    Some(Parent { dir, entry: child(&dir, name) })
}

/// The entry of an open file or directory.
pub(super) fn entry(ctx: &Ctx, fd: c_int, st: &libc::stat64) -> Option<Found<'static>> {
    if st.st_mode & libc::S_IFMT == libc::S_IFDIR {
        return directory(ctx, st.st_dev, st.st_ino);
    }
    let listed = || {
        if !may_tell(ctx) {
            return None;
        }
        parent(ctx, fd)?.entry.filter(|f| f.entry.record.ino == st.st_ino)
    };
    listed().or_else(|| if st.st_nlink > 1 { linked(ctx, st.st_dev, st.st_ino, None) } else { None })
}

/// The entry of a file or directory, wherever it lies: among all of them.
#[cold]
#[inline(never)]
pub(super) fn anywhere(ctx: &Ctx, st: &libc::stat64) -> Option<Found<'static>> {
    if st.st_mode & libc::S_IFMT == libc::S_IFDIR {
        return directory(ctx, st.st_dev, st.st_ino);
    }
    indexes(ctx, st.st_dev).find_map(|(root, number, segment)| {
        let is_it = |id: &u32| segment.index.record(*id).is_some_and(|r| r.ino == st.st_ino && !r.is_dir());
        let id = (0..segment.index.len() as u32).find(is_it)?;
        Some(Found { root, number, segment, entry: segment.by_id(id)? })
    })
}

/// Turns the entries of other roots to Bypass that are names of the same file.
pub(super) fn bypass_other_names(ctx: &Ctx, f: &Found<'static>) {
    if f.entry.record.nlink < 2 || !f.entry.record.is_file() || ctx.map.roots().len() < 2 {
        return;
    }
    let Some(dev) = ctx.map.roots().get(f.root).map(|r| r.dev.load(Ordering::Relaxed)) else { return };
    if let Some(other) = linked(ctx, dev, f.entry.record.ino, Some(f.number)) {
        demand::bypass(ctx.map, &other);
    }
}

/// A name outside of all roots, on the device of one, is about to go or to be replaced: an entry
/// that is another name of the same file has a link less then.
#[inline(never)]
pub(super) fn bypass_link(ctx: &Ctx, dirfd: c_int, path: &[u8], dev: u64) {
    if !may_be_linked(ctx, dev) {
        return;
    }
    // SAFETY: a path of the application, which ends with a NUL.
    let name = unsafe { core::ffi::CStr::from_ptr(path.as_ptr().cast()) };
    let Some(st) = sys::stat_at(dirfd, name, libc::AT_SYMLINK_NOFOLLOW) else { return };
    if st.st_nlink > 1
        && st.st_mode & libc::S_IFMT == libc::S_IFREG
        && let Some(f) = linked(ctx, st.st_dev, st.st_ino, None)
    {
        demand::bypass(ctx.map, &f);
    }
}

/// Whether an index of a root on this device may hold files with several names.
fn may_be_linked(ctx: &Ctx, dev: u64) -> bool {
    indexes(ctx, dev).any(|(_, number, segment)| {
        LINKED.get(number).is_some_and(|flag| match flag.load(Ordering::Relaxed) {
            0 => {
                let any = segment.index.records().iter().any(|r| r.nlink > 1 && r.is_file());
                flag.store(if any { SOME } else { NONE }, Ordering::Relaxed);
                any
            }
            known => known == SOME,
        })
    })
}

/// The entry of a file with several names; not one of the index with number `but`.
fn linked(ctx: &Ctx, dev: u64, ino: u64, but: Option<usize>) -> Option<Found<'static>> {
    indexes(ctx, dev).filter(|&(_, number, _)| Some(number) != but).find_map(|(root, number, segment)| {
        let flag = LINKED.get(number)?;
        if flag.load(Ordering::Relaxed) == NONE {
            return None;
        }
        let mut any = false;
        let found = (0..segment.index.len() as u32).find(|&id| {
            let Some(r) = segment.index.record(id).filter(|r| r.nlink > 1 && r.is_file()) else { return false };
            any = true;
            r.ino == ino
        });
        if !any {
            flag.store(NONE, Ordering::Relaxed);
        } else {
            flag.store(SOME, Ordering::Relaxed);
        }
        Some(Found { root, number, segment, entry: segment.by_id(found?)? })
    })
}
