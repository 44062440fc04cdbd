//! Calls that open, make or cut files.

use super::{at_changed_path, changed_place, failed_with, given, is_far, plainly};
use crate::outputs::answer::{Answer, of_call};
use crate::outputs::beside::UnderWay;
use crate::outputs::create::Create;
use crate::outputs::lookup::{Found, lookup};
use crate::outputs::place::{Place, ends_in_dots};
use crate::outputs::tree::Entry;
use crate::outputs::{
    attributes, data_roots, descriptors, kernel, names, open as opens, others, peers, remembered, tree,
};
use core::ffi::{c_char, c_int};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::{errno, user};

/// open(2) and the like.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn open(dirfd: c_int, path: *const c_char, flags: c_int, mode: u32) -> Option<c_int> {
    // SAFETY: by contract.
    let ctx = match ctx::for_outputs_or(|| unsafe { others::settle(dirfd, path, opens_to_change(flags)) }) {
        Ok(ctx) => ctx,
        Err(refused) => return refused.map(|()| -1),
    };
    // SAFETY: by contract.
    unsafe { open_below(&ctx, dirfd, path, flags, mode) }
}

/// [`open`] that follows links outside of the output roots to them for an open that changes
/// nothing, too, while something is pending there.
///
/// # Safety
/// As for [`user::path`].
#[inline]
pub unsafe fn open_beyond(dirfd: c_int, path: *const c_char, flags: c_int, mode: u32) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        open(dirfd, path, flags, mode).or_else(|| {
            if flags & (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) != 0 {
                return None;
            }
            let mut lead = super::beyond(dirfd, path, flags & libc::O_NOFOLLOW == 0).filter(|lead| !lead.is_held)?;
            open(libc::AT_FDCWD, lead.at.c_str()?.as_ptr(), flags, mode)
                .or_else(|| Some(kernel::open(lead.instead()?, flags, mode).map_or_else(failed_with, given)))
        })
    }
}

/// Whether an open may change something.
const fn opens_to_change(flags: c_int) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0
}

/// Whether an open makes a file where there is nothing, not even a link.
const fn excludes(flags: c_int) -> bool {
    flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL
}

#[cold]
#[inline(never)]
unsafe fn open_below(ctx: &Ctx, dirfd: c_int, path: *const c_char, flags: c_int, mode: u32) -> Option<c_int> {
    let changes = opens_to_change(flags);
    let excludes = excludes(flags);
    let follow = flags & libc::O_NOFOLLOW == 0 && !excludes;
    let found = |bytes| {
        if changes { changed_place(ctx, dirfd, bytes, follow) } else { Place::find(ctx, dirfd, bytes) }
    };
    // SAFETY: by contract.
    unsafe {
        if if changes { is_far(ctx, path) } else { ctx::is_beside_outputs(ctx.map, path) } {
            return None;
        }
        let bytes = user::path(path)?;
        let work = |place: &mut Place| {
            let how = Create { flags, mode };
            if flags & (libc::O_CREAT | libc::O_DIRECTORY) == libc::O_CREAT && place.is_dir_path && ends_in_dots(bytes)
            {
                names::in_dots(place)?;
                return Ok(Answer::Plain);
            }
            // A version of its own comes after those of others.
            let is_anew = flags & (libc::O_CREAT | libc::O_TRUNC) == libc::O_CREAT | libc::O_TRUNC;
            if !is_anew || excludes {
                peers::settle(place, follow);
            }
            let opened = opens::open(place, how)?;
            Ok(match opened {
                Answer::Plain if place.is_by_number || place.by_overlay => {
                    let mut path = place.on_pfs()?;
                    let path = path.c_str().ok_or(libc::ENAMETOOLONG)?;
                    Answer::Done(given(kernel::open(path, how.flags, how.mode)?))
                }
                Answer::Plain => Answer::Plain,
                Answer::Done(fd) => {
                    if flags & libc::O_ACCMODE != libc::O_RDONLY {
                        let entry = tree::read(&place.root, place.rel()).unwrap_or(Entry::Nothing);
                        data_roots::changed(place, &entry, false);
                    }
                    Answer::Done(given(fd))
                }
            })
        };
        of_call(|| found(bytes).map(|mut place| work(&mut place)), -1)
    }
}

/// How often another name is tried for a temporary file.
const MAX_TEMPORARY_TRIES: usize = 100;

/// mkstemp(3) and its kin: the name is chosen here, as the C library's own open cannot be seen.
///
/// # Safety
/// The contract of mkostemps(3).
#[inline(never)]
pub unsafe fn temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> Option<c_int> {
    ctx::for_outputs()?;
    // SAFETY: by contract.
    unsafe { make_temporary(template, suffix, flags) }
}

#[cold]
#[inline(never)]
unsafe fn make_temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> Option<c_int> {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ab";
    // SAFETY: by contract.
    let len = unsafe { user::path(template)? }.len();
    let at = len.checked_sub(usize::try_from(suffix).ok()?)?.checked_sub(6)?;
    // SAFETY: inside of the template, which the application lets be written.
    let letters = unsafe { core::slice::from_raw_parts_mut(template.add(at).cast::<u8>(), 6) };
    if letters != b"XXXXXX" {
        return None;
    }
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    for _ in 0..MAX_TEMPORARY_TRIES {
        let mut random = monarch_guest::sys::random();
        for letter in &mut *letters {
            *letter = LETTERS.get(random as usize % LETTERS.len()).copied().unwrap_or(b'x');
            random >>= 5;
        }
        // SAFETY: by contract.
        match unsafe { open(libc::AT_FDCWD, template, flags, 0o600) } {
            Some(-1) if errno::errno() == libc::EEXIST => {}
            Some(fd) => return Some(fd),
            None => break,
        }
    }
    letters.copy_from_slice(b"XXXXXX");
    None
}

/// Before a child opens a path, in which the shim does not run yet: what is pending there is
/// published. (A new file is made on the PFS at once.)
///
/// # Safety
/// As for [`user::path`].
pub unsafe fn settle_for_child(path: *const c_char, flags: c_int) -> Option<c_int> {
    let changes = opens_to_change(flags);
    let follow = flags & libc::O_NOFOLLOW == 0 && !excludes(flags);
    // SAFETY: by contract.
    unsafe {
        at_changed_path(libc::AT_FDCWD, path, follow, -1, |place| {
            peers::settle(place, true);
            match lookup(place, follow)? {
                Found::Entry(Entry::Nothing | Entry::Directory) | Found::Held => {}
                Found::Entry(Entry::Clean(_)) if changes => remembered::forget_clean(place)?,
                Found::Entry(Entry::Clean(_)) => {}
                // (Or a link on the way is not published.)
                Found::Entry(_) | Found::Elsewhere(_) => drop(opens::through(place)?),
            }
            Ok(Answer::Plain)
        })
    }
}

/// truncate(2). `under_way`: to be kept until the plain call has ended.
///
/// # Safety
/// As for [`user::path`].
#[inline(never)]
pub unsafe fn truncate(path: *const c_char, len: i64, under_way: &mut Option<UnderWay>) -> Option<c_int> {
    // SAFETY: by contract.
    unsafe {
        at_changed_path(libc::AT_FDCWD, path, true, -1, |place| {
            if len < 0 {
                return Err(libc::EINVAL);
            }
            peers::settle(place, true);
            let answer = attributes::truncate(place, len, under_way)?;
            plainly(place, answer, |p| libc::truncate(p, len))
        })
    }
}

/// Whether an open file is a staged one.
#[inline]
#[must_use]
pub fn is_staged(fd: c_int) -> bool {
    ctx::for_outputs().is_some_and(|ctx| {
        let saved = errno::errno();
        let is = monarch_guest::sys::fstat_local(fd).is_some_and(|st| descriptors::is_marked_mode(&ctx, &st));
        errno::set_errno(saved);
        is
    })
}
