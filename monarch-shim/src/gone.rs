//! Files that the job removes: a process that has a copy of one open sees that it has no name any
//! more, as on the PFS.

use crate::identity::is_inode_of;
use crate::paths::find_parent;
use core::ffi::c_int;
use monarch_abi::resolve::Found;
use monarch_abi::word::State;
use monarch_guest::absolute::pfs_path;
use monarch_guest::ctx::Ctx;
use monarch_guest::sys;

/// The indexed file that has this name as its only one, before the name is removed or replaced.
#[must_use]
pub fn last_name(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Found<'static>> {
    let ctx = &ctx.for_changes();
    let f = find_parent(ctx, dirfd, path).ok()?.entry?;
    if !f.entry.record.is_file() || f.entry.record.nlink != 1 {
        return None;
    }
    // The job has changed something before: the name may be another file's by now, or the file may
    // have got another name.
    if f.entry.word().state() == State::Bypass && !is_only_name(ctx, &f) {
        return None;
    }
    Some(f)
}

/// Whether the file that was indexed is still there, and has no other name.
fn is_only_name(ctx: &Ctx, f: &Found<'static>) -> bool {
    let stat = || {
        let mut path = pfs_path(ctx, f)?;
        sys::stat_at(libc::AT_FDCWD, path.c_str()?, libc::AT_SYMLINK_NOFOLLOW)
    };
    stat().is_some_and(|st| is_inode_of(ctx, f, &st) && st.st_nlink == 1)
}

/// Notes that its name was removed or replaced.
pub fn removed(ctx: &Ctx, f: &Found<'static>) {
    monarch_abi::demand::gone(ctx.map, f);
}
