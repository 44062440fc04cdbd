//! Hints of a job, by the functions of `monarch.h`: the order in which it will open
//! files, epochs, what matters.
//!
//! Paths are looked up here, in shared memory; what the agent gets is a small file of numbers in
//! its runtime directory (see `monarch_abi::hint`). No process waits for it, and what is wrong
//! costs time only.

use crate::paths::find;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use monarch_abi::accesses::Hinted;
use monarch_abi::demand::file_key;
use monarch_abi::hint::{Header, Kind};
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::Miss;
use monarch_abi::scratch::{BLOCK_BYTES, Scratch};
use monarch_abi::sys::futex_wake;
use monarch_abi::word::State;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::errno;
use monarch_guest::sys::{self, Fd};

/// Hints that this process has written.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// The number by which the agent knows this process, in the lower half, and above the process that
/// it was drawn for.
static IDENTITY: AtomicU64 = AtomicU64::new(0);

/// Files written at a time.
const FILES_PER_WRITE: usize = BLOCK_BYTES / size_of::<u64>();

/// A number that no other process has: processes of containers may share the numbers that the
/// system gives them. A child draws its own.
fn identity() -> u32 {
    let pid = sys::pid();
    let known = IDENTITY.load(Ordering::Relaxed);
    if known >> 32 == u64::from(pid) {
        return known as u32;
    }
    let drawn = u64::from(pid) << 32 | u64::from(sys::random());
    match IDENTITY.compare_exchange(known, drawn, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => drawn as u32,
        // Another thread was faster.
        Err(theirs) => theirs as u32,
    }
}

/// A hint being written. Dropped before it is done, it goes.
struct Writer {
    fd: Fd,
    header: Header,
    partial: PathBuffer,
    complete: PathBuffer,
    /// Keys of the files that are still to be written.
    files: Scratch,
    used: usize,
    count: usize,
    written: u64,
}

impl Writer {
    fn new(kind: Kind, value: i64) -> Result<Self, c_int> {
        let process = identity();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut partial = ctx::hint_file(process, number, b".tmp").ok_or(libc::EIO)?;
        let complete = ctx::hint_file(process, number, b".hint").ok_or(libc::EIO)?;
        let fd = sys::create(partial.c_str().ok_or(libc::EIO)?)?;
        let header = Header { kind, process, value, ms: sys::coarse_ms(), number };
        let mut new = Self { fd, header, partial, complete, files: Scratch::take(), used: 0, count: 0, written: 0 };
        match new.write(&header.bytes()) {
            Ok(()) => Ok(new),
            Err(e) => Err(new.give_up(e)),
        }
    }

    /// Never behind the longest file that the process may write: it would be ended by a signal.
    fn write(&mut self, bytes: &[u8]) -> Result<(), c_int> {
        let end = self.written.saturating_add(bytes.len() as u64);
        if end > sys::longest_file() {
            return Err(libc::EFBIG);
        }
        sys::write_all(self.fd.0, bytes)?;
        self.written = end;
        Ok(())
    }

    fn add(&mut self, key: u64) -> Result<(), c_int> {
        let Some(room) = self.files.bytes() else { return Err(libc::EIO) };
        if self.used < FILES_PER_WRITE {
            // SAFETY: the block has space for `FILES_PER_WRITE` numbers.
            unsafe { room.as_mut_ptr().cast::<u64>().add(self.used).write(key.to_le()) };
            self.used += 1;
            self.count += 1;
        }
        if self.used < FILES_PER_WRITE { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), c_int> {
        let len = core::mem::take(&mut self.used) * size_of::<u64>();
        if len == 0 || self.files.is_empty() {
            return Ok(());
        }
        // SAFETY: `used` numbers were written there; `write` does not touch them.
        let bytes = unsafe { core::slice::from_raw_parts(self.files.base(), len) };
        self.write(bytes)
    }

    fn give_up(&mut self, why: c_int) -> c_int {
        if let Some(path) = self.partial.c_str() {
            sys::remove(path);
        }
        why
    }

    /// Hands it to the agent; how many files it names.
    fn done(&mut self, ctx: &Ctx) -> Result<usize, c_int> {
        self.flush()?;
        let (Some(from), Some(to)) = (self.partial.c_str(), self.complete.c_str()) else { return Err(libc::EIO) };
        if !sys::rename(from, to) {
            return Err(libc::EIO);
        }
        let c = ctx.map.ctl;
        c.accesses.note_hint(monarch_guest::process::number(), Hinted { tag: self.header.tag(), ms: sys::coarse_ms() });
        c.hinted.fetch_add(1, Ordering::SeqCst);
        futex_wake(&c.hinted, 1);
        Ok(self.count)
    }
}

/// -1, with the reason in errno.
pub fn fails(errno: c_int) -> isize {
    errno::set_errno(errno);
    -1
}

/// Whether this process is served.
#[must_use]
pub fn is_active() -> bool {
    ctx::get().is_some()
}

/// Gives the agent a hint about files, in the order of `paths`; how many of them are indexed, or -1
/// with errno.
pub fn tell<'a>(kind: Kind, value: i64, paths: impl Iterator<Item = &'a [u8]>) -> isize {
    let Some(ctx) = ctx::get() else { return fails(libc::ENOSYS) };
    match write(&ctx, kind, value, paths) {
        Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
        // What users can do something about; anything else is a matter of the runtime directory.
        Err(libc::EDQUOT) => fails(libc::ENOSPC),
        Err(why @ (libc::ENOSPC | libc::EFBIG)) => fails(why),
        Err(_) => fails(libc::EIO),
    }
}

fn write<'a>(ctx: &Ctx, kind: Kind, value: i64, paths: impl Iterator<Item = &'a [u8]>) -> Result<usize, c_int> {
    let mut writer = Writer::new(kind, value)?;
    for path in paths {
        let Ok(f) = find(ctx, libc::AT_FDCWD, path, true) else { continue };
        if kind == Kind::Order && !f.entry.record.is_file() {
            continue;
        }
        if let Err(e) = writer.add(file_key(f.number, f.entry.master.id)) {
            return Err(writer.give_up(e));
        }
    }
    match writer.done(ctx) {
        Ok(count) => Ok(count),
        Err(e) => Err(writer.give_up(e)),
    }
}

/// What there is of a file: 0 nothing, 1 it is on its way, 2 parts of it, 3 a copy in a tier, 4 it
/// is left to the PFS; or -1 with errno.
#[must_use]
pub fn residency(path: &[u8]) -> c_int {
    let Some(ctx) = ctx::get() else { return fails(libc::ENOSYS) as c_int };
    match find(&ctx, libc::AT_FDCWD, path, true) {
        Ok(f) if !f.entry.record.is_file() => fails(libc::EISDIR) as c_int,
        Ok(f) => match f.entry.word().state() {
            State::Resident => 3,
            State::Partial => 2,
            State::Requested | State::Fetching => 1,
            State::Refused | State::Bypass => 4,
            _ => 0,
        },
        Err(Miss::Changed(_)) => 4,
        Err(_) => fails(libc::ENOENT) as c_int,
    }
}
