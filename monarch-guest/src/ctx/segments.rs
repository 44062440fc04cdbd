//! Segments: mapped when they appear, and never unmapped.

use super::Ctx;
use super::files::{map_file, uuid_file};
use super::trust::is_trusted;
use crate::once::Once;
use crate::sys;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::control::{ControlMap, MAX_ROOTS, MAX_SEGMENTS, SEGMENT_LIVE, SegmentRef};
use monarch_abi::index::Index;
use monarch_abi::mem::Map;
use monarch_abi::resolve::{Found, Segments};
use monarch_abi::segment::Segment;
use monarch_abi::state::{OPENING, StateMap};

/// How often a segment that could not be mapped is tried again at once, and then once a
/// millisecond: another thread may be mapping it that does not run now.
const IMMEDIATE_MAP_TRIES: u32 = 200;
const DELAYED_MAP_TRIES: u32 = 2000;

struct SegmentCell {
    /// [`EMPTY`], [`MAPPED`], [`FAILED`], or being mapped: [`MAPPING`] and the process that does
    /// it. In a child that was forked meanwhile no thread completes it.
    flag: AtomicU32,
    segment: Once<Segment<'static>>,
}

const EMPTY: u32 = 0;
const MAPPING: u32 = 1;
const MAPPED: u32 = 2;
/// It could not be mapped, perhaps for lack of descriptors. The next look tries again.
const FAILED: u32 = 3;

const fn is_being_mapped(flag: u32) -> bool {
    flag & 3 == MAPPING
}

static SEGMENTS: [SegmentCell; MAX_SEGMENTS] =
    [const { SegmentCell { flag: AtomicU32::new(EMPTY), segment: Once(UnsafeCell::new(MaybeUninit::uninit())) } };
        MAX_SEGMENTS];

/// Number + 1 of the live segment of each root.
static ROOT_SEGMENT: [AtomicU32; MAX_ROOTS] = [const { AtomicU32::new(0) }; MAX_ROOTS];

/// Not zero: some segment that was mapped has large files.
static LARGE: AtomicU32 = AtomicU32::new(0);

/// Generation of the control block that was taken over.
static SYNCED: AtomicU32 = AtomicU32::new(0);

/// In a child of `fork`: what another thread of its parent was mapping is mapped here.
pub fn forked() {
    SYNCED.store(0, Ordering::Release);
}

/// Whether a root has no index so far. If it has one that this process cannot map, what changes
/// cannot be entered: then the whole root is left to the PFS.
#[must_use]
pub fn awaits_index(map: &ControlMap<'_>, root: usize) -> bool {
    if map.roots().get(root).is_none_or(|r| r.bypassed.load(Ordering::Relaxed) != 0) {
        return false;
    }
    for turn in 0..IMMEDIATE_MAP_TRIES + DELAYED_MAP_TRIES {
        sync(map);
        if ROOT_SEGMENT.get(root).is_none_or(|s| s.load(Ordering::Acquire) != 0) {
            return false;
        }
        if !has_live_segment(map, root) {
            return true;
        }
        // Another thread is just mapping it, or it could not be mapped.
        SYNCED.store(0, Ordering::Relaxed);
        if turn < IMMEDIATE_MAP_TRIES {
            sys::pause();
        } else if SEGMENTS.iter().any(|cell| is_being_mapped(cell.flag.load(Ordering::Relaxed))) {
            sys::sleep_ms(1);
        } else {
            break;
        }
    }
    give_up(map, root);
    false
}

fn has_live_segment(map: &ControlMap<'_>, root: usize) -> bool {
    let is = |s: &SegmentRef| {
        s.status.load(Ordering::Acquire) == SEGMENT_LIVE && s.root.load(Ordering::Relaxed) as usize == root
    };
    map.segments().iter().any(is)
}

/// Leaves a root to the PFS, in all processes and for good.
pub fn give_up(map: &ControlMap<'_>, root: usize) {
    if let Some(r) = map.roots().get(root) {
        r.bypassed.store(1, Ordering::Release);
    }
}

/// Whether there may be large files: also while this process has not looked.
#[inline]
#[must_use]
pub fn may_have_large() -> bool {
    LARGE.load(Ordering::Relaxed) != 0 || SYNCED.load(Ordering::Relaxed) == 0
}

/// Whether there are large files, as far as this process has looked; it looks once at least.
#[must_use]
pub fn knows_large(map: &ControlMap<'_>) -> bool {
    if SYNCED.load(Ordering::Relaxed) == 0 {
        sync(map);
    }
    LARGE.load(Ordering::Relaxed) != 0
}

/// Takes over segments that appeared since the last look. Callers that go deeper do it first:
/// mapping one needs stack.
#[inline]
pub fn sync(map: &ControlMap<'_>) {
    let now = map.ctl.generation.load(Ordering::Acquire);
    if SYNCED.load(Ordering::Acquire) != now {
        sync_slow(map, now);
    }
}

#[cold]
#[inline(never)]
fn sync_slow(map: &ControlMap<'_>, now: u32) {
    for (at, s) in map.segments().iter().enumerate() {
        let root = s.root.load(Ordering::Relaxed) as usize;
        let Some(slot) = ROOT_SEGMENT.get(root) else { continue };
        if s.status.load(Ordering::Acquire) == SEGMENT_LIVE {
            // (Another thread may just be mapping it, and will say so.)
            if segment_at(at, s).is_some() {
                slot.store(at as u32 + 1, Ordering::Release);
            }
        } else {
            let _ = slot.compare_exchange(at as u32 + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
    SYNCED.store(now, Ordering::Release);
}

/// The mapped segments that are live, with their numbers and roots.
pub fn live(ctx: Ctx) -> impl Iterator<Item = (usize, usize, &'static Segment<'static>)> + use<> {
    sync(ctx.map);
    (0..ctx.map.roots().len()).filter_map(move |root| {
        let (number, segment) = ctx.segment(root)?;
        Some((root, number, segment))
    })
}

impl Segments<'static> for Ctx {
    #[inline(always)]
    fn segment(&self, root: usize) -> Option<(usize, &'static Segment<'static>)> {
        sync(self.map);
        let number = (ROOT_SEGMENT.get(root)?.load(Ordering::Acquire) as usize).checked_sub(1)?;
        // A change is entered even where the process would not read: to bypass too much is safe.
        if !self.opening && !is_trusted(self.map, root) {
            return None;
        }
        let cell = SEGMENTS.get(number)?;
        if cell.flag.load(Ordering::Acquire) != MAPPED {
            return None;
        }
        // SAFETY: the flag says that it was written.
        let segment = unsafe { (*cell.segment.0.get()).assume_init_ref() };
        let closed = segment.state.header.bypassed.load(Ordering::Relaxed);
        if closed != 0 && !(self.opening && closed == OPENING) {
            return None;
        }
        if self.map.root(root)?.bypassed.load(Ordering::Relaxed) != 0 {
            return None;
        }
        Some((number, segment))
    }

    /// Also for changes: what a link that leads elsewhere by now seems to change is not what
    /// changes.
    fn may_follow(&self, passed: &Found<'static>) -> bool {
        crate::guard::is_still_there(self, passed)
    }
}

/// Maps segment number `at` unless it is mapped.
#[inline(never)]
fn segment_at(at: usize, s: &SegmentRef) -> Option<()> {
    let cell = SEGMENTS.get(at)?;
    let mine = crate::process::number() << 2 | MAPPING;
    let was = cell.flag.load(Ordering::Acquire);
    match was {
        MAPPED => return Some(()),
        EMPTY | FAILED => {}
        // (Where processes cannot be distinguished, the number is 0.)
        _ if was == mine || mine == MAPPING || was == MAPPING => return None,
        _ => {}
    }
    cell.flag.compare_exchange(was, mine, Ordering::AcqRel, Ordering::Acquire).ok()?;
    // SAFETY: this thread claimed the cell.
    let flag = if unsafe { map_segment(s, (*cell.segment.0.get()).as_mut_ptr()) } { MAPPED } else { FAILED };
    cell.flag.store(flag, Ordering::Release);
    (flag == MAPPED).then_some(())
}

/// Maps a segment in place: whole values are too large for some stacks.
///
/// # Safety
/// `to` is the caller's to write.
unsafe fn map_segment(s: &SegmentRef, to: *mut Segment<'static>) -> bool {
    // SAFETY: by contract; the index is written before it is read.
    unsafe {
        if !map_index(s, &raw mut (*to).index) || !map_state(s, &(*to).index, &raw mut (*to).state) {
            return false;
        }
        if (*to).state.header.large > 0 {
            LARGE.store(1, Ordering::Relaxed);
        }
    }
    true
}

#[inline(never)]
unsafe fn map_index(s: &SegmentRef, to: *mut Index<'static>) -> bool {
    let map = || map_file(uuid_file(&s.uuid, b".idx")?.get(), false);
    let Some(index) = map().and_then(Index::open) else { return false };
    // SAFETY: by contract of the caller.
    unsafe { to.write(index) };
    true
}

/// (By itself, for the stack of the caller.)
#[inline(never)]
fn map_state_file(s: &SegmentRef) -> Option<Map<'static>> {
    map_file(uuid_file(&s.state_uuid, b".st")?.get(), true)
}

#[inline(never)]
unsafe fn map_state(s: &SegmentRef, index: &Index<'static>, to: *mut StateMap<'static>) -> bool {
    let Some(state) = map_state_file(s).and_then(|map| StateMap::open(map, index)) else { return false };
    // SAFETY: by contract of the caller.
    unsafe { to.write(state) };
    true
}
