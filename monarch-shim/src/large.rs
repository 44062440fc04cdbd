//! Which descriptor is a large file's, and where what there is of its copy lies.
//!
//! Which file a descriptor is, the kernel says at each read (identity of inode, size and time).
//! What is remembered by number is only that a descriptor is *not* worth that question, or where
//! its file was found the last time; both may be wrong and do no harm.

use crate::identity::is_version_of_statx;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_abi::COPY_PATH_MAX;
use monarch_abi::chunks::LargeFile;
use monarch_abi::resolve::{Found, Segments};
use monarch_abi::word::{State, Word};
use monarch_guest::copy_open::copy_path;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys::{self, Fd};

/// Descriptors for which a hint is kept: those below this number.
const TRACKED_DESCRIPTORS: usize = 4096;
/// Nothing is known about a descriptor.
const UNKNOWN: u64 = 0;
/// It was no large file when it was last asked about.
const NONE: u64 = 1;
/// By descriptor: one of these, or number + 1 of a segment and position of a large file there.
static HINTS: [AtomicU64; TRACKED_DESCRIPTORS] = [const { AtomicU64::new(UNKNOWN) }; TRACKED_DESCRIPTORS];
/// By descriptor: where its last read ended.
static ENDS: [AtomicU64; TRACKED_DESCRIPTORS] = [const { AtomicU64::new(0) }; TRACKED_DESCRIPTORS];

/// Bytes of the longest read.
pub const MAX_READ_BYTES: usize = 0x7fff_f000;
/// A first read of this size or more is taken for the beginning of a pass in order, where that
/// decides whether chunks are asked for.
const MIN_SEQUENTIAL_READ_BYTES: usize = 64 << 10;

/// Number of no file of a partial copy.
pub const NO_PART: u64 = 0;

/// Not zero: this process has locked files of a root. What others have written before it got the
/// lock is to be seen then.
static LOCKS: AtomicU64 = AtomicU64::new(0);

/// A file of a root is about to be locked.
pub fn locks_are_taken() {
    LOCKS.store(1, Ordering::Relaxed);
}

/// Whether reads of a descriptor may be answered here: of a large file, or of one that was moved to
/// the PFS, which its hint says. Where there are no large files a descriptor without a hint is
/// neither.
#[inline]
#[must_use]
pub fn may_be(fd: c_int) -> bool {
    match hint_of(fd) {
        NONE => false,
        UNKNOWN => ctx::may_have_large() && ctx::is_on(),
        _ => ctx::is_on(),
    }
}

/// [`may_be`] for calls that are rare: what was remembered may be about another file with this
/// number.
#[inline]
#[must_use]
pub fn could_be(fd: c_int) -> bool {
    fd >= 0 && ctx::is_on()
}

/// A descriptor got a second number.
#[inline]
pub fn duplicated(from: c_int, to: c_int) {
    if let (Some(a), Some(b)) = (HINTS.get(from as usize), HINTS.get(to as usize)) {
        b.store(a.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A large file with where it was found.
pub struct Known {
    /// Its entry.
    pub f: Found<'static>,
    /// Its chunks.
    pub large: LargeFile<'static>,
}

/// What is to be remembered about the descriptor of a large file.
#[must_use]
pub fn hint(f: &Found<'static>) -> Option<u64> {
    let large = f.segment.state.large(f.entry.master.id)?;
    Some((f.number as u64 + 1) << 32 | u64::from(large.number))
}

/// Remembers it for a descriptor that was just opened.
pub fn remember(fd: c_int, hint: u64) {
    if let (Some(h), Some(end)) = (HINTS.get(fd as usize), ENDS.get(fd as usize)) {
        h.store(hint, Ordering::Relaxed);
        end.store(0, Ordering::Relaxed);
    }
}

/// What is remembered about a descriptor.
#[inline]
#[must_use]
pub fn hint_of(fd: c_int) -> u64 {
    HINTS.get(fd as usize).map_or(UNKNOWN, |h| h.load(Ordering::Relaxed))
}

/// Mark of the hints of descriptors that were moved to the PFS: see [`crate::small`].
pub const MOVED: u64 = 1 << 31;

/// The hint of a descriptor that is being moved: its offset is not known yet, and reads wait.
pub const MOVING: u64 = 0xffff_ffff << 32 | MOVED;

/// Whether a hint is one of those.
#[must_use]
pub const fn is_moved(hint: u64) -> bool {
    hint >> 32 != 0 && hint & MOVED != 0
}

/// Nothing is to be asked about a descriptor any more.
pub fn forget(fd: c_int) {
    if let Some(h) = HINTS.get(fd as usize) {
        h.store(NONE, Ordering::Relaxed);
    }
}

/// The large file that a descriptor is, if it is one of the version that was indexed.
#[must_use]
pub fn identify(ctx: &Ctx, fd: c_int) -> Option<Known> {
    // Without large files no descriptor is worth a question.
    if !ctx::knows_large(ctx.map) || is_moved(hint_of(fd)) {
        return None;
    }
    identify_now(ctx, fd)
}

#[inline(never)]
fn identify_now(ctx: &Ctx, fd: c_int) -> Option<Known> {
    let locked = LOCKS.load(Ordering::Relaxed) != 0;
    let st = if locked { sys::statx_fd_now(fd)? } else { sys::statx_fd(fd)? };
    let dev = sys::makedev(st.stx_dev_major, st.stx_dev_minor);
    let slot = HINTS.get(fd as usize);
    let note = |what: u64| {
        if let Some(h) = slot {
            h.store(what, Ordering::Relaxed);
        }
    };
    if u32::from(st.stx_mode) & libc::S_IFMT != libc::S_IFREG || !ctx.is_root_device(dev) {
        note(NONE);
        return None;
    }
    let hint = slot.map_or(UNKNOWN, |h| h.load(Ordering::Relaxed));
    if let Some(number) = (hint >> 32).checked_sub(1) {
        let known = at(ctx, number as usize, hint as u32).filter(|k| is_version_of_statx(ctx, &k.f, &st));
        if known.is_some() {
            return known.filter(|_| reads_plainly(fd));
        }
    }
    let mut undecided = false;
    for (root, r) in ctx.map.roots().iter().enumerate() {
        if r.dev.load(Ordering::Relaxed) != dev {
            continue;
        }
        let Some((number, segment)) = ctx.segment(root) else {
            undecided = true;
            continue;
        };
        let known = segment.state.large_with_ino(st.stx_ino).and_then(|l| at(ctx, number, l.number));
        if let Some(known) = known.filter(|k| is_version_of_statx(ctx, &k.f, &st)) {
            note((number as u64 + 1) << 32 | u64::from(known.large.number));
            return Some(known).filter(|_| reads_plainly(fd));
        }
    }
    // Where an index is still to come, the answer may be another one then.
    note(if undecided { UNKNOWN } else { NONE });
    None
}

/// Whether a descriptor may read, and does so through the page cache. With `O_DIRECT` the kernel
/// has rules for buffers, offsets and lengths that are the file system's own; with `O_PATH` or
/// `O_WRONLY` there is nothing to read.
fn reads_plainly(fd: c_int) -> bool {
    let other = libc::O_DIRECT | libc::O_PATH;
    sys::fcntl(fd, libc::F_GETFL, 0)
        .is_some_and(|flags| flags & other == 0 && flags & libc::O_ACCMODE != libc::O_WRONLY)
}

/// The large file at a position of a segment, if that is the live one of its root.
fn at(ctx: &Ctx, number: usize, position: u32) -> Option<Known> {
    let root = ctx.map.segments().get(number)?.root.load(Ordering::Relaxed) as usize;
    let (live, segment) = ctx.segment(root)?;
    let large = segment.state.large_at(position)?.streamed_through(&ctx.map.ctl.stream);
    let entry = segment.large_entry(&large).filter(|_| live == number)?;
    Some(Known { f: Found { root, number, segment, entry }, large })
}

/// The large file that a hint speaks of, if it is still one.
#[must_use]
pub fn hinted(ctx: &Ctx, hint: u64) -> Option<Known> {
    at(ctx, usize::try_from((hint >> 32).checked_sub(1)?).ok()?, hint as u32)
}

/// Whether a read begins where the last one of the descriptor ended.
#[must_use]
pub fn in_order(fd: c_int, off: u64, n: usize) -> bool {
    let before = ENDS.get(fd as usize).map_or(u64::MAX, |end| end.swap(off.wrapping_add(n as u64), Ordering::Relaxed));
    before == off && (off > 0 || n >= MIN_SEQUENTIAL_READ_BYTES)
}

/// What [`in_order`] will say, without taking note.
#[must_use]
pub fn would_be_in_order(fd: c_int, off: u64, n: usize) -> bool {
    let before = ENDS.get(fd as usize).map_or(u64::MAX, |end| end.load(Ordering::Relaxed));
    before == off && (off > 0 || n >= MIN_SEQUENTIAL_READ_BYTES)
}

/// A part of the file that this call has made its own.
pub struct Claim {
    /// Where it begins.
    pub start: u64,
    /// What there is of the file from there on, and was asked for.
    pub bytes: usize,
}

impl Claim {
    /// Moves the offset behind `n` bytes, or to the end of the file.
    ///
    /// No further: what would have to be given back then could hit the offset that another thread
    /// has set meanwhile.
    #[must_use]
    pub fn make(fd: c_int, n: usize, size: u64) -> Option<Self> {
        let left = |at: u64| usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
        let at = sys::seek(fd, 0)?;
        let n = n.min(left(at));
        if n == 0 {
            return Some(Self { start: at, bytes: 0 });
        }
        let end = sys::seek(fd, n as i64)?;
        let start = end.saturating_sub(n as u64);
        // Another process has moved the offset since: of what lies behind the end nothing can be
        // read.
        let bytes = n.min(left(start));
        let claim = Self { start, bytes };
        claim.give_back(fd, n - bytes);
        Some(claim)
    }

    /// Gives back what was not read after all.
    pub fn settle(&self, fd: c_int, done: isize) {
        self.give_back(fd, self.bytes - usize::try_from(done).unwrap_or(0).min(self.bytes));
    }

    fn give_back(&self, fd: c_int, n: usize) {
        if n > 0 {
            let _ = sys::seek(fd, -(n as i64));
        }
    }
}

impl Known {
    /// Opens what there is of a copy: of a partial one the file with this number. If that is not
    /// there, and it is not the window of streamed files, the copy may just have been completed.
    #[must_use]
    pub fn open(&self, ctx: &Ctx, word: Word, file: u64) -> Option<Fd> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let mut buf = MaybeUninit::uninit();
        if word.state() == State::Partial && part_path(ctx, word, file, &mut buf) {
            // SAFETY: part_path wrote a string that ends with a NUL.
            let path = unsafe { CStr::from_ptr(buf.as_ptr().cast()) };
            if let Some(fd) = sys::open(path, flags) {
                return Some(Fd(fd));
            }
        }
        let in_window = word.state() == State::Partial && file != self.large.head.part.load(Ordering::Acquire);
        if (in_window && file != NO_PART) || !copy_path(ctx, &self.f, word, &mut buf) {
            return None;
        }
        // SAFETY: copy_path wrote a string that ends with a NUL.
        sys::open(unsafe { CStr::from_ptr(buf.as_ptr().cast()) }, flags).map(Fd)
    }
}

/// Where a file of partial copies lies: `<tier>/part/<16 hex>`.
fn part_path(ctx: &Ctx, word: Word, number: u64, out: &mut MaybeUninit<[u8; COPY_PATH_MAX]>) -> bool {
    const NAME: &[u8; 6] = b"/part/";
    let Some(tier) = ctx.map.tiers().get(word.tier()) else { return false };
    let base = ctx.map.str(&tier.path);
    if base.len() + NAME.len() + 16 + 1 > COPY_PATH_MAX {
        return false;
    }
    let p = out.as_mut_ptr().cast::<u8>();
    // SAFETY: the parts fit, as just checked.
    unsafe {
        core::ptr::copy_nonoverlapping(base.as_ptr(), p, base.len());
        let mut p = p.add(base.len());
        core::ptr::copy_nonoverlapping(NAME.as_ptr(), p, NAME.len());
        p = p.add(NAME.len());
        for digit in 0..16 {
            let v = (number >> (60 - 4 * digit) & 15) as u8;
            p.add(digit).write(if v < 10 { b'0' + v } else { b'a' + v - 10 });
        }
        p.add(16).write(0);
    }
    true
}
