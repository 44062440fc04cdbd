//! `posix_spawn`: what its file actions open.
//!
//! Nothing of the shim runs in the child before it executes its program. So the shim looks at an
//! open for writing when the action is added. What a descriptor's name will lead to, after the
//! actions before it, is known to the child only: a process that has added such an action spawns
//! with all its copies moved to the PFS, and their files taken for changed.

use super::{enter_change, hook};
use crate::absolute::Absolute;
use crate::changes::{Target, bypass, change_behind_copy, file_changes, is_descriptor_name, name_changes};
use crate::ctx;
use crate::errno;
use crate::outside;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use libc::{mode_t, pid_t};
use monarch_abi::resolve::{Found, Segments};

const CWD: c_int = libc::AT_FDCWD;
/// Files that actions open for reading and that are remembered: the last ones.
const MAX_READ: usize = 16;

/// Not zero: some action opens a name for writing that may be a descriptor's.
static REOPENS: AtomicU32 = AtomicU32::new(0);
/// Files that actions open for reading: [`monarch_abi::demand::file_key`], 0 for none.
static READ: [AtomicU64; MAX_READ] = [const { AtomicU64::new(0) }; MAX_READ];
static READS: AtomicUsize = AtomicUsize::new(0);

/// A child is about to open a file: what it is to open instead, if that is a copy.
unsafe fn opens(path: *const c_char, flags: c_int) -> Option<Absolute> {
    // SAFETY: passed on.
    let Some((ctx, p)) = (unsafe { enter_change(path) }) else {
        // Nobody looks at the descriptor afterwards: it is the child's.
        // SAFETY: passed on.
        let _ = unsafe { outside::opens(CWD, path, flags) };
        return None;
    };
    let saved = errno::errno();
    if flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_CREAT | libc::O_TRUNC) == 0 {
        if let Ok(f) = crate::paths::find(&ctx, CWD, p, true) {
            let key = monarch_abi::demand::file_key(f.number, f.entry.id);
            let at = READS.fetch_add(1, Ordering::Relaxed) % MAX_READ;
            if let Some(place) = READ.get(at) {
                place.store(key, Ordering::Relaxed);
            }
        }
        errno::set_errno(saved);
        return None;
    }
    if is_descriptor_name(p) {
        REOPENS.store(1, Ordering::SeqCst);
    }
    let mut target = change_behind_copy(&ctx, CWD, p, true);
    // Nobody looks at the descriptor afterwards: it is the child's.
    if matches!(target, Target::AsNamed) && !crate::changes::before_write_open(&ctx, CWD, p, flags) {
        target = file_changes(&ctx, CWD, p, true);
        name_changes(&ctx, CWD, p, false);
    }
    errno::set_errno(saved);
    match target {
        Target::Pfs(p) => Some(p),
        Target::AsNamed | Target::Removed | Target::Gone => None,
    }
}

/// Before a child is made.
fn before_spawn() {
    if REOPENS.load(Ordering::SeqCst) != 0 {
        leave_no_copies();
    }
}

/// Moves all copies that this process has open to the PFS, and takes their files, and those that
/// actions open for reading, for changed.
#[cold]
#[inline(never)]
fn leave_no_copies() {
    let Some(ctx) = ctx::mapped() else { return };
    let saved = errno::errno();
    crate::pfs_fd::move_all_for_writing(&ctx);
    for place in &READ {
        let key = place.load(Ordering::Relaxed);
        let Some(number) = usize::try_from(key >> 32).ok().and_then(|n| n.checked_sub(1)) else { continue };
        let Some(root) = ctx.map.segments().get(number).map(|s| s.root.load(Ordering::Relaxed) as usize) else {
            continue;
        };
        if let Some((live, segment)) = ctx.segment(root)
            && live == number
            && let Some(entry) = segment.by_id(key as u32)
        {
            bypass(&ctx, &Found { root, number, segment, entry });
        }
    }
    errno::set_errno(saved);
}

hook! { next;
    fn posix_spawn_file_actions_addopen(actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        let mut instead = opens(path, flags);
        let path = instead.as_mut().and_then(|p| p.c_str()).map_or(path, CStr::as_ptr);
        next(actions, fd, path, flags, mode)
    }
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int {
        before_spawn();
        next(pid, path, actions, attributes, argv, envp)
    }
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int {
        before_spawn();
        next(pid, file, actions, attributes, argv, envp)
    }
}
