//! What the job changes below a root.
//!
//! Before a changing call is passed on, the entry and the listing of its directory turn to Bypass,
//! for all processes of the node at once: reads then see what the kernel sees. Bypass is set even
//! if the call fails in the end; that costs hits, never truth. Paths that lead into a root under
//! another spelling are found by the device of their parent directory.

use crate::absolute::pfs_path;
use crate::ctx::Ctx;
use crate::descriptor_path::real_path;
use crate::identity::{Facts, copy_of};
use crate::paths::{absolute, find, find_parent};
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::control::{NO_ROOT, Start};
use monarch_abi::demand;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Found, Miss, Parent, resolve, resolve_parent, split_last, split_named};
use monarch_abi::word::State;

mod by_inode;

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

/// A name is about to be created, removed, replaced, or, with all that may lie below it, moved. A
/// directory that is removed is empty: whatever was below it has changed already.
pub fn name_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], moves: bool) {
    let ctx = &ctx.for_changes();
    // A directory that the job replaced may be a link to another one by now.
    if !known_name_changes(ctx, dirfd, path, moves) {
        other_name_changes(ctx, dirfd, path, moves);
    }
}

/// [`name_changes`] by the index; whether that tells for certain what the name is.
#[inline(never)]
fn known_name_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], moves: bool) -> bool {
    let Ok(p) = find_parent(ctx, dirfd, path) else { return false };
    let known = is_known(ctx, &p.dir);
    bypass_parent(ctx, &p, moves);
    known
}

/// [`name_changes`] as the kernel finds the directory: through links, other mounts, and where only
/// the descriptor tells where it is.
#[inline(never)]
fn other_name_changes(ctx: &Ctx, dirfd: c_int, path: &[u8], moves: bool) {
    let Some((parent, name)) = split_named(path) else { return };
    let Some(place) = place_of(ctx, dirfd, parent, name) else { return };
    ctx.sync();
    let at_path = bypass_at(ctx, &place, moves);
    let by_inode = || {
        (at_path == AtPath::Another || place.real.is_none() || by_inode::may_tell(ctx))
            && bypass_in(ctx, &place, name, moves)
    };
    if at_path != AtPath::Same && !by_inode() {
        by_inode::bypass_link(ctx, dirfd, path, place.dev);
    }
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

/// Turns the name of a place and the listing of its directory to Bypass, as far as its path tells
/// them.
#[inline(never)]
fn bypass_at(ctx: &Ctx, place: &Place, moves: bool) -> AtPath {
    let Some(p) = place.real.as_ref().and_then(|real| parent_at(ctx, real.get())) else { return AtPath::Nothing };
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
    // Most names lie elsewhere: one call tells.
    let st = sys::stat_at(dirfd, parent, 0).filter(|st| ctx.is_root_device(st.st_dev))?;
    // SAFETY: a C string.
    let fd = unsafe { sys::open_at(dirfd, parent.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) }?;
    let mut real = real_path_in_root(ctx, fd.0, st.st_dev);
    if let Some(path) = &mut real {
        if path.get() != b"/" {
            path.append(b"/")?;
        }
        path.append(name)?;
    }
    Some(Place { dev: st.st_dev, ino: st.st_ino, real })
}

/// A name was removed, replaced or covered that may be, or lie on the way to, a root or a link that
/// leads into one: below such a spelling nothing is told any more. Afterwards and not before,
/// because it costs all hits and many such calls fail (`rmdir -p` tries every parent).
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

/// The real path of a name: through links and other mounts, if it lies on the device of a root. The
/// name need not exist.
fn real_name(ctx: &Ctx, abs: &[u8]) -> Option<PathBuffer> {
    let (parent, name) = split_last(abs)?;
    // Most names lie elsewhere: one call tells.
    sys::stat_bytes(parent, 0).filter(|st| ctx.is_root_device(st.st_dev))?;
    let fd = sys::open_bytes(parent, libc::O_PATH | libc::O_CLOEXEC)?;
    let st = sys::fstat(fd.0).filter(|st| ctx.is_root_device(st.st_dev))?;
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

/// Leaves a real path for the agent if its root has no index yet (see [`monarch_abi::early`]). If
/// `true`, it has to be looked up again.
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

/// What a call that changes a file is to be made on.
pub enum Target {
    /// On what the application named.
    AsNamed,
    /// On the PFS file at this path: what was named is a copy of it.
    Pfs(crate::absolute::Absolute),
    /// On nothing: what was named is a copy of a file that a job has removed, and that has no other
    /// name.
    Removed,
    /// On nothing: what was named is a copy of a file that is no longer where it was, but may be
    /// elsewhere.
    Gone,
}

impl Target {
    /// What a copy of this file stands for.
    fn of(ctx: &Ctx, f: &Found<'static>) -> Self {
        match path_if_there(ctx, f) {
            Some(path) => Self::Pfs(path),
            None if f.entry.word().is_gone() => Self::Removed,
            None => Self::Gone,
        }
    }
}

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
fn is_known(ctx: &Ctx, f: &Found<'static>) -> bool {
    f.entry.word().state() != State::Bypass && !ctx.may_have_other_mounts() && crate::guard::is_still_there(ctx, f)
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
    let Some(f) = real.and_then(|real| file_at(ctx, real.get())) else { return by_inode::entry(ctx, fd, st) };
    if f.entry.record.ino == st.st_ino {
        return Some(f);
    }
    bypass(ctx, &f);
    by_inode::anywhere(ctx, st)
}

/// The path of an open file on the device of a root, if it lies below one, even where another mount
/// leads there.
#[inline(never)]
fn path_in_root(ctx: &Ctx, fd: c_int, dev: u64) -> Option<PathBuffer> {
    let real = real_path_in_root(ctx, fd, dev)?;
    matches!(ctx.map.match_root(real.get()), Start::Root(_)).then_some(real)
}

/// The path of an open file on the device of a root: below that root even where another mount leads
/// there, or else as it is.
fn real_path_in_root(ctx: &Ctx, fd: c_int, dev: u64) -> Option<PathBuffer> {
    let real = real_path(fd).or_else(|| crate::noproc::path(ctx, fd))?;
    if matches!(ctx.map.match_root(real.get()), Start::Root(_)) {
        return Some(real);
    }
    let roots = ctx.map.roots().iter().filter(|r| r.dev.load(Ordering::Relaxed) == dev);
    let through = roots.map(|r| ctx.map.str(&r.path)).find_map(|root| {
        let rest = crate::mounts::through_another(real.get(), root, dev, |d| ctx.is_root_device(d))?;
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
    /// Not a copy of ours.
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
        ctx.sync();
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

#[inline(never)]
fn parent_written(ctx: &Ctx, fd: c_int, real: Option<&PathBuffer>) {
    if let Some(p) = real.and_then(|real| parent_at(ctx, real.get())) {
        bypass_parent(ctx, &p, false);
    } else if by_inode::may_tell(ctx)
        && let Some(p) = by_inode::parent(ctx, fd)
    {
        bypass_parent(ctx, &p, false);
    }
}

/// The entry of which an open file is a copy, also when the open itself has truncated it: then its
/// name tells.
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
        ctx.live().find_map(|(root, number, segment)| {
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
    Copy(crate::absolute::Absolute),
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

/// The path on the PFS of an entry if the file that was indexed is still there.
#[must_use]
pub fn path_if_there(ctx: &Ctx, f: &Found<'static>) -> Option<crate::absolute::Absolute> {
    if f.entry.word().is_gone() {
        return None;
    }
    let mut path = pfs_path(ctx, f)?;
    let st = sys::stat_at(libc::AT_FDCWD, path.c_str()?, libc::AT_SYMLINK_NOFOLLOW)?;
    crate::identity::is_inode_of(ctx, f, &st).then_some(path)
}

/// A directory is about to become unsearchable: what lies below it is the kernel's to tell.
pub fn hide_below(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    let ctx = &ctx.for_changes();
    let found = find(ctx, dirfd, path, true).ok().filter(|f| is_known(ctx, f));
    let found = found.or_else(|| {
        // SAFETY: a path of the application, which ends with a NUL.
        let fd = unsafe { sys::open_at(dirfd, path.as_ptr().cast(), libc::O_PATH | libc::O_CLOEXEC) }?;
        entry_of(ctx, fd.0, &sys::fstat(fd.0)?)
    });
    if let Some(f) = found {
        bypass_subtree(ctx, &f);
    }
}

/// [`hide_below`] for an open directory.
pub fn hide_below_open(ctx: &Ctx, fd: c_int) {
    let ctx = &ctx.for_changes();
    let Some(st) = sys::fstat(fd) else { return };
    if let Some(f) = entry_of(ctx, fd, &st) {
        bypass_subtree(ctx, &f);
    }
}

/// What a path that may lead to an open descriptor leads to, if that is a copy: `/proc/self/fd/N`,
/// `/dev/stdin`, a number relative to such a directory, or the copy's own path. A copy is 0400, but
/// that does not stop root.
#[must_use]
pub fn behind_copy(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Found<'static>> {
    if may_be_descriptor(ctx, dirfd, path) { leads_to_copy(ctx, dirfd, path, follow) } else { None }
}

/// What a path leads to, if that is a copy.
fn leads_to_copy(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Found<'static>> {
    let no = if follow { 0 } else { libc::O_NOFOLLOW };
    // SAFETY: a path of the application, which ends with a NUL.
    let fd = unsafe { sys::open_at(dirfd, path.as_ptr().cast(), libc::O_PATH | libc::O_CLOEXEC | no) }?;
    crate::identity::copy_of_fd(ctx, fd.0)
}

/// [`behind_copy`] for a call that changes what it leads to.
#[must_use]
pub fn change_behind_copy(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Target {
    let Some(f) = behind_copy(ctx, dirfd, path, follow) else { return Target::AsNamed };
    bypass(ctx, &f);
    Target::of(ctx, &f)
}

/// [`change_behind_copy`] for a path that the kernel did not open for writing, whatever its
/// spelling: a copy is nobody's to write.
#[must_use]
pub fn denied_copy(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Target {
    let Some(f) = leads_to_copy(ctx, dirfd, path, follow) else { return Target::AsNamed };
    bypass(ctx, &f);
    Target::of(ctx, &f)
}

/// Whether the spelling of a path allows that it leads to an open descriptor or into a tier. Links
/// elsewhere that lead to a descriptor are not told by it: these are found when they have been
/// opened.
fn may_be_descriptor(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> bool {
    if ctx.map.tiers().iter().any(|t| path.starts_with(ctx.map.str(&t.path))) {
        return true;
    }
    if !is_descriptor_name(path) {
        return false;
    }
    let has = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|w| w == part);
    if path.first() == Some(&b'/') {
        // `/proc` may be mounted anywhere, but not below a root that is served.
        let is_number = path.last().is_some_and(u8::is_ascii_hexdigit);
        return has(path, b"/proc/")
            || path.starts_with(b"/dev/")
            || has(path, b"/dev/")
            || is_number && !matches!(ctx.map.match_root(path), Start::Root(_));
    }
    let mut here = PathBuffer::front();
    // SAFETY: both write as many bytes as they say.
    let read = unsafe {
        here.fill(|out| {
            if dirfd == libc::AT_FDCWD { sys::getcwd(out) } else { crate::descriptor_path::path_of_fd(dirfd, out) }
        })
    };
    read.is_none() || !matches!(ctx.map.match_root(here.get()), Start::Root(_))
}

/// Whether the last component of a path is one that names of descriptors have: a number, `stdin`,
/// or a range of addresses (`/proc/self/map_files`).
#[must_use]
pub fn is_descriptor_name(path: &[u8]) -> bool {
    let name = path.iter().rposition(|&c| c == b'/').map_or(path, |at| path.get(at + 1..).unwrap_or(&[]));
    let is_hex = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_hexdigit);
    let is_range = || {
        let dash = name.iter().position(|&c| c == b'-')?;
        Some(is_hex(name.get(..dash)?) && is_hex(name.get(dash + 1..)?))
    };
    matches!(name, b"stdin" | b"stdout" | b"stderr")
        || !name.is_empty() && name.iter().all(u8::is_ascii_digit)
        || is_range() == Some(true)
}

/// Whether a path may lead to an open descriptor of another process, or in another working
/// directory.
#[must_use]
pub fn may_name_descriptor(path: &[u8]) -> bool {
    let has = |part: &[u8]| path.windows(part.len()).any(|w| w == part);
    is_descriptor_name(path) && (path.first() != Some(&b'/') || has(b"/proc/") || has(b"/dev/") || is_below_proc(path))
}

/// Whether a path leads into a file system of processes, wherever that is mounted.
fn is_below_proc(path: &[u8]) -> bool {
    const PROC_SUPER_MAGIC: i64 = 0x9fa0;
    let end = path.iter().rposition(|&c| c == b'/').unwrap_or(0);
    let dir = path.get(..end).and_then(|dir| sys::open_bytes(dir, libc::O_PATH | libc::O_CLOEXEC));
    dir.is_some_and(|dir| sys::file_system(dir.0) == Some(PROC_SUPER_MAGIC))
}

/// Whether a path may lead to an open descriptor, for opens that read: told in a few instructions.
#[inline]
#[must_use]
pub fn may_reopen(path: &[u8]) -> bool {
    match path {
        // `//proc` and `/./proc` lead there, too.
        [b'/', b'p' | b'd' | b'/' | b'.', ..] => is_descriptor_name(path),
        [b'/', ..] => false,
        [.., last] => (last.is_ascii_digit() || *last == b'n') && is_descriptor_name(path),
        [] => false,
    }
}
