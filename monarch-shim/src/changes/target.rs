//! What a call that changes a file is to be made on.

use crate::identity::path_if_there;
use monarch_abi::resolve::Found;
use monarch_guest::ctx::Ctx;

/// What a call that changes a file is to be made on.
pub enum Target {
    /// On what the application named.
    AsNamed,
    /// On the PFS file at this path: what was named is a copy of it.
    Pfs(monarch_guest::absolute::Absolute),
    /// On nothing: what was named is a copy of a file that a job has removed, and that has no other
    /// name.
    Removed,
    /// On nothing: what was named is a copy of a file that is no longer where it was, but may be
    /// elsewhere.
    Gone,
}

impl Target {
    /// What a copy of this file stands for.
    pub(crate) fn of(ctx: &Ctx, f: &Found<'static>) -> Self {
        match path_if_there(ctx, f) {
            Some(path) => Self::Pfs(path),
            None if f.entry.word().is_gone() => Self::Removed,
            None => Self::Gone,
        }
    }
}
