//! The files of the runtime directory: mapped if they belong to this user, or asked whether the
//! agent lives.

use crate::once::Once;
use crate::sys;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};
use monarch_abi::demand::Life;
use monarch_abi::mem::{Map, PathBuffer};

/// Longest path of a runtime directory.
pub const MAX_DIR: usize = 511;
/// Directory of the runtime files and its length.
static DIR: Once<[u8; MAX_DIR]> = Once(UnsafeCell::new(MaybeUninit::uninit()));

static DIR_LEN: AtomicUsize = AtomicUsize::new(0);

/// Remembers the runtime directory, of at most [`MAX_DIR`] bytes. By the constructor, before
/// the gate opens.
pub fn set_dir(dir: &[u8]) {
    let len = dir.len().min(MAX_DIR);
    // SAFETY: it fits; no thread reads yet.
    unsafe { core::ptr::copy_nonoverlapping(dir.as_ptr(), (*DIR.0.get()).as_mut_ptr().cast(), len) };
    DIR_LEN.store(len, Ordering::Relaxed);
}

/// Maps all of a file that belongs to this user.
pub fn map_file(path: &[u8], writable: bool) -> Option<Map<'static>> {
    let access = if writable { libc::O_RDWR } else { libc::O_RDONLY };
    let fd = sys::open_bytes(path, access | libc::O_CLOEXEC | libc::O_NOFOLLOW)?;
    let st = sys::fstat(fd.0)?;
    let len = usize::try_from(st.st_size).ok()?;
    if len == 0 || st.st_uid != sys::euid() || st.st_mode & 0o077 != 0 {
        return None;
    }
    let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    let p = sys::map_for_huge_pages(len, prot, fd.0)?;
    sys::advise(p, len, libc::MADV_DONTDUMP);
    // SAFETY: a fresh mapping of a file whose blocks are allocated and that is never truncated;
    // never unmapped.
    Some(unsafe { Map::new(p, len) })
}

/// `dir/name` in the runtime directory.
#[must_use]
pub fn runtime_file(name: &[u8]) -> Option<PathBuffer> {
    let len = DIR_LEN.load(Ordering::Relaxed);
    // SAFETY: the constructor has written `len` bytes.
    let dir = unsafe { core::slice::from_raw_parts((*DIR.0.get()).as_ptr().cast::<u8>(), len) };
    let mut path = PathBuffer::front();
    path.append(dir)?;
    path.append(b"/")?;
    path.append(name)?;
    Some(path)
}

/// The control block, as this process sees it.
pub(super) fn control_block() -> Option<libc::stat64> {
    sys::stat_bytes(runtime_file(b"control")?.get(), libc::AT_SYMLINK_NOFOLLOW)
}

/// Whether the agent lives: it holds a lock. Slow path only.
#[must_use]
pub fn agent() -> Life {
    let path = runtime_file(b"lock");
    let fd = path.and_then(|path| sys::open_bytes(path.get(), libc::O_RDONLY | libc::O_CLOEXEC));
    let Some(fd) = fd else { return Life::Unknown };
    if !sys::lock(fd.0, libc::LOCK_SH | libc::LOCK_NB) {
        return Life::Alive;
    }
    // At once, not by the close: a child forked meanwhile has the descriptor, too.
    let _ = sys::lock(fd.0, libc::LOCK_UN);
    Life::Dead
}

/// `dir/<32 hex><suffix>`.
pub(super) fn uuid_file(uuid: &[core::sync::atomic::AtomicU64; 2], suffix: &[u8]) -> Option<PathBuffer> {
    let mut path = runtime_file(b"")?;
    for half in uuid {
        for byte in half.load(Ordering::Relaxed).to_le_bytes() {
            path.append(&[digit(byte >> 4), digit(byte & 15)])?;
        }
    }
    path.append(suffix)?;
    Some(path)
}

/// `dir/hints/<process>-<number><suffix>`.
#[must_use]
pub fn hint_file(process: u32, number: u32, suffix: &[u8]) -> Option<PathBuffer> {
    let mut path = runtime_file(b"hints/")?;
    path.append(&hex(process))?;
    path.append(b"-")?;
    path.append(&hex(number))?;
    path.append(suffix)?;
    Some(path)
}

/// Eight digits, so that names sort as they were made.
fn hex(v: u32) -> [u8; 8] {
    let mut out = [0; 8];
    for (at, digit_of) in out.iter_mut().zip((0..8).rev()) {
        *at = digit((v >> (digit_of * 4)) as u8 & 15);
    }
    out
}

const fn digit(v: u8) -> u8 {
    if v < 10 { b'0' + v } else { b'a' + v - 10 }
}
