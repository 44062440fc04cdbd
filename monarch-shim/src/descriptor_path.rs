//! The path of a descriptor, as the kernel shows it below `/proc`.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use monarch_abi::PATH_MAX;
use monarch_abi::mem::PathBuffer;
use monarch_guest::sys;

/// What the kernel puts behind the path of what was removed. Names may end like that, too.
pub const DELETED: &[u8] = b" (deleted)";

/// The path of an open file or directory, as the kernel knows it.
#[must_use]
pub fn path_of_fd(fd: c_int, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let len = path_even_if_removed(fd, out)?;
    // SAFETY: as many bytes were written.
    let text = unsafe { core::slice::from_raw_parts(out.as_ptr().cast::<u8>(), len) };
    // The kernel says so of what was removed; but names may end like that, too.
    let removed = text.ends_with(DELETED) && sys::fstat(fd).is_none_or(|st| st.st_nlink == 0);
    (!removed).then_some(len)
}

/// [`path_of_fd`], with ` (deleted)` behind that of a file that was removed.
#[must_use]
pub fn path_even_if_removed(fd: c_int, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let mut name = [0u8; 32];
    let len = proc_fd(fd, &mut name)?;
    let link = core::ffi::CStr::from_bytes_with_nul(name.get(..=len)?).ok()?;
    let len = sys::readlink(link, out)?;
    if len == 0 || len >= PATH_MAX {
        return None;
    }
    // SAFETY: as many bytes were written.
    let text = unsafe { core::slice::from_raw_parts(out.as_ptr().cast::<u8>(), len) };
    (text.first() == Some(&b'/')).then_some(len)
}

/// Whether the descriptors of this process can be seen below `/proc`.
#[must_use]
pub fn has_proc() -> bool {
    sys::stat_at(libc::AT_FDCWD, c"/proc/thread-self/fd", 0).is_some()
}

/// [`path_of_fd`] in a buffer of its own.
#[must_use]
pub fn real_path(fd: c_int) -> Option<PathBuffer> {
    let mut path = PathBuffer::front();
    // SAFETY: as many bytes are written as it says.
    unsafe { path.fill(|out| path_of_fd(fd, out)) }?;
    Some(path)
}

/// `/proc/thread-self/fd/N` with a NUL behind it.
#[must_use]
pub fn proc_path(fd: c_int) -> Option<[u8; 32]> {
    let mut name = [0u8; 32];
    proc_fd(fd, &mut name)?;
    Some(name)
}

/// `/proc/thread-self/fd/N` with a NUL behind it; its length.
fn proc_fd(fd: c_int, out: &mut [u8; 32]) -> Option<usize> {
    let prefix = b"/proc/thread-self/fd/";
    out.get_mut(..prefix.len())?.copy_from_slice(prefix);
    let mut digits = [0u8; 10];
    let mut n = u32::try_from(fd).ok()?;
    let mut at = digits.len();
    loop {
        at = at.checked_sub(1)?;
        *digits.get_mut(at)? = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    let tail = digits.get(at..)?;
    let len = prefix.len() + tail.len();
    out.get_mut(prefix.len()..len)?.copy_from_slice(tail);
    Some(len)
}
