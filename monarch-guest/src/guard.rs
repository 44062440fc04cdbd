//! Checks before an entry is answered from memory or its copy opened, where a root is served with
//! them ([`monarch_abi::guard`]).
//!
//! *Is it still the file that was indexed?* One statx by the path as the application gave it, past
//! what this machine remembers. If it is, the time is noted for all processes; if not, or if it has
//! gone, the entry is left to the PFS from now on. When the question fails otherwise, this call is
//! the PFS's, which may say why.
//!
//! *Are the bytes of its copy what they must be?* It is read in full, through a descriptor of the
//! shim, before the application gets one. A damaged copy is taken out of use, and its word has the
//! agent make another one.

use crate::absent;
use crate::absolute::pfs_path;
use crate::ctx::Ctx;
use crate::sys::{self, Fd};
use core::ffi::{CStr, c_char, c_int};
use monarch_abi::control::Counter;
use monarch_abi::demand;
use monarch_abi::guard::LastCheck;
use monarch_abi::resolve::Found;
use monarch_abi::scratch::{BLOCK_BYTES, Scratch};
use monarch_abi::sum::{Sum, Summing};
use monarch_abi::word::Word;

/// A path as the application gave it.
#[derive(Clone, Copy)]
pub struct Asked {
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
}

impl Asked {
    /// `path` must be a string of the application, behind whose bytes there is a NUL.
    #[inline]
    #[must_use]
    pub const fn new(dirfd: c_int, path: &[u8], follow: bool) -> Self {
        Self { dirfd, path: path.as_ptr().cast(), flags: if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW } }
    }
}

/// Whether an entry may be answered from memory.
#[inline]
#[must_use]
pub fn is_still(ctx: &Ctx, f: &Found<'static>, asked: Asked) -> bool {
    match f.segment.state.guard.last_check(f.entry.id) {
        None => absent::is_as_listed(ctx, f, (asked.dirfd, asked.path, asked.flags)),
        Some(check) => ask(ctx, f, check, asked),
    }
}

/// The same by the path that it had when it was indexed: of links on the way, of directories that
/// are left by `..`, of streams, and of what is about to change.
#[cold]
#[inline(never)]
#[must_use]
pub fn is_still_there(ctx: &Ctx, f: &Found<'static>) -> bool {
    let Some(check) = f.segment.state.guard.last_check(f.entry.id) else { return absent::is_as_listed_there(ctx, f) };
    if !check.is_due(now_ms()) {
        return true;
    }
    let Some(mut path) = pfs_path(ctx, f) else { return false };
    let Some(path) = path.c_str() else { return false };
    ask(ctx, f, check, Asked { dirfd: libc::AT_FDCWD, path: path.as_ptr(), flags: libc::AT_SYMLINK_NOFOLLOW })
}

#[cold]
#[inline(never)]
fn ask(ctx: &Ctx, f: &Found<'static>, check: LastCheck<'_>, asked: Asked) -> bool {
    // Before the answer: a change after it is found when the interval from here on is over.
    let now = now_ms();
    if !check.is_due(now) {
        return true;
    }
    ctx.count(Counter::Checks, 1);
    // SAFETY: the kernel checks the pointer.
    match unsafe { sys::identity(asked.dirfd, asked.path, asked.flags) } {
        Ok(now_is) if f.segment.state.guard.is_still(f.entry.record, &now_is) => {
            check.passed(now);
            return true;
        }
        Ok(_) | Err(libc::ENOENT | libc::ENOTDIR) => demand::leave(ctx.map, f),
        Err(_) => {}
    }
    false
}

/// Milliseconds of the coarse monotonic clock, as far as 32 bits hold them.
fn now_ms() -> u32 {
    sys::coarse_ms() as u32
}

/// Whether the copy that a word speaks of, which lies at this path, may be opened.
#[cold]
#[inline(never)]
#[must_use]
pub fn is_sound(ctx: &Ctx, f: &Found<'static>, word: Word, copy: &CStr) -> bool {
    let guard = &f.segment.state.guard;
    if !guard.which().sums {
        return true;
    }
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    sys::open(copy, flags).is_some_and(|fd| is_sound_copy(ctx, f, word, &Fd(fd)))
}

/// Whether an open copy that a word speaks of holds what it must.
#[cold]
#[inline(never)]
#[must_use]
pub fn is_sound_copy(ctx: &Ctx, f: &Found<'static>, word: Word, copy: &Fd) -> bool {
    let guard = &f.segment.state.guard;
    if !guard.which().sums {
        return true;
    }
    // Not known: then only the PFS can answer.
    let Some(sum) = guard.sum(f.entry.master.id) else { return false };
    match fits(copy, f.entry.record.size, sum) {
        Some(true) => true,
        Some(false) => {
            demand::damaged(ctx.map, f, word);
            false
        }
        // The disk fails; that says nothing about the copy.
        None => false,
    }
}

/// Whether a file has these bytes and no more; `None` when it cannot be read.
fn fits(file: &Fd, size: u64, sum: Sum) -> Option<bool> {
    let mut block = Scratch::take();
    let mut state = Scratch::take();
    let summing = Summing::in_scratch(&mut state, sum.piece)?;
    let at = block.bytes()?.as_mut_ptr().cast::<u8>();
    loop {
        // SAFETY: a buffer of the shim, as long as said.
        let n = unsafe { sys::pread(file.0, at, BLOCK_BYTES, summing.bytes) };
        match usize::try_from(n) {
            Ok(0) => return Some(summing.bytes == size && summing.end() == sum),
            // SAFETY: so many bytes were filled.
            Ok(n) => summing.update(unsafe { core::slice::from_raw_parts(at, n.min(BLOCK_BYTES)) }),
            Err(_) if n == -(libc::EINTR as isize) => {}
            Err(_) => return None,
        }
        if summing.bytes > size {
            return Some(false);
        }
    }
}
