//! Names that are not there, answered from the listing of their directory
//! ([`monarch_abi::absent`]).
//!
//! Only for calls that ask or read: a call that may create something is the kernel's. Where a
//! directory is to be compared with the PFS first, the path as the application gave it, up to the
//! name, is asked about by one `statx`: what leads elsewhere by now is found, too.

use crate::absolute::pfs_path;
use crate::ctx::Ctx;
use crate::errno;
use crate::sys;
use core::ffi::{c_char, c_int};
use core::sync::atomic::Ordering;
use monarch_abi::absent::{Absent, Verdict};
use monarch_abi::control::Counter;
use monarch_abi::demand;
use monarch_abi::index::Record;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Found, Miss, Segments};
use monarch_abi::segment::Segment;
use monarch_abi::word::State;

/// Whether the path of a call is known not to lead to anything: then errno says so, and the call
/// fails. `path` is the application's, relative to `dirfd`, and `miss` what its lookup gave.
#[cold]
#[inline(never)]
#[must_use]
pub fn fails(ctx: &Ctx, dirfd: c_int, path: &[u8], miss: Miss) -> bool {
    let Miss::Absent(absent) = miss else { return false };
    let saved = errno::errno();
    let known = is_known(ctx, dirfd, path, &miss);
    let why = if absent.below_file { libc::ENOTDIR } else { libc::ENOENT };
    errno::set_errno(if known { why } else { saved });
    if known {
        ctx.count(Counter::AbsentHits, 1);
    }
    known
}

/// Whether it is known, for questions that are no calls.
#[must_use]
pub fn is_known(ctx: &Ctx, dirfd: c_int, path: &[u8], miss: &Miss) -> bool {
    let Miss::Absent(absent) = miss else { return false };
    is_not_there(ctx, dirfd, path, absent).unwrap_or(false)
}

fn is_not_there(ctx: &Ctx, dirfd: c_int, path: &[u8], absent: &Absent) -> Option<bool> {
    let (number, segment) = ctx.segment(absent.root)?;
    let record = segment.index.record(absent.dir).filter(|r| number == absent.segment && r.is_dir())?;
    match verdict(segment, record) {
        Verdict::Kernel => None,
        Verdict::NotThere => Some(true),
        Verdict::Ask(seen) => {
            // A name in front of the part that the application spelled (a link, another spelling).
            let mut dir = PathBuffer::front();
            dir.append(path.get(..path.len().checked_sub(absent.tail)?)?)?;
            let flags = if dir.get().is_empty() { libc::AT_EMPTY_PATH } else { 0 };
            let f = Found { root: absent.root, number, segment, entry: segment.by_id(absent.dir)? };
            compare(ctx, &f, seen, (dirfd, dir.c_str()?.as_ptr(), flags)).then_some(true)
        }
    }
}

fn verdict(segment: &Segment<'_>, record: &Record) -> Verdict {
    segment.state.deciders.verdict(record.aux as usize, sys::coarse_ms() as u32)
}

/// Whether the listing and the attributes of a directory may be answered from memory: where they
/// decide about absent names, they are compared with the PFS as often as for those. `asked` is the
/// directory as statx(2) takes it.
#[inline]
#[must_use]
pub fn is_as_listed(ctx: &Ctx, f: &Found<'static>, asked: (c_int, *const c_char, c_int)) -> bool {
    !f.entry.record.is_dir() || is_dir_as_listed(ctx, f, asked)
}

#[cold]
#[inline(never)]
fn is_dir_as_listed(ctx: &Ctx, f: &Found<'static>, asked: (c_int, *const c_char, c_int)) -> bool {
    match verdict(f.segment, f.entry.record) {
        Verdict::Ask(seen) if f.entry.word().state() != State::Bypass => compare(ctx, f, seen, asked),
        _ => true,
    }
}

/// [`is_as_listed`] by the path that the directory had when it was indexed.
#[must_use]
pub fn is_as_listed_there(ctx: &Ctx, f: &Found<'static>) -> bool {
    if !f.entry.record.is_dir() || !matches!(verdict(f.segment, f.entry.record), Verdict::Ask(_)) {
        return true;
    }
    let path = pfs_path(ctx, f);
    let Some(mut path) = path else { return false };
    path.c_str().is_some_and(|p| is_dir_as_listed(ctx, f, (libc::AT_FDCWD, p.as_ptr(), libc::AT_SYMLINK_NOFOLLOW)))
}

/// Compares a directory with the PFS. One that has changed is left to the kernel, with its listing.
fn compare(ctx: &Ctx, f: &Found<'static>, seen: u32, asked: (c_int, *const c_char, c_int)) -> bool {
    let (dirfd, path, flags) = asked;
    let position = f.entry.record.aux as usize;
    // Before the question: a change after it is found when the interval from here on is over.
    let now = sys::coarse_ms() as u32;
    ctx.count(Counter::AbsentChecks, 1);
    ask_for_others(ctx, f);
    // SAFETY: the kernel checks the pointer.
    match unsafe { sys::identity(dirfd, path, flags) } {
        Ok(is) if f.segment.state.guard.is_still(f.entry.record, &is) => {
            f.segment.state.deciders.passed(position, seen, now);
            true
        }
        Ok(_) | Err(libc::ENOENT | libc::ENOTDIR) => {
            f.segment.state.deciders.leave(position);
            demand::leave(ctx.map, f);
            false
        }
        Err(_) => false,
    }
}

/// Has the agent compare the other directories that decide, once until it has looked.
fn ask_for_others(ctx: &Ctx, f: &Found<'static>) {
    let asked = &f.segment.state.header.listings_asked;
    if !f.segment.state.deciders.may_compare_ahead() {
        return;
    }
    if asked.load(Ordering::Relaxed) == 0 && asked.swap(1, Ordering::AcqRel) == 0 {
        ctx.map.ctl.hinted.fetch_add(1, Ordering::SeqCst);
        monarch_abi::sys::futex_wake(&ctx.map.ctl.hinted, 1);
    }
}

/// What readlink(2) says about an entry: the target of a link, or EINVAL; `None` when the kernel is
/// to answer.
#[must_use]
pub fn link_target(f: &Found<'static>) -> Option<Result<&'static [u8], c_int>> {
    if !f.entry.record.is_link() {
        return Some(Err(libc::EINVAL));
    }
    f.segment.index.link_target(f.entry.record).map(Ok)
}
