//! Where the path of a root leads: mounts over it, and names above the root that go or change.

use super::bypass::{bypass, bypass_subtree};
use super::names::name_changes;
use super::real_path::real_path_in_root;
use crate::paths::{absolute, find};
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::control::NO_ROOT;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::split_last;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::sys;

/// Another file system is about to appear at a path, or to go.
pub fn covered(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    let ctx = &ctx.for_changes();
    if ctx::in_own_namespace(ctx.map) {
        return;
    }
    match find(ctx, dirfd, path, true) {
        Ok(f) => {
            bypass(ctx, &f);
            bypass_subtree(ctx, &f);
        }
        Err(_) => name_changes(ctx, dirfd, path, true),
    }
}

/// Another file system has appeared at a path, or gone.
pub fn root_path_covered(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    if !ctx::in_own_namespace(ctx.map) {
        root_path_changed(ctx, dirfd, path);
    }
}

/// A name was removed, replaced or covered that may be a root or a link into one, or lie on the way
/// to it: no call below such a spelling is answered any more. Afterwards and not before, because it
/// costs all hits and many such calls fail (`rmdir -p` tries every parent).
pub fn root_path_changed(ctx: &Ctx, dirfd: c_int, path: &[u8]) {
    let Some(abs) = absolute(ctx, dirfd, path) else { return };
    leave_spellings(ctx, abs.get());
    if let Some(real) = real_name(ctx, abs.get()) {
        leave_spellings(ctx, real.get());
    }
}

fn leave_spellings(ctx: &Ctx, name: &[u8]) {
    let end = name.iter().rposition(|&c| c != b'/').map_or(0, |at| at + 1);
    let name = name.get(..end).unwrap_or(name);
    for s in ctx.map.spellings() {
        let text = ctx.map.str(&s.path);
        if name.is_empty() || !text.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")) {
            continue;
        }
        let root = s.root.load(Ordering::Relaxed) as usize;
        if ctx.map.roots().get(root).is_some_and(|r| ctx.map.str(&r.path) == text) {
            ctx::give_up(ctx.map, root);
        } else {
            s.root.store(NO_ROOT, Ordering::Release);
        }
    }
}

/// The real path of a name: through links and other mounts, if it lies on the device of a root. The
/// name need not exist.
fn real_name(ctx: &Ctx, abs: &[u8]) -> Option<PathBuffer> {
    let (parent, name) = split_last(abs)?;
    // Most names lie elsewhere: one call decides.
    sys::identity_of(parent).filter(|(dev, _)| ctx.is_root_device(*dev))?;
    let fd = sys::open_bytes(parent, libc::O_PATH | libc::O_CLOEXEC)?;
    let (dev, _) = sys::identity_at(fd.0, c".").filter(|(dev, _)| ctx.is_root_device(*dev))?;
    let mut real = real_path_in_root(ctx, fd.0, dev)?;
    if real.get() != b"/" {
        real.append(b"/")?;
    }
    real.append(name)?;
    Some(real)
}
