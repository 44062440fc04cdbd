//! New programs: what the file actions of `posix_spawn` open, and what `fexecve` executes.
//!
//! Nothing of the shim runs in the child before it executes its program. So the shim looks at what
//! is opened when the action is added. Where the name of a descriptor will lead, after the actions
//! before it, is known to the child only: when such a name is to be opened for writing, all copies
//! that the process has open are moved to the PFS, and their files are taken for changed. Files
//! below an output root: see `actions`.

mod actions;

pub(super) use actions::Spawning;

use super::{enter_change, hook, pfs_path_of};
use crate::changes::{Target, bypass, file_changes, name_changes};
use crate::descriptor_names::{change_behind_copy, may_name_descriptor};
use crate::foreign_changes;
use crate::next::is_glibc;
use crate::outputs;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use libc::mode_t;
use monarch_abi::demand::file_key;
use monarch_abi::resolve::{Found, Segments};
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::Ctx;
use monarch_guest::errno;

const CWD: c_int = libc::AT_FDCWD;
/// Files that actions open for reading and that are remembered: the last ones.
const MAX_REMEMBERED_READS: usize = 64;

/// What an action opens for reading.
struct Read {
    /// Address of the actions.
    actions: AtomicUsize,
    /// [`file_key`] of the file; 0 for none.
    key: AtomicU64,
}

static READ: [Read; MAX_REMEMBERED_READS] =
    [const { Read { actions: AtomicUsize::new(0), key: AtomicU64::new(0) } }; MAX_REMEMBERED_READS];
static READS: AtomicUsize = AtomicUsize::new(0);

/// A child is about to open a file: what it is to open instead, if that is a copy.
unsafe fn opens(actions: usize, path: *const c_char, flags: c_int) -> Option<Absolute> {
    // SAFETY: passed on.
    let Some((ctx, p)) = (unsafe { enter_change(path) }) else {
        // No hook looks at the descriptor afterwards: it is the child's.
        // SAFETY: passed on.
        let _ = unsafe { foreign_changes::opens(CWD, path, flags) };
        return None;
    };
    let saved = errno::errno();
    let target = if flags & libc::O_ACCMODE == libc::O_RDONLY && flags & (libc::O_CREAT | libc::O_TRUNC) == 0 {
        note_read(&ctx, actions, p);
        Target::AsNamed
    } else {
        written(&ctx, actions, p, flags)
    };
    errno::set_errno(saved);
    match target {
        Target::Pfs(p) => Some(p),
        Target::AsNamed | Target::Removed | Target::Gone => None,
    }
}

fn note_read(ctx: &Ctx, actions: usize, path: &[u8]) {
    let Ok(f) = crate::paths::find(ctx, CWD, path, true) else { return };
    if let Some(place) = READ.get(READS.fetch_add(1, Ordering::Relaxed) % MAX_REMEMBERED_READS) {
        place.actions.store(actions, Ordering::Relaxed);
        place.key.store(file_key(f.number, f.entry.id), Ordering::Relaxed);
    }
}

fn written(ctx: &Ctx, actions: usize, path: &[u8], flags: c_int) -> Target {
    if may_name_descriptor(path) {
        leave_no_copies(ctx, actions);
    }
    let target = change_behind_copy(ctx, CWD, path, true);
    // No hook looks at the descriptor afterwards: it is the child's.
    if matches!(target, Target::AsNamed) && !crate::changes::before_write_open(ctx, CWD, path, flags) {
        let target = file_changes(ctx, CWD, path, true);
        name_changes(ctx, CWD, path, false);
        return target;
    }
    target
}

/// Moves all copies that this process has open to the PFS, and takes their files, and those that
/// these actions open for reading, for changed.
#[cold]
#[inline(never)]
fn leave_no_copies(ctx: &Ctx, actions: usize) {
    crate::pfs_fd::move_all_for_writing(ctx);
    for place in READ.iter().filter(|place| place.actions.load(Ordering::Relaxed) == actions) {
        let key = place.key.load(Ordering::Relaxed);
        let Some(number) = usize::try_from(key >> 32).ok().and_then(|n| n.checked_sub(1)) else { continue };
        let Some(root) = ctx.map.segments().get(number).map(|s| s.root.load(Ordering::Relaxed) as usize) else {
            continue;
        };
        if let Some((live, segment)) = ctx.segment(root)
            && live == number
            && let Some(entry) = segment.by_id(key as u32)
        {
            bypass(ctx, &Found { root, number, segment, entry });
        }
    }
}

hook! { next;
    fn posix_spawn_file_actions_addopen(actions: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // Of other C libraries nothing is known when the child is made.
        if !is_glibc() && outputs::settle_for_child(path, flags).is_some() {
            return errno::errno();
        }
        let mut instead = opens(actions as usize, path, flags);
        let path = instead.as_mut().and_then(|p| p.c_str()).map_or(path, CStr::as_ptr);
        next(actions, fd, path, flags, mode)
    }
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
        // A copy is not executable, and a script is opened again by its interpreter.
        match pfs_path_of(fd).as_mut().and_then(|p| p.c_str()) {
            Some(p) => libc::execve(p.as_ptr(), argv.cast(), envp.cast()),
            None => next(fd, argv, envp),
        }
    }
}
