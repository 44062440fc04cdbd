//! Virtual directory streams: listings from shared memory, and those of the PFS with what is
//! pending below an output root.
//!
//! The one object that only looks like one of the C library. A stream starts with a magic word that
//! no real `DIR` can start with (glibc's begins with a descriptor, which is not negative), so that
//! the hooks distinguish streams of the shim from real ones without a table.

use crate::dir_entries::{ENTRIES_BYTES, write_entry};
use crate::fetched_dir::Fetched;
use crate::outputs::listing::Merged;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::index::Record;
use monarch_abi::resolve::Found;
use monarch_abi::segment::Segment;
use monarch_abi::sys::{futex_wait, futex_wake};
use monarch_abi::word::State;
use monarch_guest::ctx::Ctx;
use monarch_guest::errno;

/// Lower half negative as a descriptor.
const MAGIC: u64 = 0x6d6f_6e64_f1ea_d1d2;

/// What the application has: a stream that several threads may use.
#[repr(C)]
pub struct Shared {
    magic: u64,
    /// 0, or the process whose thread uses the stream, times 2, plus 1. (A child of `fork` finds
    /// what another thread of its parent did.)
    lock: AtomicU32,
    /// Threads that wait for it.
    waiters: AtomicU32,
    stream: UnsafeCell<Stream>,
}

/// A virtual directory stream.
pub enum Stream {
    /// The listing of the index.
    Listed(Listed),
    /// The listing of the PFS with what is pending below an output root.
    Merged(Merged),
    /// The listing of a directory that the index does not hold.
    Fetched(Fetched),
}

impl Stream {
    /// The next entry, as `struct dirent64` (which is `struct dirent` on 64-bit machines).
    pub fn read(&mut self) -> Option<&mut libc::dirent64> {
        match self {
            Self::Listed(s) => s.read(),
            Self::Merged(s) => s.read(),
            Self::Fetched(s) => s.read(),
        }
    }

    /// Position for `telldir`.
    #[must_use]
    pub const fn tell(&self) -> i64 {
        match self {
            Self::Listed(s) => s.position,
            Self::Merged(s) => s.tell(),
            Self::Fetched(s) => s.tell(),
        }
    }

    /// Goes to a position that `tell` gave.
    pub fn seek(&mut self, position: i64) {
        match self {
            Self::Listed(s) => s.position = position.max(0),
            Self::Merged(s) => s.seek(position),
            Self::Fetched(s) => s.seek(position),
        }
    }

    /// Starts again, with what the directory has now.
    pub fn rewind(&mut self, ctx: Option<Ctx>) {
        match self {
            Self::Listed(s) => s.rewind(ctx),
            Self::Merged(s) => s.rewind(),
            Self::Fetched(s) => s.rewind(ctx),
        }
    }

    /// The real descriptor of the directory.
    pub fn descriptor(&mut self, ctx: Option<Ctx>) -> c_int {
        match self {
            Self::Listed(s) => s.descriptor(ctx),
            Self::Merged(s) => s.descriptor(),
            Self::Fetched(s) => s.descriptor(ctx),
        }
    }

    /// The real stream that has taken over, if any.
    const fn real(&self) -> *mut libc::DIR {
        match self {
            Self::Listed(s) => s.real,
            Self::Merged(_) => core::ptr::null_mut(),
            Self::Fetched(s) => s.real(),
        }
    }
}

/// Makes a stream of a merged listing.
#[must_use]
pub fn open_merged(merged: Merged) -> Option<*mut Shared> {
    allocated(Stream::Merged(merged))
}

/// Makes a stream of a listing that the agent has sent.
#[must_use]
pub fn open_fetched(listing: Fetched) -> Option<*mut Shared> {
    allocated(Stream::Fetched(listing))
}

fn allocated(stream: Stream) -> Option<*mut Shared> {
    // SAFETY: malloc of the right size; every field is written before use.
    unsafe {
        let s: *mut Shared = libc::malloc(size_of::<Shared>()).cast();
        if s.is_null() {
            return None;
        }
        let (lock, waiters) = (AtomicU32::new(0), AtomicU32::new(0));
        s.write(Shared { magic: MAGIC, lock, waiters, stream: UnsafeCell::new(stream) });
        Some(s)
    }
}

/// A stream of the listing of the index.
pub struct Listed {
    /// Real descriptor, opened by the first `dirfd`; -1 before.
    fd: c_int,
    root: u32,
    /// The real stream that has taken over, if any.
    real: *mut libc::DIR,
    segment: &'static Segment<'static>,
    number: u32,
    dir: u32,
    /// 0 `.`, 1 `..`, otherwise 2 + id of the next child.
    position: i64,
    /// Room for entries behind the stream, [`ENTRIES_BYTES`] of it, and how much of that is
    /// written.
    entries: *mut u8,
    written: usize,
}

/// Makes a stream for the listing of a directory, if it is held and unchanged.
#[must_use]
pub fn open(f: &Found<'static>) -> Option<*mut Shared> {
    if !f.entry.record.is_dir() || f.entry.word().state() == State::Bypass {
        return None;
    }
    f.segment.listed_dir(&f.entry)?;
    // SAFETY: malloc of the right size; every field is written before use.
    unsafe {
        let s: *mut Shared = libc::malloc(size_of::<Shared>() + ENTRIES_BYTES).cast();
        if s.is_null() {
            return None;
        }
        let stream = Listed {
            fd: -1,
            root: f.root as u32,
            real: core::ptr::null_mut(),
            segment: f.segment,
            number: f.number as u32,
            dir: f.entry.id,
            position: 0,
            entries: s.add(1).cast(),
            written: 0,
        };
        let (lock, waiters) = (AtomicU32::new(0), AtomicU32::new(0));
        s.write(Shared { magic: MAGIC, lock, waiters, stream: UnsafeCell::new(Stream::Listed(stream)) });
        Some(s)
    }
}

/// What is behind a `DIR`.
pub enum Behind<'a> {
    /// A stream of the shim that answers itself.
    Ours(Locked<'a>),
    /// A stream of the C library.
    Real(*mut libc::DIR),
}

/// A stream that this thread alone uses.
pub struct Locked<'a>(&'a Shared);

impl Deref for Locked<'_> {
    type Target = Stream;
    fn deref(&self) -> &Stream {
        // SAFETY: this thread holds the lock.
        unsafe { &*self.0.stream.get() }
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Stream {
        // SAFETY: this thread holds the lock.
        unsafe { &mut *self.0.stream.get() }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::SeqCst);
        if self.0.waiters.load(Ordering::SeqCst) != 0 {
            futex_wake(&self.0.lock, 1);
        }
    }
}

impl Shared {
    #[inline]
    fn lock(&self) -> Locked<'_> {
        let us = monarch_guest::process::number() << 1 | 1;
        if self.lock.compare_exchange(0, us, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            self.wait(us);
        }
        Locked(self)
    }

    #[cold]
    #[inline(never)]
    fn wait(&self, us: u32) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        while let Err(seen) = self.lock.compare_exchange(0, us, Ordering::SeqCst, Ordering::SeqCst) {
            if seen == us {
                futex_wait(&self.lock, seen, Some([0, 50_000_000]));
            } else if self.lock.compare_exchange(seen, us, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                // The thread that held it is not in this process.
                break;
            }
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The shim's stream behind a `DIR`, if it is one.
///
/// # Safety
/// `dir` must be a stream that the application got from `opendir` or the like, or null.
#[inline]
#[must_use]
pub unsafe fn ours(dir: *mut libc::DIR) -> Option<*mut Shared> {
    // SAFETY: any stream has at least eight bytes.
    unsafe {
        let s: *mut Shared = dir.cast();
        if s.is_null() || (*s).magic != MAGIC { None } else { Some(s) }
    }
}

/// The reader of a stream.
///
/// # Safety
/// That of [`ours`].
#[inline]
#[must_use]
pub unsafe fn behind<'a>(dir: *mut libc::DIR) -> Behind<'a> {
    // SAFETY: by contract; the stream is there until it is closed.
    let Some(shared) = (unsafe { ours(dir).map(|s| &*s) }) else { return Behind::Real(dir) };
    let locked = shared.lock();
    let real = locked.real();
    if real.is_null() { Behind::Ours(locked) } else { Behind::Real(real) }
}

impl Listed {
    /// The next entry, as `struct dirent64` (which is `struct dirent` on 64-bit machines).
    fn read(&mut self) -> Option<&mut libc::dirent64> {
        let index = self.segment.index;
        let here = index.record(self.dir)?;
        let (name, record, after): (&[u8], &Record, i64) = match self.position {
            0 => (b".", here, 1),
            1 => {
                let first = i64::from(self.dir) + 3;
                (
                    b"..",
                    index.parent_of(self.dir).and_then(|p| index.record(index.dirs().get(p)?.id)).unwrap_or(here),
                    first,
                )
            }
            at => {
                let dir = index.dir(here)?;
                let from = u32::try_from(at - 2).ok()?;
                let mut children = index.children(dir, from);
                let (id, r) = children.next()?;
                let after = children.next().map_or(dir.end.max(id + 1), |(id, _)| id);
                (index.name(r)?, r, i64::from(after) + 2)
            }
        };
        let mut ino = record.ino;
        if self.position == 1 && self.dir == 0 && index.header.parent_ino != 0 {
            ino = index.header.parent_ino;
        }
        self.position = after;
        let entry = (ino, record.d_type(), name);
        // SAFETY: as much room lies behind the stream, which `open` has made.
        Some(unsafe { write_entry(self.entries, &mut self.written, entry, after) })
    }

    /// Starts again: if the listing has changed meanwhile, with a real stream that takes over.
    fn rewind(&mut self, ctx: Option<Ctx>) {
        self.position = 0;
        let changed = self.is_changed(ctx.as_ref());
        let fd = if changed { self.descriptor(ctx) } else { -1 };
        if fd >= 0 {
            // SAFETY: an open directory of the shim, which the stream owns from now on.
            unsafe {
                self.real = libc::fdopendir(fd);
                if !self.real.is_null() {
                    libc::rewinddir(self.real);
                }
            }
        } else if changed {
            // The directory has gone, and with it all that was in it.
            self.position = i64::MAX;
        }
    }

    /// Whether the listing is another one by now.
    fn is_changed(&self, ctx: Option<&Ctx>) -> bool {
        let Some(entry) = self.segment.by_id(self.dir) else { return true };
        let f = Found { root: self.root as usize, number: self.number as usize, segment: self.segment, entry };
        entry.word().state() == State::Bypass || ctx.is_some_and(|ctx| !monarch_guest::guard::is_still_there(ctx, &f))
    }

    /// The real descriptor of the directory.
    fn descriptor(&mut self, ctx: Option<Ctx>) -> c_int {
        if self.fd < 0
            && let Some(ctx) = ctx
        {
            self.fd = self.open_real(&ctx).unwrap_or(-1);
        }
        if self.fd < 0 {
            errno::set_errno(libc::ENOTSUP);
        }
        self.fd
    }

    fn open_real(&self, ctx: &Ctx) -> Option<c_int> {
        let rel = self.segment.index.path_of(self.dir)?;
        let root = ctx.map.roots().get(self.root as usize)?;
        let mut path = monarch_guest::absolute::Absolute::join(ctx.map.str(&root.path), rel.get())?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let fd = monarch_guest::sys::Fd(monarch_guest::sys::open(path.c_str()?, flags)?);
        // Another directory may have taken the name.
        monarch_guest::sys::fstat(fd.0)
            .filter(|st| Some(st.st_ino) == self.segment.index.record(self.dir).map(|r| r.ino))?;
        let number = fd.0;
        core::mem::forget(fd);
        Some(number)
    }
}

/// Ends a stream.
///
/// # Safety
/// `s` must come from [`open`] and not be used afterwards.
pub unsafe fn close(s: *mut Shared) {
    // SAFETY: allocated by `open`; the stream belongs to the shim, and owns its descriptor.
    unsafe {
        let stream = (*s).stream.get().read();
        (*s).magic = 0;
        libc::free(s.cast::<c_void>());
        match stream {
            Stream::Merged(merged) => drop(merged),
            Stream::Fetched(listing) => drop(listing),
            Stream::Listed(listed) if !listed.real.is_null() => drop(libc::closedir(listed.real)),
            Stream::Listed(listed) if listed.fd >= 0 => monarch_guest::sys::close(listed.fd),
            Stream::Listed(_) => {}
        }
    }
}

/// Type of the filter of `scandir`.
pub type Filter = Option<unsafe extern "C" fn(*const libc::dirent64) -> c_int>;
/// Type of the comparison of `scandir`.
pub type Compare = Option<unsafe extern "C" fn(*mut *const libc::dirent64, *mut *const libc::dirent64) -> c_int>;

/// `scandir` over a virtual listing.
///
/// # Safety
/// The contract of `scandir(3)`.
pub unsafe fn scan(
    shared: *mut Shared,
    list: *mut *mut *mut libc::dirent64,
    filter: Filter,
    compare: Compare,
) -> c_int {
    // SAFETY: from `open`, and not given away.
    let stream = unsafe { &mut *(*shared).stream.get() };
    let mut items: *mut *mut libc::dirent64 = core::ptr::null_mut();
    let (mut len, mut cap) = (0usize, 0usize);
    while let Some(e) = stream.read() {
        // SAFETY: the application's filter gets a valid entry.
        if filter.is_some_and(|f| unsafe { f(&raw const *e) } == 0) {
            continue;
        }
        // SAFETY: grown by realloc, items copied as long as they say.
        unsafe {
            if len == cap {
                cap = (cap * 2).max(16);
                let grown = libc::realloc(items.cast(), cap * size_of::<*mut libc::dirent64>());
                if grown.is_null() {
                    return give_up(items, len);
                }
                items = grown.cast();
            }
            let copy: *mut libc::dirent64 = libc::malloc(e.d_reclen as usize).cast();
            if copy.is_null() {
                return give_up(items, len);
            }
            core::ptr::copy_nonoverlapping((&raw const *e).cast::<u8>(), copy.cast::<u8>(), e.d_reclen as usize);
            items.add(len).write(copy);
        }
        len += 1;
    }
    // SAFETY: the list has `len` items; qsort calls the application's comparison on pointers to
    // them.
    unsafe {
        if let Some(c) = compare
            && len > 1
        {
            let c: unsafe extern "C" fn(*const c_void, *const c_void) -> c_int = core::mem::transmute(c);
            libc::qsort(items.cast(), len, size_of::<*mut libc::dirent64>(), Some(c));
        }
        if items.is_null() {
            items = libc::malloc(size_of::<*mut libc::dirent64>()).cast();
        }
        *list = items;
    }
    len as c_int
}

unsafe fn give_up(items: *mut *mut libc::dirent64, len: usize) -> c_int {
    // SAFETY: all of them come from malloc.
    unsafe {
        for i in 0..len {
            libc::free((*items.add(i)).cast());
        }
        libc::free(items.cast());
    }
    errno::set_errno(libc::ENOMEM);
    -1
}
