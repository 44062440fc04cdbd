//! Opens: a hit is one lookup and one `openat` of the copy; a miss asks the agent and waits;
//! everything else has a named reason to go to the PFS.

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use monarch_abi::COPY_PATH_MAX;
use monarch_abi::accesses::{Opened, Served as From};
use monarch_abi::control::Counter;
use monarch_abi::demand::{self, Outcome, Watch};
use monarch_abi::resolve::{Found, Miss};
use monarch_abi::word::{State, Word};
use monarch_guest::copy_open::{Here, copy_path, copy_path_inlined};
use monarch_guest::ctx::Ctx;
use monarch_guest::guard::{self, Asked};

/// Flags that may be given when a copy is opened.
const READ_FLAGS: c_int = libc::O_CLOEXEC
    | libc::O_LARGEFILE
    | libc::O_NOCTTY
    | libc::O_NONBLOCK
    | libc::O_NOATIME
    | libc::O_NOFOLLOW
    | O_LARGEFILE_KERNEL;
/// What the kernel shows as `O_LARGEFILE`; glibc defines it as 0 on 64-bit machines.
#[cfg(target_arch = "x86_64")]
const O_LARGEFILE_KERNEL: c_int = 0o100_000;
/// What the kernel shows as `O_LARGEFILE`; glibc defines it as 0 on 64-bit machines.
#[cfg(target_arch = "aarch64")]
const O_LARGEFILE_KERNEL: c_int = 0o400_000;

/// Whether these flags only read a file.
#[inline]
#[must_use]
pub const fn only_reads(flags: c_int) -> bool {
    flags & !READ_FLAGS == 0
}

/// How an open below a root is to be done.
pub enum Served<T> {
    /// The copy was opened.
    Copy(T),
    /// The PFS, as without the shim.
    Pfs,
    /// The PFS, and the descriptor is to be remembered as that of a large file.
    Large(u64),
}

/// How a file will be read that is being opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Through functions of the shim: parts of a copy are enough.
    Parts,
    /// Past the shim: only a complete copy is enough.
    Whole,
}

/// Opens the copy of a file if there is one or the agent makes one in time. `open` opens the copy's
/// path; `asked` is needed where files are looked at again.
#[inline(always)]
pub fn open_copy<T>(
    ctx: &Ctx,
    f: &Found<'static>,
    asked: impl FnOnce() -> Asked,
    what: Use,
    mut open: impl FnMut(&CStr) -> Option<T>,
) -> Served<T> {
    if let Some(root) = ctx.map.ctl.roots.get(f.root) {
        // A mark, not a count: a counter here would be one cache line for all processes of the
        // node.
        if root.opens.load(Ordering::Relaxed) == 0 {
            root.opens.store(1, Ordering::Relaxed);
        }
    }
    if !f.entry.record.is_file() {
        return Served::Pfs;
    }
    if crate::pfs_fd::any_locked() && crate::pfs_fd::is_locked(ctx, f) {
        return open_locked(ctx, f, what);
    }
    if f.segment.state.guard.is_on() {
        return open_guarded(ctx, f, asked(), what, &mut open);
    }
    open_any(ctx, f, what, &mut move |copy, _| open(copy))
}

/// Opens the copy of a file for reads past the page cache, if it is complete, or, of a small file,
/// comes in time. `None` when the PFS is to be read. `open` opens the copy's path, which lies in a
/// tier.
#[cold]
#[inline(never)]
pub fn open_direct<T>(
    ctx: &Ctx,
    f: &Found<'static>,
    asked: Asked,
    mut open: impl FnMut(&CStr, usize) -> Option<T>,
) -> Option<T> {
    let tiers = ctx.map.tiers().len();
    let word = f.entry.word();
    let is_taken = match word.state() {
        State::Resident => crate::direct::may_be_taken(word.tier()),
        // (Where any tier refuses, a wait could be in vain.)
        _ => (0..tiers).all(crate::direct::may_be_taken),
    };
    let is_locked = crate::pfs_fd::any_locked() && crate::pfs_fd::is_locked(ctx, f);
    if !f.entry.record.is_file() || !is_taken || is_locked {
        return None;
    }
    let guarded = f.segment.state.guard.is_on();
    if guarded && (word.state() == State::Bypass || !guard::is_still(ctx, f, asked)) {
        return None;
    }
    if word.state() != State::Resident && f.segment.state.large(f.entry.master.id).is_some() {
        // (For later readers.)
        if word.state() == State::Absent && demand::agent_up(ctx.map.ctl) {
            demand::raise(ctx.map, f);
        }
        return None;
    }
    let mut open = |copy: &CStr, word: Word| {
        if guarded && !guard::is_sound(ctx, f, word, copy) { None } else { open(copy, word.tier()) }
    };
    match open_any(ctx, f, Use::Whole, &mut open) {
        Served::Copy(t) => Some(t),
        _ => None,
    }
}

/// A file on which this process has asked for record locks: the PFS's, whose reads are answered
/// from the copy as long as it is the same version.
#[cold]
#[inline(never)]
fn open_locked<T>(ctx: &Ctx, f: &Found<'static>, what: Use) -> Served<T> {
    match crate::small::hint(f).filter(|_| what == Use::Parts && f.entry.word().state() != State::Bypass) {
        Some(hint) => {
            ctx.count(Counter::Chunked, 1);
            note(ctx, f, From::Chunks);
            Served::Large(hint)
        }
        None => to_pfs(ctx, f, Counter::of_miss(f.entry.word())),
    }
}

/// [`open_copy`] where files and copies are looked at again.
#[cold]
#[inline(never)]
fn open_guarded<T>(
    ctx: &Ctx,
    f: &Found<'static>,
    asked: Asked,
    what: Use,
    open: &mut impl FnMut(&CStr) -> Option<T>,
) -> Served<T> {
    let word = f.entry.word();
    if word.state() == State::Bypass {
        return to_pfs(ctx, f, Counter::of_miss(word));
    }
    if !guard::is_still(ctx, f, asked) {
        return to_pfs(ctx, f, Counter::Changed);
    }
    open_any(ctx, f, what, &mut |copy, word| if guard::is_sound(ctx, f, word, copy) { open(copy) } else { None })
}

/// The copy that there is, or that comes in time. `open` gets the word that speaks of it, too. Not
/// inlined, as what other opens do needs no room for the path of a copy.
#[inline(never)]
fn open_any<T>(ctx: &Ctx, f: &Found<'static>, what: Use, open: &mut impl FnMut(&CStr, Word) -> Option<T>) -> Served<T> {
    let word = f.entry.word();
    if word.state() == State::Resident {
        let mut path = MaybeUninit::uninit();
        if copy_path_inlined(ctx, f, word, &mut path)
            && let Some(t) = open(c_str(&path), word)
        {
            ctx.count_all([(Counter::Hits, 1), (Counter::HitBytes, f.entry.record.size)]);
            note(ctx, f, From::Tier);
            if word.is_watched() {
                f.segment.state.touch(f.entry.master.id);
            }
            return Served::Copy(t);
        }
        return open_moved(ctx, f, (word, what), open);
    }
    miss(ctx, f, word, what, open)
}

/// Opens the copy that a word speaks of.
#[inline(never)]
fn try_copy<T>(
    ctx: &Ctx,
    f: &Found<'static>,
    word: Word,
    open: &mut impl FnMut(&CStr, Word) -> Option<T>,
) -> Option<T> {
    let mut path = MaybeUninit::uninit();
    if copy_path(ctx, f, word, &mut path) { open(c_str(&path), word) } else { None }
}

/// The path that [`copy_path`] has written.
#[inline]
fn c_str(path: &MaybeUninit<[u8; COPY_PATH_MAX]>) -> &CStr {
    // SAFETY: both callers have had it written, with a NUL behind it.
    unsafe { CStr::from_ptr(path.as_ptr().cast()) }
}

/// The copy was not where the word said: perhaps it moved to another tier meanwhile, or what is
/// left of it is a packed copy.
#[cold]
fn open_moved<T>(
    ctx: &Ctx,
    f: &Found<'static>,
    (old, what): (Word, Use),
    open: &mut impl FnMut(&CStr, Word) -> Option<T>,
) -> Served<T> {
    let now = f.entry.word();
    if now != old
        && now.state() == State::Resident
        && let Some(t) = try_copy(ctx, f, now, open)
    {
        ctx.count_all([(Counter::Hits, 1), (Counter::HitBytes, f.entry.record.size)]);
        note(ctx, f, From::Tier);
        return Served::Copy(t);
    }
    let now = f.entry.word();
    if old.is_marked() && now.state() != State::Resident {
        return miss(ctx, f, now, what, open);
    }
    to_pfs(ctx, f, Counter::Vanished)
}

/// Notes for the agent's policies what was opened.
#[inline]
fn note(ctx: &Ctx, f: &Found<'static>, served: From) {
    let opened = Opened { segment: f.number, id: f.entry.master.id, served, ms: monarch_guest::sys::coarse_ms() };
    ctx.map.ctl.accesses.note(monarch_guest::process::number(), opened);
}

fn to_pfs<T>(ctx: &Ctx, f: &Found<'static>, why: Counter) -> Served<T> {
    ctx.count(why, 1);
    ctx.count(Counter::MissBytes, f.entry.record.size);
    note(ctx, f, From::Pfs);
    Served::Pfs
}

/// Not resident: ask and wait, if that makes sense.
#[cold]
#[inline(never)]
fn miss<T>(
    ctx: &Ctx,
    f: &Found<'static>,
    word: Word,
    what: Use,
    open: &mut impl FnMut(&CStr, Word) -> Option<T>,
) -> Served<T> {
    if word.state() == State::Bypass {
        return to_pfs(ctx, f, Counter::of_miss(word));
    }
    demand::repeat_damaged(ctx.map, f, word);
    if let Some(hint) = crate::large::hint(f) {
        return large(ctx, f, (word, hint), what, open);
    }
    if word.state() == State::Refused {
        return to_pfs(ctx, f, Counter::of_miss(word));
    }
    if !demand::agent_up(ctx.map.ctl) {
        return to_pfs(ctx, f, Counter::Deadline);
    }
    let start = Here.now_us();
    let mut tries = demand::TRIES;
    let (outcome, copy) = loop {
        demand::raise(ctx.map, f);
        let outcome = demand::wait(ctx.map, f, &Here);
        let Outcome::Resident(word) = outcome else { break (outcome, None) };
        let copy = try_copy(ctx, f, word, open);
        if copy.is_some() && word.is_watched() {
            f.segment.state.touch(f.entry.master.id);
        }
        // One that was decoded may have made way again.
        if copy.is_some() || !word.is_marked() || tries == 0 {
            break (outcome, copy);
        }
        tries -= 1;
    };
    ctx.count(Counter::WaitMicros, Here.now_us().saturating_sub(start));
    match outcome {
        Outcome::Resident(_) => match copy {
            Some(t) => {
                ctx.count(Counter::Waited, 1);
                ctx.count(Counter::HitBytes, f.entry.record.size);
                note(ctx, f, From::Waited);
                Served::Copy(t)
            }
            None => to_pfs(ctx, f, Counter::Vanished),
        },
        Outcome::Refused(word) | Outcome::Partial(word) => to_pfs(ctx, f, Counter::of_miss(word)),
        Outcome::Deadline => to_pfs(ctx, f, Counter::Deadline),
    }
}

/// A large file whose copy is not complete: its reads are served, or counted, one by one.
fn large<T>(
    ctx: &Ctx,
    f: &Found<'static>,
    (word, hint): (Word, u64),
    what: Use,
    open: &mut impl FnMut(&CStr, Word) -> Option<T>,
) -> Served<T> {
    if what == Use::Whole {
        let copy = crate::whole::wait_whole(ctx, f, word).and_then(|word| try_copy(ctx, f, word, open));
        if let Some(t) = copy {
            ctx.count(Counter::Waited, 1);
            ctx.count(Counter::HitBytes, f.entry.record.size);
            note(ctx, f, From::Waited);
            return Served::Copy(t);
        }
        return to_pfs(ctx, f, Counter::Large);
    }
    if word.state() == State::Absent && demand::agent_up(ctx.map.ctl) {
        demand::raise(ctx.map, f);
    }
    crate::chunks::opened(ctx, f, word);
    ctx.count(Counter::Chunked, 1);
    note(ctx, f, From::Chunks);
    Served::Large(hint)
}

/// Counts an open below a root that the index knows nothing about.
pub fn count_miss(ctx: &Ctx, miss: Miss) {
    match miss {
        Miss::Outside => {}
        Miss::NoSegment(root) if monarch_guest::ctx::sees_another_mount(root) => ctx.count(Counter::OtherMount, 1),
        Miss::NoSegment(_) => ctx.count(Counter::Absent, 1),
        Miss::Unknown(_) | Miss::Absent(_) => ctx.count(Counter::Unknown, 1),
        Miss::Changed(_) => ctx.count(Counter::Written, 1),
    }
}
