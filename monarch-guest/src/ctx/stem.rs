//! Whether a path leads outside of all roots, by its first bytes.

use super::Ctx;
use crate::user::{self, Beginning};
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_abi::control::ControlMap;
use monarch_abi::mem::common_prefix;
use monarch_abi::resolve::{Found, resolve_as_spelled};

/// What all spellings of the roots have in front: number of spellings << 48 | whether it is all
/// there is << 47 | length << 32 | offset in the area of strings.
static STEM: AtomicU64 = AtomicU64::new(0);

const WHOLE: u64 = 1 << 47;

/// What all paths and spellings of the output roots have in front, as in [`STEM`]; their number is
/// that of the output roots.
static OUTPUT_STEM: AtomicU64 = AtomicU64::new(0);

/// What the first bytes of a path show, as far as loads from memory do.
pub enum Glance {
    /// It leads outside of all roots; the page of these bytes was tested.
    Outside,
    /// It begins with the only spelling of the only root.
    Below(Below),
    /// It has to be entered ([`enter`]).
    Unknown,
}

/// The beginning of a path: see [`Glance::Below`].
#[derive(Clone, Copy)]
pub struct Below {
    map: &'static ControlMap<'static>,
    len: usize,
}

impl Below {
    /// The entry of the path, if its bytes end in the page that was tested and one lookup answers;
    /// with the context and these bytes.
    ///
    /// # Safety
    /// The value is that of [`glance`] for this path.
    #[inline(always)]
    #[must_use]
    pub unsafe fn find<'a>(
        self,
        path: *const core::ffi::c_char,
        follow: bool,
    ) -> Option<(Ctx, &'a [u8], Found<'static>)> {
        // SAFETY: by contract.
        let bytes = unsafe { user::rest_in_page(path, self.len)? };
        let rest = bytes.get(self.len..).filter(|rest| rest.first() == Some(&b'/'))?;
        let root = self.map.ctl.spellings.first()?.root.load(Ordering::Relaxed) as usize;
        let ctx = Ctx { map: self.map, opening: false, below: self.len };
        let found = resolve_as_spelled(self.map, &ctx, root, rest, follow)?;
        Some((ctx, bytes, found))
    }
}

/// The gate and a look at the first bytes of a path in one step, for calls that only read. No
/// function is called, so that the caller has no registers to save where the path leads outside.
/// Where there are output roots nothing is known: a path may lead below one.
///
/// # Safety
/// That of [`crate::user::path`].
#[inline(always)]
#[must_use]
pub unsafe fn glance(path: *const core::ffi::c_char) -> Glance {
    let Some(map) = super::seen_on() else { return Glance::Unknown };
    // SAFETY: by contract.
    unsafe { glance_at_roots(map, path) }
}

/// [`glance`] where there are output roots: of a path that is sure to lead below none of them, as
/// far as links do not lead there.
///
/// # Safety
/// That of [`crate::user::path`].
#[inline]
#[must_use]
pub unsafe fn glance_beside_outputs(path: *const core::ffi::c_char) -> Glance {
    let Some(map) = super::seen_with_outputs() else { return Glance::Unknown };
    // SAFETY: by contract.
    unsafe { if is_beside_outputs(map, path) { glance_at_roots(map, path) } else { Glance::Unknown } }
}

/// Whether a path is sure to lead below no output root, as far as links do not lead there: it is
/// absolute, its first bytes are not theirs, and it does not lead up.
///
/// # Safety
/// That of [`crate::user::path`].
#[inline]
#[must_use]
pub unsafe fn is_beside_outputs(map: &ControlMap<'_>, path: *const core::ffi::c_char) -> bool {
    let known = OUTPUT_STEM.load(Ordering::Acquire);
    let n = map.ctl.outputs_len.load(Ordering::Acquire);
    let known = if known >> 48 == u64::from(n) { known } else { find_output_stem(map) };
    let Some(stem) = map.string_part(known as u32, (known >> 32 & 0x7fff) as usize) else { return false };
    // SAFETY: by contract; where the first bytes differ, the page was tested.
    unsafe {
        match user::compare_seen(path, stem) {
            // (The first of two dots may be the stem's.)
            Beginning::Differs(at, c) => is_outside(stem, at, c) && !user::may_lead_up_in_page(path.add(at - 1)),
            _ => false,
        }
    }
}

#[cold]
#[inline(never)]
fn find_output_stem(map: &ControlMap<'_>) -> u64 {
    let all = map.outputs();
    let Some(first) = all.first() else { return 0 };
    let text = map.str(&first.path);
    let texts = all.iter().flat_map(|output| [map.str(&output.path), map.str(&output.spelling)]);
    let len = texts.filter(|t| !t.is_empty()).map(|t| common_prefix(text, t)).fold(text.len().min(0x7fff), usize::min);
    let found = (all.len() as u64) << 48 | (len as u64) << 32 | u64::from(first.path.off.load(Ordering::Relaxed));
    OUTPUT_STEM.store(found, Ordering::Release);
    found
}

/// [`glance`] at the roots of data sets.
///
/// # Safety
/// That of [`crate::user::path`].
#[inline(always)]
unsafe fn glance_at_roots(map: &'static ControlMap<'static>, path: *const core::ffi::c_char) -> Glance {
    let known = STEM.load(Ordering::Acquire);
    let n = map.ctl.spellings_len.load(Ordering::Acquire);
    let len = (known >> 32 & 0x7fff) as usize;
    let Some(stem) = map.string_part(known as u32, len) else { return Glance::Unknown };
    if known >> 48 != u64::from(n) {
        return Glance::Unknown;
    }
    // SAFETY: by contract.
    match unsafe { user::compare_seen(path, stem) } {
        Beginning::Differs(at, c) if is_outside(stem, at, c) => Glance::Outside,
        Beginning::Same if known & WHOLE != 0 => Glance::Below(Below { map, len }),
        _ => Glance::Unknown,
    }
}

/// Whether a path leads outside of all roots that has another byte `c` at `at` than all their
/// spellings: unless that is the doubled slash or the dot of an odd spelling.
#[inline]
fn is_outside(stem: &[u8], at: usize, c: u8) -> bool {
    let odd = matches!(c, b'/' | b'.') && at > 0 && stem.get(at - 1) == Some(&b'/');
    at > 0 && !odd
}

/// The context for a path that may lead below a root, and its bytes. `None` if the path cannot
/// be read, or is absolute and leads outside of all roots.
///
/// # Safety
/// That of [`crate::user::path`].
#[inline(always)]
pub unsafe fn enter<'a>(ctx: Ctx, path: *const core::ffi::c_char) -> Option<(Ctx, &'a [u8])> {
    // SAFETY: by contract.
    unsafe { enter_or(ctx, path, || {}) }
}

/// [`enter`] that calls `outside` if the first bytes of a path show that it leads outside
/// of all roots: then the page of these bytes was tested.
///
/// The first byte that differs from what all spellings have in common shows it, unless that is
/// the doubled slash or the dot of an odd spelling. If there is but one spelling, and the path
/// begins with it, nothing needs to be compared again.
///
/// # Safety
/// That of [`crate::user::path`].
#[inline(always)]
pub unsafe fn enter_or<'a>(
    mut ctx: Ctx,
    path: *const core::ffi::c_char,
    outside: impl FnOnce(),
) -> Option<(Ctx, &'a [u8])> {
    let known = STEM.load(Ordering::Acquire);
    let n = ctx.map.ctl.spellings_len.load(Ordering::Acquire);
    let known = if known >> 48 == u64::from(n) { known } else { find_stem(ctx.map) };
    let len = (known >> 32 & 0x7fff) as usize;
    let stem = ctx.map.string(known as u32, len);
    // SAFETY: by contract.
    unsafe {
        match user::compare(path, stem) {
            Beginning::Differs(at, c) if is_outside(stem, at, c) => {
                outside();
                return None;
            }
            Beginning::Same if known & WHOLE != 0 => {
                if let Some(bytes) = user::rest_in_page(path, len) {
                    ctx.below = len;
                    return Some((ctx, bytes));
                }
            }
            _ => {}
        }
        Some((ctx, user::path(path)?))
    }
}

#[cold]
#[inline(never)]
fn find_stem(map: &ControlMap<'_>) -> u64 {
    let all = map.spellings();
    let Some(first) = all.first() else { return 0 };
    let text = map.str(&first.path);
    // One that was switched off matches nothing.
    let others = all.iter().skip(1).map(|s| map.str(&s.path)).filter(|t| !t.is_empty());
    let len = others.map(|t| common_prefix(text, t)).fold(text.len().min(0x7fff), usize::min);
    // Another spelling may be hidden here or lead elsewhere one day, a root's real path does
    // not.
    let root = map.roots().get(first.root.load(Ordering::Relaxed) as usize);
    let whole = all.len() == 1 && len > 0 && len == text.len() && root.is_some_and(|r| map.str(&r.path) == text);
    let found = (all.len() as u64) << 48
        | if whole { WHOLE } else { 0 }
        | (len as u64) << 32
        | u64::from(first.path.off.load(Ordering::Relaxed));
    STEM.store(found, Ordering::Release);
    found
}

/// The part of a path behind the only spelling of the only root, and that root, if
/// [`enter`] found it there.
#[inline]
#[must_use]
pub fn below<'p>(ctx: &Ctx, path: &'p [u8]) -> Option<(usize, &'p [u8])> {
    if ctx.below == 0 {
        return None;
    }
    let rest = path.get(ctx.below..).filter(|rest| rest.first() == Some(&b'/'))?;
    Some((ctx.map.ctl.spellings.first()?.root.load(Ordering::Relaxed) as usize, rest))
}
