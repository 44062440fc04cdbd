//! Reads of a descriptor of a PFS file with a complete copy: a descriptor that was moved there to
//! be locked ([`crate::pfs_fd`]).
//!
//! What is remembered by number says which file it was. At each read the kernel says whether it
//! still is that file, in the version that was copied; then the bytes are the copy's, so that a
//! program that locks what it reads (HDF5) does not cost the PFS every read.

use crate::identity::is_version_of_statx;
use crate::large::{Claim, MAX_READ_BYTES, MOVED, MOVING, hint_of, is_moved};
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use monarch_abi::resolve::{Found, Segments};
use monarch_abi::word::{State, Word};
use monarch_guest::copy_open::copy_path;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys::{self, Fd};

/// What is to be remembered about a descriptor of a file on the PFS.
#[must_use]
pub fn hint(f: &Found<'static>) -> Option<u64> {
    let id = u64::from(f.entry.id);
    crate::large::hint(f).or_else(|| (id < MOVED).then_some((f.number as u64 + 1) << 32 | MOVED | id))
}

/// The file that a descriptor is, if it was moved to the PFS and has a copy of the version that it
/// shows.
#[inline]
fn identify(ctx: &Ctx, fd: c_int) -> Option<(Found<'static>, Word)> {
    let hint = match hint_of(fd) {
        MOVING => wait_until_moved(fd),
        hint => hint,
    };
    if is_moved(hint) { look(ctx, fd, hint) } else { None }
}

/// Waits until another thread has moved a descriptor: its offset is not known before. The hint that
/// it has then.
#[cold]
#[inline(never)]
fn wait_until_moved(fd: c_int) -> u64 {
    const MAX_WAIT_MS: u32 = 200;
    for _ in 0..MAX_WAIT_MS {
        match hint_of(fd) {
            MOVING => sys::sleep_ms(1),
            hint => return hint,
        }
    }
    // In a child that was forked meanwhile no thread moves it.
    crate::large::forget(fd);
    hint_of(fd)
}

#[cold]
#[inline(never)]
fn look(ctx: &Ctx, fd: c_int, hint: u64) -> Option<(Found<'static>, Word)> {
    let number = usize::try_from((hint >> 32) - 1).ok()?;
    let root = ctx.map.segments().get(number)?.root.load(Ordering::Relaxed) as usize;
    let (live, segment) = ctx.segment(root)?;
    let entry = segment.by_id((hint & (MOVED - 1)) as u32).filter(|_| live == number)?;
    let f = Found { root, number, segment, entry };
    let word = f.entry.word();
    // A copy that is verified in full at each open is not read piece by piece.
    if word.state() != State::Resident || f.segment.state.guard.which().sums {
        return None;
    }
    // (It may be locked: then other processes may have written until a moment ago.)
    let st = sys::statx_fd_now(fd)?;
    if !is_version_of_statx(ctx, &f, &st) {
        crate::large::forget(fd);
        return None;
    }
    let flags = sys::fcntl(fd, libc::F_GETFL, 0)?;
    let plain = flags & (libc::O_PATH | libc::O_DIRECT) == 0 && flags & libc::O_ACCMODE != libc::O_WRONLY;
    plain.then_some((f, word))
}

/// The copy, open.
fn open(ctx: &Ctx, f: &Found<'static>, word: Word) -> Option<Fd> {
    let mut buf = MaybeUninit::uninit();
    if !copy_path(ctx, f, word, &mut buf) {
        return None;
    }
    // SAFETY: copy_path wrote a string that ends with a NUL.
    let path = unsafe { CStr::from_ptr(buf.as_ptr().cast()) };
    sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW).map(Fd)
}

/// pread(2); `None` when the kernel is to answer.
///
/// # Safety
/// That of the system call.
#[inline]
#[must_use]
pub unsafe fn pread(ctx: &Ctx, fd: c_int, buf: *mut u8, n: usize, off: i64) -> Option<isize> {
    let (f, word) = identify(ctx, fd)?;
    let copy = open(ctx, &f, word)?;
    // SAFETY: by contract.
    let done = unsafe { sys::pread(copy.0, buf, n, u64::try_from(off).ok()?) };
    (done >= 0).then_some(done)
}

/// read(2), the same way.
///
/// # Safety
/// That of the system call.
#[inline]
#[must_use]
pub unsafe fn read(ctx: &Ctx, fd: c_int, buf: *mut u8, n: usize) -> Option<isize> {
    let (f, word) = identify(ctx, fd)?;
    let copy = open(ctx, &f, word)?;
    let claim = Claim::make(fd, n.min(MAX_READ_BYTES), f.entry.record.size)?;
    // SAFETY: by contract.
    let done = unsafe { sys::pread(copy.0, buf, claim.bytes, claim.start) };
    claim.settle(fd, done);
    (done >= 0).then_some(done)
}

/// readv(2) and preadv(2), the same way; without `off` at the offset of the descriptor.
///
/// # Safety
/// That of the system call.
#[inline]
#[must_use]
pub unsafe fn readv(
    ctx: &Ctx,
    fd: c_int,
    iov: *const libc::iovec,
    count: usize,
    total: usize,
    off: Option<i64>,
) -> Option<isize> {
    let (f, word) = identify(ctx, fd)?;
    let copy = open(ctx, &f, word)?;
    let claim = match off {
        Some(_) => None,
        None => Some(Claim::make(fd, total, f.entry.record.size)?),
    };
    let at = claim.as_ref().map_or_else(|| u64::try_from(off.unwrap_or(-1)).ok(), |c| Some(c.start))?;
    let args = [copy.0 as usize, iov as usize, count, at as usize, 0, 0];
    // SAFETY: by contract; the upper half of the offset is for 32-bit machines.
    let done = unsafe { sys::call(libc::SYS_preadv, args) };
    if let Some(claim) = claim {
        claim.settle(fd, done);
    }
    (done >= 0).then_some(done)
}

/// Whether a descriptor may be one of these; asked before anything else is.
#[inline]
#[must_use]
pub fn may_be(fd: c_int) -> bool {
    ctx::is_on() && is_moved(hint_of(fd))
}
