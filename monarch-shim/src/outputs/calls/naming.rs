//! Calls that make, remove, link and rename names.

use super::{as_result, at_changed_path, by_descriptor, changed_place, settle_links};
use crate::outputs::answer::{Answer, Result, of_call};
use crate::outputs::beside::UnderWay;
use crate::outputs::place::{Place, ends_in_dots};
use crate::outputs::rename::{self as renames, After, Side};
use crate::outputs::roots::Root;
use crate::outputs::{descriptors, kernel, names, others, peers, removal, symlinks};
use core::ffi::{CStr, c_char, c_int};
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::{errno, user};

/// unlinkat(2). `under_way`: to be kept until the plain call has ended.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn unlink(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    under_way: &mut Option<UnderWay>,
) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        // (What is wrong with these, the kernel says before it looks for the name.)
        if flags & !libc::AT_REMOVEDIR != 0 {
            return None;
        }
        if user::path(path).is_some_and(ends_in_dots) {
            return in_dots(dirfd, path);
        }
        at_changed_path(dirfd, path, false, -1, |place| {
            if flags & libc::AT_REMOVEDIR != 0 {
                peers::settle_tree(place);
                return names::rmdir(place).map(as_result);
            }
            peers::settle(place, false);
            removal::unlink(place, under_way).map(as_result)
        })
    }
}

/// Before a call that makes, moves or removes a name, of a path that ends in `.` or `..`.
#[cold]
#[inline(never)]
unsafe fn in_dots(dirfd: c_int, path: *const c_char) -> Option<c_int> {
    // SAFETY: by contract of the caller.
    unsafe {
        at_changed_path(dirfd, path, false, -1, |place| {
            peers::settle(place, false);
            names::in_dots(place).map(as_result)
        })
    }
}

/// remove(3). `under_way`: to be kept until the plain call has ended.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn remove(path: *const c_char, under_way: &mut Option<UnderWay>) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        if user::path(path).is_some_and(ends_in_dots) {
            return in_dots(libc::AT_FDCWD, path);
        }
        at_changed_path(libc::AT_FDCWD, path, false, -1, |place| {
            peers::settle(place, false);
            let mut on_pfs = place.on_pfs()?;
            let st = on_pfs.c_str().and_then(|p| kernel::lstat(p).ok());
            let is_dir = st.is_some_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFDIR);
            let done = if is_dir { names::rmdir(place) } else { removal::unlink(place, under_way) };
            done.map(as_result)
        })
    }
}

/// Before mkdir(2), mknod(2) and the like. `under_way`: to be kept until the plain call has ended.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn make(dirfd: c_int, path: *const c_char, under_way: &mut Option<UnderWay>) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        if user::path(path).is_some_and(ends_in_dots) {
            return in_dots(dirfd, path);
        }
        at_changed_path(dirfd, path, false, -1, |place| {
            peers::settle(place, false);
            names::make(place, under_way).map(as_result)
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

/// symlinkat(2). `under_way`: as for [`make`].
///
/// # Safety
/// As for [`user::path`], for both.
#[inline(never)]
pub unsafe fn symlink(
    target: *const c_char,
    dirfd: c_int,
    path: *const c_char,
    under_way: &mut Option<UnderWay>,
) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        if user::path(path).is_some_and(ends_in_dots) {
            return in_dots(dirfd, path);
        }
        at_changed_path(dirfd, path, false, -1, |place| {
            let Some(text) = user::path(target).filter(|text| !text.is_empty()) else { return Ok(Answer::Plain) };
            peers::settle(place, false);
            symlinks::symlink(place, CStr::from_ptr(text.as_ptr().cast()), under_way).map(as_result)
        })
    }
}

/// What is known about a link(2) until the plain call has ended.
#[derive(Default)]
pub struct Linking {
    /// About the new name.
    under_way: Option<UnderWay>,
    /// About the name that the file has.
    source: Option<UnderWay>,
    /// The path of the published file, if the call names it by a descriptor of the staged one.
    pub published: Option<Absolute>,
}

/// Before linkat(2): the file that gets another name is published first. `linking`: to be kept
/// until the plain call has ended.
///
/// # Safety
/// As for [`user::path`], for both.
#[inline(never)]
pub unsafe fn link(
    (from_fd, from): (c_int, *const c_char),
    (to_fd, to): (c_int, *const c_char),
    flags: c_int,
    linking: &mut Linking,
) -> Option<c_int> {
    let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
    // (What is wrong with these, the kernel says before it looks for the names.)
    if flags & !(libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return None;
    }
    // SAFETY: by contract.
    unsafe {
        for _ in 0..names::MAX_PUBLISHED {
            let mut published = None;
            let work = |place: &mut Place| {
                peers::settle(place, follow);
                let outside = user::path(to).filter(|to| changed_place(&place.root.ctx, to_fd, to, false).is_none());
                let outside = outside.and_then(|to| kernel::device_of_parent(to_fd, to));
                let answer = names::publish_for_link(place, follow, outside)?;
                if place.is_by_number {
                    published = Some(place.on_pfs()?);
                }
                Ok(as_result(answer))
            };
            let is_open = flags & libc::AT_EMPTY_PATH != 0 && user::path(from).is_some_and(<[u8]>::is_empty);
            let first =
                if is_open { link_open(from_fd, work) } else { at_changed_path(from_fd, from, follow, -1, work) };
            linking.published = published;
            let under_way = &mut linking.under_way;
            match first {
                // What is wrong with the new name comes before that.
                Some(-1) if errno::errno() == libc::EXDEV => {
                    return make(to_fd, to, under_way).or_else(|| {
                        errno::set_errno(kernel::cross_link(to_fd, to));
                        Some(-1)
                    });
                }
                Some(_) => return first,
                None => {}
            }
            // (What may have to wait comes first.)
            if let Some(made) = make(to_fd, to, under_way) {
                return Some(made);
            }
            let source = &mut linking.source;
            let announce = |place: &mut Place| names::announce_link(place, follow, source).map(as_result);
            if is_open || at_changed_path(from_fd, from, follow, -1, announce) != Some(0) {
                return None;
            }
            *under_way = None;
        }
        None
    }
}

/// [`link`] of a staged file that is open: a plain call would reach that.
#[cold]
#[inline(never)]
fn link_open(fd: c_int, work: impl FnOnce(&mut Place) -> Result<Answer<c_int>>) -> Option<c_int> {
    let ctx = ctx::for_outputs()?;
    let link = || {
        descriptors::staged(&ctx, fd)?;
        if let Err(e) = kernel::may_link_open(fd) {
            return Some(Err(e));
        }
        // It has no name any more.
        let Some(mut place) = by_descriptor(&ctx, fd) else { return Some(Err(libc::ENOENT)) };
        Some(work(&mut place))
    };
    of_call(link, -1)
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

/// The output root that a path names, if it names one.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn root_at(dirfd: c_int, path: *const c_char) -> Option<Root> {
    let ctx = ctx::for_outputs()?;
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    Place::find(&ctx, dirfd, bytes).filter(|place| place.rel().is_empty()).map(|place| place.root)
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
    // SAFETY: by contract.
    let ends_in_dots = |path| unsafe { user::path(path) }.is_some_and(ends_in_dots);
    // SAFETY: by contract.
    let settle = || unsafe { others::settle(from_fd, from, true).or_else(|| others::settle(to_fd, to, true)) };
    let ctx = match ctx::for_outputs_or(settle) {
        Err(Some(())) => return -1,
        ctx => ctx.ok(),
    };
    match ctx {
        Some(_) if !can_rename(flags) => call(),
        // SAFETY: by contract.
        Some(_) if ends_in_dots(from) || ends_in_dots(to) => unsafe {
            let of = |fd, path| if ends_in_dots(path) { in_dots(fd, path) } else { None };
            of(from_fd, from).or_else(|| of(to_fd, to)).unwrap_or_else(call)
        },
        // What it leaves is no file: there is no such entry in the order.
        Some(ctx) if flags & libc::RENAME_WHITEOUT != 0 => {
            let is_below = |fd, path| {
                // SAFETY: by contract.
                unsafe { user::path(path) }.is_some_and(|path| changed_place(&ctx, fd, path, false).is_some())
            };
            if is_below(from_fd, from) || is_below(to_fd, to) {
                super::publish_all();
            }
            call()
        }
        // SAFETY: by contract.
        Some(ctx) => unsafe { rename_below(&ctx, (from_fd, from), (to_fd, to), flags, call) },
        None => call(),
    }
}

/// Whether a PFS may know the flags of a rename: others the kernel refuses before it looks for the
/// names.
const fn can_rename(flags: u32) -> bool {
    const OTHERS: u32 = libc::RENAME_NOREPLACE | libc::RENAME_WHITEOUT;
    flags & !(OTHERS | libc::RENAME_EXCHANGE) == 0 && (flags & OTHERS == 0 || flags & libc::RENAME_EXCHANGE == 0)
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
            let renamed = renames::rename(a, b, flags).map(|(answer, then)| {
                after = then;
                if matches!(answer, Answer::Plain) {
                    // SAFETY: by contract of the caller.
                    let paths = [(from_fd, unsafe { user::path(from) }), (to_fd, unsafe { user::path(to) })];
                    for (fd, path) in paths {
                        // (Where the PFS refuses that, the call says what it finds.)
                        let _ = settle_links(ctx, fd, path.unwrap_or_default());
                    }
                }
                as_result(answer)
            });
            Some(renamed)
        },
        -1,
    );
    let Some(done) = done else {
        let result = call();
        let saved = errno::errno();
        let _ = renames::renamed(after, result == 0);
        errno::set_errno(saved);
        return result;
    };
    done
}
