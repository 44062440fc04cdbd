//! What a process that has become another user does as the agent's user.

use super::kernel::{Errno, SignalsBlocked};
use monarch_guest::ctx::{Ctx, ids};
use monarch_guest::sys;

/// Opens a file of the agent's user, in a thread that has become another one for a while.
#[cold]
#[inline(never)]
pub fn open_as_agent<T>(ctx: &Ctx, open: impl FnOnce() -> core::result::Result<T, Errno>) -> Option<T> {
    as_agent(ctx, open)?.ok()
}

/// Calls `work` as the agent's user, as far as files are concerned, if the kernel lets this thread
/// be that again. No signal handler runs meanwhile. A thread that has capabilities of its own would
/// lose them.
pub fn as_agent<T>(ctx: &Ctx, work: impl FnOnce() -> T) -> Option<T> {
    let (now, agent) = (sys::fsuid(), ids::agents_user(ctx.map.ctl));
    if now == agent || sys::capabilities() != 0 {
        return None;
    }
    let _signals = SignalsBlocked::begin();
    let become_user = |user: u32| {
        // SAFETY: takes no pointer.
        unsafe { sys::call(libc::SYS_setfsuid, [user as usize, 0, 0, 0, 0, 0]) };
    };
    become_user(agent);
    let done = (sys::fsuid() == agent).then(work);
    become_user(now);
    done
}
