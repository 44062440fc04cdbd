//! Where the copy of a file lies, opening it, and waiting for it.

use crate::ctx::{self, Ctx};
use crate::process::process;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use monarch_abi::COPY_PATH_MAX;
use monarch_abi::demand::{self, Watch};
use monarch_abi::hash::COPY_REL_LEN;
use monarch_abi::resolve::Found;
use monarch_abi::word::Word;

/// Where the copy of a resident file lies.
#[inline(never)]
#[must_use]
pub fn copy_path(ctx: &Ctx, f: &Found<'static>, word: Word, out: &mut MaybeUninit<[u8; COPY_PATH_MAX]>) -> bool {
    copy_path_inlined(ctx, f, word, out)
}

/// [`copy_path`] in the code of its caller, for calls of which each instruction counts.
#[inline(always)]
#[must_use]
pub fn copy_path_inlined(
    ctx: &Ctx,
    f: &Found<'static>,
    word: Word,
    out: &mut MaybeUninit<[u8; COPY_PATH_MAX]>,
) -> bool {
    let Some(tier) = ctx.map.tier(word.tier()) else { return false };
    let base = ctx.map.str(&tier.path);
    let rel = f.segment.copy_name(&f.entry).rel_path();
    let known = process().tiers.load(Ordering::Relaxed) & 1 << word.tier() != 0;
    if base.len() + 1 + COPY_REL_LEN + 1 > COPY_PATH_MAX || !(known || is_agents(ctx, word.tier())) {
        return false;
    }
    let p = out.as_mut_ptr().cast::<u8>();
    // SAFETY: the parts fit, as just checked.
    unsafe {
        core::ptr::copy_nonoverlapping(base.as_ptr(), p, base.len());
        p.add(base.len()).write(b'/');
        core::ptr::copy_nonoverlapping(rel.as_ptr(), p.add(base.len() + 1), COPY_REL_LEN);
        p.add(base.len() + 1 + COPY_REL_LEN).write(0);
    }
    true
}

/// Whether the directory of a tier is the one that the agent holds, belongs to its user, and cannot
/// be changed by another user. Asked once in a process: the agent has made sure that no other user
/// can exchange the directories above it.
#[cold]
#[inline(never)]
fn is_agents(ctx: &Ctx, number: usize) -> bool {
    let Some(tier) = ctx.map.tiers().get(number) else { return false };
    let Some(st) = crate::sys::stat_bytes(ctx.map.str(&tier.path), libc::AT_SYMLINK_NOFOLLOW) else { return false };
    let place = (tier.dev.load(Ordering::Relaxed), tier.ino.load(Ordering::Relaxed));
    let good =
        (st.st_dev, st.st_ino) == place && st.st_uid == ctx::ids::agents_user(ctx.map.ctl) && st.st_mode & 0o022 == 0;
    if good {
        process().tiers.fetch_or(1 << number, Ordering::Relaxed);
    }
    good
}

/// This process, waiting.
pub struct Here;

impl Watch for Here {
    fn now_us(&self) -> u64 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the buffer outlives the call.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
        t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
    }
    fn agent(&self) -> demand::Life {
        ctx::agent()
    }
}

/// Opens a copy by the bare system call, errno kept.
#[inline]
#[must_use]
pub fn raw_open(path: &CStr, flags: c_int) -> Option<c_int> {
    // (`O_NOFOLLOW`, too, is one of the flags that fcntl shows; a copy is no link.)
    crate::sys::open(path, flags)
}
