//! Reads of large files whose copy is being made: the application holds the descriptor of the PFS, and gets the bytes of chunks that
//! are there from the partial copy; the others are asked for.
//!
//! Which file a descriptor is, the kernel says at each read (identity of inode, size and time). What is remembered by number is
//! only that a descriptor is *not* worth that question, or where its file was found the last time; both may be wrong and do no
//! harm. The partial copy is opened for one read and closed again, and the bytes count only if its state is still the same
//! afterwards. `read` claims its range by moving the offset first, so that processes that share it get each record once.

use crate::changes::bypass;
use crate::ctx::{self, Ctx};
use crate::identity::is_version_of_statx;
use crate::paths::is_root_device;
use crate::serve::{Here, copy_path};
use crate::sys::{self, Fd};
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_abi::PATH_MAX;
use monarch_abi::chunks::LargeFile;
use monarch_abi::control::Counter;
use monarch_abi::demand::{self, Outcome};
use monarch_abi::resolve::{Found, Segments};
use monarch_abi::word::{State, Word};

/// Descriptors about which something is remembered.
const FDS: usize = 4096;
/// Nothing is known about a descriptor.
const UNKNOWN: u64 = 0;
/// It was no large file when it was last asked about.
const NONE: u64 = 1;
/// By descriptor: one of these, or number + 1 of a segment and position of a large file there.
static HINTS: [AtomicU64; FDS] = [const { AtomicU64::new(UNKNOWN) }; FDS];
/// By descriptor: where its last read ended.
static ENDS: [AtomicU64; FDS] = [const { AtomicU64::new(0) }; FDS];

/// Chunks asked for at a time by one long read.
const AT_ONCE: u32 = 16;
/// How often a read begins anew because something was taken away meanwhile.
const TRIES: u32 = 8;
/// Most bytes of one read.
const MOST: usize = 0x7fff_f000;
/// A first read of this size or more is taken for the beginning of a pass in order, where that decides whether chunks are asked for.
const IN_ORDER: usize = 64 << 10;

/// Whether a descriptor may be that of a large file.
#[inline]
#[must_use]
pub fn may_be(fd: c_int) -> bool {
    ctx::is_on() && HINTS.get(fd as usize).is_none_or(|h| h.load(Ordering::Relaxed) != NONE)
}

/// [`may_be`] for calls that are rare: what was remembered may be about another file with this number.
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
    f: Found<'static>,
    large: LargeFile<'static>,
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

/// The large file that a descriptor is, if it is one of the version that was indexed.
#[must_use]
pub fn identify(ctx: &Ctx, fd: c_int) -> Option<Known> {
    // Without large files no descriptor is worth a question.
    if !ctx.knows_large() {
        return None;
    }
    let st = sys::statx_fd(fd)?;
    let dev = sys::makedev(st.stx_dev_major, st.stx_dev_minor);
    let slot = HINTS.get(fd as usize);
    let note = |what: u64| {
        if let Some(h) = slot {
            h.store(what, Ordering::Relaxed);
        }
    };
    if u32::from(st.stx_mode) & libc::S_IFMT != libc::S_IFREG || !is_root_device(ctx, dev) {
        note(NONE);
        return None;
    }
    let hint = slot.map_or(UNKNOWN, |h| h.load(Ordering::Relaxed));
    if let Some(number) = (hint >> 32).checked_sub(1) {
        let known = at(ctx, number as usize, hint as u32).filter(|k| is_version_of_statx(ctx, &k.f, &st));
        if known.is_some() {
            return known;
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
            return Some(known);
        }
    }
    // Where an index is still to come, the answer may be another one then.
    note(if undecided { UNKNOWN } else { NONE });
    None
}

/// The large file at a position of a segment, if that is the live one of its root.
fn at(ctx: &Ctx, number: usize, position: u32) -> Option<Known> {
    let root = ctx.map.segments().get(number)?.root.load(Ordering::Relaxed) as usize;
    let (live, segment) = ctx.segment(root)?;
    let large = segment.state.large_at(position)?;
    let entry = segment.large_entry(&large).filter(|_| live == number)?;
    Some(Known { f: Found { root, number, segment, entry }, large })
}

/// pread(2) of a descriptor that may be a large file's; `None` when the kernel is to answer.
///
/// # Safety
/// That of the system call.
#[must_use]
pub unsafe fn pread(fd: c_int, buf: *mut u8, n: usize, off: i64) -> Option<isize> {
    let ctx = ctx::get()?;
    let known = identify(&ctx, fd)?;
    let off = u64::try_from(off).ok()?;
    let ordered = in_order(fd, off, n);
    // SAFETY: passed on.
    let served = unsafe { known.read(&ctx, buf, n, off, ordered) };
    let size = known.f.entry.record.size;
    if served == 0 && off < size && n > 0 {
        ctx.count(Counter::ChunkMisses, 1);
        ctx.count(Counter::ChunkMissBytes, (n as u64).min(size - off));
        return None;
    }
    // SAFETY: as above.
    Some(unsafe { with_rest(&ctx, fd, buf, n, off, served, size) })
}

/// read(2), the same way.
///
/// # Safety
/// That of the system call.
#[must_use]
pub unsafe fn read(fd: c_int, buf: *mut u8, n: usize) -> Option<isize> {
    let ctx = ctx::get()?;
    let known = identify(&ctx, fd)?;
    let (n, size) = (n.min(MOST), known.f.entry.record.size);
    let claim = Claim::make(fd, n, size)?;
    let n = claim.bytes;
    let ordered = in_order(fd, claim.start, n);
    // SAFETY: passed on.
    let done = unsafe {
        let served = known.read(&ctx, buf, n, claim.start, ordered);
        with_rest(&ctx, fd, buf, n, claim.start, served, size)
    };
    claim.settle(fd, done);
    Some(answer(done))
}

/// readv(2) and preadv(2), the same way; without `off` at the offset of the descriptor.
///
/// # Safety
/// That of the system call.
#[must_use]
pub unsafe fn readv(fd: c_int, iov: *const libc::iovec, count: c_int, off: Option<i64>) -> Option<isize> {
    let ctx = ctx::get()?;
    let known = identify(&ctx, fd)?;
    // SAFETY: tested before they are read.
    let parts = unsafe { crate::user::slice(iov, usize::try_from(count).ok()?)? };
    let total = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
    if total == 0 || total > MOST {
        return None;
    }
    let size = known.f.entry.record.size;
    let claim = match off {
        Some(_) => None,
        None => Some(Claim::make(fd, total, size)?),
    };
    let start = claim.as_ref().map_or_else(|| u64::try_from(off.unwrap_or(-1)).ok(), |c| Some(c.start))?;
    let ordered = in_order(fd, start, total);
    let mut done = 0isize;
    for part in parts {
        let at = start + done as u64;
        let n = part.iov_len.min(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
        if n == 0 {
            continue;
        }
        let buf = part.iov_base.cast::<u8>();
        // SAFETY: passed on.
        let got = unsafe {
            let served = known.read(&ctx, buf, n, at, ordered);
            with_rest(&ctx, fd, buf, n, at, served, size)
        };
        if got < 0 && done == 0 {
            done = got;
        }
        if got < 0 {
            break;
        }
        done += got;
        if (got as usize) < n {
            break;
        }
    }
    if let Some(claim) = claim {
        claim.settle(fd, done);
    }
    Some(answer(done))
}

/// The answer of the C function: negative numbers become errno.
fn answer(done: isize) -> isize {
    if done < 0 {
        crate::user::set_errno(-done as c_int);
        return -1;
    }
    done
}

/// A part of the file that this call has made its own.
struct Claim {
    start: u64,
    /// What there is of the file from there on, and was asked for.
    bytes: usize,
}

impl Claim {
    /// Moves the offset behind `n` bytes, or to the end of the file.
    fn make(fd: c_int, n: usize, size: u64) -> Option<Self> {
        let end = sys::seek(fd, n as i64)?;
        let start = end.saturating_sub(n as u64);
        let bytes = n.min(usize::try_from(size.saturating_sub(start)).unwrap_or(usize::MAX));
        let claim = Self { start, bytes };
        claim.give_back(fd, n - bytes);
        Some(claim)
    }

    /// Gives back what was not read after all.
    fn settle(&self, fd: c_int, done: isize) {
        self.give_back(fd, self.bytes - usize::try_from(done).unwrap_or(0).min(self.bytes));
    }

    fn give_back(&self, fd: c_int, n: usize) {
        if n > 0 {
            let _ = sys::seek(fd, -(n as i64));
        }
    }
}

/// Whether a read goes on where the last one of the descriptor ended.
fn in_order(fd: c_int, off: u64, n: usize) -> bool {
    let before = ENDS.get(fd as usize).map_or(u64::MAX, |end| end.swap(off.wrapping_add(n as u64), Ordering::Relaxed));
    before == off && (off > 0 || n >= IN_ORDER)
}

/// After `served` of `n` bytes: the rest, which the PFS has to give. Negative errno when there is nothing else.
unsafe fn with_rest(ctx: &Ctx, fd: c_int, buf: *mut u8, n: usize, off: u64, served: usize, size: u64) -> isize {
    let at = off + served as u64;
    if served == n || at >= size {
        return served as isize;
    }
    // SAFETY: within the application's buffer.
    let rest = unsafe { sys::pread(fd, buf.add(served), n - served, at) };
    ctx.count(Counter::ChunkMisses, 1);
    ctx.count(Counter::ChunkMissBytes, rest.max(0) as u64);
    if rest < 0 && served > 0 { served as isize } else { served as isize + rest }
}

impl Known {
    /// Reads from what there is of a copy; how many bytes, from the front.
    unsafe fn read(&self, ctx: &Ctx, buf: *mut u8, n: usize, off: u64, ordered: bool) -> usize {
        let end = self.f.entry.record.size.min(off.saturating_add(n as u64));
        let mut at = off;
        let mut open: Option<(Word, Fd)> = None;
        let mut tries = 0;
        while at < end && tries < TRIES {
            let Some(word) = self.usable(ctx, at, end, ordered) else { break };
            let to = self.there(word, at, end);
            if to == at {
                if !self.wait(ctx, word, at, end, ordered) {
                    tries += 1;
                    if self.f.entry.word() == word {
                        break;
                    }
                }
                continue;
            }
            let glance = self.large.glance(word);
            // Looked at before the bits: a chunk dropped since then is noticed below.
            let to = self.there(word, at, end).min(to);
            if to == at {
                tries += 1;
                continue;
            }
            if open.as_ref().is_none_or(|(of, _)| *of != word) {
                open = self.open(ctx, word).map(|fd| (word, fd));
            }
            let Some((_, fd)) = &open else {
                tries += 1;
                if self.f.entry.word() == word {
                    break;
                }
                continue;
            };
            // SAFETY: within the application's buffer.
            let got = unsafe { sys::pread(fd.0, buf.add((at - off) as usize), (to - at) as usize, at) };
            if got == -libc::EIO as isize {
                bypass(ctx, &self.f);
            }
            if got <= 0 {
                break;
            }
            if !glance.still_holds(&self.large, &self.f.entry.master.word) {
                tries += 1;
                open = None;
                continue;
            }
            if ordered && word.state() == State::Filling {
                self.ask_ahead(ctx, at, at + got as u64);
            }
            at += got as u64;
        }
        let served = (at - off) as usize;
        if served > 0 {
            ctx.count(Counter::ChunkReads, 1);
            ctx.count(Counter::ChunkBytes, served as u64);
        }
        served
    }

    /// The file's word, once it speaks of a copy, complete or partial; asks for one if there is none.
    fn usable(&self, ctx: &Ctx, at: u64, end: u64, ordered: bool) -> Option<Word> {
        let mut word = self.f.entry.word();
        match word.state() {
            State::Resident | State::Filling => return Some(word),
            State::Absent | State::Wanted | State::Fetching => {}
            State::Refused if word.is_streamable() && ordered => {
                let master = &self.f.entry.master.word;
                let wanted = word.with(State::Wanted);
                let _ = master.compare_exchange(word.0, wanted.0, Ordering::AcqRel, Ordering::Relaxed);
            }
            _ => return None,
        }
        if !demand::agent_up(ctx.map.ctl) {
            return None;
        }
        self.ask(ctx, at, end, ordered);
        demand::raise(ctx.map, &self.f);
        match demand::wait(ctx.map, &self.f, &Here) {
            Outcome::Resident(now) | Outcome::Filling(now) => {
                word = now;
                Some(word)
            }
            Outcome::Refused(_) | Outcome::Deadline => None,
        }
    }

    /// Up to where the bytes from `at` on are there.
    fn there(&self, word: Word, at: u64, end: u64) -> u64 {
        if word.state() == State::Resident {
            return end;
        }
        let mut to = at;
        while to < end && self.large.has(self.large.at(to)) {
            to = (u64::from(self.large.at(to)) + 1).saturating_mul(self.large.chunk).min(end);
        }
        to
    }

    /// Asks for the chunks of a range, and for some more if the reader goes on behind it.
    fn ask(&self, ctx: &Ctx, at: u64, end: u64, ordered: bool) {
        let first = self.large.at(at);
        let mut behind = self.large.at(end.saturating_sub(1).max(at)).saturating_add(1);
        if ordered {
            behind = behind.saturating_add(self.large.head.ahead.load(Ordering::Relaxed));
        }
        demand::want_chunks(ctx.map, &self.f, &self.large, first, behind.min(first.saturating_add(AT_ONCE)));
    }

    /// A reader in order has come to another chunk: asks for those behind it.
    fn ask_ahead(&self, ctx: &Ctx, from: u64, to: u64) {
        let chunk = self.large.at(to);
        if self.large.at(from) == chunk && !from.is_multiple_of(self.large.chunk.max(1)) {
            return;
        }
        let behind = chunk.saturating_add(1).saturating_add(self.large.head.ahead.load(Ordering::Relaxed));
        if (chunk..behind.min(self.large.head.chunks)).any(|c| !self.large.has(c)) {
            demand::want_chunks(ctx.map, &self.f, &self.large, chunk, behind);
        }
    }

    /// Asks for what is missing at `at` and waits for it; `false` if it does not come.
    fn wait(&self, ctx: &Ctx, word: Word, at: u64, end: u64, ordered: bool) -> bool {
        // What only passes through is of use to those who go through it.
        if !demand::agent_up(ctx.map.ctl) || (self.large.is_streamed() && !ordered) {
            return false;
        }
        let start = demand::Watch::now_us(&Here);
        // The chunk may come and go again before the waiting begins.
        let seen = self.large.glance(word);
        self.ask(ctx, at, end, ordered);
        let came = demand::wait_chunk(ctx.map, &self.f, &self.large, seen, self.large.at(at), &Here);
        ctx.count(Counter::WaitMicros, demand::Watch::now_us(&Here).saturating_sub(start));
        came
    }

    /// Opens what there is of a copy.
    fn open(&self, ctx: &Ctx, word: Word) -> Option<Fd> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let mut buf = MaybeUninit::uninit();
        if word.state() == State::Filling && self.part_path(ctx, word, &mut buf) {
            // SAFETY: part_path wrote a string that ends with a NUL.
            let path = unsafe { CStr::from_ptr(buf.as_ptr().cast()) };
            if let Some(fd) = sys::open(path, flags) {
                return Some(Fd(fd));
            }
        }
        // Perhaps it has just been completed.
        if !copy_path(ctx, &self.f, word, &mut buf) {
            return None;
        }
        // SAFETY: copy_path wrote a string that ends with a NUL.
        sys::open(unsafe { CStr::from_ptr(buf.as_ptr().cast()) }, flags).map(Fd)
    }

    /// Where the partial copy lies: `<tier>/part/<16 hex>`.
    fn part_path(&self, ctx: &Ctx, word: Word, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> bool {
        const NAME: &[u8; 6] = b"/part/";
        let Some(tier) = ctx.map.tiers().get(word.tier()) else { return false };
        let base = ctx.map.str(&tier.path);
        if base.len() + NAME.len() + 16 + 1 > PATH_MAX {
            return false;
        }
        let number = self.large.head.part.load(Ordering::Acquire);
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

    /// The complete copy, open, for readers to whom chunks are of no use: waits for it if that is near.
    fn whole(&self, ctx: &Ctx) -> Option<Fd> {
        let word = match self.f.entry.word() {
            w if w.state() == State::Resident => w,
            w => wait_whole(ctx, &self.f, w)?,
        };
        self.open(ctx, word)
    }
}

/// Waits until the copy of a large file is complete, if that is near; its word.
#[must_use]
pub fn wait_whole(ctx: &Ctx, f: &Found<'static>, word: Word) -> Option<Word> {
    if !matches!(word.state(), State::Absent | State::Wanted | State::Fetching | State::Filling) {
        return None;
    }
    let large = f.segment.state.large(f.entry.master.id).filter(|_| demand::agent_up(ctx.map.ctl))?;
    demand::raise(ctx.map, f);
    let start = demand::Watch::now_us(&Here);
    let end = demand::wait_complete(ctx.map, f, &large, &Here);
    ctx.count(Counter::WaitMicros, demand::Watch::now_us(&Here).saturating_sub(start));
    match end {
        Outcome::Resident(word) => Some(word),
        _ => None,
    }
}

/// Maps the complete copy in place of a large file of the PFS, if there is one or will be soon; `map` maps a descriptor.
#[must_use]
pub fn mmap(fd: c_int, map: impl FnOnce(c_int) -> *mut core::ffi::c_void) -> Option<*mut core::ffi::c_void> {
    let ctx = ctx::get()?;
    let copy = identify(&ctx, fd)?.whole(&ctx)?;
    let at = map(copy.0);
    if at == libc::MAP_FAILED {
        return None;
    }
    ctx.count(Counter::Hits, 1);
    Some(at)
}

/// Puts the complete copy of a large file in the place of its descriptor, at the same offset, before a stream reads from it past
/// us: if there is one or will be soon. The offset is the descriptor's own from then on.
pub fn replace(fd: c_int) -> Option<()> {
    let ctx = ctx::get()?;
    let copy = identify(&ctx, fd)?.whole(&ctx)?;
    let at = sys::seek(fd, 0)?;
    sys::seek_to(copy.0, at)?;
    let flags = sys::fcntl(fd, libc::F_GETFL, 0)?;
    let cloexec = sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    let _ = sys::fcntl(copy.0, libc::F_SETFL, flags & libc::O_NONBLOCK);
    if !sys::dup_to(copy.0, fd, cloexec) {
        return None;
    }
    if let Some(h) = HINTS.get(fd as usize) {
        h.store(NONE, Ordering::Relaxed);
    }
    ctx.count(Counter::Hits, 1);
    Some(())
}

/// sendfile(2) from a large file: from its complete copy, if there is one or will be soon. `send` is the call itself, which is given
/// a descriptor and where its offset is.
#[must_use]
pub fn sendfile(fd: c_int, off: *mut i64, n: usize, send: impl FnOnce(c_int, *mut i64) -> isize) -> Option<isize> {
    let ctx = ctx::get()?;
    let known = identify(&ctx, fd)?;
    let copy = known.whole(&ctx)?;
    if !off.is_null() {
        return Some(send(copy.0, off));
    }
    let claim = Claim::make(fd, n.min(MOST), known.f.entry.record.size)?;
    let mut at = i64::try_from(claim.start).ok()?;
    let done = send(copy.0, &raw mut at);
    claim.settle(fd, done);
    Some(done)
}

/// Takes posix_fadvise(2) (`POSIX_FADV_WILLNEED`) and readahead(2) of a large file as what they are, a hint: asks for the
/// chunks. `false` when the kernel is to be told.
#[must_use]
pub fn advise(fd: c_int, off: i64, len: u64) -> bool {
    let asked = || {
        let ctx = ctx::get()?;
        let known = identify(&ctx, fd)?;
        let size = known.f.entry.record.size;
        let from = u64::try_from(off).ok()?.min(size);
        let to = if len == 0 { size } else { size.min(from.saturating_add(len)) };
        match known.f.entry.word().state() {
            State::Resident => return Some(()),
            State::Absent | State::Wanted | State::Fetching | State::Filling => {}
            _ => return None,
        }
        if !demand::agent_up(ctx.map.ctl) || known.large.is_streamed() {
            return None;
        }
        if from < to {
            let (first, last) = (known.large.at(from), known.large.at(to - 1));
            demand::want_chunks(ctx.map, &known.f, &known.large, first, last.saturating_add(1));
        }
        demand::raise(ctx.map, &known.f);
        Some(())
    };
    asked().is_some()
}
