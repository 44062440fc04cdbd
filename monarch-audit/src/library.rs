//! From a path to its copy: hit, demand, bypass.

use crate::early::await_index;
use crate::elf::is_shared_object;
use crate::opened::Opened;
use crate::state::State;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use monarch_abi::COPY_PATH_MAX;
use monarch_abi::accesses::{Opened as Access, Served};
use monarch_abi::chunks::LargeFile;
use monarch_abi::control::{Control, Counter};
use monarch_abi::demand::{self, Outcome, Watch};
use monarch_abi::hash::CopyName;
use monarch_abi::mapping::{self, Facts, Touched, library_faults};
use monarch_abi::resolve::{Found, Miss, resolve};
use monarch_abi::word::{State as Stage, Word};
use monarch_guest::copy_open::{Here, copy_path};
use monarch_guest::ctx::Ctx;
use monarch_guest::guard::{self, Asked};
use monarch_guest::sys::{self, Fd};
use monarch_guest::{absent, process};

/// What a path leads to.
#[allow(clippy::large_enum_variant, reason = "nothing is allocated; one value at a time lies on the stack")]
pub enum Library {
    /// A copy that can be loaded.
    Copy(Opened),
    /// The PFS, or a file that is no library: as without this library.
    Pfs,
    /// Nothing.
    Absent,
}

/// What `path`, which is absolute, leads to. `counts`: whether the loader opens the file next if
/// this finds no copy.
#[must_use]
pub fn find(state: &mut State, ctx: &Ctx, path: &CStr, counts: bool) -> Library {
    let f = match resolved(ctx, path) {
        Ok(f) if f.entry.record.is_file() => f,
        Ok(_) => return Library::Pfs,
        Err(miss) if absent::is_known(ctx, libc::AT_FDCWD, path.to_bytes(), &miss) => {
            ctx.count(Counter::AbsentHits, u64::from(counts));
            return Library::Absent;
        }
        Err(_) => return Library::Pfs,
    };
    if let Some(root) = ctx.map.ctl.roots.get(f.root)
        && root.opens.load(Ordering::Relaxed) == 0
    {
        root.opens.store(1, Ordering::Relaxed);
    }
    match open(state, ctx, &f, path) {
        Ok((copy, how)) => {
            let counter = if how == Served::Tier { Counter::Hits } else { Counter::Waited };
            ctx.count(counter, 1);
            ctx.count(Counter::HitBytes, f.entry.record.size);
            note(ctx, &f, how);
            Library::Copy(copy)
        }
        Err(why) => {
            if counts {
                ctx.count(why, 1);
                ctx.count(Counter::MissBytes, f.entry.record.size);
                note(ctx, &f, Served::Pfs);
            }
            Library::Pfs
        }
    }
}

/// What a path leads to, once there is an index.
fn resolved(ctx: &Ctx, path: &CStr) -> Result<Found<'static>, Miss> {
    match resolve(ctx.map, ctx, path.to_bytes(), true) {
        Err(Miss::NoSegment(root)) => {
            await_index(ctx, root, path);
            resolve(ctx.map, ctx, path.to_bytes(), true)
        }
        found => found,
    }
}

/// The file of the index that a path leads to.
fn file_of(ctx: &Ctx, path: &[u8]) -> Result<Found<'static>, Miss> {
    let f = resolve(ctx.map, ctx, path, true)?;
    if f.entry.record.is_file() { Ok(f) } else { Err(Miss::Outside) }
}

/// The name of the copy of what a path leads to.
///
/// # Errors
/// Why there is none; [`Miss::NoSegment`]: it may be known later.
pub fn version_of(ctx: &Ctx, path: &[u8]) -> Result<CopyName, Miss> {
    file_of(ctx, path).map(|f| f.segment.copy_name(&f.entry))
}

/// [`version_of`] a library that was mapped from the PFS before there was an index: the agent hears
/// of it now.
///
/// # Errors
/// As for [`version_of`].
pub fn note_early(ctx: &Ctx, path: &[u8]) -> Result<CopyName, Miss> {
    let f = file_of(ctx, path)?;
    note(ctx, &f, Served::Pfs);
    Ok(f.segment.copy_name(&f.entry))
}

/// Notes for the agent's policies what was opened.
fn note(ctx: &Ctx, f: &Found<'static>, served: Served) {
    let access = Access { segment: f.number, id: f.entry.master.id, served, ms: sys::coarse_ms() };
    ctx.map.ctl.accesses.note(process::number(), access);
}

fn open(state: &mut State, ctx: &Ctx, f: &Found<'static>, path: &CStr) -> Result<(Opened, Served), Counter> {
    let word = f.entry.word();
    if word.state() == Stage::Bypass {
        return Err(Counter::of_miss(word));
    }
    let asked = Asked::new(libc::AT_FDCWD, path.to_bytes(), true);
    if f.segment.state.guard.is_on() && !guard::is_still(ctx, f, asked) {
        return Err(Counter::Changed);
    }
    let version = f.segment.copy_name(&f.entry);
    let mapped = state.mapped.is_copy(version);
    if mapped == Some(false) {
        return Err(Counter::of_miss(word));
    }
    let (word, how) = match word.state() {
        Stage::Resident => (word, Served::Tier),
        _ => (bring(ctx, f, word)?, Served::Waited),
    };
    let open = |word: Word| open_copy(ctx, f, word);
    // It may have moved to another tier meanwhile.
    let again = || Some(f.entry.word()).filter(|now| *now != word && now.state() == Stage::Resident).and_then(open);
    let (file, tier, path) = open(word).or_else(again).ok_or(Counter::Vanished)?;
    if !is_shared_object(&file, f.entry.record.size) || !state.tiers.is_executable(tier, file.0) {
        return Err(Counter::Flags);
    }
    Ok((Opened { file, version, is_mapped: mapped.is_some(), path }, how))
}

/// The copy that a word speaks of, its tier and its path.
fn open_copy(ctx: &Ctx, f: &Found<'static>, word: Word) -> Option<(Fd, usize, MaybeUninit<[u8; COPY_PATH_MAX]>)> {
    let mut room = MaybeUninit::uninit();
    if !copy_path(ctx, f, word, &mut room) {
        return None;
    }
    // SAFETY: `copy_path` has written a string that ends with a NUL.
    let path = unsafe { CStr::from_ptr(room.as_ptr().cast()) };
    let fd = sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW).map(Fd)?;
    if word.is_watched() {
        f.segment.state.touch(f.entry.master.id);
    }
    guard::is_sound_copy(ctx, f, word, &fd).then_some((fd, word.tier(), room))
}

/// Asks for a copy, and waits for it, if that is quicker than the PFS.
#[cold]
fn bring(ctx: &Ctx, f: &Found<'static>, word: Word) -> Result<Word, Counter> {
    demand::repeat_damaged(ctx.map, f, word);
    if word.state() == Stage::Refused {
        return Err(Counter::of_miss(word));
    }
    if !demand::agent_up(ctx.map.ctl) {
        return Err(Counter::Deadline);
    }
    // (A copy is of all of it, which may be many times what this process reads. The agent fetches
    // it when another process maps it, and the next job with its working set. One that is under way
    // comes anyhow, and where nodes share copies, all of them map it.)
    let size = f.entry.record.size;
    let comes = word.state() != Stage::Absent || mapping::is_shared(ctx.map, f.root);
    if !comes && !is_worth_waiting(ctx.map.ctl, size) {
        return Err(Counter::Absent);
    }
    let large = f.segment.state.large(f.entry.master.id);
    // (`wait.map: 0s`; one that is streamed is never whole.)
    let never = ctx.map.ctl.map_ms.load(Ordering::Relaxed) == 0;
    if large.as_ref().is_some_and(|large| never || (word.state() == Stage::Partial && large.is_streamed())) {
        return Err(Counter::Large);
    }
    demand::raise(ctx.map, f);
    let start = Here.now_us();
    let outcome = match large {
        Some(large) => await_large(ctx, f, &large),
        None => demand::wait(ctx.map, f, &Here),
    };
    ctx.count(Counter::WaitMicros, Here.now_us().saturating_sub(start));
    match outcome {
        Outcome::Resident(word) => Ok(word),
        Outcome::Refused(word) => Err(Counter::of_miss(word)),
        Outcome::Partial(_) => Err(Counter::Large),
        Outcome::Deadline => Err(Counter::Deadline),
    }
}

/// Waits for the copy of a large library: at each moment for as long as the rest comes about as
/// soon as its faults would.
fn await_large(ctx: &Ctx, f: &Found<'static>, large: &LargeFile<'static>) -> Outcome {
    let known = mapping::facts(ctx.map, f, large, Touched::ALL);
    let faults_us = library_faults(known.size).saturating_mul(ctx.map.ctl.pfs_latency_us.load(Ordering::Relaxed));
    let most_left_us = faults_us.saturating_add(faults_us / 4);
    let decided = Facts { slowest: 0, most_left_us, from_peers: known.is_shared, ..known };
    let outcome = mapping::wait(ctx.map, f, large, &decided, &Here);
    if matches!(outcome, Outcome::Deadline) && !large.is_streamed() && mapping::is_followed(ctx.map, f.root) {
        demand::read_by_pages(ctx.map, f, large, true);
    }
    outcome
}

/// Whether the whole of a library comes sooner than the parts of it that its use would read from
/// the PFS one by one: size / rate against (size / 6) / 43 KB x latency.
fn is_worth_waiting(ctl: &Control, size: u64) -> bool {
    let faults = library_faults(size);
    let (rate, latency_us) = (ctl.rate.load(Ordering::Relaxed), ctl.pfs_latency_us.load(Ordering::Relaxed));
    // Nothing was measured yet: what the first fault reads is worth it.
    if rate == 0 || latency_us == 0 {
        return faults <= 1;
    }
    size.saturating_mul(1_000_000) / rate <= faults.saturating_mul(latency_us)
}
