//! Descriptors that a shell hands to its children.
//!
//! In `( flock 9; ... ) 9<file` the shell opens the file and a child locks it. A lock moves the
//! descriptors of the process that takes it to the PFS file ([`crate::pfs_fd`]), but not those of
//! its parent. So a shell moves its own descriptors of copies before it makes a child: then parent
//! and child share one open file of the PFS, with its offset and its locks.
//!
//! Only descriptors that no other process can share are moved. A descriptor of a copy is taken for
//! shared if it was there when the program started or when the last child was made, or is a
//! duplicate of such a descriptor. Standard input, output and error, and descriptors that are
//! closed on exec, stay copies: `command < file` costs the PFS nothing.

use crate::identity::{COPY_MODE, Facts, copy_of};
use crate::pfs_fd::{Version, move_to_pfs};
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::errno;
use monarch_guest::sys;

/// Programs that make children by `fork` or `vfork` and hand them descriptors by number.
const SHELLS: [&[u8]; 8] = [b"sh", b"bash", b"rbash", b"dash", b"ash", b"zsh", b"mksh", b"lksh"];
/// Descriptors that are looked at are those below this number. Bash numbers those of `{name}<file`
/// from 10 on.
const DESCRIPTORS: usize = 32;
/// The first descriptor that is moved.
const FIRST_MOVED: usize = 3;

/// Whether this process is a shell. Set by the constructor.
static IS_SHELL: AtomicBool = AtomicBool::new(false);
/// By descriptor: the inode of the copy that other processes may share, or 0. Another inode there
/// now means that the descriptor was opened since.
static SHARED: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];

/// Finds out whether this process is a shell, and which descriptors it was started with.
///
/// # Safety
/// `argv` must be the arguments as the loader passed them.
pub unsafe fn boot(argv: *const *const u8) {
    // SAFETY: the array ends with a null pointer, its strings with a NUL.
    let (name, applet) = unsafe {
        if argv.is_null() || (*argv).is_null() {
            return;
        }
        let second = *argv.add(1);
        (file_name(*argv), if second.is_null() { b"" } else { file_name(second) })
    };
    let is_shell = |name: &[u8]| SHELLS.contains(&name.strip_prefix(b"-").unwrap_or(name));
    if is_shell(name) || name == b"busybox" && is_shell(applet) {
        note_shared();
        IS_SHELL.store(true, Ordering::Relaxed);
    }
}

/// The last component of a path.
///
/// # Safety
/// `path` must be a string that ends with a NUL and lives as long as the process.
unsafe fn file_name(path: *const u8) -> &'static [u8] {
    // SAFETY: by contract.
    let path = unsafe { CStr::from_ptr(path.cast::<c_char>()) }.to_bytes();
    path.rsplit(|&c| c == b'/').next().unwrap_or(path)
}

/// Takes all descriptors of copies for shared.
fn note_shared() {
    for (fd, shared) in (0..).zip(&SHARED) {
        shared.store(copy_facts(fd).map_or(0, |st| st.st_ino), Ordering::Relaxed);
    }
}

/// What the kernel says about a descriptor that may be one of a copy.
fn copy_facts(fd: c_int) -> Option<libc::stat64> {
    sys::fstat_local(fd).filter(|st| st.st_mode == COPY_MODE)
}

/// Moves to the PFS what a shell is about to share with a child. errno is kept.
#[inline]
pub fn before_child() {
    if IS_SHELL.load(Ordering::Relaxed) {
        move_own();
    }
}

#[cold]
#[inline(never)]
fn move_own() {
    let saved = errno::errno();
    if let Some(ctx) = ctx::mapped() {
        for (fd, shared) in (0..).zip(&SHARED).skip(FIRST_MOVED) {
            if let Some(st) = copy_facts(fd).filter(|st| st.st_ino != shared.load(Ordering::Relaxed)) {
                move_inherited(&ctx, fd, &st);
            }
        }
        note_shared();
    }
    errno::set_errno(saved);
}

/// Moves one descriptor, unless it is closed on exec.
fn move_inherited(ctx: &Ctx, fd: c_int, st: &libc::stat64) {
    let Some(f) = copy_of(ctx, &Facts::of(st)) else { return };
    if sys::fcntl(fd, libc::F_GETFD, 0).is_some_and(|flags| flags & libc::FD_CLOEXEC == 0) {
        // A reader that has begun must not get a mixture of two versions.
        let version = if sys::seek(fd, 0) == Some(0) { Version::Any } else { Version::Same };
        let _ = move_to_pfs(ctx, fd, &f, version);
    }
}

/// A descriptor of this process got a second number.
#[inline]
pub fn duplicated(from: c_int, to: c_int) {
    if IS_SHELL.load(Ordering::Relaxed) {
        note_duplicate(from, to);
    }
}

#[cold]
#[inline(never)]
fn note_duplicate(from: c_int, to: c_int) {
    // A child of vfork has other descriptors, but the memory of the shell.
    if monarch_guest::process::number() != sys::pid() {
        return;
    }
    let at = |fd: c_int| usize::try_from(fd).ok().and_then(|fd| SHARED.get(fd));
    if let Some(new) = at(to) {
        let inode = match at(from) {
            Some(old) => old.load(Ordering::Relaxed),
            // Nothing is known about it.
            None => copy_facts(to).map_or(0, |st| st.st_ino),
        };
        new.store(inode, Ordering::Relaxed);
    }
}
