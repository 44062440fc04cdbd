//! Outputs: what the job writes below a declared output root is staged in a tier of the node, and
//! published on the PFS by the agent, in the job's order.
//!
//! Purpose: a save costs what a local disk costs. The application has real descriptors of files in
//! the staging directory, so that all it does with them is the kernel's. The hooks ask the overlay,
//! a directory of symbolic links, what a name means on this node. Invariant: whatever changes the
//! overlay also appends to the journal, under one lock, before the call returns.
//!
//! | module | what it holds |
//! |---|---|
//! | [`roots`] | output roots as this process sees them |
//! | [`place`](mod@place) | from (dirfd, path) to a name below an output root |
//! | [`tree`](mod@tree) | the overlay |
//! | [`lookup`](mod@lookup) | what a path means on this node |
//! | [`journal`](mod@journal) | the lock, and appending records |
//! | [`create`](mod@create) | staging a new file |
//! | [`open`](mod@open) | opens |
//! | [`names`](mod@names) | removing, linking, making names |
//! | [`rename`](mod@rename) | renames |
//! | [`attributes`] | modes, owners, times, lengths by path |
//! | [`extended`] | extended attributes that a truncated file keeps |
//! | [`stat`](mod@stat) | what stat and its kin say |
//! | [`listing`](mod@listing) | merged listings |
//! | [`descriptors`] | descriptors of staged files; closing them |
//! | [`barrier`] | waiting for publications |
//! | [`order`] | waiting for a place in the order of the nodes |
//! | [`peers`] | names that other nodes have written and not published |
//! | [`answer`](mod@answer) | results of calls |
//! | [`kernel`] | system calls about names |

pub mod answer;
pub mod attributes;
pub mod barrier;
pub mod create;
pub mod descriptors;
pub mod dir_times;
pub mod extended;
pub mod journal;
pub mod kernel;
pub mod listing;
pub mod lookup;
pub mod names;
pub mod open;
pub mod order;
pub mod peers;
pub mod place;
pub mod rename;
pub mod roots;
pub mod stat;
pub mod tree;

use crate::descriptor_names::{may_name_descriptor, may_reopen};
use answer::{Answer, Result, of_call};
use core::ffi::{CStr, c_char, c_int};
use create::Create;
pub use monarch_abi::outputs::STAGED_MODE;
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys::Fd;
use monarch_guest::{errno, user};
use place::Place;
use rename::{After, Side};

/// Answers a call about a path, if that lies below an output root.
///
/// # Safety
/// As for [`user::path`].
#[inline]
unsafe fn at_path<T>(
    dirfd: c_int,
    path: *const c_char,
    failed: T,
    work: impl FnOnce(&mut Place) -> Result<Answer<T>>,
) -> Option<T> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    unsafe { answer(&ctx, dirfd, path, failed, work) }
}

#[cold]
#[inline(never)]
unsafe fn answer<T>(
    ctx: &Ctx,
    dirfd: c_int,
    path: *const c_char,
    failed: T,
    work: impl FnOnce(&mut Place) -> Result<Answer<T>>,
) -> Option<T> {
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    of_call(|| Place::find(ctx, dirfd, bytes).map(|mut place| work(&mut place)), failed)
}

/// [`at_path`] for a call that changes something: links outside of the output roots are followed to
/// them while something is pending there, the last one only with `follow`.
#[inline]
unsafe fn at_changed_path<T>(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    failed: T,
    work: impl FnOnce(&mut Place) -> Result<Answer<T>>,
) -> Option<T> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    unsafe { answer_change(&ctx, (dirfd, path), follow, failed, work) }
}

#[cold]
#[inline(never)]
unsafe fn answer_change<T>(
    ctx: &Ctx,
    (dirfd, path): (c_int, *const c_char),
    follow: bool,
    failed: T,
    work: impl FnOnce(&mut Place) -> Result<Answer<T>>,
) -> Option<T> {
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    of_call(|| changed_place(ctx, dirfd, bytes, follow).map(|mut place| work(&mut place)), failed)
}

/// The place that a path names which is about to be changed.
fn changed_place(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Place> {
    let place = Place::find(ctx, dirfd, path).or_else(|| if follow { by_number(ctx, dirfd, path) } else { None });
    if place.is_none() && roots::any_pending(ctx) {
        return Place::behind_links(ctx, dirfd, path, follow);
    }
    place
}

/// The place of a staged file that a path names by the number of a descriptor, if it has a name.
fn by_number(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Place> {
    if !may_reopen(path) || !may_name_descriptor(path) {
        return None;
    }
    let saved = errno::errno();
    // SAFETY: a path of the application, which ends with a NUL.
    let fd = unsafe { monarch_guest::sys::open_at(dirfd, path.as_ptr().cast(), libc::O_PATH | libc::O_CLOEXEC) };
    let find = |fd: Fd| {
        let (root, file) = descriptors::staged(ctx, fd.0)?;
        let (rel, _) = listing::find_file(&root, b"", file.id)?;
        let mut place = Place::at(root, rel.get())?;
        place.is_by_number = true;
        Some(place)
    };
    let place = fd.and_then(find);
    errno::set_errno(saved);
    place
}

/// Makes a plain call on the published file, if the path was a number: `call` gets its path.
fn plainly(place: &Place, answer: Answer<c_int>, call: impl FnOnce(*const c_char) -> c_int) -> Result<Answer<c_int>> {
    if !place.is_by_number || matches!(answer, Answer::Done(_)) {
        return Ok(answer);
    }
    let mut path = place.on_pfs()?;
    match call(path.c_str().ok_or(libc::ENAMETOOLONG)?.as_ptr()) {
        done @ 0.. => Ok(Answer::Done(done)),
        _ => Err(errno::errno()),
    }
}

/// Where a name that was not found leads by links outside of the output roots, if something is
/// pending below one: the absolute path, on which the call is to be made again.
///
/// # Safety
/// As for [`user::path`].
#[cold]
#[inline(never)]
pub unsafe fn missed(dirfd: c_int, path: *const c_char, follow: bool) -> Option<Absolute> {
    let ctx = ctx::for_outputs()?;
    if errno::errno() != libc::ENOENT || !roots::any_pending(&ctx) {
        return None;
    }
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    if Place::find(&ctx, dirfd, bytes).is_some() {
        return None;
    }
    let found = Place::behind_links(&ctx, dirfd, bytes, follow).and_then(|place| place.on_pfs().ok());
    errno::set_errno(libc::ENOENT);
    found
}

/// The number of a descriptor that is the application's from now on.
fn given(fd: Fd) -> c_int {
    let number = fd.0;
    core::mem::forget(fd);
    number
}

/// open(2) and the like.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn open(dirfd: c_int, path: *const c_char, flags: c_int, mode: u32) -> Option<c_int> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    unsafe { open_below(&ctx, dirfd, path, flags, mode) }
}

#[cold]
#[inline(never)]
unsafe fn open_below(ctx: &Ctx, dirfd: c_int, path: *const c_char, flags: c_int, mode: u32) -> Option<c_int> {
    let changes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0;
    let excludes = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    let follow = flags & libc::O_NOFOLLOW == 0 && !excludes;
    let found = |bytes| {
        if changes { changed_place(ctx, dirfd, bytes, follow) } else { Place::find(ctx, dirfd, bytes) }
    };
    // SAFETY: by contract.
    unsafe {
        let bytes = user::path(path)?;
        let work = |place: &mut Place| {
            let how = Create { flags, mode };
            // A version of its own comes after those of others.
            let is_anew = flags & (libc::O_CREAT | libc::O_TRUNC) == libc::O_CREAT | libc::O_TRUNC;
            if !is_anew || excludes {
                peers::settle(place, follow);
            }
            let opened = open::open(place, how)?;
            Ok(match opened {
                Answer::Plain if place.is_by_number => {
                    let mut path = place.on_pfs()?;
                    let path = path.c_str().ok_or(libc::ENAMETOOLONG)?;
                    Answer::Done(given(kernel::open(path, how.flags, how.mode)?))
                }
                Answer::Plain => Answer::Plain,
                Answer::Done(fd) => {
                    changed(place, dirfd, path, flags);
                    Answer::Done(given(fd))
                }
            })
        };
        of_call(|| found(bytes).map(|mut place| work(&mut place)), -1)
    }
}

/// What is staged below a data root is a change there.
unsafe fn changed(place: &Place, dirfd: c_int, path: *const c_char, flags: c_int) {
    if flags & libc::O_ACCMODE == libc::O_RDONLY || place.root.ctx.map.roots().is_empty() {
        return;
    }
    // SAFETY: by contract of the caller.
    if let Some(bytes) = unsafe { user::path(path) } {
        crate::changes::name_changes(&place.root.ctx, dirfd, bytes, false);
    }
}

/// stat(2) and lstat(2).
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn stat(dirfd: c_int, path: *const c_char, buf: *mut libc::stat64, follow: bool) -> Option<c_int> {
    // SAFETY: by contract; the buffer is tested before it is written.
    unsafe {
        at_path(dirfd, path, -1, |place| {
            peers::settle(place, follow);
            Ok(match stat::stat(place, follow)? {
                Answer::Done(_) if !user::writable(buf) => return Err(libc::EFAULT),
                Answer::Done(st) => {
                    buf.write(st);
                    Answer::Done(0)
                }
                Answer::Plain => Answer::Plain,
            })
        })
    }
}

/// statx(2); `call` asks the kernel about an absolute path.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn statx(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    buf: *mut libc::statx,
    call: impl FnOnce(*const c_char) -> c_int,
) -> Option<c_int> {
    // SAFETY: by contract; a successful call has written the buffer.
    unsafe {
        at_path(dirfd, path, -1, |place| {
            peers::settle(place, follow);
            let (file, changed, mut path) = match stat::subject(place, follow)? {
                Answer::Plain => return Ok(Answer::Plain),
                Answer::Done(stat::Subject::Staged(file, path)) => (Some(file), None, path),
                Answer::Done(stat::Subject::At(path)) => (None, None, path),
                Answer::Done(stat::Subject::Changed(path, time)) => (None, Some(time), path),
            };
            if call(path.c_str().ok_or(libc::ENAMETOOLONG)?.as_ptr()) < 0 {
                return Err(errno::errno());
            }
            match (file, changed) {
                (Some(file), _) => stat::translate_x(&file, &mut *buf),
                (None, Some(time)) => dir_times::raise_x(&mut *buf, time),
                (None, None) if u32::from((*buf).stx_mode) & libc::S_IFMT == libc::S_IFLNK => (*buf).stx_size -= 1,
                (None, None) => {}
            }
            Ok(Answer::Done(0))
        })
    }
}

/// access(2) and the like.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn access(dirfd: c_int, path: *const c_char, mode: c_int, flags: c_int) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_path(dirfd, path, -1, |place| {
            let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
            peers::settle(place, follow);
            Ok(match stat::subject(place, follow)? {
                // Times are no question of this call.
                Answer::Plain | Answer::Done(stat::Subject::Changed(..)) => Answer::Plain,
                Answer::Done(stat::Subject::Staged(_, mut path) | stat::Subject::At(mut path)) => {
                    kernel::access(path.c_str().ok_or(libc::ENAMETOOLONG)?, mode, flags)?;
                    Answer::Done(0)
                }
            })
        })
    }
}

/// readlink(2).
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn read_link(dirfd: c_int, path: *const c_char, buf: *mut c_char, room: usize) -> Option<isize> {
    // SAFETY: by contract; the buffer is tested before it is written.
    unsafe {
        at_path(dirfd, path, -1, |place| {
            peers::settle(place, false);
            Ok(match stat::read_link(place)? {
                Answer::Plain => Answer::Plain,
                Answer::Done(_) if room == 0 => return Err(libc::EINVAL),
                Answer::Done(target) => {
                    let len = target.get().len().min(room);
                    if !user::writable_bytes(buf.cast(), len) {
                        return Err(libc::EFAULT);
                    }
                    core::ptr::copy_nonoverlapping(target.get().as_ptr(), buf.cast(), len);
                    Answer::Done(len as isize)
                }
            })
        })
    }
}

fn as_result(answer: Answer<()>) -> Answer<c_int> {
    match answer {
        Answer::Plain => Answer::Plain,
        Answer::Done(()) => Answer::Done(0),
    }
}

/// unlinkat(2).
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn unlink(dirfd: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        if flags & libc::AT_REMOVEDIR != 0 && user::path(path).is_some_and(place::ends_in_dots) {
            return None;
        }
        at_changed_path(dirfd, path, false, -1, |place| {
            if flags & libc::AT_REMOVEDIR != 0 {
                peers::settle_tree(place);
                return names::rmdir(place).map(as_result);
            }
            peers::settle(place, false);
            names::unlink(place).map(as_result)
        })
    }
}

/// remove(3).
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn remove(path: *const c_char) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        if user::path(path).is_some_and(place::ends_in_dots) {
            return None;
        }
        at_changed_path(libc::AT_FDCWD, path, false, -1, |place| {
            peers::settle(place, false);
            let mut on_pfs = place.on_pfs()?;
            let st = on_pfs.c_str().and_then(|p| kernel::lstat(p).ok());
            let is_dir = st.is_some_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFDIR);
            let done = if is_dir { names::rmdir(place) } else { names::unlink(place) };
            done.map(as_result)
        })
    }
}

/// Before mkdir(2), mknod(2) and the like.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn make(dirfd: c_int, path: *const c_char) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(dirfd, path, false, -1, |place| {
            peers::settle(place, false);
            names::make(place).map(as_result)
        })
    }
}

/// Whether what the PFS has at a name that cannot be made is a file that the job has removed: then
/// the removal is published.
///
/// # Safety
/// As for [`user::path`].
#[cold]
#[inline(never)]
pub unsafe fn was_removed(dirfd: c_int, path: *const c_char) -> bool {
    let removed = |place: &mut Place| Ok(Answer::Done(names::was_removed(place).unwrap_or(false)));
    // SAFETY: by contract.
    unsafe { at_changed_path(dirfd, path, false, false, removed) == Some(true) }
}

/// symlinkat(2).
///
/// # Safety
/// As for [`user::path`], for both.
#[inline(never)]
pub unsafe fn symlink(target: *const c_char, dirfd: c_int, path: *const c_char) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(dirfd, path, false, -1, |place| {
            let Some(text) = user::path(target) else { return Ok(Answer::Plain) };
            peers::settle(place, false);
            names::symlink(place, CStr::from_ptr(text.as_ptr().cast())).map(as_result)
        })
    }
}

/// Before link(2): the file that gets another name is published first.
///
/// # Safety
/// As for [`user::path`], for both.
#[inline(never)]
pub unsafe fn link(
    from_fd: c_int,
    from: *const c_char,
    to_fd: c_int,
    to: *const c_char,
    follow: bool,
) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        let work = |place: &mut Place| {
            peers::settle(place, follow);
            names::publish_for_link(place, follow).map(as_result)
        };
        at_changed_path(from_fd, from, follow, -1, work).or_else(|| make(to_fd, to))
    }
}

/// Before a call that only the PFS can answer.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn settle(dirfd: c_int, path: *const c_char, follow: bool) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(dirfd, path, follow, -1, |place| {
            peers::settle(place, follow);
            names::settle(place, follow).map(as_result)
        })
    }
}

/// renameat2(2); `call` is the plain call.
///
/// # Safety
/// As for [`user::path`], for both.
#[inline(never)]
pub unsafe fn rename(
    (from_fd, from): (c_int, *const c_char),
    (to_fd, to): (c_int, *const c_char),
    flags: u32,
    call: impl FnOnce() -> c_int,
) -> c_int {
    match ctx::for_outputs() {
        // SAFETY: by contract.
        Some(ctx) => unsafe { rename_below(&ctx, (from_fd, from), (to_fd, to), flags, call) },
        None => call(),
    }
}

#[cold]
#[inline(never)]
unsafe fn rename_below(
    ctx: &Ctx,
    (from_fd, from): (c_int, *const c_char),
    (to_fd, to): (c_int, *const c_char),
    flags: u32,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: by contract of the caller.
    let place =
        |fd: c_int, path: *const c_char| unsafe { user::path(path) }.and_then(|p| changed_place(ctx, fd, p, false));
    let mut after = After::Nothing;
    let done = of_call(
        || {
            let (a, b) = (place(from_fd, from), place(to_fd, to));
            if a.is_none() && b.is_none() {
                return None;
            }
            a.iter().chain(&b).for_each(peers::settle_tree);
            let side = |place: Option<Place>, fd, path| {
                // SAFETY: by contract of the caller.
                let bytes = || unsafe { user::path(path) };
                match place {
                    Some(place) => Side::Place(place),
                    None => Side::Outside(bytes().and_then(|path| kernel::device_of_parent(fd, path))),
                }
            };
            let (a, b) = (side(a, from_fd, from), side(b, to_fd, to));
            Some(rename::rename(a, b, flags).map(|(answer, then)| {
                after = then;
                as_result(answer)
            }))
        },
        -1,
    );
    let Some(done) = done else {
        let result = call();
        let saved = errno::errno();
        let _ = rename::renamed(after, result == 0);
        errno::set_errno(saved);
        return result;
    };
    done
}

/// Attributes that are set by path; `call` gets the path of the staged file, `on_pfs` that of the
/// published one, where the path was the number of a descriptor.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn set_attributes(
    dirfd: c_int,
    path: *const c_char,
    follow: bool,
    call: impl FnOnce(*const c_char) -> c_int,
    on_pfs: impl FnOnce(*const c_char) -> c_int,
) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(dirfd, path, follow, -1, |place| {
            peers::settle(place, follow);
            peers::settle_tree(place);
            let answer = attributes::set(place, follow, |p| call(p.as_ptr()))?;
            plainly(place, answer, on_pfs)
        })
    }
}

/// Before attributes of an open file are set: of a directory, what is pending below it is published
/// first.
#[inline]
pub fn settle_open_directory(fd: c_int) {
    if let Some(ctx) = ctx::for_outputs()
        && roots::any_pending(&ctx)
    {
        settle_directory_of(&ctx, fd);
    }
}

#[cold]
#[inline(never)]
fn settle_directory_of(ctx: &Ctx, fd: c_int) {
    let saved = errno::errno();
    if let Some(place) = Place::find(ctx, fd, b".").filter(|_| fd >= 0) {
        let _ = attributes::settle_directory(&place);
    }
    errno::set_errno(saved);
}

/// Extended attributes that are set or removed by path; `call` gets the path of the staged file.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn set_extended(path: *const c_char, follow: bool, call: impl Fn(*const c_char) -> c_int) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(libc::AT_FDCWD, path, follow, -1, |place| {
            peers::settle(place, follow);
            let answer = attributes::set_extended(place, follow, |p| call(p.as_ptr()))?;
            plainly(place, answer, &call)
        })
    }
}

/// The part file of a pending file, if it lies beside it: it has what a new file gets from its
/// directory.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn part_of(path: *const c_char, follow: bool) -> Option<Absolute> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    let mut place = Place::find(&ctx, libc::AT_FDCWD, unsafe { user::path(path)? })?;
    let saved = errno::errno();
    let found = lookup::lookup(&mut place, follow);
    errno::set_errno(saved);
    let Ok(lookup::Found::Entry(tree::Entry::File(file))) = found else { return None };
    attributes::part(&place, &file).ok()
}

/// Sets an extended attribute of an open staged file by `call`, which gets the path of the part
/// file: what the PFS does not take is not set. Then `set` sets it on the descriptor.
#[cold]
#[inline(never)]
pub fn set_extended_open(fd: c_int, call: impl Fn(*const c_char) -> c_int, set: impl FnOnce() -> c_int) -> c_int {
    let saved = errno::errno();
    let on_part = || {
        let (root, file) = descriptors::staged(&ctx::for_outputs()?, fd)?;
        let (rel, _) = listing::find_file(&root, b"", file.id)?;
        Some(attributes::set_on_part(&Place::at(root, rel.get())?, &file, |p| call(p.as_ptr())))
    };
    let is_set = match on_part() {
        Some(Err(e)) => {
            errno::set_errno(e);
            return -1;
        }
        done => matches!(done, Some(Ok(true))),
    };
    errno::set_errno(saved);
    let result = set();
    // It was published meanwhile, with what was just set.
    if result < 0 && is_set && matches!(errno::errno(), libc::EEXIST | libc::ENODATA) {
        errno::set_errno(saved);
        return 0;
    }
    result
}

/// truncate(2).
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn truncate(path: *const c_char, len: i64) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(libc::AT_FDCWD, path, true, -1, |place| {
            peers::settle(place, true);
            let answer = attributes::truncate(place, len)?;
            plainly(place, answer, |p| libc::truncate(p, len))
        })
    }
}

/// opendir(3).
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn open_dir(dirfd: c_int, path: *const c_char) -> Option<*mut crate::dirs::Shared> {
    // SAFETY: by contract.
    unsafe {
        at_path(dirfd, path, core::ptr::null_mut(), |place| {
            use lookup::Found;
            use tree::Entry;
            match lookup::lookup(place, true)? {
                Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
                Found::Entry(Entry::File(_)) => return Err(libc::ENOTDIR),
                _ => {}
            }
            peers::settle_names(place);
            if !listing::may_differ(&place.root) {
                return Ok(Answer::Plain);
            }
            let mut on_pfs = place.on_pfs()?;
            let fd = listing::open_named(libc::AT_FDCWD, on_pfs.c_str().ok_or(libc::ENAMETOOLONG)?)?;
            let Some(merged) = listing::Merged::new(place, fd.0) else { return Ok(Answer::Plain) };
            core::mem::forget(fd);
            Ok(crate::dirs::open_merged(merged).map_or(Answer::Plain, Answer::Done))
        })
    }
}

/// fdopendir(3).
#[inline]
#[must_use]
pub fn open_dir_fd(fd: c_int) -> Option<*mut crate::dirs::Shared> {
    let ctx = ctx::for_outputs()?;
    merged_dir(&ctx, fd)
}

#[cold]
#[inline(never)]
fn merged_dir(ctx: &Ctx, fd: c_int) -> Option<*mut crate::dirs::Shared> {
    let work = || {
        let mut path = monarch_abi::mem::PathBuffer::front();
        let st = monarch_guest::sys::fstat_local(fd)?;
        if st.st_mode & libc::S_IFMT != libc::S_IFDIR || !roots::on_device(ctx, st.st_dev) {
            return None;
        }
        // SAFETY: as many bytes are written as it says.
        unsafe { path.fill(|out| crate::descriptor_path::path_of_fd(fd, out)) }?;
        let place = Place::absolute(ctx, path.get())?;
        peers::settle_names(&place);
        if !listing::may_differ(&place.root) {
            return None;
        }
        let merged = listing::Merged::new(&place, fd)?;
        crate::dirs::open_merged(merged)
    };
    let saved = errno::errno();
    let stream = work();
    errno::set_errno(saved);
    stream
}

/// After fsync(2) of a descriptor: what the journal says of the file is on the disk, too.
#[cold]
#[inline(never)]
pub fn synced(fd: c_int) {
    let saved = errno::errno();
    if let Some(ctx) = ctx::for_outputs()
        && let Some((root, _)) = descriptors::staged(&ctx, fd)
    {
        if let Ok(journal) = journal::Journal::lock(&root) {
            let _ = journal.sync();
        }
        let flags = root.state().flags.load(core::sync::atomic::Ordering::Relaxed);
        if flags & monarch_abi::outputs::state::flag::FSYNC_PUBLISHES != 0 {
            barrier::wait_for_all(&root);
        }
    }
    errno::set_errno(saved);
}

/// In a child of `fork`.
pub fn forked() {
    roots::forked();
}

/// How often another name is tried for a temporary file.
const MAX_TEMPORARY_TRIES: usize = 100;

/// mkstemp(3) and its kin: the name is chosen here, as the C library's own open cannot be seen.
///
/// # Safety
/// The contract of mkostemps(3).
#[inline(never)]
pub unsafe fn temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> Option<c_int> {
    ctx::for_outputs()?;
    // SAFETY: by contract.
    unsafe { make_temporary(template, suffix, flags) }
}

#[cold]
#[inline(never)]
unsafe fn make_temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> Option<c_int> {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ab";
    // SAFETY: by contract.
    let len = unsafe { user::path(template)? }.len();
    let at = len.checked_sub(usize::try_from(suffix).ok()?)?.checked_sub(6)?;
    // SAFETY: inside of the template, which the application lets be written.
    let letters = unsafe { core::slice::from_raw_parts_mut(template.add(at).cast::<u8>(), 6) };
    if letters != b"XXXXXX" {
        return None;
    }
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    for _ in 0..MAX_TEMPORARY_TRIES {
        let mut random = monarch_guest::sys::random();
        for letter in &mut *letters {
            *letter = LETTERS.get(random as usize % LETTERS.len()).copied().unwrap_or(b'x');
            random >>= 5;
        }
        // SAFETY: by contract.
        match unsafe { open(libc::AT_FDCWD, template, flags, 0o600) } {
            Some(-1) if errno::errno() == libc::EEXIST => {}
            Some(fd) => return Some(fd),
            None => break,
        }
    }
    letters.copy_from_slice(b"XXXXXX");
    None
}

/// Whether an open file is a staged one.
#[inline]
#[must_use]
pub fn is_staged(fd: c_int) -> bool {
    ctx::for_outputs().is_some_and(|ctx| {
        let saved = errno::errno();
        let is = monarch_guest::sys::fstat_local(fd).is_some_and(|st| descriptors::is_marked_mode(&ctx, &st));
        errno::set_errno(saved);
        is
    })
}

/// realpath(3).
///
/// # Safety
/// The contract of realpath(3).
#[inline(never)]
pub unsafe fn real_path(path: *const c_char, out: *mut c_char) -> Option<*mut c_char> {
    // SAFETY: by contract.
    unsafe {
        at_path(libc::AT_FDCWD, path, core::ptr::null_mut(), |place| {
            use lookup::Found;
            use tree::Entry;
            peers::settle(place, true);
            match lookup::lookup(place, true)? {
                Found::Entry(Entry::File(_)) if place.is_dir_path => return Err(libc::ENOTDIR),
                Found::Entry(Entry::File(_)) => {}
                Found::Entry(Entry::Removed | Entry::RemovedDir) => return Err(libc::ENOENT),
                _ => return Ok(Answer::Plain),
            }
            if !place.parent().is_empty() {
                place.follow_parent()?;
            }
            let path = place.on_pfs()?;
            let len = path.get().len();
            let to = if out.is_null() { libc::malloc(monarch_abi::PATH_MAX).cast::<c_char>() } else { out };
            if to.is_null() {
                return Err(libc::ENOMEM);
            }
            core::ptr::copy_nonoverlapping(path.get().as_ptr(), to.cast::<u8>(), len);
            to.add(len).write(0);
            Ok(Answer::Done(to))
        })
    }
}

/// The output root of a pending file, for calls that ask about its file system.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn file_system(path: *const c_char) -> Option<Absolute> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    let mut place = Place::find(&ctx, libc::AT_FDCWD, unsafe { user::path(path)? })?;
    let saved = errno::errno();
    let found = lookup::lookup(&mut place, true);
    errno::set_errno(saved);
    match found {
        Ok(lookup::Found::Entry(tree::Entry::File(_))) => place.root.on_pfs(b""),
        found => if_removed(&found),
    }
}

/// An empty path, by which nothing is found, for a name that the job has removed.
fn if_removed(found: &Result<lookup::Found>) -> Option<Absolute> {
    use lookup::Found::Entry;
    let is_removed = matches!(found, Ok(Entry(tree::Entry::Removed | tree::Entry::RemovedDir)) | Err(libc::ENOENT));
    if is_removed { Absolute::join(b"", b"") } else { None }
}

/// The directory of the output root of a staged file that is open.
#[must_use]
pub fn root_of(fd: c_int, flags: c_int) -> Option<Fd> {
    let ctx = ctx::for_outputs()?;
    let saved = errno::errno();
    let open = || {
        let (root, _) = descriptors::staged(&ctx, fd)?;
        kernel::open(root.on_pfs(b"")?.c_str()?, flags | libc::O_DIRECTORY | libc::O_CLOEXEC, 0).ok()
    };
    let dir = open();
    errno::set_errno(saved);
    dir
}

/// The path on which a question about a pending name is made: that of the staged file, or where a
/// link leads that is not published.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn data_of(path: *const c_char, follow: bool) -> Option<Absolute> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    let mut place = Place::find(&ctx, libc::AT_FDCWD, unsafe { user::path(path)? })?;
    let saved = errno::errno();
    peers::settle(&place, follow);
    let found = lookup::lookup(&mut place, follow);
    errno::set_errno(saved);
    match found {
        Ok(lookup::Found::Entry(tree::Entry::File(file))) => place.root.data(&file.name()),
        // A link of the overlay has as few attributes as the link to be.
        Ok(lookup::Found::Entry(tree::Entry::Symlink(_))) if !follow => place.in_tree().ok(),
        Ok(lookup::Found::Elsewhere(path)) => Some(path),
        found => if_removed(&found),
    }
}
