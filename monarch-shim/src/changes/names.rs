//! Names that appear, disappear, are replaced or move: the entry and the listing of its directory
//! are the kernel's from then on.

use super::by_inode;
use super::bypass::bypass_parent;
use super::files::is_known;
use super::real_path::{each_below_roots, parent_at, real_path_in_root};
use crate::descriptor_path::real_path;
use crate::on_demand;
use crate::paths::find_parent;
use core::ffi::c_int;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Parent, split_named};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys;

/// A name is about to be created, removed, replaced, or, with all that may lie below it, moved. A
/// directory that is removed is empty: whatever was below it has changed already.
pub fn name_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], moves: bool) {
    let ctx = &ctx.for_changes();
    // A directory that the job replaced may be a link to another one by now.
    if !known_name_changes(ctx, dirfd, path, moves) {
        other_name_changes(ctx, dirfd, path, moves);
    }
}

/// [`name_changes`] for an absolute path without links, whose directory the kernel has just found,
/// on this device if that is known. Unlike that, it asks the PFS nothing where no root is
/// concerned.
pub fn real_name_changes(ctx: &Ctx, dev: Option<u64>, path: &[u8], moves: bool) {
    let now = &ctx.for_changes();
    if dev.is_some_and(|dev| !now.is_root_device(dev)) {
        return;
    }
    ctx::sync(now.map);
    if parent_at(now, path).is_some() || by_inode::may_tell(now) {
        name_changes(ctx, libc::AT_FDCWD, path, moves);
    } else {
        on_demand::name_changes(now, path, moves);
    }
}

/// [`name_changes`] by the index; whether the index certainly knows the name.
#[inline(never)]
fn known_name_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], moves: bool) -> bool {
    let Ok(p) = find_parent(ctx, dirfd, path) else { return false };
    let known = is_known(ctx, &p.dir);
    if p.entry.is_none()
        && let Some((_, name)) = split_named(path)
    {
        on_demand::name_in_changes(ctx, &p.dir, name, moves);
    }
    bypass_parent(ctx, &p, moves);
    known
}

/// [`name_changes`] as the kernel finds the directory: through links, other mounts, and where only
/// the descriptor says where it is.
#[inline(never)]
fn other_name_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], moves: bool) {
    let Some((parent, name)) = split_named(path) else { return };
    let Some(place) = place_of(ctx, dirfd, parent, name) else { return };
    ctx::sync(ctx.map);
    let at_path = bypass_at(ctx, &place, moves);
    let by_inode = || {
        (at_path == AtPath::Another || place.real.is_none() || by_inode::may_tell(ctx))
            && bypass_in(ctx, &place, name, moves)
    };
    if at_path != AtPath::Same && !by_inode() {
        by_inode::bypass_link(ctx, dirfd, path, place.dev);
        note_not_held(ctx, dirfd, (parent, name), &place, moves);
    }
}

/// A name may lie in a directory that the index does not hold, by another way than its path tells.
/// `parent` is the directory of `place`.
#[cold]
#[inline(never)]
fn note_not_held(ctx: &Ctx, dirfd: c_int, (parent, name): (&[u8], &[u8]), place: &Place, moves: bool) {
    if !on_demand::is_on(ctx) || place.real.is_some() && !by_inode::may_tell(ctx) {
        return;
    }
    if note_by_mount(ctx, dirfd, (parent, name), place, moves).is_none() {
        on_demand::close(ctx, place.dev);
    }
}

/// [`note_not_held`] as far as the table of mounts tells where the directory lies.
#[inline(never)]
fn note_by_mount(ctx: &Ctx, dirfd: c_int, (parent, name): (&[u8], &[u8]), place: &Place, moves: bool) -> Option<()> {
    let mut text = PathBuffer::front();
    text.append(if parent.is_empty() { b"." } else { parent })?;
    // SAFETY: a C string.
    let fd = unsafe { sys::open_at(dirfd, text.c_str()?.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }?;
    sys::fstat(fd.0).filter(|st| (st.st_dev, st.st_ino) == (place.dev, place.ino))?;
    let mut path = real_path(fd.0)?;
    if path.get() != b"/" {
        path.append(b"/")?;
    }
    path.append(name)?;
    let note = |path: &[u8]| on_demand::name_changes(ctx, path, moves);
    each_below_roots(ctx, (path.get(), sys::mount_of(fd.0)), place.dev, note).then_some(())
}

/// What the index has at the path of a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtPath {
    /// The directory.
    Same,
    /// Another one, over which a mount of this process lies.
    Another,
    Nothing,
}

/// Turns the name of a place and the listing of its directory to Bypass, as far as they are found
/// by its path.
#[inline(never)]
fn bypass_at(ctx: &Ctx, place: &Place, moves: bool) -> AtPath {
    let Some(real) = &place.real else { return AtPath::Nothing };
    let found = parent_at(ctx, real.get());
    if found.as_ref().is_none_or(|p| p.entry.is_none()) {
        on_demand::name_changes(ctx, real.get(), moves);
    }
    let Some(p) = found else { return AtPath::Nothing };
    bypass_parent(ctx, &p, moves);
    if p.dir.entry.record.ino == place.ino { AtPath::Same } else { AtPath::Another }
}

/// The same by the inode of the directory.
#[inline(never)]
fn bypass_in(ctx: &Ctx, place: &Place, name: &[u8], moves: bool) -> bool {
    let Some(dir) = by_inode::directory(ctx, place.dev, place.ino) else { return false };
    bypass_parent(ctx, &Parent { dir, entry: monarch_abi::resolve::child(&dir, name) }, moves);
    true
}

/// A directory on the device of a root, and the path of a name in it.
struct Place {
    dev: u64,
    ino: u64,
    real: Option<PathBuffer>,
}

#[inline(never)]
fn place_of(ctx: &Ctx, dirfd: c_int, parent: &[u8], name: &[u8]) -> Option<Place> {
    let mut text = PathBuffer::front();
    text.append(if parent.is_empty() { b"." } else { parent })?;
    let parent = text.c_str()?;
    // Most names lie elsewhere: one call decides.
    let (dev, ino) = sys::identity_at(dirfd, parent).filter(|(dev, _)| ctx.is_root_device(*dev))?;
    // SAFETY: a C string.
    let fd = unsafe { sys::open_at(dirfd, parent.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }?;
    let mut real = real_path_in_root(ctx, fd.0, dev);
    if let Some(path) = &mut real {
        if path.get() != b"/" {
            path.append(b"/")?;
        }
        path.append(name)?;
    }
    Some(Place { dev, ino, real })
}
