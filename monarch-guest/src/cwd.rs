//! Whether the working directory matters to any root.
//!
//! Only that is remembered, not its path. A directory outside of all roots sends relative paths to
//! the kernel, which is right whatever has become of the directory since: another process may have
//! renamed it, or a bare system call may have left it. Wherever its path is needed to find a file,
//! the kernel is asked for it.

use crate::process::process;
use crate::sys;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use monarch_abi::PATH_MAX;
use monarch_abi::control::ControlMap;

/// In the lower half of the word: number of the tables' generation, and this bit when the directory
/// was outside of all roots then. In the upper half: number of changes.
const OUTSIDE: u64 = 1 << 31;

const fn outside(generation: u32) -> u64 {
    (generation as u64 & (OUTSIDE - 1)) | OUTSIDE
}

/// Forgets the working directory.
pub fn invalidate() {
    let next = |word: u64| Some((word >> 32).wrapping_add(1) << 32);
    let _ = process().cwd.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
}

/// Whether relative paths (without leading `..`) lead outside all roots, as far as a call has found
/// out. Good for calls that read: the kernel answers them.
#[inline]
#[must_use]
pub fn is_outside(ctl: &ControlMap<'_>) -> bool {
    let word = process().cwd.load(Ordering::Acquire);
    word & 0xffff_ffff == outside(ctl.ctl.generation.load(Ordering::Relaxed))
}

/// Copies the working directory into `out`; its length. `None` when it was removed or lies outside
/// the `/` of the process.
#[must_use]
pub fn get(ctl: &ControlMap<'_>, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let page = process();
    // Before the question: a change in between makes the answer one of no use.
    let seen = page.cwd.load(Ordering::Acquire);
    let generation = ctl.ctl.generation.load(Ordering::Relaxed);
    let len = sys::getcwd(out)?;
    // SAFETY: as many bytes were written.
    let text = unsafe { core::slice::from_raw_parts(out.as_ptr().cast::<u8>(), len) };
    if text.first() != Some(&b'/') {
        return None;
    }
    if !is_near(ctl, text) {
        let known = seen >> 32 << 32 | outside(generation);
        let _ = page.cwd.compare_exchange(seen, known, Ordering::AcqRel, Ordering::Relaxed);
    }
    Some(len)
}

/// Whether a spelling of a root, or an output root, lies below `cwd` or `cwd` below it.
fn is_near(ctl: &ControlMap<'_>, cwd: &[u8]) -> bool {
    let below = |a: &[u8], b: &[u8]| {
        a.strip_prefix(b).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')) || b.ends_with(b"/"))
    };
    let near = |root: &[u8]| below(root, cwd) || below(cwd, root);
    ctl.spellings().iter().any(|s| near(ctl.str(&s.path)))
        || ctl.outputs().iter().any(|o| {
            let spelling = ctl.str(&o.spelling);
            near(ctl.str(&o.path)) || !spelling.is_empty() && near(spelling)
        })
}
