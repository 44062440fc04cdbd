//! Names that are not there, answered from the listing of their directory ([`monarch_abi::absent`]).
//!
//! Only for calls that ask or read: a call that may create something is the kernel's. Where a
//! directory is to be compared with the PFS first, the path as the application gave it, up to the
//! name, is asked about by one `statx`: what leads elsewhere by now is found, too.

use crate::ctx::Ctx;
use crate::errno;
use crate::sys;
use core::ffi::c_int;
use monarch_abi::absent::{Absent, Verdict};
use monarch_abi::control::Counter;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Found, Miss, Segments};

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
    let position = record.aux as usize;
    // Before the question: a change after it is found when the interval from here on is over.
    let now = sys::coarse_ms() as u32;
    let seen = match segment.state.deciders.verdict(position, now) {
        Verdict::Kernel => return None,
        Verdict::NotThere => return Some(true),
        Verdict::Ask(seen) => seen,
    };
    // A name in front of the part that the application spelled (a link, another spelling).
    let mut dir = PathBuffer::front();
    dir.append(path.get(..path.len().checked_sub(absent.tail)?)?)?;
    let flags = if dir.get().is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    ctx.count(Counter::AbsentChecks, 1);
    // SAFETY: a path of the shim.
    match unsafe { sys::identity(dirfd, dir.c_str()?.as_ptr(), flags) } {
        Ok(is) if segment.state.guard.is_still(record, &is) => {
            segment.state.deciders.passed(position, seen, now);
            Some(true)
        }
        Ok(_) | Err(libc::ENOENT | libc::ENOTDIR) => {
            segment.state.deciders.leave(position);
            None
        }
        Err(_) => None,
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
