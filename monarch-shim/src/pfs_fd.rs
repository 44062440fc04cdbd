//! Descriptors that have to be the PFS file's own: of files that are locked or leased, and what
//! ioctl is asked about.
//!
//! A lock on a copy would exclude no process that has the file on the PFS open. So the first such
//! call on a copy puts a descriptor of the PFS file in its place, under the same number, with the
//! same offset and flags; duplicates of it in this process go along. Reads of such a descriptor are
//! answered from the copy as long as the file is the version that was copied ([`crate::small`]).
//!
//! Record locks are the process's, whichever descriptor took them, and go when it closes any
//! descriptor of the file. So nothing here may close a descriptor of a file on which the process
//! may have such locks, and a process that reads under such a lock must see the file by any
//! descriptor. Files on which the process has asked for record locks are remembered (by a hash: a
//! collision costs hits, never truth): the first such call moves all its descriptors of the file,
//! and opens of it get the PFS's descriptor from then on.

use crate::identity::{Facts, copy_of, copy_of_fd, is_version_of, path_if_there};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use monarch_abi::resolve::Found;
use monarch_abi::scratch::{BLOCK_BYTES, Scratch};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::errno;
use monarch_guest::sys::{self, Fd};

/// Words of 64 bits.
const LOCKED_WORDS: usize = 1024;
/// One bit for each hash of a file on which this process, or the one that it was forked from, has
/// asked for record locks.
static LOCKED: [AtomicU64; LOCKED_WORDS] = [const { AtomicU64::new(0) }; LOCKED_WORDS];
/// Not zero: some bit is set.
static ANY_LOCKED: AtomicU32 = AtomicU32::new(0);

/// Status flags that an open can be given.
const OPEN_FLAGS: c_int = libc::O_NONBLOCK | libc::O_NOATIME | libc::O_NOFOLLOW;
/// Status flags that can be set afterwards.
const SET_FLAGS: c_int = libc::O_APPEND | libc::O_ASYNC | libc::O_DIRECT | libc::O_NOATIME | libc::O_NONBLOCK;

/// Word and bit of a file.
fn bit(dev: u64, ino: u64) -> (Option<&'static AtomicU64>, u64) {
    let hash = (ino ^ dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    (LOCKED.get(hash as usize / 64), 1 << (hash % 64))
}

/// Notes a file; whether it was not noted before.
fn mark(dev: u64, ino: u64) -> bool {
    let (Some(word), bit) = bit(dev, ino) else { return false };
    let before = word.fetch_or(bit, Ordering::SeqCst);
    ANY_LOCKED.store(1, Ordering::SeqCst);
    before & bit == 0
}

/// Whether this process has asked for a record lock on any file of a root's device.
#[inline]
#[must_use]
pub fn any_locked() -> bool {
    ANY_LOCKED.load(Ordering::Relaxed) != 0
}

/// Whether this process has, or may have, record locks on a file.
#[must_use]
pub fn is_locked(ctx: &Ctx, f: &Found<'static>) -> bool {
    let Some(root) = ctx.map.ctl.roots.get(f.root).filter(|_| any_locked()) else { return false };
    let (word, bit) = bit(root.dev.load(Ordering::Relaxed), f.entry.record.ino);
    word.is_some_and(|w| w.load(Ordering::SeqCst) & bit != 0)
}

/// Whether an open file is, or may be, locked: by this process, or by the one that has handed it
/// down.
#[must_use]
pub fn holds_lock(ctx: &Ctx, f: &Found<'static>, fd: c_int) -> bool {
    is_locked(ctx, f) || has_lock_line(fd).unwrap_or(true)
}

/// Whether the kernel lists a lock that was taken through this open file; `None` where there is no
/// `/proc`.
fn has_lock_line(fd: c_int) -> Option<bool> {
    let mut name = [0u8; 40];
    let path = proc_fdinfo(fd, &mut name)?;
    let info = Fd(sys::open(path, libc::O_RDONLY | libc::O_CLOEXEC)?);
    let mut room = Scratch::take();
    let text = sys::read_into(info.0, &mut room)?;
    Some(text.windows(6).any(|w| w == b"\nlock:"))
}

/// `/proc/thread-self/fdinfo/N`.
fn proc_fdinfo(fd: c_int, out: &mut [u8; 40]) -> Option<&core::ffi::CStr> {
    let link = crate::descriptor_path::proc_path(fd)?;
    let (front, back) = (b"/proc/thread-self/fdinfo/", link.get(b"/proc/thread-self/fd/".len()..)?);
    let end = back.iter().position(|&c| c == 0)? + front.len() + 1;
    out.get_mut(..front.len())?.copy_from_slice(front);
    out.get_mut(front.len()..end)?.copy_from_slice(back.get(..end - front.len())?);
    core::ffi::CStr::from_bytes_with_nul(out.get(..end)?).ok()
}

/// Whose a lock is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The process's: record locks.
    Process,
    /// The open file's: flock, locks of open files, leases.
    OpenFile,
}

/// A descriptor is about to be locked or leased, or its locks are asked about. errno is kept.
pub fn before_lock(fd: c_int, owner: Owner) {
    if let Some(ctx) = ctx::mapped() {
        let saved = errno::errno();
        let _ = lock_on_pfs(&ctx, fd, owner);
        errno::set_errno(saved);
    }
}

#[cold]
#[inline(never)]
fn lock_on_pfs(ctx: &Ctx, fd: c_int, owner: Owner) -> Option<()> {
    let st = sys::fstat_local(fd).filter(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    if ctx.is_root_device(st.st_dev) {
        crate::large::locks_are_taken();
    }
    let copy = copy_of(ctx, &Facts::of(&st));
    let (dev, ino) = match &copy {
        Some(f) => (ctx.map.ctl.roots.get(f.root)?.dev.load(Ordering::Relaxed), f.entry.record.ino),
        None => (st.st_dev, st.st_ino),
    };
    // First, so that what is opened from here on is the PFS's.
    let is_first = owner == Owner::Process && ctx.is_root_device(dev) && mark(dev, ino);
    if let Some(f) = copy {
        let _ = move_to_pfs(ctx, fd, &f, Version::Any);
    }
    if !is_first {
        return Some(());
    }
    // Those that were opened apart have offsets of their own.
    each_fd(|other| {
        if let Some(f) = copy_of_fd(ctx, other).filter(|f| f.entry.record.ino == ino) {
            let _ = move_one(ctx, other, &f);
        }
    })
}

/// A descriptor is about to get these status flags, by which it reads past the page cache: a copy
/// stays where its tier takes them. errno is kept.
pub fn before_direct(fd: c_int, flags: usize) {
    let saved = errno::errno();
    if let Some(ctx) = ctx::mapped()
        && let Some(f) = copy_of_fd(&ctx, fd)
        && !crate::direct::set(fd, flags)
    {
        let _ = move_to_pfs(&ctx, fd, &f, Version::Any);
    }
    errno::set_errno(saved);
}

/// A descriptor is about to be asked something by ioctl that its file system answers. errno is
/// kept.
pub fn before_ioctl(ctx: &Ctx, fd: c_int) {
    let saved = errno::errno();
    if let Some(f) = copy_of_fd(ctx, fd) {
        let _ = move_to_pfs(ctx, fd, &f, Version::Any);
    }
    errno::set_errno(saved);
}

/// Which bytes a descriptor may have after it was moved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Those of the copy: a reader that continues must not get a mixture.
    Same,
    /// Those that the file has now, as the descriptor would have shown them had it been the PFS's
    /// from the beginning.
    Any,
}

/// Puts a descriptor of the PFS file in the place of a copy's, and of its duplicates in this
/// process; `None` if the file is no longer there or cannot be opened.
#[cold]
#[inline(never)]
#[must_use]
pub fn move_to_pfs(ctx: &Ctx, fd: c_int, f: &Found<'static>, version: Version) -> Option<()> {
    // From here on reads wait in `small`; those of other threads that have passed it have until the
    // file is open to begin.
    let before = crate::large::hint_of(fd);
    crate::large::remember(fd, crate::large::MOVING);
    let moved = move_while_reads_wait(ctx, fd, f, version);
    if moved.is_none() && crate::large::hint_of(fd) == crate::large::MOVING {
        crate::large::remember(fd, before);
    }
    moved
}

/// How often the mover looks, 1 ms apart, whether another thread's read has moved the offset.
const MAX_OFFSET_LOOKS: u32 = 20;

#[inline(never)]
fn move_while_reads_wait(ctx: &Ctx, fd: c_int, f: &Found<'static>, version: Version) -> Option<()> {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0).filter(|flags| flags & libc::O_PATH == 0)?;
    let (new, same) = open_pfs(ctx, f, flags & OPEN_FLAGS)?;
    if !same && version == Version::Same {
        return None;
    }
    let _ = sys::fcntl(new.0, libc::F_SETFL, flags & SET_FLAGS);
    // What was open until now: other threads may read it this very moment.
    let old = Fd(sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)?);
    let take_offset = || sys::seek(old.0, 0).filter(|at| sys::seek_to(new.0, *at).is_some());
    let put = |at: c_int| {
        let cloexec = sys::fcntl(at, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
        crate::large::remember(at, crate::large::MOVING);
        if !sys::dup_to(new.0, at, cloexec) {
            crate::large::forget(at);
            return None;
        }
        Some(())
    };
    let _ = each_fd(|other| {
        if other != fd && other != new.0 && other != old.0 && is_copy_of(ctx, other, f) && same_open_file(old.0, other)
        {
            let _ = put(other);
        }
    });
    let _ = take_offset();
    // Another thread may have closed it meanwhile.
    let put_there = if is_copy_of(ctx, fd, f) { put(fd) } else { None };
    // The kernel gives the offset when the reads that are under way have ended.
    let mut offset = take_offset();
    // (Another process that shares the open file may read on for ever.)
    for _ in 0..MAX_OFFSET_LOOKS {
        if offset.is_none() || monarch_guest::process::is_alone() {
            break;
        }
        sys::sleep_ms(1);
        let now = sys::seek(old.0, 0);
        if now == offset {
            break;
        }
        // A read that had begun before the descriptor was exchanged, and moves the offset only now.
        offset = take_offset();
    }
    let settle = |at: c_int| match if same { crate::small::hint(f) } else { None } {
        Some(hint) => crate::large::remember(at, hint),
        None => crate::large::forget(at),
    };
    let _ = each_fd(|other| {
        if crate::large::hint_of(other) == crate::large::MOVING && other != fd && same_open_file(new.0, other) {
            settle(other);
        }
    });
    if put_there.is_some() {
        settle(fd);
    }
    put_there
}

/// A name is about to lead elsewhere, with all that lies below it, and what it leads to stays: this
/// process's descriptors of copies become the PFS's, because the path by which a copy's file is
/// found will not be true any more. errno is kept.
pub fn before_move(ctx: &Ctx, moved: &Found<'static>) {
    let saved = errno::errno();
    let dir = moved.segment.index.dir(moved.entry.record);
    let below = |f: &Found<'static>| match dir {
        Some(d) => (d.id..d.end).contains(&f.entry.id),
        None => f.entry.master.id == moved.entry.master.id,
    };
    let _ = each_fd(|fd| {
        if let Some(f) = copy_of_fd(ctx, fd).filter(|f| f.number == moved.number && below(f)) {
            let _ = move_to_pfs(ctx, fd, &f, Version::Any);
        }
    });
    errno::set_errno(saved);
}

/// Moves all copies that this process has open to the PFS: their files are about to be written to
/// by some name of their descriptors.
pub fn move_all_for_writing(ctx: &Ctx) {
    let _ = each_fd(|fd| {
        if let Some(f) = copy_of_fd(ctx, fd) {
            crate::changes::bypass(ctx, &f);
            let _ = move_to_pfs(ctx, fd, &f, Version::Any);
        }
    });
}

/// The path on the PFS that a descriptor, just opened for reading by a name of another one, is to
/// be opened by instead: of a copy whose file has changed. The descriptor that has the name keeps
/// its version, as a stream of bytes must not change under its reader; a new open gets the file.
#[must_use]
pub fn changed_behind_copy(ctx: &Ctx, fd: c_int) -> Option<monarch_guest::absolute::Absolute> {
    let f = copy_of_fd(ctx, fd).filter(|f| f.entry.word().state() == monarch_abi::word::State::Bypass)?;
    // Closing a descriptor of the file would lose the record locks of the process.
    if is_locked(ctx, &f) { None } else { path_if_there(ctx, &f) }
}

/// [`move_to_pfs`] for one descriptor.
fn move_one(ctx: &Ctx, fd: c_int, f: &Found<'static>) -> Option<()> {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0).filter(|flags| flags & libc::O_PATH == 0)?;
    let (new, same) = open_pfs(ctx, f, flags & OPEN_FLAGS)?;
    let _ = sys::fcntl(new.0, libc::F_SETFL, flags & SET_FLAGS);
    let old = Fd(sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)?);
    let cloexec = sys::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0;
    crate::large::remember(fd, crate::large::MOVING);
    // Another thread may have closed it meanwhile.
    if !is_copy_of(ctx, fd, f) || !sys::dup_to(new.0, fd, cloexec) {
        crate::large::forget(fd);
        return None;
    }
    let _ = sys::seek(old.0, 0).map(|at| sys::seek_to(new.0, at));
    match if same { crate::small::hint(f) } else { None } {
        Some(hint) => crate::large::remember(fd, hint),
        None => crate::large::forget(fd),
    }
    Some(())
}

/// The file on the PFS of which there is a copy, opened for reading, and whether it has the bytes
/// of the copy.
#[must_use]
pub fn open_pfs(ctx: &Ctx, f: &Found<'static>, flags: c_int) -> Option<(Fd, bool)> {
    // Looked at before it is opened: what lies there by now might block.
    let mut path = path_if_there(ctx, f)?;
    let new = Fd(sys::open(path.c_str()?, flags | libc::O_RDONLY | libc::O_CLOEXEC)?);
    let st = sys::fstat(new.0).filter(|st| crate::identity::is_inode_of(ctx, f, st))?;
    let same = is_version_of(ctx, f, &st);
    Some((new, same))
}

fn is_copy_of(ctx: &Ctx, fd: c_int, f: &Found<'static>) -> bool {
    copy_of_fd(ctx, fd).is_some_and(|other| (other.number, other.entry.master.id) == (f.number, f.entry.master.id))
}

/// Whether two descriptors are duplicates: they share an offset. `false` where the kernel does not
/// say.
fn same_open_file(a: c_int, b: c_int) -> bool {
    const KCMP_FILE: usize = 0;
    let pid = sys::pid() as usize;
    // SAFETY: compares two descriptors of this process.
    let order = unsafe { sys::call(libc::SYS_kcmp, [pid, pid, KCMP_FILE, a as usize, b as usize, 0]) };
    if order >= 0 { order == 0 } else { share_flags(a, b) }
}

/// Whether a flag that is set by one descriptor shows in another: where `kcmp` is forbidden, as in
/// containers. Reads of files do not wait, so that O_NONBLOCK means nothing to them.
fn share_flags(a: c_int, b: c_int) -> bool {
    let flags = |fd: c_int| sys::fcntl(fd, libc::F_GETFL, 0);
    let (Some(before), Some(other)) = (flags(a), flags(b)) else { return false };
    if before != other || sys::fcntl(a, libc::F_SETFL, before ^ libc::O_NONBLOCK).is_none() {
        return false;
    }
    let shows = flags(b) == Some(before ^ libc::O_NONBLOCK);
    let _ = sys::fcntl(a, libc::F_SETFL, before);
    shows
}

/// Calls `with` for each descriptor of this process; `None` where there is no `/proc`.
fn each_fd(mut with: impl FnMut(c_int)) -> Option<()> {
    let list = Fd(sys::open(c"/proc/thread-self/fd", libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC)?);
    let mut block = Scratch::take();
    let at = block.bytes()?.as_mut_ptr().cast::<u8>();
    loop {
        let args = [list.0 as usize, at as usize, BLOCK_BYTES, 0, 0, 0];
        // SAFETY: a buffer as long as said.
        let n = usize::try_from(unsafe { sys::call(libc::SYS_getdents64, args) }).ok()?;
        if n == 0 {
            return Some(());
        }
        // SAFETY: the kernel has filled `n` bytes.
        let mut rest = unsafe { core::slice::from_raw_parts(at.cast_const(), n.min(BLOCK_BYTES)) };
        while let Some((&low, &high)) = rest.get(16).zip(rest.get(17)) {
            let len = usize::from(u16::from_ne_bytes([low, high]));
            let digits = rest.get(19..len)?;
            let number = digits
                .iter()
                .take_while(|c| c.is_ascii_digit())
                .try_fold(0i32, |n, &c| n.checked_mul(10)?.checked_add(i32::from(c - b'0')))?;
            if digits.first().is_some_and(u8::is_ascii_digit) && number != list.0 {
                with(number);
            }
            rest = rest.get(len..)?;
        }
    }
}

/// What the old name of `linkat` leads to.
pub enum Link {
    /// Not a copy.
    Other,
    /// A copy: of this file, which has to get the new name.
    Copy(Fd),
    /// A copy of a file that has no name any more, and can get none.
    Gone,
}

/// What `linkat` is about to link by a descriptor (`/proc/self/fd/N` with `AT_SYMLINK_FOLLOW`, or
/// `AT_EMPTY_PATH`).
#[must_use]
pub fn linked(ctx: &Ctx, dirfd: c_int, path: &[u8], flags: c_int) -> Link {
    let f = if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
        copy_of_fd(ctx, dirfd)
    } else if flags & libc::AT_SYMLINK_FOLLOW != 0 {
        crate::descriptor_names::behind_copy(ctx, dirfd, path, true)
    } else {
        None
    };
    let Some(f) = f else { return Link::Other };
    crate::changes::bypass(ctx, &f);
    if f.entry.word().is_gone() {
        return Link::Gone;
    }
    let open = |mut path: monarch_guest::absolute::Absolute| {
        sys::open(path.c_str()?, libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW)
    };
    path_if_there(ctx, &f).and_then(open).map_or(Link::Other, |fd| Link::Copy(Fd(fd)))
}
