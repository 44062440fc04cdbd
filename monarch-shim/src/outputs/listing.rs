//! Listings below an output root: what the PFS has, without names that the job has removed and
//! without part files, and with those that are pending.

use super::answer::Result;
use super::journal::{About, Journal};
use super::kernel;
use super::place::Place;
use super::roots::Root;
use super::tree::{self, Entry, drop_data};
use crate::descriptor_path::path_of_fd;
use core::ffi::{CStr, c_int};
use core::sync::atomic::Ordering;
use monarch_abi::mem::PathBuffer;
use monarch_abi::outputs::is_hidden;
use monarch_abi::outputs::names::{self, Clean};
use monarch_abi::outputs::record::{Op, flag};
use monarch_abi::scratch::{BLOCK_BYTES, Scratch};
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx;
use monarch_guest::sys::{self, Fd};

/// Bytes of `struct linux_dirent64` before the name.
const NAME_AT: usize = 19;

/// An entry of a directory.
struct Name<'a> {
    ino: u64,
    kind: u8,
    name: &'a [u8],
}

/// Whether a listing may be another one than that of the PFS: for what is pending, or for the part
/// file of something that is not needed any more.
pub fn may_differ(root: &Root) -> bool {
    root.state().entries.load(Ordering::Acquire) != 0 || root.map.is_pending()
}

/// Calls `visit` for each entry of an open directory but `.` and `..`.
fn each(dir: c_int, mut visit: impl FnMut(&Name<'_>) -> Result<()>) -> Result<()> {
    let mut room = Scratch::take();
    let base = room.bytes().ok_or(libc::ENOMEM)?.as_mut_ptr().cast::<u8>();
    // SAFETY: a block of that length, of which any bytes are values once they are written.
    let bytes = unsafe {
        base.write_bytes(0, BLOCK_BYTES);
        core::slice::from_raw_parts_mut(base, BLOCK_BYTES)
    };
    loop {
        let n = match kernel::list(dir, bytes) {
            // The agent removes directories of the overlay that have no links any more.
            Err(libc::ENOENT) => return Ok(()),
            listed => listed?,
        };
        if n == 0 {
            return Ok(());
        }
        let mut rest = bytes.get(..n).unwrap_or_default();
        while let Some(entry) = first(rest) {
            let (name, len) = entry;
            if !matches!(name.name, b"." | b"..") {
                visit(&name)?;
            }
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

/// The first entry of what `getdents64` has filled, and its bytes.
fn first(bytes: &[u8]) -> Option<(Name<'_>, usize)> {
    let ino = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let len = usize::from(u16::from_le_bytes(bytes.get(16..18)?.try_into().ok()?)).max(NAME_AT + 1);
    let kind = *bytes.get(18)?;
    let name = bytes.get(NAME_AT..len)?.split(|&c| c == 0).next()?;
    Some((Name { ino, kind, name }, len))
}

/// The relative path of a name in a directory.
fn child(dir: &[u8], name: &[u8]) -> Result<PathBuffer> {
    let mut rel = PathBuffer::front();
    let all = || {
        if !dir.is_empty() {
            rel.append(dir)?;
            rel.append(b"/")?;
        }
        rel.append(name)?;
        Some(rel)
    };
    all().ok_or(libc::ENAMETOOLONG)
}

fn open_dir(path: Option<Absolute>) -> Result<Fd> {
    open_dir_by(path, 0)
}

fn open_dir_by(path: Option<Absolute>, flags: c_int) -> Result<Fd> {
    let mut path = path.ok_or(libc::ENAMETOOLONG)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | flags;
    kernel::open(path.c_str().ok_or(libc::ENAMETOOLONG)?, flags, 0)
}

/// Whether this process has a file of the PFS open for writing.
pub fn is_written_here(file: &libc::stat64) -> bool {
    let Ok(dir) = open_dir(Absolute::join(b"/proc/self/fd", b"")) else { return false };
    let writes = |fd: c_int| {
        let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or_default();
        let is_writer = flags & libc::O_PATH == 0 && flags & libc::O_ACCMODE != libc::O_RDONLY;
        is_writer && sys::fstat_local(fd).is_some_and(|st| (st.st_dev, st.st_ino) == (file.st_dev, file.st_ino))
    };
    let found = each(dir.0, |name| {
        let fd = core::str::from_utf8(name.name).ok().and_then(|name| name.parse().ok());
        // Any error ends the search.
        if fd.is_some_and(writes) { Err(libc::EEXIST) } else { Ok(()) }
    });
    found.is_err()
}

/// What lies in a directory of the overlay.
pub struct Below {
    /// Files or links that only the overlay has.
    pub has_pending_names: bool,
    /// Names that the PFS has, and the job does not see.
    pub hides_names: bool,
    /// Whether the job sees no name there.
    pub is_empty: bool,
}

/// Looks at a directory. Of a name that is none on the PFS, or a link to one, an error.
pub fn below(place: &Place) -> Result<Below> {
    let root = &place.root;
    let has_pending_names = has_new_names(root, place.rel())?;
    let mut below = Below { has_pending_names, hides_names: false, is_empty: true };
    // (The output root itself may be a link.)
    let follow = if place.rel().is_empty() { 0 } else { libc::O_NOFOLLOW };
    let dir = open_dir_by(root.on_pfs(place.rel()), follow)?;
    let instance = root.state().instance.load(core::sync::atomic::Ordering::Relaxed);
    each(dir.0, |name| {
        let is_part = names::parse_part(name.name).is_some_and(|(of, _)| of == instance);
        let is_removed = || {
            let rel = child(place.rel(), name.name)?;
            Ok::<_, c_int>(matches!(tree::read(root, rel.get())?, Entry::Removed | Entry::RemovedDir))
        };
        if is_part || is_removed()? {
            below.hides_names = true;
        } else {
            below.is_empty = false;
        }
        Ok(())
    })?;
    below.is_empty &= !below.has_pending_names;
    Ok(below)
}

/// Whether anything is pending below a directory.
pub fn has_pending(root: &Root, dir: &[u8]) -> Result<bool> {
    has_name(root, dir, |entry, rel| match entry {
        Entry::Directory => has_pending(root, rel),
        entry => Ok(entry.is_pending()),
    })
}

/// Whether a name of a directory is pending.
pub fn has_pending_names(root: &Root, dir: &[u8]) -> Result<bool> {
    has_name(root, dir, |entry, _| Ok(entry.is_pending()))
}

/// Whether a directory has names that are not published; removed ones do not count.
pub fn has_new_names(root: &Root, dir: &[u8]) -> Result<bool> {
    has_name(root, dir, |entry, _| Ok(matches!(entry, Entry::File(_) | Entry::Symlink(_))))
}

/// Whether the overlay has a name in a directory that is looked for.
fn has_name(root: &Root, dir: &[u8], is_it: impl Fn(Entry, &[u8]) -> Result<bool>) -> Result<bool> {
    let Ok(open) = open_dir(root.in_tree(dir)) else { return Ok(false) };
    let mut has = false;
    each(open.0, |name| {
        if !has {
            let rel = child(dir, name.name)?;
            has = is_it(tree::read(root, rel.get())?, rel.get())?;
        }
        Ok(())
    })?;
    Ok(has)
}

/// Removes a directory of the overlay that has no links any more, where the PFS has no directory;
/// whether it is gone. With the lock held.
pub fn remove_empty(root: &Root, rel: &[u8]) -> bool {
    let Ok(dir) = open_dir(root.in_tree(rel)) else { return true };
    let _ = each(dir.0, |name| {
        if name.kind == libc::DT_DIR {
            remove_empty(root, child(rel, name.name)?.get());
        }
        Ok(())
    });
    let path = root.in_tree(rel);
    path.is_some_and(|mut path| path.c_str().is_some_and(|path| kernel::unlink(path, libc::AT_REMOVEDIR).is_ok()))
}

/// The same for a directory that others have removed on the PFS: its clean copies go, too.
pub fn remove_published(root: &Root, rel: &[u8]) -> bool {
    if let Ok(dir) = open_dir(root.in_tree(rel)) {
        let _ = each(dir.0, |name| {
            let rel = child(rel, name.name)?;
            let entry = tree::read(root, rel.get())?;
            match &entry {
                Entry::Directory => {
                    remove_published(root, rel.get());
                }
                Entry::Clean(clean) => {
                    let place = Place::at(*root, rel.get()).ok_or(libc::ENAMETOOLONG)?;
                    tree::forget(&place, &entry)?;
                    drop_data(root, &clean.file);
                }
                _ => {}
            }
            Ok(())
        });
    }
    remove_empty(root, rel)
}

/// Where the overlay has the clean copy with this number, or the pending file, below a directory;
/// whether it is published.
pub fn find_file(root: &Root, dir: &[u8], id: u64) -> Option<(PathBuffer, bool)> {
    let mut found = None;
    let open = open_dir(root.in_tree(dir)).ok()?;
    let _ = each(open.0, |name| {
        let rel = child(dir, name.name)?;
        match tree::read(root, rel.get())? {
            Entry::Clean(clean) if clean.file.id == id => found = Some((rel, true)),
            Entry::File(file) if file.id == id => found = Some((rel, false)),
            Entry::Directory | Entry::RemovedDir => found = find_file(root, rel.get(), id),
            _ => {}
        }
        // Any error ends the search.
        if found.is_some() { Err(libc::EEXIST) } else { Ok(()) }
    });
    found
}

/// Notes where the staged files below a directory are that was renamed on the PFS, and moves the
/// directory of the overlay along. With the lock held.
pub fn move_directory(journal: &Journal<'_>, from: &Place, to: &Place) -> Result<()> {
    tree::make_parents(&to.root, to.rel())?;
    // The PFS had no names there any more.
    remove_empty(&to.root, to.rel());
    let (mut a, mut b) = (from.in_tree()?, to.in_tree()?);
    let (a, b) = (a.c_str().ok_or(libc::ENAMETOOLONG)?, b.c_str().ok_or(libc::ENAMETOOLONG)?);
    if tree::has_dir(&to.root, to.rel()) {
        // Other processes have made names there since it was renamed on the PFS.
        return merge_directory(journal, &to.root, from.rel(), to.rel());
    }
    note_moved(journal, &to.root, from.rel(), to.rel())?;
    kernel::rename(a, b)
}

/// Moves what a directory of the overlay has into another one. What that has of the same name came
/// later, and stays.
#[cold]
#[inline(never)]
fn merge_directory(journal: &Journal<'_>, root: &Root, from: &[u8], to: &[u8]) -> Result<()> {
    let dir = open_dir(root.in_tree(from))?;
    each(dir.0, |name| {
        let (old, new) = (child(from, name.name)?, child(to, name.name)?);
        if name.kind == libc::DT_DIR {
            if tree::has_dir(root, new.get()) {
                return merge_directory(journal, root, old.get(), new.get());
            }
            note_moved(journal, root, old.get(), new.get())?;
            return move_link(root, old.get(), new.get());
        }
        let entry = tree::read(root, old.get())?;
        if matches!(tree::read(root, new.get())?, Entry::Nothing) {
            if let Entry::File(file) = &entry {
                journal.append(
                    Op::Rename,
                    About { id: file.id, flags: flag::PARENT, ..About::default() },
                    old.get(),
                    new.get(),
                )?;
            }
            return move_link(root, old.get(), new.get());
        }
        if let Entry::File(file) | Entry::Clean(Clean { file, .. }) = &entry {
            drop_data(root, file);
        }
        let place = Place::at(*root, old.get()).ok_or(libc::ENAMETOOLONG)?;
        tree::take(&place, &entry)
    })?;
    let mut path = root.in_tree(from).ok_or(libc::ENAMETOOLONG)?;
    kernel::unlink(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::AT_REMOVEDIR)
}

/// Renames what the overlay has.
fn move_link(root: &Root, from: &[u8], to: &[u8]) -> Result<()> {
    let (mut a, mut b) = (root.in_tree(from).ok_or(libc::ENAMETOOLONG)?, root.in_tree(to).ok_or(libc::ENAMETOOLONG)?);
    kernel::rename(a.c_str().ok_or(libc::ENAMETOOLONG)?, b.c_str().ok_or(libc::ENAMETOOLONG)?)
}

fn note_moved(journal: &Journal<'_>, root: &Root, from: &[u8], to: &[u8]) -> Result<()> {
    let dir = open_dir(root.in_tree(from))?;
    each(dir.0, |name| {
        let (old, new) = (child(from, name.name)?, child(to, name.name)?);
        match tree::read(root, old.get())? {
            Entry::File(file) => journal.append(
                Op::Rename,
                About { id: file.id, flags: flag::PARENT, ..About::default() },
                old.get(),
                new.get(),
            ),
            Entry::Directory | Entry::RemovedDir => note_moved(journal, root, old.get(), new.get()),
            _ => Ok(()),
        }
    })
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
        self.begin(fd)?;
        // The overlay first: what the agent publishes from here on the PFS lists, or the overlay
        // has listed.
        let pending = Pending::read(place)?;
        let mut both = Hashes::new();
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
    names: Hashes,
    /// Names that the job has removed.
    removed: Hashes,
}

impl Pending {
    fn read(place: &Place) -> Result<Self> {
        let list = Merged { fd: -1, entries: core::ptr::null_mut(), len: 0, room: 0, at: 0 };
        let mut pending = Self { list, names: Hashes::new(), removed: Hashes::new() };
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

/// A set of hashes of names: a table with open addressing, at most half full; 0 is free.
struct Hashes {
    base: *mut u64,
    len: usize,
    room: usize,
}

impl Hashes {
    const fn new() -> Self {
        Self { base: core::ptr::null_mut(), len: 0, room: 0 }
    }

    /// FNV-1a, never 0.
    fn hash(name: &[u8]) -> u64 {
        name.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &c| (hash ^ u64::from(c)).wrapping_mul(0x0100_0000_01b3)) | 1
    }

    /// Where a hash is, or would be.
    fn slot(&self, hash: u64) -> usize {
        let mut at = (hash >> 20) as usize & (self.room - 1);
        // SAFETY: inside of the table, which has free places.
        while !matches!(unsafe { self.base.add(at).read() }, free if free == 0 || free == hash) {
            at = (at + 1) & (self.room - 1);
        }
        at
    }

    fn add(&mut self, name: &[u8]) -> Result<()> {
        if (self.len + 1) * 2 > self.room {
            self.grow()?;
        }
        let hash = Self::hash(name);
        let at = self.slot(hash);
        // SAFETY: inside of the table.
        unsafe { self.base.add(at).write(hash) };
        self.len += 1;
        Ok(())
    }

    fn grow(&mut self) -> Result<()> {
        let room = (self.room * 2).max(64);
        // SAFETY: a fresh table of zeros.
        let base = unsafe { libc::malloc(room * 8) }.cast::<u64>();
        if base.is_null() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: as many bytes were allocated.
        unsafe { base.write_bytes(0, room) };
        let old = core::mem::replace(self, Self { base, len: self.len, room });
        for at in 0..old.room {
            // SAFETY: inside of the old table.
            let hash = unsafe { old.base.add(at).read() };
            if hash != 0 {
                let to = self.slot(hash);
                // SAFETY: inside of the new table.
                unsafe { self.base.add(to).write(hash) };
            }
        }
        Ok(())
    }

    fn has(&self, name: &[u8]) -> bool {
        let hash = Self::hash(name);
        // SAFETY: inside of the table.
        self.room != 0 && unsafe { self.base.add(self.slot(hash)).read() } == hash
    }
}

impl Drop for Hashes {
    fn drop(&mut self) {
        // SAFETY: from malloc, and not used afterwards.
        unsafe { libc::free(self.base.cast()) };
    }
}

/// Opens the directory that a path of the application names.
pub fn open_named(dirfd: c_int, path: &CStr) -> Result<Fd> {
    kernel::open_at(dirfd, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0)
}
