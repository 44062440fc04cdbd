//! What the job changes below a root.
//!
//! Before a changing call is passed on, the entry and the listing of its directory turn to Bypass, for all processes of the
//! node at once: reads then see what the kernel sees. Bypass is set even if the call fails in the end; that costs hits,
//! never truth. Paths that lead into a root under another spelling are found by the device of their parent directory.

use crate::ctx::Ctx;
use crate::paths::{absolute, find, find_parent, is_root_device, real_path};
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::PATH_MAX;
use monarch_abi::control::{NO_ROOT, Start};
use monarch_abi::demand;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Found, Miss, Parent, resolve, resolve_parent, split_last};
use monarch_abi::word::State;

/// Turns one entry to Bypass and tells readers who wait and the agent.
pub fn bypass(ctx: &Ctx, f: &Found<'static>) {
    demand::bypass(ctx.map, f);
}

/// Bypasses a whole subtree: directories that are moved or covered.
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

/// A name is about to be created, removed, replaced, or, with all that may lie below it, moved. A directory that is removed is empty:
/// whatever was below it has changed already.
pub fn name_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], moves: bool) {
    let ctx = &ctx.for_changes();
    if let Ok(p) = find_parent(ctx, dirfd, path) {
        let known = is_known(ctx, &p.dir);
        bypass_parent(ctx, &p, moves);
        // A directory that the job replaced may be a link to another one by now.
        if known {
            return;
        }
    }
    let real = absolute(ctx, dirfd, path).and_then(|abs| real_name(ctx, abs.get()));
    if let Some(p) = real.and_then(|real| parent_at(ctx, real.get())) {
        bypass_parent(ctx, &p, moves);
    }
}

/// A name was removed, replaced or covered that may be, or lie on the way to, a root or a link that leads into one: below such a
/// spelling nothing is told any more. Afterwards and not before, because it costs all hits and many such calls fail
/// (`rmdir -p` tries every parent).
pub fn way_changed(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    let Some(abs) = absolute(ctx, dirfd, path) else { return };
    leave_way(ctx, abs.get());
    if let Some(real) = real_name(ctx, abs.get()) {
        leave_way(ctx, real.get());
    }
}

fn leave_way(ctx: &Ctx, name: &[u8]) {
    let end = name.iter().rposition(|&c| c != b'/').map_or(0, |at| at + 1);
    let name = name.get(..end).unwrap_or(name);
    for s in ctx.map.spellings() {
        let text = ctx.map.str(&s.path);
        if name.is_empty() || !text.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")) {
            continue;
        }
        let root = s.root.load(Ordering::Relaxed) as usize;
        if ctx.map.roots().get(root).is_some_and(|r| ctx.map.str(&r.path) == text) {
            ctx.give_up(root);
        } else {
            s.root.store(NO_ROOT, Ordering::Release);
        }
    }
}

/// The real path of a name: through links and other mounts, if it lies on the device of a root. The name need not exist.
fn real_name(ctx: &Ctx, abs: &[u8]) -> Option<PathBuffer> {
    let (parent, name) = split_last(abs)?;
    // Most names lie elsewhere: one call tells.
    sys::stat_bytes(parent, 0).filter(|st| is_root_device(ctx, st.st_dev))?;
    let fd = sys::open_bytes(parent, libc::O_PATH | libc::O_CLOEXEC)?;
    let st = sys::fstat(fd.0).filter(|st| is_root_device(ctx, st.st_dev))?;
    let mut real = real_path_in_root(ctx, fd.0, st.st_dev)?;
    if real.get() != b"/" {
        real.append(b"/")?;
    }
    real.append(name)?;
    Some(real)
}

/// The parent of a real path; while there is no index, the path is left for the agent.
fn parent_at(ctx: &Ctx, real: &[u8]) -> Option<Parent<'static>> {
    match resolve_parent(ctx.map, ctx, real) {
        Ok(p) => Some(p),
        Err(Miss::NoSegment(_)) if leave_early(ctx, real, true) => resolve_parent(ctx.map, ctx, real).ok(),
        Err(_) => None,
    }
}

/// Leaves a real path for the agent if its root has no index yet (see [`monarch_abi::early`]). If `true`, it has to be looked up
/// again.
fn leave_early(ctx: &Ctx, real: &[u8], names: bool) -> bool {
    let Start::Root(m) = ctx.map.match_root(real) else { return false };
    if !ctx.awaits_index(m.root) {
        return false;
    }
    let mut rel = PathBuffer::front();
    let rest = m.rest.strip_prefix(b"/").unwrap_or(m.rest);
    let glue: &[u8] = if m.sub.is_empty() || rest.is_empty() { b"" } else { b"/" };
    let _ = rel.append(m.sub).and_then(|()| rel.append(glue)).and_then(|()| rel.append(rest));
    ctx.map.ctl.early.leave(m.root, rel.get(), names);
    true
}

/// Content or attributes of a file are about to change, named by its path.
pub fn file_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) {
    let ctx = &ctx.for_changes();
    if let Ok(f) = find(ctx, dirfd, path, follow)
        && is_known(ctx, &f)
    {
        bypass(ctx, &f);
    } else if let Some(f) = real_file(ctx, dirfd, path, follow).and_then(|real| file_at(ctx, real.get())) {
        bypass(ctx, &f);
    }
}

/// Whether the name still leads to what the index says: one that has changed may be a link to somewhere else by now.
fn is_known(ctx: &Ctx, f: &Found<'static>) -> bool {
    f.entry.word().state() != State::Bypass && crate::guard::is_still_there(ctx, f)
}

/// The real path of a file that exists, if it lies on the device of a root.
fn real_file(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<PathBuffer> {
    let abs = absolute(ctx, dirfd, path)?;
    let no = if follow { 0 } else { libc::O_NOFOLLOW };
    let fd = sys::open_bytes(abs.get(), libc::O_PATH | libc::O_CLOEXEC | no)?;
    let st = sys::fstat(fd.0).filter(|st| is_root_device(ctx, st.st_dev))?;
    path_in_root(ctx, fd.0, st.st_dev)
}

/// The path of an open file on the device of a root, if it lies below one, even where another mount leads there.
fn path_in_root(ctx: &Ctx, fd: c_int, dev: u64) -> Option<PathBuffer> {
    let real = real_path_in_root(ctx, fd, dev)?;
    matches!(ctx.map.match_root(real.get()), Start::Root(_)).then_some(real)
}

/// The path of an open file on the device of a root: below that root even where another mount leads there, or else as it is.
fn real_path_in_root(ctx: &Ctx, fd: c_int, dev: u64) -> Option<PathBuffer> {
    let real = real_path(fd)?;
    if matches!(ctx.map.match_root(real.get()), Start::Root(_)) {
        return Some(real);
    }
    let roots = ctx.map.roots().iter().filter(|r| r.dev.load(Ordering::Relaxed) == dev);
    let through = roots.map(|r| ctx.map.str(&r.path)).find_map(|root| {
        let rest = crate::mounts::through_another(real.get(), root, dev, |d| is_root_device(ctx, d))?;
        let mut out = PathBuffer::front();
        out.append(root)?;
        out.append(rest.get())?;
        Some(out)
    });
    through.or(Some(real))
}

/// The entry at a real path; while there is no index, the path is left for the agent.
fn file_at(ctx: &Ctx, real: &[u8]) -> Option<Found<'static>> {
    match resolve(ctx.map, ctx, real, false) {
        Ok(f) => Some(f),
        Err(Miss::NoSegment(_)) if leave_early(ctx, real, false) => resolve(ctx.map, ctx, real, false).ok(),
        Err(_) => None,
    }
}

/// Another file system is about to appear at a path, or to go.
pub fn covered(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    let ctx = &ctx.for_changes();
    if ctx.in_own_namespace() {
        return;
    }
    match find(ctx, dirfd, path, true) {
        Ok(f) => {
            bypass(ctx, &f);
            bypass_subtree(ctx, &f);
        }
        Err(_) => name_changes(ctx, dirfd, path, true),
    }
}

/// Another file system has appeared at a path, or gone.
pub fn way_covered(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    if !ctx.in_own_namespace() {
        way_changed(ctx, dirfd, path);
    }
}

/// A file is about to be opened for writing, creating or truncating.
///
/// Gives whether it was found: if not, the descriptor has to be looked at afterwards ([`opened_for_writing`]).
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

/// A file was opened for writing under a path that was not found: does it lie below a root all the same? Readers may still see the
/// old state, as the call that opens has not returned.
pub fn opened_for_writing(ctx: &Ctx, fd: c_int) {
    let ctx = &ctx.for_changes();
    let Some(st) = sys::fstat(fd).filter(|st| is_root_device(ctx, st.st_dev)) else { return };
    let Some(real) = path_in_root(ctx, fd, st.st_dev) else { return };
    let path = real.get();
    match resolve(ctx.map, ctx, path, false) {
        Ok(f) => bypass(ctx, &f),
        Err(_) => {
            if let Some(p) = parent_at(ctx, path) {
                bypass_parent(ctx, &p, false);
            }
        }
    }
}

/// What an open file is.
#[allow(clippy::large_enum_variant, reason = "nothing is allocated here")]
pub enum OpenFile {
    /// A copy of the file at this path.
    Copy(crate::paths::Absolute),
    /// A copy of a file that is no longer where it was.
    Orphan,
    /// No copy.
    Other,
}

/// Attributes of an open file are about to change: of a copy, they have to be changed on the PFS.
pub fn descriptor_changes(ctx: &Ctx, fd: c_int) -> OpenFile {
    let Some(f) = crate::identity::copy_of_fd(ctx, fd) else {
        opened_for_writing(ctx, fd);
        return OpenFile::Other;
    };
    bypass(ctx, &f);
    path_if_there(ctx, &f).map_or(OpenFile::Orphan, OpenFile::Copy)
}

/// The path on the PFS of an entry if the file that was indexed is still there.
#[must_use]
pub fn path_if_there(ctx: &Ctx, f: &Found<'static>) -> Option<crate::paths::Absolute> {
    let mut path = pfs_path(ctx, f)?;
    let st = sys::stat_at(libc::AT_FDCWD, path.c_str()?, libc::AT_SYMLINK_NOFOLLOW)?;
    crate::identity::is_inode_of(ctx, f, &st).then_some(path)
}

/// A directory is about to become unsearchable: what lies below it is the kernel's to tell.
pub fn hide_below(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    let ctx = &ctx.for_changes();
    let found = find(ctx, dirfd, path, true).ok().filter(|f| is_known(ctx, f));
    let found = found.or_else(|| real_file(ctx, dirfd, path, true).and_then(|real| file_at(ctx, real.get())));
    if let Some(f) = found {
        bypass_subtree(ctx, &f);
    }
}

/// [`hide_below`] for an open directory.
pub fn hide_below_open(ctx: &Ctx, fd: c_int) {
    let ctx = &ctx.for_changes();
    let Some(st) = sys::fstat(fd).filter(|st| is_root_device(ctx, st.st_dev)) else { return };
    if let Some(f) = path_in_root(ctx, fd, st.st_dev).and_then(|real| file_at(ctx, real.get())) {
        bypass_subtree(ctx, &f);
    }
}

/// The path on the PFS of an entry.
#[must_use]
pub fn pfs_path(ctx: &Ctx, f: &Found<'static>) -> Option<crate::paths::Absolute> {
    let mut rel = [0u8; PATH_MAX];
    let len = f.segment.index.path(f.entry.id, &mut rel)?;
    let root = ctx.map.roots().get(f.root)?;
    crate::paths::Absolute::join(ctx.map.str(&root.path), rel.get(..len)?)
}

/// `/proc/self/fd/N`, `/dev/fd/N` and `/proc/PID/fd/N` about to be opened for writing, where N is a copy: the path on the PFS, to
/// which the write must go. A copy is 0400, but that does not stop root.
#[must_use]
pub fn behind_copy(ctx: &Ctx, path: &[u8]) -> Option<crate::paths::Absolute> {
    if !(path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/")) {
        return None;
    }
    let fd = sys::open_bytes(path, libc::O_PATH | libc::O_CLOEXEC)?;
    let f = crate::identity::copy_of_fd(ctx, fd.0)?;
    bypass(ctx, &f);
    // Another file may have taken the name. Then the copy is all that is left of this one, and nobody opens it any more.
    path_if_there(ctx, &f)
}
