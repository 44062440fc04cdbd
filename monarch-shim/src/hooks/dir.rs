//! opendir and what works on its result, scandir.

use super::{enter, hook};
use crate::dirs::{self, Behind, Compare, Filter, Stream, behind, ours};
use crate::identity::is_current;
use crate::on_demand;
use crate::outputs;
use crate::paths::find;
use core::ffi::{c_char, c_int, c_long};
use libc::{DIR, dirent64};
use monarch_abi::control::Counter;
use monarch_abi::resolve::Miss;
use monarch_guest::absent;
use monarch_guest::ctx;
use monarch_guest::errno;
use monarch_guest::guard::{Asked, is_still};

const CWD: c_int = libc::AT_FDCWD;

/// A stream of the shim; null, with errno, for a directory that is not there. Otherwise the
/// kernel's, by `next` at a path.
unsafe fn open_stream(
    dirfd: c_int,
    path: *const c_char,
    next: impl FnOnce(c_int, *const c_char) -> *mut DIR,
) -> *mut DIR {
    // SAFETY: the application's pointer, tested before it is read; a path of the shim.
    unsafe {
        if let Some(stream) = outputs::open_dir(dirfd, path).or_else(|| open_indexed(dirfd, path)) {
            return stream.cast();
        }
        // By links outside of the output roots.
        let mut lead = outputs::beyond(dirfd, path, true);
        if lead.as_ref().is_some_and(|lead| lead.is_held) {
            return outputs::open_held_dir(dirfd, path).map_or_else(|| next(dirfd, path), <*mut _>::cast);
        }
        if let Some(stream) = lead.as_mut().and_then(|l| outputs::open_dir(CWD, l.at.c_str()?.as_ptr())) {
            return stream.cast();
        }
        match lead.as_mut().and_then(outputs::Lead::instead) {
            Some(at) => next(CWD, at.as_ptr()),
            None => next(dirfd, path),
        }
    }
}

/// [`open_stream`] of a directory that the index has.
unsafe fn open_indexed(dirfd: c_int, path: *const c_char) -> Option<*mut dirs::Shared> {
    // SAFETY: the application's pointer, tested before it is read.
    let (ctx, bytes) = unsafe { enter(path)? };
    let saved = errno::errno();
    let stream = match find(&ctx, dirfd, bytes, true) {
        Ok(f) if !is_current(&f) || !is_still(&ctx, &f, Asked::new(dirfd, bytes, true)) => None,
        Ok(f) => dirs::open(&f),
        Err(Miss::Outside) => return None,
        Err(miss) if absent::fails(&ctx, dirfd, bytes, miss) => return Some(core::ptr::null_mut()),
        Err(_) => None,
    };
    let fetched = || dirs::open_fetched(on_demand::listing(&ctx, dirfd, bytes)?);
    let stream = stream.or_else(fetched);
    errno::set_errno(saved);
    ctx.count(if stream.is_some() { Counter::Lists } else { Counter::MetaKernel }, 1);
    stream
}

unsafe fn read_into(stream: &mut Stream, out: *mut dirent64, result: *mut *mut dirent64) -> c_int {
    // SAFETY: buffers of the application, as long as readdir_r demands.
    unsafe {
        match stream.read() {
            Some(e) => {
                core::ptr::copy_nonoverlapping((&raw const *e).cast::<u8>(), out.cast::<u8>(), e.d_reclen as usize);
                *result = out;
            }
            None => *result = core::ptr::null_mut(),
        }
    }
    0
}

fn read(stream: &mut Stream) -> *mut dirent64 {
    stream.read().map_or(core::ptr::null_mut(), |e| &raw mut *e)
}

/// scandir(3); by `next`, at a path, where the stream would be the kernel's.
unsafe fn scan(
    dirfd: c_int,
    path: *const c_char,
    list: *mut *mut *mut dirent64,
    (filter, compare): (Filter, Compare),
    next: impl FnOnce(c_int, *const c_char) -> c_int,
) -> c_int {
    let mut plainly = None;
    // SAFETY: a stream of the shim.
    unsafe {
        let stream = open_stream(dirfd, path, |dirfd, path| {
            plainly = Some(next(dirfd, path));
            core::ptr::null_mut()
        });
        if let Some(done) = plainly {
            return done;
        }
        if stream.is_null() {
            return -1;
        }
        let stream = stream.cast();
        let n = dirs::scan(stream, list, filter, compare);
        dirs::close(stream);
        n
    }
}

hook! { next;
    fn opendir(path: *const c_char) -> *mut DIR {
        open_stream(CWD, path, |_, path| next(path))
    }
    fn fdopendir(fd: c_int) -> *mut DIR {
        outputs::open_dir_fd(fd).map_or_else(|| next(fd), <*mut _>::cast)
    }
    fn readdir(dir: *mut DIR) -> *mut dirent64 {
        match behind(dir) { Behind::Ours(mut s) => read(&mut s), Behind::Real(d) => next(d) }
    }
    fn readdir64(dir: *mut DIR) -> *mut dirent64 {
        match behind(dir) { Behind::Ours(mut s) => read(&mut s), Behind::Real(d) => next(d) }
    }
    fn readdir_r(dir: *mut DIR, out: *mut dirent64, result: *mut *mut dirent64) -> c_int {
        match behind(dir) { Behind::Ours(mut s) => read_into(&mut s, out, result), Behind::Real(d) => next(d, out, result) }
    }
    fn readdir64_r(dir: *mut DIR, out: *mut dirent64, result: *mut *mut dirent64) -> c_int {
        match behind(dir) { Behind::Ours(mut s) => read_into(&mut s, out, result), Behind::Real(d) => next(d, out, result) }
    }
    fn closedir(dir: *mut DIR) -> c_int {
        match ours(dir) {
            Some(s) => { dirs::close(s); 0 }
            None => next(dir),
        }
    }
    fn rewinddir(dir: *mut DIR) {
        match behind(dir) { Behind::Ours(mut s) => s.rewind(ctx::mapped()), Behind::Real(d) => next(d) }
    }
    fn telldir(dir: *mut DIR) -> c_long {
        match behind(dir) { Behind::Ours(s) => s.tell(), Behind::Real(d) => next(d) }
    }
    fn seekdir(dir: *mut DIR, position: c_long) {
        match behind(dir) { Behind::Ours(mut s) => s.seek(position), Behind::Real(d) => next(d, position) }
    }
    fn dirfd(dir: *mut DIR) -> c_int {
        match behind(dir) { Behind::Ours(mut s) => s.descriptor(ctx::mapped()), Behind::Real(d) => next(d) }
    }
    fn scandir(path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int {
        scan(CWD, path, list, (filter, compare), |_, path| next(path, list, filter, compare))
    }
    fn scandir64(path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int {
        scan(CWD, path, list, (filter, compare), |_, path| next(path, list, filter, compare))
    }
    fn scandirat(dirfd: c_int, path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int {
        scan(dirfd, path, list, (filter, compare), |dirfd, path| next(dirfd, path, list, filter, compare))
    }
    fn scandirat64(dirfd: c_int, path: *const c_char, list: *mut *mut *mut dirent64, filter: Filter, compare: Compare) -> c_int {
        scan(dirfd, path, list, (filter, compare), |dirfd, path| next(dirfd, path, list, filter, compare))
    }
}
