//! Reads of large files whose copy is being made: the application holds the descriptor of the PFS,
//! and gets the bytes of complete chunks from the partial copy; missing chunks are requested.
//!
//! The partial copy is opened for one read and closed again, unless it is mapped for small reads
//! ([`crate::own_maps`]), and the bytes count only if its state is still the same afterwards.
//! `read` claims its range by moving the offset first, so that processes that share it get each
//! record once.

use crate::changes::bypass;
use crate::large::{Claim, Known, MAX_READ_BYTES, NO_PART, identify, in_order, would_be_in_order};
use crate::own_maps::{self, CopyFile};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::chunks::Place;
use monarch_abi::control::Counter;
use monarch_abi::demand::{self, Outcome};
use monarch_abi::resolve::Found;
use monarch_abi::word::{State, Word};
use monarch_guest::copy_open::Here;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::errno;
use monarch_guest::sys::{self, Fd};

/// Chunks that one long read requests at a time.
const MAX_CHUNKS_PER_REQUEST: u32 = 16;
/// How often a read is repeated because chunks were dropped meanwhile.
const MAX_READ_TRIES: u32 = 8;
/// Buffers of a read into several buffers (`IOV_MAX`).
const MAX_READ_BUFFERS: usize = 1024;

/// Not zero: this process has read the last streamed file that it began with in order, from the
/// first byte on.
static READS_IN_ORDER: AtomicU32 = AtomicU32::new(0);

fn note_order(in_order: bool) {
    READS_IN_ORDER.store(in_order.into(), Ordering::Relaxed);
}

/// A large file was opened for reads of its parts, and its word says `word`. If it is streamed, or
/// can be, requests its first chunks already, unless this process reads such files in another
/// order.
pub fn opened(ctx: &Ctx, f: &Found<'static>, word: Word) {
    if READS_IN_ORDER.load(Ordering::Relaxed) == 0 || !demand::agent_up(ctx.map.ctl) {
        return;
    }
    let Some(large) = f.segment.state.large(f.entry.master.id) else { return };
    let large = large.streamed_through(&ctx.map.ctl.stream);
    match word.state() {
        State::Partial if large.is_streamed() => {}
        State::Refused if word.is_streamable() => request_streamed(f, word),
        _ => return,
    }
    large.has_come_to(0, f.entry.record.size);
    let behind = large.head.ahead.load(Ordering::Relaxed).saturating_add(1).min(MAX_CHUNKS_PER_REQUEST);
    demand::want_chunks(ctx.map, f, &large, 0, behind);
    demand::raise(ctx.map, f);
}

/// Turns a file that was refused, but can be streamed, to Requested.
fn request_streamed(f: &Found<'static>, word: Word) {
    let wanted = word.with(State::Requested);
    let _ = f.entry.master.word.compare_exchange(word.0, wanted.0, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether the kernel itself would begin to read `n` bytes at `off` into a buffer. Otherwise it
/// returns an error, or reads less.
#[inline]
fn is_plain(buf: usize, n: usize, off: Option<i64>) -> bool {
    let in_memory = buf.checked_add(n).is_some_and(|end| end >> 47 == 0);
    in_memory && n <= isize::MAX as usize && off.is_none_or(|off| off >= 0 && off.checked_add(n as i64).is_some())
}

/// pread(2) of a descriptor that may be a large file's; `None` when the kernel is to answer.
///
/// # Safety
/// That of the system call.
#[must_use]
pub unsafe fn pread(fd: c_int, buf: *mut u8, n: usize, off: i64) -> Option<isize> {
    let ctx = ctx::get()?;
    if !is_plain(buf as usize, n, Some(off)) {
        return None;
    }
    let n = n.min(MAX_READ_BYTES);
    if crate::small::may_be(fd) {
        // SAFETY: passed on.
        return unsafe { crate::small::pread(&ctx, fd, buf, n, off) };
    }
    let known = identify(&ctx, fd)?;
    let reading = ChunkRead { ctx: &ctx, known: &known, fd };
    let off = u64::try_from(off).ok()?;
    let ordered = in_order(fd, off, n);
    // SAFETY: passed on.
    let served = unsafe { reading.read(buf, n, off, (ordered, true)) };
    let size = known.f.entry.record.size;
    if served == 0 && off < size && n > 0 {
        count_miss(&ctx, n, off, size);
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
    if !is_plain(buf as usize, n, None) {
        return None;
    }
    if crate::small::may_be(fd) {
        // SAFETY: passed on.
        return unsafe { crate::small::read(&ctx, fd, buf, n) };
    }
    let known = identify(&ctx, fd)?;
    let reading = ChunkRead { ctx: &ctx, known: &known, fd };
    let (n, size) = (n.min(MAX_READ_BYTES), known.f.entry.record.size);
    let waits = reading.wait_first(fd, n)?;
    let claim = Claim::make(fd, n, size)?;
    let n = claim.bytes;
    let ordered = in_order(fd, claim.start, n);
    // SAFETY: passed on.
    let done = unsafe {
        let served = reading.read(buf, n, claim.start, (ordered, waits));
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
    let count = usize::try_from(count).ok().filter(|&n| n <= MAX_READ_BUFFERS)?;
    // SAFETY: tested before they are read.
    let buffers = unsafe { monarch_guest::user::slice(iov, count)? };
    let total = buffers.iter().try_fold(0usize, |sum, buffer| sum.checked_add(buffer.iov_len))?;
    let plain = buffers.iter().all(|buffer| is_plain(buffer.iov_base as usize, buffer.iov_len, None));
    if total == 0 || total > MAX_READ_BYTES || !plain || !is_plain(0, total, off) {
        return None;
    }
    if crate::small::may_be(fd) {
        // SAFETY: passed on.
        return unsafe { crate::small::readv(&ctx, fd, iov, count, total, off) };
    }
    let known = identify(&ctx, fd)?;
    let reading = ChunkRead { ctx: &ctx, known: &known, fd };
    let size = known.f.entry.record.size;
    let waits = if off.is_none() { reading.wait_first(fd, total)? } else { true };
    let claim = match off {
        Some(_) => None,
        None => Some(Claim::make(fd, total, size)?),
    };
    let start = claim.as_ref().map_or_else(|| u64::try_from(off.unwrap_or(-1)).ok(), |c| Some(c.start))?;
    let ordered = in_order(fd, start, total);
    let mut done = 0isize;
    for buffer in buffers {
        let at = start + done as u64;
        let n = buffer.iov_len.min(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
        if n == 0 {
            continue;
        }
        let buf = buffer.iov_base.cast::<u8>();
        // SAFETY: passed on.
        let got = unsafe {
            let served = reading.read(buf, n, at, (ordered, waits));
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
        errno::set_errno(-done as c_int);
        return -1;
    }
    done
}

/// After `served` of `n` bytes: the rest, which the PFS has to give. Negative errno when there is
/// nothing else.
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

/// Counts a read that is the PFS's.
fn count_miss(ctx: &Ctx, n: usize, off: u64, size: u64) {
    ctx.count(Counter::ChunkMisses, 1);
    ctx.count(Counter::ChunkMissBytes, (n as u64).min(size.saturating_sub(off)));
}

/// A read of a large file from what there is of its copy.
struct ChunkRead<'a> {
    ctx: &'a Ctx,
    known: &'a Known,
    /// The application's descriptor.
    fd: c_int,
}

impl ChunkRead<'_> {
    /// Waits for what a read at the descriptor's own offset needs, before it claims its range: a
    /// signal handler that leaves the wait by `siglongjmp`, or ends the thread, must not take
    /// the range with it. Gives whether more may be waited for afterwards; `None` if the
    /// PFS has to be read.
    fn wait_first(&self, fd: c_int, n: usize) -> Option<bool> {
        let size = self.known.f.entry.record.size;
        let off = sys::seek(fd, 0)?;
        let end = size.min(off.saturating_add(n as u64));
        let ordered = would_be_in_order(fd, off, n);
        let mut at = off;
        let mut tries = 0;
        while at < end && tries < MAX_READ_TRIES {
            let word = self.usable(at, end, ordered);
            let to = word.map_or(at, |word| self.present_until(word, at, end));
            if to > at {
                // Of what is streamed later parts would push out those before them.
                if self.known.large.is_streamed() {
                    break;
                }
                at = to;
                continue;
            }
            if word.is_some_and(|word| self.wait(word, at, end, ordered)) {
                continue;
            }
            if word.is_some_and(|word| self.known.f.entry.word() != word) {
                tries += 1;
                continue;
            }
            if at > off {
                return Some(false);
            }
            let _ = in_order(fd, off, n);
            count_miss(self.ctx, n, off, size);
            return None;
        }
        Some(true)
    }

    /// Reads from what there is of a copy, and waits for more if `waits`; how many bytes, from the
    /// front.
    unsafe fn read(&self, buf: *mut u8, n: usize, off: u64, (ordered, waits): (bool, bool)) -> usize {
        let end = self.known.f.entry.record.size.min(off.saturating_add(n as u64));
        let mut at = off;
        let mut open: Option<(Word, u64, Fd)> = None;
        let mut tries = 0;
        while at < end && tries < MAX_READ_TRIES {
            let Some(word) = self.usable(at, end, ordered) else { break };
            // Before the bytes are looked for: a chunk dropped since then is noticed below.
            let glance = self.known.large.drop_snapshot(word);
            let Some(place) = self.place(word, at, end) else {
                if !waits {
                    break;
                }
                if !self.wait(word, at, end, ordered) {
                    tries += 1;
                    if self.known.f.entry.word() == word {
                        break;
                    }
                }
                continue;
            };
            let wanted = (place.until - at) as usize;
            // SAFETY: within the application's buffer.
            let to = unsafe { buf.add((at - off) as usize) };
            let of = (wanted <= own_maps::MAX_BYTES).then(|| CopyFile::of(self.ctx, self.known, word, place.file));
            // SAFETY: as above.
            let is_mapped = of.is_some_and(|of| unsafe { own_maps::read(of, ordered, to, wanted, place.off) });
            if !is_mapped && open.as_ref().is_none_or(|(of, file, _)| *of != word || *file != place.file) {
                open = self.known.open(self.ctx, word, place.file).map(|fd| (word, place.file, fd));
            }
            let got = match &open {
                _ if is_mapped => wanted as isize,
                // SAFETY: as above.
                Some((.., fd)) => unsafe { sys::pread(fd.0, to, wanted, place.off) },
                None => {
                    tries += 1;
                    if self.known.f.entry.word() == word {
                        break;
                    }
                    continue;
                }
            };
            if got == -libc::EIO as isize {
                bypass(self.ctx, &self.known.f);
            }
            if got <= 0 {
                break;
            }
            if !glance.still_holds(&self.known.large, &self.known.f.entry.master.word) {
                tries += 1;
                open = None;
                continue;
            }
            if let (false, Some(of), Some((.., copy))) = (is_mapped, of, &open) {
                own_maps::has_read(of, self.fd, copy.0);
            }
            if ordered && word.state() == State::Partial {
                // (Before chunks are requested: the agent keeps what a reader has yet to read.)
                self.known.large.has_come_to(at + got as u64, self.known.f.entry.record.size);
                self.ask_ahead(at, at + got as u64);
            }
            at += got as u64;
        }
        let served = (at - off) as usize;
        if served > 0 {
            self.ctx.count_all([(Counter::ChunkReads, 1), (Counter::ChunkBytes, served as u64)]);
        }
        served
    }

    /// The file's word, once it speaks of a copy, complete or partial; asks for one if there is
    /// none.
    fn usable(&self, at: u64, end: u64, ordered: bool) -> Option<Word> {
        let word = self.known.f.entry.word();
        match word.state() {
            State::Resident | State::Partial => return Some(word),
            State::Absent | State::Requested | State::Fetching => {}
            State::Refused if word.is_streamable() && ordered => {
                note_order(true);
                request_streamed(&self.known.f, word);
            }
            State::Refused if word.is_streamable() => {
                note_order(false);
                return None;
            }
            _ => return None,
        }
        if !demand::agent_up(self.ctx.map.ctl) {
            return None;
        }
        self.ask(at, end, ordered);
        demand::raise(self.ctx.map, &self.known.f);
        match demand::wait(self.ctx.map, &self.known.f, &Here) {
            Outcome::Resident(word) | Outcome::Partial(word) => Some(word),
            Outcome::Refused(_) | Outcome::Deadline => None,
        }
    }

    /// The end of the complete bytes from `at` on.
    fn present_until(&self, word: Word, at: u64, end: u64) -> u64 {
        if word.state() == State::Resident {
            return end;
        }
        self.known.large.present_until(at, end)
    }

    /// Where the bytes from `at` on lie.
    fn place(&self, word: Word, at: u64, end: u64) -> Option<Place> {
        if word.state() == State::Resident {
            return Some(Place { file: NO_PART, off: at, until: end });
        }
        self.known.large.place(at, end)
    }

    /// Requests the chunks of a range, and some more if the reader is sequential.
    fn ask(&self, at: u64, end: u64, ordered: bool) {
        let first = self.known.large.at(at);
        let mut behind = self.known.large.at(end.saturating_sub(1).max(at)).saturating_add(1);
        let mut most = MAX_CHUNKS_PER_REQUEST;
        if ordered {
            let ahead = self.known.large.head.ahead.load(Ordering::Relaxed);
            behind = behind.saturating_add(ahead);
            if self.known.large.is_streamed() {
                // More at once would push out chunks that this read still needs.
                most = ahead.saturating_add(1);
            }
            self.known.large.has_come_to(at, end.max(at.saturating_add(1)));
        }
        demand::want_chunks(
            self.ctx.map,
            &self.known.f,
            &self.known.large,
            first,
            behind.min(first.saturating_add(most)),
        );
    }

    /// A sequential reader has reached another chunk: requests those behind it.
    fn ask_ahead(&self, from: u64, to: u64) {
        let chunk = self.known.large.at(to);
        if self.known.large.at(from) == chunk && !from.is_multiple_of(self.known.large.chunk.max(1)) {
            return;
        }
        let behind = chunk.saturating_add(1).saturating_add(self.known.large.head.ahead.load(Ordering::Relaxed));
        if (chunk..behind.min(self.known.large.chunks())).any(|c| !self.known.large.has(c)) {
            demand::want_chunks(self.ctx.map, &self.known.f, &self.known.large, chunk, behind);
        }
    }

    /// Asks for what is missing at `at` and waits for it; `false` if it does not come.
    fn wait(&self, word: Word, at: u64, end: u64, ordered: bool) -> bool {
        // Streamed chunks are of use to sequential readers only.
        if self.known.large.is_streamed() {
            note_order(ordered);
            if !ordered {
                return false;
            }
        }
        if !demand::agent_up(self.ctx.map.ctl) {
            return false;
        }
        let start = demand::Watch::now_us(&Here);
        // The chunk may come and go again before the waiting begins.
        let seen = self.known.large.drop_snapshot(word);
        self.ask(at, end, ordered);
        let came =
            demand::wait_chunk(self.ctx.map, &self.known.f, &self.known.large, seen, self.known.large.at(at), &Here);
        self.ctx.count(Counter::WaitMicros, demand::Watch::now_us(&Here).saturating_sub(start));
        came
    }
}

/// Takes posix_fadvise(2) (`POSIX_FADV_WILLNEED`) and readahead(2) of a large file as hints:
/// requests the chunks. `false` when the kernel is to get the call.
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
            State::Absent | State::Requested | State::Fetching | State::Partial => {}
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
