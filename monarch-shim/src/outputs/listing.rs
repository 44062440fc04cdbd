//! Listings below an output root: what the PFS has, without names that the job has removed and
//! without part files, and with those that are pending.

use super::answer::Result;
use super::entries::{NAME_AT, child, each, open_dir};
use super::kernel;
use super::name_hashes::NameHashes;
use super::place::Place;
use super::roots::Root;
use super::tree::{self, Entry};
use crate::descriptor_path::path_of_fd;
use core::ffi::{CStr, c_int};
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::is_hidden;
use monarch_guest::ctx;

/// Whether a listing may be another one than that of the PFS: for what is pending, or for the part
/// file of something that is not needed any more.
pub fn may_differ(root: &Root) -> bool {
    root.state().entries.load(Ordering::Acquire) != 0 || root.map.is_pending()
}

/// A listing in memory, which is read when the stream is opened or rewound.
pub struct Merged {
    /// The open directory on the PFS, which the stream owns.
    fd: c_int,
    /// Entries one behind the other, as `struct dirent64`: allocated by malloc.
    entries: *mut u8,
    len: usize,
    room: usize,
    /// Offset of the next entry.
    at: usize,
}

impl Drop for Merged {
    fn drop(&mut self) {
        // SAFETY: from malloc, and not used afterwards.
        unsafe { libc::free(self.entries.cast()) };
        if self.fd >= 0 {
            monarch_guest::sys::close(self.fd);
        }
    }
}

impl Merged {
    /// The listing of a directory by its open descriptor, which the listing owns from then on;
    /// `None` if it is that of the PFS: then the descriptor is the caller's.
    pub fn new(place: &Place, fd: c_int) -> Option<Self> {
        let is_known = place.rel().is_empty() || tree::has_dir(&place.root, place.rel());
        // (Part files may lie in a directory of which the overlay says nothing: those of files that
        // have left it, or were removed, while they are open.)
        if !is_known && !place.root.map.is_pending() {
            return None;
        }
        let mut merged = Self { fd: -1, entries: core::ptr::null_mut(), len: 0, room: 0, at: 0 };
        let filled = if is_known { merged.fill(place, fd) } else { merged.fill_from_pfs(fd) };
        // Duplicates of the descriptor share its position.
        monarch_guest::sys::seek_to(fd, 0);
        filled.ok()?;
        merged.fd = fd;
        Some(merged)
    }

    /// The directory itself and the one above.
    fn begin(&mut self, fd: c_int) -> Result<()> {
        monarch_guest::sys::seek_to(fd, 0);
        let ino = |path: &CStr| kernel::stat_at(fd, path, 0).map_or(1, |st| st.st_ino);
        self.push(b".", ino(c"."), libc::DT_DIR)?;
        self.push(b"..", ino(c".."), libc::DT_DIR)
    }

    /// What the PFS lists, but for hidden names.
    fn fill_from_pfs(&mut self, fd: c_int) -> Result<()> {
        self.begin(fd)?;
        each(fd, |name| if is_hidden(name.name) { Ok(()) } else { self.push(name.name, name.ino, name.kind) })
    }

    fn fill(&mut self, place: &Place, fd: c_int) -> Result<()> {
        let root = &place.root;
        // What the job has removed lists nothing, not even itself.
        if !place.rel().is_empty() && matches!(tree::read(root, place.rel())?, Entry::RemovedDir) {
            return Ok(());
        }
        self.begin(fd)?;
        // The overlay first: what the agent publishes from here on the PFS lists, or the overlay
        // has listed.
        let pending = Pending::read(place)?;
        let mut both = NameHashes::new();
        each(fd, |name| {
            if is_hidden(name.name) || pending.removed.has(name.name) {
                return Ok(());
            }
            let rel = child(place.rel(), name.name)?;
            let entry = tree::read(root, rel.get())?;
            if pending.names.has(name.name) {
                // A link of the overlay replaces another one, and has its own number. Of a file
                // that was published meanwhile the PFS may have listed the one that it replaced.
                let is_published = || matches!(entry, Entry::Clean(_) | Entry::Nothing) && name.kind != libc::DT_DIR;
                if matches!(entry, Entry::Symlink(_)) || is_published() {
                    return Ok(());
                }
                both.add(name.name)?;
            }
            match entry {
                Entry::Removed | Entry::RemovedDir => Ok(()),
                Entry::File(file) => self.push(name.name, file.ino, libc::DT_REG),
                Entry::Symlink(_) => self.push(name.name, name.ino, libc::DT_LNK),
                _ => self.push(name.name, name.ino, name.kind),
            }
        })?;
        let mut list = pending.list;
        while let Some(entry) = list.read() {
            let (ino, kind) = (entry.d_ino, entry.d_type);
            // SAFETY: a name that `push` has written, with a NUL behind it.
            let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes();
            if both.has(name) {
                continue;
            }
            let rel = child(place.rel(), name)?;
            let is_there = match tree::read(root, rel.get())? {
                Entry::File(_) | Entry::Symlink(_) | Entry::Clean(_) => true,
                // Published since the PFS was listed, and not kept.
                Entry::Nothing => {
                    let path = root.on_pfs(rel.get()).ok_or(libc::ENAMETOOLONG);
                    path.is_ok_and(|mut path| path.c_str().is_some_and(|path| kernel::lstat(path).is_ok()))
                }
                Entry::Directory | Entry::Removed | Entry::RemovedDir => false,
            };
            if is_there {
                self.push(name, ino, kind)?;
            }
        }
        Ok(())
    }

    /// Appends an entry.
    fn push(&mut self, name: &[u8], ino: u64, kind: u8) -> Result<()> {
        let bytes = (NAME_AT + name.len() + 1).next_multiple_of(8);
        // An entry may be read as a whole structure, however short its name is.
        let need = self.len + bytes + size_of::<libc::dirent64>();
        if need > self.room {
            let room = (self.room * 2).max(4096).max(need);
            // SAFETY: null, or from malloc.
            let grown = unsafe { libc::realloc(self.entries.cast(), room) }.cast::<u8>();
            if grown.is_null() {
                return Err(libc::ENOMEM);
            }
            (self.entries, self.room) = (grown, room);
        }
        // SAFETY: as many bytes are left.
        unsafe {
            let entry = self.entries.add(self.len);
            entry.write_bytes(0, bytes);
            core::ptr::copy_nonoverlapping(ino.to_le_bytes().as_ptr(), entry, 8);
            let after = (self.len + bytes) as u64;
            core::ptr::copy_nonoverlapping(after.to_le_bytes().as_ptr(), entry.add(8), 8);
            core::ptr::copy_nonoverlapping((bytes as u16).to_le_bytes().as_ptr(), entry.add(16), 2);
            entry.add(18).write(kind);
            core::ptr::copy_nonoverlapping(name.as_ptr(), entry.add(NAME_AT), name.len());
        }
        self.len += bytes;
        Ok(())
    }

    /// The next entry. Only the bytes that `d_reclen` says are there.
    pub(crate) fn read(&mut self) -> Option<&mut libc::dirent64> {
        if self.at >= self.len || !self.at.is_multiple_of(8) {
            return None;
        }
        // SAFETY: entries begin at multiples of eight, and this one was written by `push`.
        let entry = unsafe { &mut *self.entries.add(self.at).cast::<libc::dirent64>() };
        self.at += usize::from(entry.d_reclen).max(8);
        Some(entry)
    }

    pub(crate) const fn tell(&self) -> i64 {
        self.at as i64
    }

    pub(crate) fn seek(&mut self, position: i64) {
        self.at = usize::try_from(position).unwrap_or(0);
    }

    pub(crate) const fn descriptor(&self) -> c_int {
        self.fd
    }

    /// Reads the directory again.
    pub(crate) fn rewind(&mut self) {
        self.at = 0;
        let Some(ctx) = ctx::for_outputs() else { return };
        let mut path = PathBuffer::front();
        // SAFETY: as many bytes are written as it says.
        if unsafe { path.fill(|out| path_of_fd(self.fd, out)) }.is_none() {
            self.len = 0;
            return;
        }
        let Some(place) = Place::absolute(&ctx, path.get()) else { return };
        self.len = 0;
        let fd = self.fd;
        let _ = self.fill(&place, fd);
        monarch_guest::sys::seek_to(fd, 0);
    }
}

/// What a directory of the overlay says.
struct Pending {
    /// Files and links that are not published.
    list: Merged,
    /// Their names.
    names: NameHashes,
    /// Names that the job has removed.
    removed: NameHashes,
}

impl Pending {
    fn read(place: &Place) -> Result<Self> {
        let list = Merged { fd: -1, entries: core::ptr::null_mut(), len: 0, room: 0, at: 0 };
        let mut pending = Self { list, names: NameHashes::new(), removed: NameHashes::new() };
        let Ok(dir) = open_dir(place.root.in_tree(place.rel())) else { return Ok(pending) };
        each(dir.0, |name| {
            let rel = child(place.rel(), name.name)?;
            let (ino, kind) = match tree::read(&place.root, rel.get())? {
                Entry::Removed | Entry::RemovedDir => return pending.removed.add(name.name),
                Entry::File(file) => (file.ino, libc::DT_REG),
                Entry::Symlink(_) => (name.ino, libc::DT_LNK),
                _ => return Ok(()),
            };
            pending.names.add(name.name)?;
            pending.list.push(name.name, ino, kind)
        })?;
        Ok(pending)
    }
}
