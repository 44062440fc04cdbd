//! From an open file to its path below a root, and from such a path to the entry of the index.
//!
//! While a root has no index yet, the path is left for the agent, which enters the change before
//! the index is used.

use crate::descriptor_path::real_path;
use core::ffi::c_int;
use core::sync::atomic::Ordering;
use monarch_abi::control::Start;
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Found, Miss, Parent, resolve, resolve_parent};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::mounts::{Opened, Seen, seen_from};
use monarch_guest::sys;

/// The path of an open file on the device of a root, if it lies below one, even where another mount
/// leads there.
#[inline(never)]
pub(super) fn path_in_root(ctx: &Ctx, fd: c_int, dev: u64) -> Option<PathBuffer> {
    let real = real_path_in_root(ctx, fd, dev)?;
    matches!(ctx.map.match_root(real.get()), Start::Root(_)).then_some(real)
}

/// The path of an open file on the device of a root: below that root even where another mount leads
/// there, or else as it is.
pub(super) fn real_path_in_root(ctx: &Ctx, fd: c_int, dev: u64) -> Option<PathBuffer> {
    let real = real_path(fd).or_else(|| crate::noproc::path(ctx, fd))?;
    if matches!(ctx.map.match_root(real.get()), Start::Root(_)) {
        return Some(real);
    }
    let roots = ctx.map.roots().iter().filter(|r| r.dev.load(Ordering::Relaxed) == dev);
    let through = roots.map(|r| ctx.map.str(&r.path)).find_map(|root| {
        let rest = monarch_guest::mounts::through_another(real.get(), root, dev, |d| ctx.is_root_device(d))?;
        let mut out = PathBuffer::front();
        out.append(root)?;
        out.append(rest.get())?;
        Some(out)
    });
    through.or(Some(real))
}

/// Gives `note` the paths below roots on a device to which the real path of something there leads,
/// whichever mounts lie over it. `mount`: the one that holds it. Whether the table of mounts tells
/// for all roots; that of a process with other mounts than the agent's does not.
pub(super) fn each_below_roots(
    ctx: &Ctx,
    (path, mount): (&[u8], Option<u64>),
    dev: u64,
    mut note: impl FnMut(&[u8]),
) -> bool {
    let Some(mount) = mount.filter(|_| !ctx::may_have_other_mounts(ctx.map)) else { return false };
    let mut roots = ctx.map.roots().iter().filter(|r| r.dev.load(Ordering::Relaxed) == dev);
    roots.all(|r| {
        let root = ctx.map.str(&r.path);
        let Some(top) = mount_of_root(root, [dev, r.ino.load(Ordering::Relaxed)]) else { return false };
        match seen_from(Opened { path: root, mount: top }, Opened { path, mount }, dev) {
            Seen::Elsewhere => true,
            Seen::Unknown => false,
            Seen::Below(rest) => {
                let mut path = PathBuffer::front();
                let is_whole = path.append(root).and_then(|()| path.append(rest.get())).is_some();
                if is_whole {
                    note(path.get());
                }
                is_whole
            }
        }
    })
}

/// The mount that holds a root, if the root lies at its path.
fn mount_of_root(path: &[u8], id: [u64; 2]) -> Option<u64> {
    let fd = sys::open_bytes(path, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC)?;
    sys::fstat(fd.0).filter(|st| [st.st_dev, st.st_ino] == id)?;
    sys::mount_of(fd.0)
}

/// The entry at a real path; while there is no index, the path is left for the agent.
pub(super) fn file_at(ctx: &Ctx, real: &[u8]) -> Option<Found<'static>> {
    match resolve(ctx.map, ctx, real, false) {
        Ok(f) => Some(f),
        Err(Miss::NoSegment(_)) if leave_early(ctx, real, false) => resolve(ctx.map, ctx, real, false).ok(),
        Err(_) => None,
    }
}

/// The parent of a real path; while there is no index, the path is left for the agent.
pub(super) fn parent_at(ctx: &Ctx, real: &[u8]) -> Option<Parent<'static>> {
    match resolve_parent(ctx.map, ctx, real) {
        Ok(p) => Some(p),
        Err(Miss::NoSegment(_)) if leave_early(ctx, real, true) => resolve_parent(ctx.map, ctx, real).ok(),
        Err(_) => None,
    }
}

/// Leaves a real path for the agent if its root has no index yet (see [`monarch_abi::early`]). If
/// `true`, it has to be looked up again.
fn leave_early(ctx: &Ctx, real: &[u8], names: bool) -> bool {
    let Start::Root(m) = ctx.map.match_root(real) else { return false };
    if !ctx::awaits_index(ctx.map, m.root) {
        return false;
    }
    let mut rel = PathBuffer::front();
    let rest = m.rest.strip_prefix(b"/").unwrap_or(m.rest);
    let glue: &[u8] = if m.sub.is_empty() || rest.is_empty() { b"" } else { b"/" };
    let _ = rel.append(m.sub).and_then(|()| rel.append(glue)).and_then(|()| rel.append(rest));
    ctx.map.ctl.early.leave(m.root, rel.get(), names);
    true
}
