//! Walks of the C library: `ftw` and `nftw` by calls that are seen, `glob` by functions that it is
//! handed, `fts` and `wordexp` when what is pending is published.
//!
//! The C library's own walks call its own `opendir` and `stat`, which no preload library sees. They
//! see what they should while nothing is pending below an output root.

use super::hook;
use crate::next::is_glibc;
use crate::outputs::{self, Subject};
use crate::walk::{self, Visit};
use core::ffi::{CStr, c_char, c_int, c_ushort, c_void};
use monarch_abi::outputs::is_hidden;
use monarch_guest::user;

const CWD: c_int = libc::AT_FDCWD;
/// Flags that nftw knows.
const KNOWN_FLAGS: c_int = walk::PHYS | walk::MOUNT | walk::CHDIR | walk::DEPTH | walk::ACTIONS;
/// glob calls the functions of its result.
const GLOB_ALTDIRFUNC: c_int = 1 << 9;
/// fts does not follow links.
const FTS_PHYSICAL: c_int = 0x10;

/// `glob_t` of the GNU C library.
#[repr(C)]
struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    reserved: usize,
    flags: c_int,
    functions: Functions,
}

/// What glob calls with [`GLOB_ALTDIRFUNC`]: closedir, readdir, opendir, lstat, stat.
type Functions = [usize; 5];

/// Calls glob by `call`, which gets the flags: with functions that are seen where names are not
/// what the PFS says.
unsafe fn globbed(flags: c_int, result: *mut c_void, call: impl FnOnce(c_int) -> c_int) -> c_int {
    let result = result.cast::<Glob>();
    if flags & GLOB_ALTDIRFUNC != 0 || !outputs::may_differ() || !is_glibc() || !user::is_readable(result as usize) {
        return call(flags);
    }
    // SAFETY: the application's, which glob is about to write.
    unsafe {
        let functions = &raw mut (*result).functions;
        let before = functions.read();
        functions.write([
            libc::closedir as *const () as usize,
            libc::readdir64 as *const () as usize,
            libc::opendir as *const () as usize,
            libc::lstat64 as *const () as usize,
            libc::stat64 as *const () as usize,
        ]);
        let done = call(flags | GLOB_ALTDIRFUNC);
        functions.write(before);
        (*result).flags &= !GLOB_ALTDIRFUNC;
        done
    }
}

/// ftw and nftw; `call` is the C library's own walk.
unsafe fn walked(path: *const c_char, visit: Option<Visit>, how: walk::How, call: impl FnOnce() -> c_int) -> c_int {
    let follows = how.flags & walk::PHYS == 0;
    // SAFETY: the application's pointers; passed on.
    unsafe {
        match visit {
            Some(visit) if how.flags & !KNOWN_FLAGS == 0 && outputs::may_walk_over(path, follows) => {
                walk::walk(path, visit, how)
            }
            _ => call(),
        }
    }
}

/// Before fts walks over paths: what is pending there is published. Whether the PFS refuses that.
unsafe fn refused(paths: *const *const c_char, flags: c_int) -> bool {
    let subject = if flags & FTS_PHYSICAL == 0 { Subject::TreeThroughLinks } else { Subject::Tree };
    let mut at = paths;
    // SAFETY: the application's, ended by a null pointer.
    while let Some(&[path]) = unsafe { user::slice(at, 1) } {
        // SAFETY: passed on.
        if path.is_null() || unsafe { outputs::publish(CWD, path, subject) }.is_some() {
            return !path.is_null();
        }
        at = at.wrapping_add(1);
    }
    false
}

/// `FTSENT` of the GNU C library.
#[repr(C)]
pub struct Entry {
    above: [*mut Self; 2],
    next: *mut Self,
    /// What is the application's, and paths.
    words: [usize; 4],
    /// An error, and a descriptor.
    numbers: [c_int; 2],
    lengths: [c_ushort; 4],
    /// Inode and device.
    file: [u64; 2],
    links: libc::nlink_t,
    level: i16,
    kind: [c_ushort; 3],
    stat: *mut c_void,
    name: [c_char; 1],
}

const _: () = assert!(core::mem::offset_of!(Entry, stat) == 104 && core::mem::offset_of!(Entry, name) == 112);

/// Whether an entry has a name of Monarch's own, in a directory.
unsafe fn is_own(entry: *const Entry) -> bool {
    // SAFETY: an entry of the C library, whose name ends with a NUL.
    unsafe {
        !entry.is_null()
            && (*entry).level > 0
            && is_hidden(CStr::from_ptr((&raw const (*entry).name).cast()).to_bytes())
    }
}

/// The next entry that the job sees.
unsafe fn seen(mut next: impl FnMut() -> *mut Entry) -> *mut Entry {
    let mut entry = next();
    if outputs::has_roots() && is_glibc() {
        // SAFETY: entries of the C library.
        while unsafe { is_own(entry) } {
            entry = next();
        }
    }
    entry
}

/// A list of entries without those that the job does not see. The first one stays in the C
/// library's own list.
unsafe fn seen_list(mut first: *mut Entry) -> *mut Entry {
    if !outputs::has_roots() || !is_glibc() {
        return first;
    }
    // SAFETY: a list of the C library, each entry of which it has allocated and would free itself.
    unsafe {
        while is_own(first) {
            first = (*first).next;
        }
        let mut at = first;
        while !at.is_null() {
            let next = (*at).next;
            if is_own(next) {
                (*at).next = (*next).next;
                libc::free(next.cast());
            } else {
                at = next;
            }
        }
    }
    first
}

/// Before wordexp looks for names.
unsafe fn expanding(words: *const c_char) {
    let has_pattern = |words: &[u8]| words.iter().any(|c| b"*?[".contains(c));
    // SAFETY: the application's, tested before it is read.
    if outputs::is_pending() && unsafe { user::path(words) }.is_none_or(has_pattern) {
        outputs::publish_all();
    }
}

hook! { next;
    fn glob(pattern: *const c_char, flags: c_int, failed: *const c_void, result: *mut c_void) -> c_int {
        globbed(flags, result, |flags| next(pattern, flags, failed, result))
    }
    fn glob64(pattern: *const c_char, flags: c_int, failed: *const c_void, result: *mut c_void) -> c_int {
        globbed(flags, result, |flags| next(pattern, flags, failed, result))
    }
    fn ftw(path: *const c_char, visit: Option<Visit>, descriptors: c_int) -> c_int {
        walked(path, visit, walk::How { descriptors, flags: 0, is_nftw: false }, || next(path, visit, descriptors))
    }
    fn ftw64(path: *const c_char, visit: Option<Visit>, descriptors: c_int) -> c_int {
        walked(path, visit, walk::How { descriptors, flags: 0, is_nftw: false }, || next(path, visit, descriptors))
    }
    fn nftw(path: *const c_char, visit: Option<Visit>, descriptors: c_int, flags: c_int) -> c_int {
        walked(path, visit, walk::How { descriptors, flags, is_nftw: true }, || next(path, visit, descriptors, flags))
    }
    fn nftw64(path: *const c_char, visit: Option<Visit>, descriptors: c_int, flags: c_int) -> c_int {
        walked(path, visit, walk::How { descriptors, flags, is_nftw: true }, || next(path, visit, descriptors, flags))
    }
    fn fts_open(paths: *const *const c_char, flags: c_int, compare: *const c_void) -> *mut c_void {
        if refused(paths, flags) { core::ptr::null_mut() } else { next(paths, flags, compare) }
    }
    fn fts64_open(paths: *const *const c_char, flags: c_int, compare: *const c_void) -> *mut c_void {
        if refused(paths, flags) { core::ptr::null_mut() } else { next(paths, flags, compare) }
    }
    fn fts_read(walk: *mut c_void) -> *mut Entry { seen(|| next(walk)) }
    fn fts64_read(walk: *mut c_void) -> *mut Entry { seen(|| next(walk)) }
    fn fts_children(walk: *mut c_void, how: c_int) -> *mut Entry { seen_list(next(walk, how)) }
    fn fts64_children(walk: *mut c_void, how: c_int) -> *mut Entry { seen_list(next(walk, how)) }
    fn wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int {
        expanding(words);
        next(words, result, flags)
    }
}
