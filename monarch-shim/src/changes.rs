//! What the job changes below a root.
//!
//! Before a changing call is passed on, the entry and the listing of its directory turn to Bypass, for all processes of the
//! node at once: reads then see what the kernel sees. Bypass is set even if the call fails in the end; that costs hits,
//! never truth. Paths that lead into a root under another spelling are found by the device of their parent directory.

use crate::ctx::Ctx;
use crate::paths::{absolute, find, find_parent, is_root_device, on_root_device, real_path};
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::PATH_MAX;
use monarch_abi::demand::ring_the_bell;
use monarch_abi::resolve::{Found, Miss, Parent, resolve, resolve_parent, split_last};
use monarch_abi::sys::futex_wake;
use monarch_abi::word::{State, Word};

/// Turns one entry to Bypass and tells readers who wait and the agent.
pub fn bypass(ctx: &Ctx, f: &Found<'static>) {
    let word = &f.entry.master.word;
    let mut now = Word(word.load(Ordering::Acquire));
    while now.state() != State::Bypass {
        match word.compare_exchange_weak(now.0, now.next(State::Bypass).0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                futex_wake(word, u32::MAX >> 1);
                if f.entry.record.is_file() {
                    f.segment.state.raise(f.entry.master.id);
                    ring_the_bell(ctx.map.ctl);
                }
                return;
            }
            Err(seen) => now = Word(seen),
        }
    }
}

/// Bypasses a whole subtree: directories that are renamed or removed.
fn bypass_subtree(ctx: &Ctx, f: &Found<'static>) {
    if let Some(d) = f.segment.index.dir(f.entry.record)
        && !ctx.map.bypass_range(f.number as u32, d.id, d.end)
    {
        f.segment.state.header.bypassed.store(1, Ordering::Release);
    }
}

fn bypass_parent(ctx: &Ctx, p: &Parent<'static>, subtree: bool) {
    bypass(ctx, &p.dir);
    if let Some(entry) = &p.entry {
        bypass(ctx, entry);
        if subtree && entry.entry.record.is_dir() {
            bypass_subtree(ctx, entry);
        }
    }
}

/// A name is about to be created, removed, replaced or moved.
pub fn name_changes(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    match find_parent(ctx, dirfd, path) {
        Ok(p) => bypass_parent(ctx, &p, true),
        Err(Miss::Outside) => {
            if let Some(p) = find_parent_by_device(ctx, dirfd, path) {
                bypass_parent(ctx, &p, true);
            }
        }
        Err(_) => {}
    }
}

/// The parent of a path that does not look like one of ours but may lead into a root through a link or another mount.
fn find_parent_by_device(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Parent<'static>> {
    let abs = absolute(ctx, dirfd, path)?;
    let (parent, name) = split_last(abs.get())?;
    let st = sys::stat_bytes(parent, 0)?;
    if !is_root_device(ctx, st.st_dev) {
        return None;
    }
    let fd = sys::open_bytes(parent, libc::O_PATH | libc::O_CLOEXEC)?;
    let mut real = real_path(fd.0)?;
    real.append(b"/")?;
    real.append(name)?;
    resolve_parent(ctx.map, ctx, real.get()).ok()
}

/// Content or attributes of a file are about to change, named by its path.
pub fn file_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) {
    match find(ctx, dirfd, path, follow) {
        Ok(f) => bypass(ctx, &f),
        Err(Miss::Outside) => {
            if let Some(f) = find_by_device(ctx, dirfd, path, follow) {
                bypass(ctx, &f);
            }
        }
        Err(_) => {}
    }
}

/// The entry of a path that does not look like one of ours.
fn find_by_device(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Found<'static>> {
    let abs = absolute(ctx, dirfd, path)?;
    let st = sys::stat_bytes(abs.get(), if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW })?;
    if !is_root_device(ctx, st.st_dev) {
        return None;
    }
    let no = if follow { 0 } else { libc::O_NOFOLLOW };
    let fd = sys::open_bytes(abs.get(), libc::O_PATH | libc::O_CLOEXEC | no)?;
    resolve(ctx.map, ctx, real_path(fd.0)?.get(), false).ok()
}

/// A file is about to be opened for writing, creating or truncating.
///
/// Gives whether it was found: if not, the descriptor has to be looked at afterwards ([`opened_for_writing`]).
pub fn before_write_open(ctx: &Ctx, dirfd: c_int, path: &[u8], flags: c_int) -> bool {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    let follow =
        flags & libc::O_NOFOLLOW == 0 && flags & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL;
    match find(ctx, dirfd, path, follow) {
        Ok(f) => {
            if writes {
                bypass(ctx, &f);
                // The size and times that a listing's caller would stat change, the listing itself does not.
            }
            true
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

/// A file was opened for writing under a path that was not found: does it lie below a root all the same?
pub fn opened_for_writing(ctx: &Ctx, fd: c_int) {
    if fd < 0 || !on_root_device(ctx, fd) {
        return;
    }
    let Some(real) = real_path(fd) else { return };
    let path = real.get();
    match resolve(ctx.map, ctx, path, false) {
        Ok(f) => bypass(ctx, &f),
        Err(_) => {
            if let Ok(p) = resolve_parent(ctx.map, ctx, path) {
                bypass_parent(ctx, &p, false);
            }
        }
    }
}

/// Attributes of an open file are about to change. If it is a copy, the path on the PFS to which the change has to be applied
/// is given.
pub fn descriptor_changes(ctx: &Ctx, fd: c_int) -> Option<crate::paths::Absolute> {
    if let Some(f) = crate::identity::copy_of_fd(ctx, fd) {
        bypass(ctx, &f);
        return pfs_path(ctx, &f);
    }
    opened_for_writing(ctx, fd);
    None
}

/// The path on the PFS of an entry.
#[must_use]
pub fn pfs_path(ctx: &Ctx, f: &Found<'static>) -> Option<crate::paths::Absolute> {
    let mut rel = [0u8; PATH_MAX];
    let len = f.segment.index.path(f.entry.id, &mut rel)?;
    let root = ctx.map.roots().get(f.root)?;
    crate::paths::Absolute::join(ctx.map.str(&root.path), rel.get(..len)?)
}

/// `/proc/self/fd/N`, `/dev/fd/N` and `/proc/PID/fd/N` opened for writing, where N is a copy: the write must go to the PFS. A
/// copy is 0400, but that does not stop root.
#[must_use]
pub fn reopens_copy(ctx: &Ctx, path: &[u8], flags: c_int) -> Option<c_int> {
    if !(path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/")) {
        return None;
    }
    let fd = sys::open_bytes(path, libc::O_PATH | libc::O_CLOEXEC)?;
    let f = crate::identity::copy_of_fd(ctx, fd.0)?;
    bypass(ctx, &f);
    let mut to = pfs_path(ctx, &f)?;
    crate::serve::raw_open_as(to.c_str()?, flags)
}
