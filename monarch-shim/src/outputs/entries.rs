//! Reading directories without the C library's streams: what `getdents64` fills, entry by entry.

use super::answer::Result;
use super::kernel;
use super::spare;
use core::ffi::{CStr, c_int};
use monarch_abi::mem::PathBuffer;
use monarch_abi::scratch::{BLOCK_BYTES, Scratch};
use monarch_guest::absolute::Absolute;
use monarch_guest::sys::Fd;

/// Bytes of `struct linux_dirent64` before the name.
pub const NAME_AT: usize = 19;

/// An entry of a directory.
pub struct Name<'a> {
    /// Its number, as the file system says.
    pub ino: u64,
    /// Its type: `DT_REG` and its kin.
    pub kind: u8,
    /// Its name, without a NUL.
    pub name: &'a [u8],
}

/// Calls `visit` for each entry of an open directory but `.` and `..`.
pub fn each(dir: c_int, mut visit: impl FnMut(&Name<'_>) -> Result<()>) -> Result<()> {
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
pub fn child(dir: &[u8], name: &[u8]) -> Result<PathBuffer> {
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

/// Opens a directory to list it.
pub fn open_dir(path: Option<Absolute>) -> Result<Fd> {
    open_dir_by(path, 0)
}

/// The same, with more flags.
pub fn open_dir_by(path: Option<Absolute>, flags: c_int) -> Result<Fd> {
    let mut path = path.ok_or(libc::ENAMETOOLONG)?;
    spare::open_own(path.c_str().ok_or(libc::ENAMETOOLONG)?, libc::O_RDONLY | libc::O_DIRECTORY | flags)
}

/// Opens the directory that a path of the application names.
pub fn open_named(dirfd: c_int, path: &CStr) -> Result<Fd> {
    kernel::open_at(dirfd, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0)
}
