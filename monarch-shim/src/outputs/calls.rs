//! Calls of the application about paths: from what it passes to a place below an output root, and
//! from the answer of the overlay to what the call returns.
//!
//! Each answers `None` where the call is to be made as it is.

mod directories;
mod inside;
mod looking;
mod naming;
mod opening;
mod programs;
mod setting;

pub use directories::{
    forked, open_dir, open_dir_fd, open_held_dir, root_of, settle_open_directory, synced, synced_memory,
};
pub use inside::{
    Subject, connect, has_roots, is_pending, is_removed, may_differ, may_walk_over, publish, publish_all,
};
pub use looking::{
    Before, Lead, access, access_beyond, beyond, beyond_found, beyond_opened, data_of, file_system, is_at, named_open,
    part_of, read_link, read_link_beyond, real_path, stat, statx,
};
pub use naming::{Linking, link, make, remove, rename, root_at, settle, symlink, unlink, was_removed};
pub use opening::{is_staged, open, open_beyond, settle_for_child, temporary, truncate};
pub use programs::{own_environment, publish_library, publish_program, publish_searched};
pub use setting::{set_attributes, set_extended, set_extended_open};

use super::answer::{Answer, Result, of_call};
use super::barrier;
use super::crossing;
use super::place::{Behind, Place};
use super::whereabouts::settle_links_above;
use super::{descriptors, others, roots, spare, subtree};
use crate::descriptor_names::{may_name_descriptor, may_reopen};
use core::ffi::{CStr, c_char, c_int};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys::Fd;
use monarch_guest::{errno, user};

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
    // SAFETY: by contract.
    let ctx = match ctx::for_outputs_or(|| unsafe { others::settle(dirfd, path, false) }) {
        Ok(ctx) => ctx,
        Err(refused) => return refused.map(|()| failed),
    };
    // SAFETY: by contract.
    unsafe { answer(&ctx, dirfd, path, failed, work) }
}

/// [`at_path`] that follows links outside of the output roots to them, too, while something is
/// pending there.
#[inline]
unsafe fn at_path_beyond<T>(
    dirfd: c_int,
    path: *const c_char,
    failed: T,
    work: impl FnOnce(&mut Place) -> Result<Answer<T>>,
) -> Option<T> {
    // SAFETY: by contract.
    let ctx = match ctx::for_outputs_or(|| unsafe { others::settle(dirfd, path, false) }) {
        Ok(ctx) => ctx,
        Err(refused) => return refused.map(|()| failed),
    };
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    of_call(|| place_beyond(&ctx, dirfd, bytes, true).map(|place| answer_at(place, work)), failed)
}

/// The place that a path names, by links outside of the output roots, too, while something is
/// pending there.
#[cold]
#[inline(never)]
fn place_beyond(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Place> {
    Place::find(ctx, dirfd, path).or_else(|| behind_links(ctx, dirfd, path, follow))
}

/// The place that a path names by links outside of the output roots, while something is pending
/// there. Links that lead out of the output roots again are published before: the kernel follows
/// them then.
fn behind_links(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Place> {
    if path.is_empty() || !roots::any_pending(ctx) {
        return None;
    }
    match Place::behind(ctx, dirfd, path, follow)? {
        Behind::Inside(place) => Some(place),
        Behind::Outside(_) => {
            for root in roots::all(ctx) {
                // (What is wrong, the kernel says.)
                let _ = barrier::wait_for_all(&root);
            }
            None
        }
    }
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
    let bytes = unsafe {
        if ctx::is_beside_outputs(ctx.map, path) {
            return None;
        }
        user::path(path)?
    };
    of_call(|| Place::find(ctx, dirfd, bytes).map(|place| answer_at(place, work)), failed)
}

/// What a call gets at a place. Where it is to be made plainly after a link that is not published
/// has led there, that is waited for.
fn answer_at<T>(mut place: Place, work: impl FnOnce(&mut Place) -> Result<Answer<T>>) -> Result<Answer<T>> {
    let answer = work(&mut place);
    if matches!(answer, Ok(Answer::Plain)) && place.by_overlay {
        // (What is wrong, the kernel says.)
        let _ = crossing::wait_for_all(&place);
    }
    answer
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
    // SAFETY: by contract.
    let ctx = match ctx::for_outputs_or(|| unsafe { others::settle(dirfd, path, true) }) {
        Ok(ctx) => ctx,
        Err(refused) => return refused.map(|()| failed),
    };
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
    let bytes = unsafe {
        if is_far(ctx, path) {
            return None;
        }
        user::path(path)?
    };
    let changed = |place: Place| match answer_at(place, work) {
        Ok(Answer::Plain) => settle_links(ctx, dirfd, bytes).map(|()| Answer::Plain),
        answer => answer,
    };
    of_call(|| changed_place(ctx, dirfd, bytes, follow).map(changed), failed)
}

/// Whether a path is sure to mean nothing below an output root for a call that changes something:
/// nothing is pending there, and it is neither theirs nor the name of a descriptor.
///
/// # Safety
/// As for [`user::path`].
unsafe fn is_far(ctx: &Ctx, path: *const c_char) -> bool {
    // SAFETY: by contract.
    let is_beside = || unsafe { ctx::is_beside_outputs(ctx.map, path) };
    // SAFETY: by contract.
    let may_reopen = || unsafe { user::path(path) }.is_none_or(may_reopen);
    !roots::any_pending(ctx) && is_beside() && !may_reopen()
}

/// Before a plain call that changes something at a path.
fn settle_links(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Result<()> {
    if roots::any_pending(ctx)
        && let Some(place) = place_beyond(ctx, dirfd, path, false)
    {
        if place.by_overlay {
            return roots::all(ctx).try_for_each(|root| barrier::wait_for_all(&root).map(drop));
        }
        settle_links_above(&place)?;
    }
    Ok(())
}

/// The place that a path names which is about to be changed.
fn changed_place(ctx: &Ctx, dirfd: c_int, path: &[u8], follow: bool) -> Option<Place> {
    let by_number = || if follow { by_number(ctx, dirfd, path) } else { None };
    Place::find(ctx, dirfd, path).or_else(by_number).or_else(|| behind_links(ctx, dirfd, path, follow))
}

/// The place of a staged file that a path names by the number of a descriptor, if it has a name.
fn by_number(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Place> {
    if !may_reopen(path) || !may_name_descriptor(path) {
        return None;
    }
    let saved = errno::errno();
    // SAFETY: a path of the application, which ends with a NUL.
    let path = unsafe { CStr::from_ptr(path.as_ptr().cast()) };
    let fd = spare::open_own_at(dirfd, path, libc::O_PATH).ok();
    let place = fd.and_then(|fd| by_descriptor(ctx, fd.0));
    errno::set_errno(saved);
    place
}

/// The place of a staged file that is open, if it has a name.
fn by_descriptor(ctx: &Ctx, fd: c_int) -> Option<Place> {
    let (root, file) = descriptors::staged(ctx, fd)?;
    let (rel, _) = subtree::find_file(&root, b"", file.id)?;
    let mut place = Place::at(root, rel.get())?;
    place.is_by_number = true;
    Some(place)
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

/// The number of a descriptor that is the application's from now on.
fn given(fd: Fd) -> c_int {
    let number = fd.0;
    core::mem::forget(fd);
    number
}

/// What a call returns that has failed with this error.
fn failed_with(e: super::kernel::Errno) -> c_int {
    errno::set_errno(e);
    -1
}

fn as_result(answer: Answer<()>) -> Answer<c_int> {
    match answer {
        Answer::Plain => Answer::Plain,
        Answer::Done(()) => Answer::Done(0),
    }
}
