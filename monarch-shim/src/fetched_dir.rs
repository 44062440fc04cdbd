//! The listing of a directory that the index does not hold, as the agent has sent it.

use crate::dir_entries::{ENTRIES_BYTES, write_entry};
use core::ffi::c_int;
use monarch_abi::names::item;
use monarch_abi::segment::Segment;
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::Ctx;
use monarch_guest::errno;
use monarch_guest::sys;

/// A listing in memory.
pub struct Fetched {
    segment: &'static Segment<'static>,
    root: usize,
    /// Inode numbers of the directory and of its `..`.
    inodes: [u64; 2],
    /// Room for entries, path of the directory below its root, names: one block of malloc.
    block: *mut u8,
    rel_len: usize,
    names_len: usize,
    /// How much of the room for entries is written.
    written: usize,
    /// 0 `.`, 1 `..`, otherwise 2 + offset of the next name.
    position: i64,
    /// Real descriptor, opened by the first `dirfd`; -1 before.
    fd: c_int,
    /// The real stream that has taken over, if any.
    real: *mut libc::DIR,
}

impl Drop for Fetched {
    fn drop(&mut self) {
        // SAFETY: from malloc, and not used afterwards; the stream or the descriptor is the
        // listing's own.
        unsafe {
            libc::free(self.block.cast());
            if !self.real.is_null() {
                let _ = libc::closedir(self.real);
            } else if self.fd >= 0 {
                sys::close(self.fd);
            }
        }
    }
}

impl Fetched {
    /// A listing with room for `names_len` bytes of names, which are still to be filled.
    #[must_use]
    pub fn new(
        segment: &'static Segment<'static>,
        root: usize,
        rel: &[u8],
        inodes: [u64; 2],
        names_len: usize,
    ) -> Option<Self> {
        let bytes = ENTRIES_BYTES.checked_add(rel.len())?.checked_add(names_len)?;
        // SAFETY: malloc of that size, of which the path is written before it is read.
        let block = unsafe {
            let block: *mut u8 = libc::malloc(bytes).cast();
            if block.is_null() {
                return None;
            }
            core::ptr::copy_nonoverlapping(rel.as_ptr(), block.add(ENTRIES_BYTES), rel.len());
            block.add(ENTRIES_BYTES + rel.len()).write_bytes(0, names_len);
            block
        };
        let (rel_len, fd, real) = (rel.len(), -1, core::ptr::null_mut());
        Some(Self { segment, root, inodes, block, rel_len, names_len, written: 0, position: 0, fd, real })
    }

    /// The names, to be filled.
    pub const fn names_mut(&mut self) -> &mut [u8] {
        // SAFETY: they lie there, and were set to zero.
        unsafe { core::slice::from_raw_parts_mut(self.block.add(ENTRIES_BYTES + self.rel_len), self.names_len) }
    }

    const fn names(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(self.block.add(ENTRIES_BYTES + self.rel_len), self.names_len) }
    }

    const fn rel(&self) -> &[u8] {
        // SAFETY: `new` has written it.
        unsafe { core::slice::from_raw_parts(self.block.add(ENTRIES_BYTES), self.rel_len) }
    }

    /// The next entry, as `struct dirent64`.
    pub(crate) fn read(&mut self) -> Option<&mut libc::dirent64> {
        let (entry, after): ((u64, u8, &[u8]), i64) = match self.position {
            0 => ((self.inodes[0], libc::DT_DIR, b"."), 1),
            1 => ((self.inodes[1], libc::DT_DIR, b".."), 2),
            at => {
                let (item, end) = item(self.names(), usize::try_from(at - 2).ok()?)?;
                ((item.ino, item.kind, item.name), i64::try_from(end).ok()?.checked_add(2)?)
            }
        };
        let mut written = self.written;
        // SAFETY: the room is that of `new`, which malloc has aligned.
        let out = unsafe { write_entry(self.block, &mut written, entry, after) };
        self.written = written;
        self.position = after;
        Some(out)
    }

    pub(crate) const fn tell(&self) -> i64 {
        self.position
    }

    pub(crate) fn seek(&mut self, position: i64) {
        self.position = position.max(0);
    }

    pub(crate) const fn real(&self) -> *mut libc::DIR {
        self.real
    }

    /// Starts again: if the listing has changed meanwhile, with a real stream that takes over.
    pub(crate) fn rewind(&mut self, ctx: Option<Ctx>) {
        self.position = 0;
        if !self.segment.state.marks.covers_names(self.rel()) {
            return;
        }
        if self.descriptor(ctx) < 0 {
            // The directory has gone, and with it all that was in it.
            self.position = i64::MAX;
            return;
        }
        // SAFETY: an open directory of the shim, which the stream owns from now on.
        unsafe {
            self.real = libc::fdopendir(self.fd);
            if !self.real.is_null() {
                libc::rewinddir(self.real);
            }
        }
    }

    /// The real descriptor of the directory.
    pub(crate) fn descriptor(&mut self, ctx: Option<Ctx>) -> c_int {
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
        let root = ctx.map.roots().get(self.root)?;
        let mut path = Absolute::join(ctx.map.str(&root.path), self.rel())?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let fd = sys::Fd(sys::open(path.c_str()?, flags)?);
        // Another directory may have taken the name.
        sys::fstat(fd.0).filter(|st| st.st_ino == self.inodes[0])?;
        let number = fd.0;
        core::mem::forget(fd);
        Some(number)
    }
}
