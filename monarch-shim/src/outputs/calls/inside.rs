//! Before functions of the C library, and the kernel, look at names by calls of their own, which no
//! hook sees: what they would miss is published first.
//!
//! Where nothing is pending below an output root, none of these waits, and none asks the kernel.

use super::changed_place;
use crate::outputs::answer::{Answer, GONE, Result, of_call};
use crate::outputs::lookup::{Found, lookup};
use crate::outputs::place::{Place, real_path};
use crate::outputs::roots::{self, Root};
use crate::outputs::tree::Entry;
use crate::outputs::{barrier, crossing, kernel, listing, others, peers, subtree};
use core::ffi::{c_char, c_int};
use core::sync::atomic::Ordering;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::{errno, user};

/// What a call of the C library reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// What a path leads to.
    File,
    /// The same, and its directory: libraries find others beside them.
    Directory,
    /// What lies below a path, links not followed.
    Tree,
    /// The same, and where links lead from there: perhaps into any output root.
    TreeThroughLinks,
}

/// Whether names below some output root are not what the PFS says: a walk of the C library's own
/// would see others than the job's calls do.
fn any_differs(ctx: &Ctx) -> bool {
    let is_held = |root: &Root| root.state().holding_nodes.load(Ordering::Acquire) != 0;
    roots::all(ctx).any(|root| listing::may_differ(&root) || is_held(&root))
}

/// Whether the job has output roots, in this process.
#[inline]
#[must_use]
pub fn has_roots() -> bool {
    ctx::for_outputs().is_some()
}

/// Whether the job's calls may see other names than the kernel does.
#[inline]
#[must_use]
pub fn may_differ() -> bool {
    ctx::for_outputs().is_some_and(|ctx| asked(&ctx, any_differs))
}

/// Whether anything is pending below an output root, here or on another node.
#[inline]
#[must_use]
pub fn is_pending() -> bool {
    ctx::for_outputs().is_some_and(|ctx| asked(&ctx, roots::any_pending))
}

#[cold]
#[inline(never)]
fn asked(ctx: &Ctx, question: fn(&Ctx) -> bool) -> bool {
    let saved = errno::errno();
    let answer = question(ctx);
    errno::set_errno(saved);
    answer
}

/// Whether a walk that begins at a path may see other names than the kernel does: the path lies in
/// an output root, or above one, or the walk follows links.
///
/// # Safety
/// As for [`user::path`].
#[must_use]
pub unsafe fn may_walk_over(path: *const c_char, follows: bool) -> bool {
    let Some(ctx) = ctx::for_outputs() else { return false };
    let saved = errno::errno();
    // SAFETY: by contract.
    let meets = || unsafe { user::path(path) }.is_some_and(|bytes| follows || meets_root(&ctx, bytes));
    let may = any_differs(&ctx) && meets();
    errno::set_errno(saved);
    may
}

fn meets_root(ctx: &Ctx, path: &[u8]) -> bool {
    if super::place_beyond(ctx, libc::AT_FDCWD, path, true).is_some() {
        return true;
    }
    let Some(real) = real_path(path) else { return false };
    roots::at(ctx, real.get()).is_some() || roots::all(ctx).any(|root| is_above(real.get(), root.path()))
}

/// Whether a directory lies above another one.
fn is_above(dir: &[u8], path: &[u8]) -> bool {
    dir == b"/" || path.strip_prefix(dir).is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// Waits until what a call is about to read is published; -1 and errno where the PFS refuses that,
/// `None` when the call may be made.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn publish(dirfd: c_int, path: *const c_char, subject: Subject) -> Option<c_int> {
    // SAFETY: by contract.
    let ctx = match ctx::for_outputs_or(|| unsafe { others::settle(dirfd, path, false) }) {
        Ok(ctx) => ctx,
        Err(_) => return None,
    };
    // SAFETY: by contract.
    unsafe { publish_below(&ctx, dirfd, path, subject) }
}

#[cold]
#[inline(never)]
unsafe fn publish_below(ctx: &Ctx, dirfd: c_int, path: *const c_char, subject: Subject) -> Option<c_int> {
    // SAFETY: by contract.
    let bytes = unsafe { user::path(path)? };
    of_call(|| roots::any_pending(ctx).then(|| publish_at(ctx, dirfd, bytes, subject)), -1)
}

fn publish_at(ctx: &Ctx, dirfd: c_int, path: &[u8], subject: Subject) -> Result<Answer<c_int>> {
    if subject == Subject::TreeThroughLinks {
        return publish_roots(ctx, |_| true);
    }
    if let Some(mut place) = changed_place(ctx, dirfd, path, true) {
        publish_place(&mut place, subject)?;
    } else if subject == Subject::Tree
        && let Some(real) = real_path(path)
    {
        return publish_roots(ctx, |root| is_above(real.get(), root.path()));
    }
    Ok(Answer::Plain)
}

/// Waits for all that is pending below the output roots that are chosen.
fn publish_roots(ctx: &Ctx, is_chosen: impl Fn(&Root) -> bool) -> Result<Answer<c_int>> {
    for root in roots::all(ctx).filter(|root| is_chosen(root)) {
        if let Some(place) = Place::at(root, b"") {
            peers::settle_tree(&place);
        }
        if root.map.may_be_overtaken() {
            barrier::wait_for_all(&root)?;
        }
    }
    Ok(Answer::Plain)
}

fn publish_place(place: &mut Place, subject: Subject) -> Result<()> {
    match subject {
        Subject::File => peers::settle(place, true),
        Subject::Directory => {
            peers::settle(place, true);
            if let Some(dir) = Place::at(place.root, place.parent()) {
                peers::settle_names(&dir);
            }
        }
        Subject::Tree | Subject::TreeThroughLinks => peers::settle_tree(place),
    }
    if place.root.state().pending.load(Ordering::Acquire) == 0 && !roots::may_cross(&place.root) {
        return Ok(());
    }
    let is_pending = match lookup(place, true) {
        Ok(Found::Entry(entry)) => entry.is_pending(),
        // By a link that is not published; or a file stands above, which is not.
        Ok(Found::Elsewhere(_)) | Err(libc::ENOTDIR) => true,
        Err(GONE) => return Err(GONE),
        // The kernel says why.
        Ok(Found::Held) | Err(_) => false,
    };
    let is_needed = is_pending
        || match subject {
            Subject::File => false,
            Subject::Directory => subtree::has_pending_names(&place.root, place.parent())?,
            Subject::Tree | Subject::TreeThroughLinks => subtree::has_pending(&place.root, place.rel())?,
        };
    if is_needed {
        crossing::wait_for_all(place)?;
    }
    Ok(())
}

/// [`publish`] of all that is pending, for a call whose words are no paths.
pub fn publish_all() {
    if let Some(ctx) = ctx::for_outputs() {
        // (Where the PFS refuses that, the call sees what is there.)
        of_call(|| roots::any_pending(&ctx).then(|| publish_roots(&ctx, |_| true)), -1);
    }
}

/// Whether the job has removed a directory, which the PFS still has.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn is_removed(path: *const c_char) -> bool {
    let find = |place: &mut Place| {
        let found = lookup(place, true);
        Ok(Answer::Done(matches!(found, Ok(Found::Entry(Entry::Removed | Entry::RemovedDir)))))
    };
    // SAFETY: by contract.
    unsafe { super::at_path_beyond(libc::AT_FDCWD, path, false, find) }.unwrap_or_default()
}

/// The errno of connect(2) to a name that is pending: a file that is no socket, or none.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn connect(path: *const c_char) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        super::at_path_beyond(libc::AT_FDCWD, path, -1, |place| match lookup(place, true)? {
            Found::Entry(Entry::File(file)) => {
                let mut path = place.root.data(&file.name()).ok_or(libc::ENAMETOOLONG)?;
                kernel::access(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::W_OK, libc::AT_EACCESS)?;
                Err(libc::ECONNREFUSED)
            }
            Found::Entry(Entry::Removed | Entry::RemovedDir) => Err(libc::ENOENT),
            // By a link that is not published.
            Found::Elsewhere(_) => crossing::wait_for_all(place).map(|_| Answer::Plain),
            _ => Ok(Answer::Plain),
        })
    }
}
