//! Complete copies of large files for readers past the shim: streams, mappings, sendfile. They wait
//! for one if it is near.

use crate::large::{Claim, Known, MAX_READ_BYTES, NO_PART, forget, identify};
use core::ffi::c_int;
use monarch_abi::chunks::LargeFile;
use monarch_abi::control::Counter;
use monarch_abi::demand::{self, Outcome};
use monarch_abi::mapping::{self, Touched};
use monarch_abi::resolve::Found;
use monarch_abi::word::{State, Word};
use monarch_guest::copy_open::Here;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::errno;
use monarch_guest::sys::{self, Fd};

/// The complete copy, open, for readers that cannot use chunks: waits for it if that is
/// near.
fn whole(known: &Known, ctx: &Ctx) -> Option<Fd> {
    let word = match known.f.entry.word() {
        w if w.state() == State::Resident => w,
        w => wait_whole(ctx, &known.f, w)?,
    };
    // (Of one that is not complete there is nothing to compare.)
    known.open(ctx, word, NO_PART).filter(|copy| monarch_guest::guard::is_sound_copy(ctx, &known.f, word, copy))
}

/// Waits until the copy of a large file is complete, if that is near; its word.
#[must_use]
pub fn wait_whole(ctx: &Ctx, f: &Found<'static>, word: Word) -> Option<Word> {
    if !matches!(word.state(), State::Absent | State::Requested | State::Fetching | State::Partial) {
        return None;
    }
    let large = f.segment.state.large(f.entry.master.id).filter(|_| demand::agent_up(ctx.map.ctl))?;
    demand::raise(ctx.map, f);
    let start = demand::Watch::now_us(&Here);
    let paged = mapping::is_followed(ctx.map, f.root) && word.packed_in().is_none();
    if paged && mapping::has_hardly_begun(&large) && !mapping::facts(ctx.map, f, &large, Touched::ALL).is_near() {
        demand::read_by_pages(ctx.map, f, &large, true);
        return None;
    }
    let end = demand::wait_complete(ctx.map, f, &large, paged, &Here);
    ctx.count(Counter::WaitMicros, demand::Watch::now_us(&Here).saturating_sub(start));
    match end {
        Outcome::Resident(word) => Some(word),
        _ => None,
    }
}

/// How a mapping gets the bytes of a large file.
enum Mapping {
    /// From its complete copy, which is open.
    Copy(Fd),
    /// From the file of the PFS, whose pages the agent reads as well.
    Followed,
    /// From the file of the PFS.
    Pfs,
}

/// Decides how a large file is mapped: see [`monarch_abi::mapping`].
fn decide(ctx: &Ctx, known: &Known, touched: Touched) -> Mapping {
    let f = &known.f;
    let mut word = f.entry.word();
    if word.state() != State::Resident {
        match before_complete(ctx, f, &known.large, touched) {
            Ok(resident) => word = resident,
            Err(mapping) => return mapping,
        }
    }
    // (Of one that is not complete there is nothing to compare.)
    let copy = known.open(ctx, word, NO_PART).filter(|copy| monarch_guest::guard::is_sound_copy(ctx, f, word, copy));
    copy.map_or(Mapping::Pfs, Mapping::Copy)
}

/// The word of the complete copy, if a mapping waits for it and it comes.
fn before_complete(ctx: &Ctx, f: &Found<'static>, large: &LargeFile<'_>, touched: Touched) -> Result<Word, Mapping> {
    let word = f.entry.word();
    let comes = matches!(word.state(), State::Absent | State::Requested | State::Fetching | State::Partial);
    if !comes || !demand::agent_up(ctx.map.ctl) || (word.state() == State::Partial && large.is_streamed()) {
        return Err(Mapping::Pfs);
    }
    demand::raise(ctx.map, f);
    let facts = mapping::facts(ctx.map, f, large, touched);
    let is_followed = mapping::is_followed(ctx.map, f.root) && word.packed_in().is_none();
    let is_better_followed = is_followed && mapping::has_hardly_begun(large) && !facts.is_near();
    if !is_better_followed && facts.waits() {
        let start = demand::Watch::now_us(&Here);
        let end = mapping::wait(ctx.map, f, large, &facts, &Here);
        ctx.count(Counter::WaitMicros, demand::Watch::now_us(&Here).saturating_sub(start));
        if let Outcome::Resident(word) = end {
            return Ok(word);
        }
    }
    if large.is_streamed() {
        return Err(Mapping::Pfs);
    }
    demand::read_by_pages(ctx.map, f, large, false);
    Err(if is_followed { Mapping::Followed } else { Mapping::Pfs })
}

/// What of a file is mapped.
#[derive(Clone, Copy)]
pub struct Range {
    /// Bytes.
    pub len: usize,
    /// Where they begin.
    pub off: u64,
    /// Whether the kernel reads them at once.
    pub populates: bool,
}

/// Maps the complete copy in place of a large file of the PFS, if there is one or will be soon;
/// `map` maps the range of a descriptor.
#[must_use]
pub fn mmap(
    fd: c_int,
    Range { len, off, populates }: Range,
    map: impl FnOnce(c_int) -> *mut core::ffi::c_void,
) -> Option<*mut core::ffi::c_void> {
    let ctx = ctx::get()?;
    // Of a file that it locks the process wants to see what others write into it.
    let free = |known: &Known| !crate::pfs_fd::holds_lock(&ctx, &known.f, fd);
    let known = identify(&ctx, fd).filter(free)?;
    let mapped = (len as u64).min(known.f.entry.record.size);
    let name = known.f.segment.index.name(known.f.entry.record);
    let touched = crate::weights::touched(name, mapped, known.f.entry.record.size, populates);
    let copy = match decide(&ctx, &known, touched) {
        Mapping::Copy(copy) => copy,
        Mapping::Followed => {
            let at = map(fd);
            if at != libc::MAP_FAILED {
                ctx.count(Counter::MappedBytes, mapped);
                if let Some(hint) = crate::large::hint(&known.f) {
                    crate::mapped::note(at as usize, len, off, hint);
                }
            }
            return Some(at);
        }
        Mapping::Pfs => {
            ctx.count(Counter::ChunkMissBytes, mapped);
            return None;
        }
    };
    let at = map(copy.0);
    if at == libc::MAP_FAILED {
        return None;
    }
    // (The open was counted.)
    ctx.count(Counter::MappedBytes, mapped);
    Some(at)
}

/// Puts the complete copy of a large file in the place of its descriptor, at the same offset,
/// before a stream reads from it past the shim: if there is one or will be soon. The offset is the
/// descriptor's own from then on.
pub fn replace(fd: c_int) -> Option<()> {
    let ctx = ctx::get()?;
    // With its descriptor a lock would go.
    let known = identify(&ctx, fd).filter(|known| !crate::pfs_fd::holds_lock(&ctx, &known.f, fd))?;
    // (A stream may be read to its end.)
    let rest = |at: u64| known.f.entry.record.size.saturating_sub(at);
    let Some(copy) = whole(&known, &ctx) else {
        ctx.count(Counter::ChunkMissBytes, rest(sys::seek(fd, 0)?));
        return None;
    };
    let at = sys::seek(fd, 0)?;
    sys::seek_to(copy.0, at)?;
    let flags = sys::fcntl(fd, libc::F_GETFL, 0)?;
    let cloexec = sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    let _ = sys::fcntl(copy.0, libc::F_SETFL, flags & libc::O_NONBLOCK);
    if !sys::dup_to(copy.0, fd, cloexec) {
        return None;
    }
    forget(fd);
    ctx.count(Counter::MappedBytes, rest(at));
    Some(())
}

/// sendfile(2) from a large file: from its complete copy, if there is one or will be soon. `send`
/// is the call itself, which is given a descriptor and where its offset is.
#[must_use]
pub fn sendfile(fd: c_int, off: *mut i64, n: usize, send: impl FnOnce(c_int, *mut i64) -> isize) -> Option<isize> {
    let ctx = ctx::get()?;
    let known = identify(&ctx, fd)?;
    // A copy that is read in full before each use had better not be used piece by piece.
    if known.f.segment.state.guard.which().sums {
        return None;
    }
    let copy = whole(&known, &ctx)?;
    // (The disk under the copy may fail: then the PFS is read.)
    let fails = |done: isize| done < 0 && errno::errno() == libc::EIO;
    let count = |done: isize| ctx.count(Counter::ChunkBytes, done.max(0) as u64);
    if !off.is_null() {
        return Some(send(copy.0, off)).filter(|done| !fails(*done)).inspect(|done| count(*done));
    }
    let claim = Claim::make(fd, n.min(MAX_READ_BYTES), known.f.entry.record.size)?;
    let mut at = i64::try_from(claim.start).ok()?;
    let done = send(copy.0, &raw mut at);
    let failed = fails(done);
    claim.settle(fd, done);
    if !failed {
        count(done);
    }
    (!failed).then_some(done)
}

/// Counts bytes that sendfile(2) took from the PFS's descriptor of a large file.
#[cold]
pub fn count_sent(fd: c_int, bytes: u64) {
    let Some(ctx) = ctx::get() else { return };
    if identify(&ctx, fd).is_some() {
        ctx.count(Counter::ChunkMissBytes, bytes);
    }
}
