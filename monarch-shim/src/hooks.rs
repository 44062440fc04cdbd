//! The exported functions: each asks the gate, hands over to a function with the logic, and
//! otherwise calls the next symbol.

mod access;
mod attributes;
pub(crate) mod close;
mod dir;
mod exec;
mod fs;
mod hints;
mod ioctl;
mod jump;
mod links;
mod lock;
mod memory;
mod names;
mod open;
mod place;
mod raw;
mod read;
mod sockets;
mod spawn;
mod stat;
mod stdio;
mod walks;
mod watch;

use core::ffi::{c_char, c_int};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::errno;
use monarch_guest::user;

/// What a function gives when libc has no such symbol.
trait Missing {
    fn missing() -> Self;
}
impl Missing for i32 {
    fn missing() -> Self {
        errno::set_errno(libc::ENOSYS);
        -1
    }
}
impl Missing for isize {
    fn missing() -> Self {
        errno::set_errno(libc::ENOSYS);
        -1
    }
}
impl Missing for i64 {
    fn missing() -> Self {
        errno::set_errno(libc::ENOSYS);
        -1
    }
}
impl Missing for () {
    fn missing() -> Self {}
}
impl<T> Missing for *mut T {
    fn missing() -> Self {
        errno::set_errno(libc::ENOSYS);
        core::ptr::null_mut()
    }
}

/// Exports a function; `$next` is the next definition of the same symbol.
macro_rules! hook {
    ($next:ident; $(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
            let address = $crate::next::address($crate::symbols::Sym::$name);
            if address == 0 {
                return $crate::hooks::Missing::missing();
            }
            // SAFETY: the address of the C function of this name, whose type this is.
            #[allow(unused_variables)]
            let $next: unsafe extern "C" fn($($ty),*) $(-> $ret)? = unsafe { core::mem::transmute(address) };
            // SAFETY: the contract of the C function of this name.
            #[allow(unused_unsafe)]
            unsafe { $body }
        }
    )*};
}
pub(crate) use hook;

/// The gate and a path in one step.
///
/// # Safety
/// As for [`user::path`].
#[inline(always)]
unsafe fn enter<'a>(path: *const c_char) -> Option<(Ctx, &'a [u8])> {
    // SAFETY: by contract.
    unsafe { ctx::enter(ctx::get()?, path) }
}

/// [`enter`] for calls that open a file: sets `names` if the path is not looked up and may be the
/// name of a descriptor.
///
/// # Safety
/// As for [`user::path`].
#[inline(always)]
unsafe fn enter_open<'a>(path: *const c_char, names: &mut bool) -> Option<(Ctx, &'a [u8])> {
    // SAFETY: by contract; the page is tested before the path is called outside.
    unsafe {
        match ctx::get() {
            Some(ctx) => ctx::enter_or(ctx, path, || *names = user::begins_like_descriptor_in_page(path)),
            None => {
                // Not served; but the process may have inherited a copy.
                *names = ctx::mapped().is_some() && user::begins_like_descriptor(path);
                None
            }
        }
    }
}

/// [`enter`] for calls that change something: also in a process that is no longer served itself.
///
/// # Safety
/// As for [`user::path`].
#[inline]
unsafe fn enter_change<'a>(path: *const c_char) -> Option<(Ctx, &'a [u8])> {
    let ctx = ctx::mapped()?;
    // SAFETY: by contract.
    let path = unsafe { user::path(path)? };
    Some((ctx, path))
}

/// Runs what must happen before a change, errno kept.
#[inline]
unsafe fn before_change(path: *const c_char, what: impl FnOnce(&Ctx, &[u8])) {
    // SAFETY: by contract of the caller.
    if let Some((ctx, path)) = unsafe { enter_change(path) } {
        let saved = errno::errno();
        what(&ctx, path);
        errno::set_errno(saved);
    }
}

/// The path on the PFS of the copy that a path of the application leads to by way of an open
/// descriptor, for calls that only ask.
///
/// # Safety
/// As for [`user::path`].
#[inline]
unsafe fn behind(dirfd: c_int, path: *const c_char, follow: bool) -> Option<monarch_guest::absolute::Absolute> {
    // SAFETY: by contract.
    let (ctx, bytes) = unsafe { enter_change(path)? };
    let saved = errno::errno();
    let f = crate::descriptor_names::behind_copy(&ctx, dirfd, bytes, follow);
    let path = f.and_then(|f| crate::identity::path_if_there(&ctx, &f));
    errno::set_errno(saved);
    path
}

/// The path on the PFS if `fd` is a copy, for calls that only read attributes of an open file.
fn pfs_path_of(fd: c_int) -> Option<monarch_guest::absolute::Absolute> {
    let ctx = ctx::mapped()?;
    let saved = errno::errno();
    let path = crate::identity::copy_of_fd(&ctx, fd).and_then(|f| crate::identity::path_if_there(&ctx, &f));
    errno::set_errno(saved);
    path
}
