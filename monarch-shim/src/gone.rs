//! Files that the job removes: who has a copy of one open sees that it has no name any more, as on the PFS.

use crate::changes::path_if_there;
use crate::ctx::Ctx;
use crate::paths::find_parent;
use core::ffi::c_int;
use monarch_abi::resolve::Found;
use monarch_abi::word::State;

/// The indexed file that has this name as its only one, before the name is removed or replaced.
#[must_use]
pub fn last_name(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Found<'static>> {
    let ctx = &ctx.for_changes();
    let f = find_parent(ctx, dirfd, path).ok()?.entry?;
    if !f.entry.record.is_file() || f.entry.record.nlink != 1 {
        return None;
    }
    // The job has changed something before: the name may be another file's by now.
    if f.entry.word().state() == State::Bypass {
        let _ = path_if_there(ctx, &f)?;
    }
    Some(f)
}

/// Its name was removed or replaced.
pub fn removed(ctx: &Ctx, f: &Found<'static>) {
    monarch_abi::demand::gone(ctx.map, f);
}
