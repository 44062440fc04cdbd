//! Checks before a copy is opened, as the preload library makes them: whether the file is still
//! what was indexed, and whether its copy is undamaged.

use super::memory::Memory;
use crate::tier::Fits;
use monarch_abi::control::Counter;
use monarch_abi::demand;
use monarch_abi::hash::Identity;
use monarch_abi::resolve::{Found, Segments};
use monarch_abi::segment::Segment;
use monarch_abi::word::Word;
use rustix::fs::{AtFlags, CWD, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Returns the identity of the file at a path now. The kernel asks the PFS, and not its caches.
pub(super) fn identity(path: &Path, follow: AtFlags) -> rustix::io::Result<Identity> {
    let wanted = StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
    let st = rustix::fs::statx(CWD, path, follow | AtFlags::STATX_FORCE_SYNC, wanted)?;
    let ns = |t: StatxTimestamp| t.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(t.tv_nsec));
    Ok(Identity { size: st.stx_size, mtime_ns: ns(st.stx_mtime), ctime_ns: ns(st.stx_ctime), ino: st.stx_ino })
}

/// Returns the milliseconds of the coarse monotonic clock, modulo 2^32.
pub(super) fn now_ms() -> u32 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    (t.tv_sec as u32).wrapping_mul(1000).wrapping_add((t.tv_nsec / 1_000_000) as u32)
}

/// The memory of an agent as the source of segments for the resolution of paths.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) memory: &'a Memory,
    /// Whether to resolve also below roots whose path leads to another directory in this process.
    pub(super) trusting: bool,
}

impl<'a> Segments<'a> for View<'a> {
    fn segment(&self, root: usize) -> Option<(usize, &'a Segment<'a>)> {
        let (number, segment) = self.memory.live(root)?;
        let open = segment.state.header.bypassed.load(Ordering::Relaxed) == 0;
        let ours = self.trusting || self.memory.leads_there(root);
        (open && ours && !self.memory.is_given_up(root)).then_some((number, segment))
    }

    fn may_follow(&self, link: &Found<'a>) -> bool {
        may_follow(self.memory, link)
    }
}

/// Whether an entry is still what was indexed. Asks the PFS, by this path, if the last check is
/// too old.
pub(super) fn is_still(memory: &Memory, found: &Found<'_>, path: &Path, follow: AtFlags) -> bool {
    let Some(check) = found.segment.state.guard.last_check(found.entry.id) else { return true };
    let now = now_ms();
    if !check.is_due(now) {
        return true;
    }
    memory.count(Counter::Checks, 1);
    match identity(path, follow) {
        Ok(id) if found.segment.state.guard.is_still(found.entry.record, &id) => {
            check.passed(now);
            return true;
        }
        Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => demand::leave(&memory.ctl, found),
        Err(_) => {}
    }
    false
}

/// [`is_still`] for a link or directory on the way, by its path in the index.
pub(super) fn may_follow(memory: &Memory, link: &Found<'_>) -> bool {
    link.segment.state.guard.last_check(link.entry.id).is_none()
        || memory.indexed_path(link).is_some_and(|path| is_still(memory, link, &path, AtFlags::SYMLINK_NOFOLLOW))
}

/// Whether an open copy matches its checksum, where the root is verified at opens. Marks a
/// damaged copy, so that no process uses it again.
pub(super) fn is_sound(memory: &Memory, found: &Found<'_>, word: Word, copy: &File) -> bool {
    let guard = &found.segment.state.guard;
    if !guard.which().sums {
        return true;
    }
    let Some(sum) = guard.sum(found.entry.master.id) else { return false };
    let fits = sum.fits(copy, found.entry.record.size);
    if fits.as_ref().is_ok_and(|fits| !fits) {
        demand::damaged(&memory.ctl, found, word);
    }
    fits.unwrap_or(false)
}
