//! Content and attributes of files that change, named by path or by descriptor.

use super::by_inode;
use super::bypass::{bypass, bypass_parent, bypass_subtree};
use super::real_path::{each_below_roots, file_at, parent_at, path_in_root};
use super::target::Target;
use crate::descriptor_path::real_path;
use crate::identity::{Facts, copy_of, path_if_there};
use crate::on_demand;
use crate::paths::{find, find_parent};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Found, split_last};
use monarch_abi::word::State;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys;

/// Content or attributes of a file are about to change, named by its path.
#[must_use]
pub fn file_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Target {
    let ctx = &ctx.for_changes();
    if let Ok(f) = find(ctx, dirfd, path, follow)
        && is_known(ctx, &f)
    {
        bypass(ctx, &f);
        by_inode::bypass_other_names(ctx, &f);
        return Target::AsNamed;
    }
    let no = if follow { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: a path of the application, which ends with a NUL.
    let fd = unsafe { sys::open_at(dirfd, path.as_ptr().cast(), libc::O_PATH | libc::O_CLOEXEC | no) };
    let Some(fd) = fd else { return Target::AsNamed };
    let Some(st) = sys::fstat(fd.0) else { return Target::AsNamed };
    if let Some(f) = copy_of(ctx, &Facts::of(&st)) {
        bypass(ctx, &f);
        return Target::of(ctx, &f);
    }
    if let Some(f) = entry_of(ctx, fd.0, &st) {
        bypass(ctx, &f);
    }
    Target::AsNamed
}

/// Whether the name still leads to what the index says: one that has changed may be a link to
/// somewhere else by now, and in other mounts than the agent's another part of the root may lie
/// there.
pub(super) fn is_known(ctx: &Ctx, f: &Found<'static>) -> bool {
    f.entry.word().state() != State::Bypass
        && !ctx::may_have_other_mounts(ctx.map)
        && monarch_guest::guard::is_still_there(ctx, f)
}

/// The entry of an open file, whatever path it was opened by.
fn entry_of(ctx: &Ctx, fd: c_int, st: &libc::stat64) -> Option<Found<'static>> {
    if !ctx.is_root_device(st.st_dev) {
        return None;
    }
    let real = path_in_root(ctx, fd, st.st_dev);
    entry_there(ctx, fd, st, real.as_ref())
}

/// The entry of an open file with this path, if that lies below a root. What a mount has covered is
/// not what lies at its path.
#[inline(never)]
fn entry_there(ctx: &Ctx, fd: c_int, st: &libc::stat64, real: Option<&PathBuffer>) -> Option<Found<'static>> {
    let Some(f) = real.and_then(|real| file_at(ctx, real.get())) else {
        not_at_its_path(ctx, fd, st, real);
        return by_inode::entry(ctx, fd, st);
    };
    if f.entry.record.ino == st.st_ino {
        return Some(f);
    }
    bypass(ctx, &f);
    by_inode::anywhere(ctx, st)
}

/// A file is about to be opened for writing, creating or truncating.
///
/// Gives whether it was found: if not, the descriptor has to be looked at afterwards
/// ([`opened_for_writing`]).
pub fn before_write_open(ctx: &Ctx, dirfd: c_int, path: &[u8], flags: c_int) -> bool {
    let ctx = &ctx.for_changes();
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    let follow =
        flags & libc::O_NOFOLLOW == 0 && flags & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL;
    match find(ctx, dirfd, path, follow) {
        // Size and times of the file change, the listing of its directory does not.
        Ok(f) => {
            let known = is_known(ctx, &f);
            if writes {
                bypass(ctx, &f);
                by_inode::bypass_other_names(ctx, &f);
            }
            known
        }
        Err(_) => {
            if flags & libc::O_CREAT != 0
                && let Ok(p) = find_parent(ctx, dirfd, path)
            {
                bypass_parent(ctx, &p, false);
            }
            false
        }
    }
}

/// What a descriptor that was opened for writing is.
pub enum Opened {
    /// Not a copy.
    Theirs,
    /// A copy, which is not to be written; what it stands for.
    Copy(Target),
}

/// A file was opened for writing under a path that was not found: does it lie below a root all the
/// same? Readers may still see the old state, as the call that opens has not returned.
#[must_use]
pub fn opened_for_writing(ctx: &Ctx, fd: c_int) -> Opened {
    let ctx = &ctx.for_changes();
    let Some(st) = sys::fstat(fd) else { return Opened::Theirs };
    if let Some(f) = copy_that_may_have_changed(ctx, fd, &st) {
        bypass(ctx, &f);
        return Opened::Copy(Target::of(ctx, &f));
    }
    if ctx.is_root_device(st.st_dev) {
        ctx::sync(ctx.map);
        let real = path_in_root(ctx, fd, st.st_dev);
        written(ctx, fd, &st, real.as_ref());
    }
    Opened::Theirs
}

/// Turns what an open file on the device of a root is there to Bypass. `real`: its path, if that
/// lies below a root.
#[inline(never)]
fn written(ctx: &Ctx, fd: c_int, st: &libc::stat64, real: Option<&PathBuffer>) {
    if !entry_written(ctx, fd, st, real) {
        parent_written(ctx, fd, real);
    }
}

#[inline(never)]
fn entry_written(ctx: &Ctx, fd: c_int, st: &libc::stat64, real: Option<&PathBuffer>) -> bool {
    let found = entry_there(ctx, fd, st, real);
    if let Some(f) = &found {
        bypass(ctx, f);
    }
    found.is_some()
}

/// An open file is not what the index has at its path: it may lie in a directory that the index
/// does not hold.
#[inline(never)]
fn not_at_its_path(ctx: &Ctx, fd: c_int, st: &libc::stat64, real: Option<&PathBuffer>) {
    match real {
        Some(real) => on_demand::entry_changes(ctx, real.get()),
        // Another mount may lead there.
        None if by_inode::may_tell(ctx) && on_demand::is_on(ctx) => {
            let note = |path: &[u8]| on_demand::entry_changes(ctx, path);
            let lies = |real: PathBuffer| each_below_roots(ctx, (real.get(), sys::mount_of(fd)), st.st_dev, note);
            if !real_path(fd).is_some_and(lies) {
                on_demand::close(ctx, st.st_dev);
            }
        }
        None => {}
    }
}

#[inline(never)]
fn parent_written(ctx: &Ctx, fd: c_int, real: Option<&PathBuffer>) {
    // (It may have been made by the open.)
    real.iter().for_each(|real| on_demand::name_changes(ctx, real.get(), false));
    if let Some(p) = real.and_then(|real| parent_at(ctx, real.get())) {
        bypass_parent(ctx, &p, false);
    } else if by_inode::may_tell(ctx)
        && let Some(p) = by_inode::parent(ctx, fd)
    {
        bypass_parent(ctx, &p, false);
    }
}

/// The entry of which an open file is a copy, also when the open itself has truncated it: then its
/// name decides.
#[inline(never)]
fn copy_that_may_have_changed(ctx: &Ctx, fd: c_int, st: &libc::stat64) -> Option<Found<'static>> {
    if st.st_mode != libc::S_IFREG | 0o400
        || !ctx.map.tiers().iter().any(|t| t.dev.load(Ordering::Relaxed) == st.st_dev)
    {
        return None;
    }
    let facts = Facts::of(st);
    copy_of(ctx, &facts).or_else(|| {
        let name = copy_name_of(fd)?;
        ctx::live(*ctx).find_map(|(root, number, segment)| {
            let entry = segment.by_copy_name(name)?;
            Some(Found { root, number, segment, entry })
        })
    })
}

/// The name of a copy by the path of its descriptor. Of one that was evicted it is followed by
/// more.
fn copy_name_of(fd: c_int) -> Option<monarch_abi::hash::CopyName> {
    const LEN: usize = 32;
    let mut path = PathBuffer::front();
    // SAFETY: as many bytes are written as it says.
    unsafe { path.fill(|out| crate::descriptor_path::path_even_if_removed(fd, out)) }?;
    let (_, name) = split_last(path.get())?;
    monarch_abi::hash::CopyName::parse(name.get(..LEN)?)
}

/// What an open file is.
pub enum OpenFile {
    /// A copy of the file at this path.
    Copy(monarch_guest::absolute::Absolute),
    /// A copy of a file that is no longer where it was; whether a job has removed it.
    Orphan(bool),
    /// No copy.
    Other,
}

/// Attributes of an open file are about to change: of a copy, they have to be changed on the PFS.
pub fn descriptor_changes(ctx: &Ctx, fd: c_int) -> OpenFile {
    let Some(f) = crate::identity::copy_of_fd(ctx, fd) else {
        let _ = opened_for_writing(ctx, fd);
        return OpenFile::Other;
    };
    bypass(ctx, &f);
    path_if_there(ctx, &f).map_or_else(|| OpenFile::Orphan(f.entry.word().is_gone()), OpenFile::Copy)
}

/// A directory is about to become unsearchable: calls about what lies below it go to the kernel.
pub fn hide_below(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    let ctx = &ctx.for_changes();
    let found = find(ctx, dirfd, path, true).ok().filter(|f| is_known(ctx, f));
    let found = found.or_else(|| {
        // SAFETY: a path of the application, which ends with a NUL.
        let fd = unsafe { sys::open_at(dirfd, path.as_ptr().cast(), libc::O_PATH | libc::O_CLOEXEC) }?;
        entry_of(ctx, fd.0, &sys::fstat(fd.0)?)
    });
    match found {
        Some(f) => bypass_subtree(ctx, &f),
        None => hide_not_held(ctx, dirfd, path),
    }
}

/// [`hide_below`] for a directory that the index does not hold.
#[cold]
#[inline(never)]
fn hide_not_held(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    if !on_demand::is_on(ctx) {
        return;
    }
    // SAFETY: a path of the application, which ends with a NUL.
    let fd = unsafe { sys::open_at(dirfd, path.as_ptr().cast(), libc::O_PATH | libc::O_CLOEXEC) };
    if let Some(fd) = fd {
        hide_not_held_open(ctx, fd.0);
    }
}

#[cold]
#[inline(never)]
fn hide_not_held_open(ctx: &Ctx, fd: c_int) {
    if !on_demand::is_on(ctx) {
        return;
    }
    let is_dir = |st: &libc::stat64| st.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let Some(st) = sys::fstat(fd).filter(|st| is_dir(st) && ctx.is_root_device(st.st_dev)) else { return };
    let mut is_below = path_in_root(ctx, fd, st.st_dev).is_some();
    let note = |_: &[u8]| is_below = true;
    let lies = |real: PathBuffer| each_below_roots(ctx, (real.get(), sys::mount_of(fd)), st.st_dev, note);
    let is_told = !by_inode::may_tell(ctx) || real_path(fd).is_some_and(lies);
    if is_below || !is_told {
        on_demand::close(ctx, st.st_dev);
    }
}

/// [`hide_below`] for an open directory.
pub fn hide_below_open(ctx: &Ctx, fd: c_int) {
    let ctx = &ctx.for_changes();
    let Some(st) = sys::fstat(fd) else { return };
    match entry_of(ctx, fd, &st) {
        Some(f) => bypass_subtree(ctx, &f),
        None => hide_not_held_open(ctx, fd),
    }
}
