//! A walk over a directory tree as ftw(3) and nftw(3) make it, by functions that hooks answer.
//!
//! It follows glibc's `io/ftw.c`: order, values, errors, and what happens to the working directory.
//! A directory is read as a whole before its entries are visited.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use libc::stat64;
use monarch_guest::errno;

/// Links are not followed.
pub const PHYS: c_int = 1;
/// Other file systems are left out.
pub const MOUNT: c_int = 2;
/// Entries are visited with their directory as the working directory.
pub const CHDIR: c_int = 4;
/// A directory is visited after what lies in it.
pub const DEPTH: c_int = 8;
/// What the function returns says how to go on.
pub const ACTIONS: c_int = 16;

/// What is visited.
const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE_DIRECTORY: c_int = 2;
const NOT_STATED: c_int = 3;
const LINK: c_int = 4;
const DIRECTORY_AFTERWARDS: c_int = 5;
const DANGLING_LINK: c_int = 6;

/// What the function returns with [`ACTIONS`].
const STOP: c_int = 1;
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

/// `struct FTW`.
#[repr(C)]
#[derive(Debug)]
pub struct Ftw {
    base: c_int,
    level: c_int,
}

/// The function that is called with path, attributes and kind; by nftw with a [`Ftw`], too.
pub type Visit = unsafe extern "C" fn(*const c_char, *const stat64, c_int, *mut Ftw) -> c_int;

/// How to walk.
#[derive(Clone, Copy)]
pub struct How {
    /// Directories that are open at a time.
    pub descriptors: c_int,
    /// [`PHYS`] and the like.
    pub flags: c_int,
    /// Whether the function is one for nftw.
    pub is_nftw: bool,
}

/// Bytes in memory of the C library, with a NUL behind them.
struct Text {
    base: *mut u8,
    len: usize,
    room: usize,
}

impl Text {
    const fn empty() -> Self {
        Self { base: null_mut(), len: 0, room: 0 }
    }

    /// Puts bytes behind the first `len`; whether there was memory.
    unsafe fn put(&mut self, len: usize, bytes: *const u8, n: usize) -> bool {
        let len = len.min(self.len);
        let needed = len.saturating_add(n).saturating_add(1);
        // SAFETY: memory of malloc, as long as `room` says; the caller's bytes lie elsewhere.
        unsafe {
            if needed > self.room {
                let room = needed.max(self.room.saturating_mul(2)).max(256);
                let base = libc::realloc(self.base.cast(), room).cast::<u8>();
                if base.is_null() {
                    return false;
                }
                (self.base, self.room) = (base, room);
            }
            core::ptr::copy_nonoverlapping(bytes, self.base.add(len), n);
            self.base.add(len + n).write(0);
        }
        self.len = len + n;
        true
    }

    /// Keeps the first `len` bytes.
    const fn cut(&mut self, len: usize) {
        if len < self.len {
            // SAFETY: inside of what was written.
            unsafe { self.base.add(len).write(0) };
            self.len = len;
        }
    }

    /// The byte at a position; 0 behind the end.
    const fn at(&self, at: usize) -> u8 {
        // SAFETY: inside of what was written.
        if at < self.len { unsafe { *self.base.add(at) } } else { 0 }
    }

    /// What stands behind the first bytes.
    const fn behind(&self, at: usize) -> *const c_char {
        // SAFETY: inside of what was written, with its NUL.
        unsafe { self.base.add(if at < self.len { at } else { self.len }).cast() }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // SAFETY: from malloc, or null.
        unsafe { libc::free(self.base.cast()) };
    }
}

unsafe extern "C" {
    fn tsearch(key: *const c_void, tree: *mut *mut c_void, compare: Compare) -> *mut *mut Known;
    fn tdestroy(tree: *mut c_void, free: unsafe extern "C" fn(*mut c_void));
}
type Compare = unsafe extern "C" fn(*const Known, *const Known) -> c_int;

/// A directory that was visited.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
struct Known {
    dev: u64,
    ino: u64,
}

unsafe extern "C" fn compare(a: *const Known, b: *const Known) -> c_int {
    // SAFETY: elements of the tree.
    unsafe { (*a).cmp(&*b) as c_int }
}

struct Walk {
    path: Text,
    visit: Visit,
    how: How,
    ftw: Ftw,
    dev: u64,
    known: *mut c_void,
}

/// ftw(3) and nftw(3).
///
/// # Safety
/// The contract of nftw(3).
#[inline(never)]
pub unsafe fn walk(path: *const c_char, visit: Visit, how: How) -> c_int {
    let mut walk = Walk { path: Text::empty(), visit, how, ftw: Ftw { base: 0, level: 0 }, dev: 0, known: null_mut() };
    // SAFETY: by contract.
    unsafe {
        if *path == 0 {
            errno::set_errno(libc::ENOENT);
            return -1;
        }
        if !walk.path.put(0, path.cast(), libc::strlen(path)) {
            return -1;
        }
        let result = walk.all();
        let saved = errno::errno();
        tdestroy(walk.known, libc::free);
        drop(walk);
        errno::set_errno(saved);
        result
    }
}

impl Walk {
    const fn has(&self, flag: c_int) -> bool {
        self.how.flags & flag != 0
    }

    const fn base(&self) -> usize {
        self.ftw.base as usize
    }

    /// Whether a function's result ends only the visit of some entries.
    const fn skips(&self, result: c_int, what: c_int) -> bool {
        self.has(ACTIONS) && result == what
    }

    unsafe fn report(&mut self, st: &stat64, kind: c_int) -> c_int {
        let kind = match kind {
            LINK if !self.how.is_nftw => FILE,
            DIRECTORY_AFTERWARDS if !self.how.is_nftw => DIRECTORY,
            DANGLING_LINK if !self.how.is_nftw => NOT_STATED,
            kind => kind,
        };
        // SAFETY: the application's function.
        unsafe { (self.visit)(self.path.behind(0), st, kind, &raw mut self.ftw) }
    }

    /// Remembers a directory: whether it is new, or an error.
    unsafe fn is_new(&mut self, st: &stat64) -> Result<bool, ()> {
        // SAFETY: memory of malloc, which the tree owns from then on.
        unsafe {
            let known = libc::malloc(size_of::<Known>()).cast::<Known>();
            if known.is_null() {
                return Err(());
            }
            known.write(Known { dev: st.st_dev, ino: st.st_ino });
            let found = tsearch(known.cast(), &raw mut self.known, compare);
            if found.is_null() || *found != known {
                libc::free(known.cast());
            }
            if found.is_null() { Err(()) } else { Ok(*found == known) }
        }
    }

    unsafe fn all(&mut self) -> c_int {
        let mut len = self.path.len;
        while len > 1 && self.path.at(len - 1) == b'/' {
            len -= 1;
        }
        self.path.cut(len);
        while len > 0 && self.path.at(len - 1) != b'/' {
            len -= 1;
        }
        self.ftw.base = len as c_int;
        // SAFETY: paths of the application.
        unsafe {
            if !self.has(CHDIR) {
                return self.begin(self.path.behind(0));
            }
            let back = libc::open(c".".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
            let cwd = match back {
                -1 if errno::errno() == libc::EACCES => libc::getcwd(null_mut(), 0),
                _ => null_mut(),
            };
            if back < 0 && cwd.is_null() {
                return -1;
            }
            let result = if self.enter_parent() == 0 {
                let name = self.path.behind(len);
                self.begin(if *name == 0 { c".".as_ptr() } else { name })
            } else {
                -1
            };
            let saved = errno::errno();
            if back >= 0 {
                libc::fchdir(back);
                libc::close(back);
            } else {
                libc::chdir(cwd);
                libc::free(cwd.cast());
            }
            errno::set_errno(saved);
            result
        }
    }

    /// Goes to the directory that has what the path names.
    unsafe fn enter_parent(&mut self) -> c_int {
        let base = self.base();
        let mut parent = Text::empty();
        // SAFETY: a path of the application.
        unsafe {
            match base {
                0 => 0,
                1 => libc::chdir(c"/".as_ptr()),
                _ if parent.put(0, self.path.base, base - 1) => libc::chdir(parent.behind(0)),
                _ => -1,
            }
        }
    }

    /// Visits what the path names, which has this name here.
    unsafe fn begin(&mut self, name: *const c_char) -> c_int {
        // SAFETY: zeros are a value; `name` is a path of the application.
        let result = unsafe {
            let mut st: stat64 = core::mem::zeroed();
            let look = if self.has(PHYS) { libc::lstat64 } else { libc::stat64 };
            if look(name, &raw mut st) < 0 {
                let is_dangling = !self.has(PHYS)
                    && errno::errno() == libc::ENOENT
                    && libc::lstat64(name, &raw mut st) == 0
                    && st.st_mode & libc::S_IFMT == libc::S_IFLNK;
                if is_dangling { self.report(&st, DANGLING_LINK) } else { -1 }
            } else {
                match st.st_mode & libc::S_IFMT {
                    libc::S_IFDIR => {
                        self.dev = st.st_dev;
                        if !self.has(PHYS) && self.is_new(&st).is_err() {
                            return -1;
                        }
                        self.directory(&st, None)
                    }
                    libc::S_IFLNK => self.report(&st, LINK),
                    _ => self.report(&st, FILE),
                }
            }
        };
        if self.skips(result, SKIP_SUBTREE) || self.skips(result, SKIP_SIBLINGS) { 0 } else { result }
    }

    /// Visits the directory that the path names, and what lies in it. `above` is the stream of the
    /// directory above it, null if it was closed; `None` at the top.
    unsafe fn directory(&mut self, st: &stat64, above: Option<*mut libc::DIR>) -> c_int {
        // SAFETY: the C library's streams; the path is the application's.
        unsafe {
            let stream = self.open(above);
            if stream.is_null() {
                return if errno::errno() == libc::EACCES { self.report(st, UNREADABLE_DIRECTORY) } else { -1 };
            }
            if !self.has(DEPTH) {
                let result = self.report(st, DIRECTORY);
                if result != 0 {
                    closed(stream);
                    return result;
                }
            }
            if self.has(CHDIR) && libc::fchdir(libc::dirfd(stream)) < 0 {
                closed(stream);
                return -1;
            }
            let mut names = Text::empty();
            let is_read = read(stream, &mut names);
            // So many are open at a time.
            let stays = self.ftw.level < self.how.descriptors.saturating_sub(1);
            if !stays {
                closed(stream);
            }
            let kept = if stays { stream } else { null_mut() };
            let mut result = if is_read { self.entries(&names, kept) } else { -1 };
            if stays {
                closed(stream);
            }
            if self.skips(result, SKIP_SIBLINGS) {
                result = 0;
            }
            if result == 0 && self.has(DEPTH) {
                result = self.report(st, DIRECTORY_AFTERWARDS);
            }
            match above {
                Some(above) if self.has(CHDIR) && self.goes_on(result) && self.leave(above) < 0 => -1,
                _ => result,
            }
        }
    }

    const fn goes_on(&self, result: c_int) -> bool {
        result == 0 || self.has(ACTIONS) && result != -1 && result != STOP
    }

    /// Opens the directory that the path names.
    unsafe fn open(&self, above: Option<*mut libc::DIR>) -> *mut libc::DIR {
        // SAFETY: the path is the application's; the stream is open.
        unsafe {
            let name = self.path.behind(self.base());
            if let Some(above) = above.filter(|above| !above.is_null()) {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK | libc::O_CLOEXEC;
                let fd = libc::openat(libc::dirfd(above), name, flags);
                if fd < 0 {
                    return null_mut();
                }
                let stream = libc::fdopendir(fd);
                if stream.is_null() {
                    libc::close(fd);
                }
                return stream;
            }
            match (self.has(CHDIR), *name) {
                (false, _) => libc::opendir(self.path.behind(0)),
                (true, 0) => libc::opendir(c".".as_ptr()),
                (true, _) => libc::opendir(name),
            }
        }
    }

    /// Goes back to the directory above.
    unsafe fn leave(&self, above: *mut libc::DIR) -> c_int {
        // SAFETY: the stream is open, or null.
        unsafe {
            match self.ftw.base {
                _ if !above.is_null() && libc::fchdir(libc::dirfd(above)) == 0 => 0,
                1 => libc::chdir(c"/".as_ptr()),
                _ => libc::chdir(c"..".as_ptr()),
            }
        }
    }

    /// Visits the entries of a directory, which stays open if its stream is not null.
    unsafe fn entries(&mut self, names: &Text, stream: *mut libc::DIR) -> c_int {
        let (before, end) = (self.ftw.base, self.path.len);
        let is_slash = self.path.at(end.wrapping_sub(1)) == b'/';
        // SAFETY: a byte; names that end with a NUL.
        unsafe {
            if !is_slash && !self.path.put(end, b"/".as_ptr(), 1) {
                return -1;
            }
            self.ftw.base = self.path.len as c_int;
            self.ftw.level += 1;
            let (mut at, mut result) = (0, 0);
            while at < names.len && result == 0 {
                let name = names.behind(at);
                let len = libc::strlen(name);
                result = self.entry(name, len, stream);
                at += len + 1;
            }
            self.path.cut(self.base().saturating_sub(1));
            self.ftw.level -= 1;
            self.ftw.base = before;
            result
        }
    }

    unsafe fn entry(&mut self, name: *const c_char, len: usize, stream: *mut libc::DIR) -> c_int {
        // SAFETY: names of the C library; zeros are a value of the attributes.
        unsafe {
            if !self.path.put(self.base(), name.cast(), len) {
                return -1;
            }
            let mut st: stat64 = core::mem::zeroed();
            let no_follow = libc::AT_SYMLINK_NOFOLLOW;
            let flags = if self.has(PHYS) { no_follow } else { 0 };
            let kind = if self.look(name, stream, &mut st, flags) == 0 {
                match st.st_mode & libc::S_IFMT {
                    libc::S_IFDIR => DIRECTORY,
                    libc::S_IFLNK => LINK,
                    _ => FILE,
                }
            } else if !matches!(errno::errno(), libc::EACCES | libc::ENOENT) {
                return -1;
            } else if !self.has(PHYS)
                && self.look(name, stream, &mut st, no_follow) == 0
                && st.st_mode & libc::S_IFMT == libc::S_IFLNK
            {
                DANGLING_LINK
            } else {
                NOT_STATED
            };
            let result = if kind != NOT_STATED && self.has(MOUNT) && st.st_dev != self.dev {
                0
            } else if kind != DIRECTORY {
                self.report(&st, kind)
            } else if self.has(PHYS) {
                self.directory(&st, Some(stream))
            } else {
                match self.is_new(&st) {
                    Ok(true) => self.directory(&st, Some(stream)),
                    Ok(false) => 0,
                    Err(()) => -1,
                }
            };
            if self.skips(result, SKIP_SUBTREE) { 0 } else { result }
        }
    }

    /// Asks for the attributes of an entry.
    unsafe fn look(&self, name: *const c_char, stream: *mut libc::DIR, st: &mut stat64, flags: c_int) -> c_int {
        // SAFETY: names of the C library; the stream is open, or null.
        unsafe {
            if !stream.is_null() {
                return libc::fstatat64(libc::dirfd(stream), name, st, flags);
            }
            let name = if self.has(CHDIR) { name } else { self.path.behind(0) };
            libc::fstatat64(libc::AT_FDCWD, name, st, flags)
        }
    }
}

/// Closes a stream, errno kept.
unsafe fn closed(stream: *mut libc::DIR) {
    let saved = errno::errno();
    // SAFETY: an open stream.
    unsafe { libc::closedir(stream) };
    errno::set_errno(saved);
}

/// Reads the names of a directory, each with its NUL; whether there was memory.
unsafe fn read(stream: *mut libc::DIR, names: &mut Text) -> bool {
    // SAFETY: an open stream, and names that end with a NUL.
    unsafe {
        loop {
            let entry = libc::readdir64(stream);
            if entry.is_null() {
                return true;
            }
            let name = (&raw const (*entry).d_name).cast::<u8>();
            let len = libc::strlen(name.cast());
            let is_dots = matches!((len, *name), (1, b'.')) || len == 2 && *name == b'.' && *name.add(1) == b'.';
            if !is_dots && !names.put(names.len, name, len + 1) {
                return false;
            }
        }
    }
}
