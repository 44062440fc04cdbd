//! Processes of the job whose rights are not the agent's any more (`seteuid`, `setfsuid`,
//! `capset`, Landlock): what is pending is not theirs to read, and the kernel is to decide what
//! they may. What is pending is published before their calls, which are made plainly.

use super::answer::{GONE, Result};
use super::as_agent::as_agent;
use super::barrier;
use super::place::{Place, real_path};
use super::roots::{self, Root};
use core::ffi::{c_char, c_int};
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::{errno, user};

/// Before a call about a path in such a process. Says, with errno, that a call which changes
/// something fails, where the PFS refuses what is pending.
///
/// # Safety
/// As for [`user::path`].
#[cold]
#[inline(never)]
pub unsafe fn settle(dirfd: c_int, path: *const c_char, changes: bool) -> Option<()> {
    let ctx = ctx::for_outputs_of_others()?;
    // SAFETY: by contract.
    let path = unsafe { user::path(path)? };
    let saved = errno::errno();
    let settled = root_of(&ctx, dirfd, path).map_or(Ok(()), |root| wait(&root));
    errno::set_errno(saved);
    match settled {
        Err(e) if changes && e != GONE => {
            errno::set_errno(e);
            Some(())
        }
        _ => None,
    }
}

fn wait(root: &Root) -> Result<()> {
    if root.map.may_be_overtaken() { barrier::wait_for_all(root).map(drop) } else { Ok(()) }
}

/// The output root that a path leads to.
fn root_of(ctx: &Ctx, dirfd: c_int, path: &[u8]) -> Option<Root> {
    // (A state that was not looked at yet is mapped.)
    let any = as_agent(ctx, || roots::any_pending(ctx)).unwrap_or_else(|| roots::any_pending(ctx));
    if !any {
        return None;
    }
    if let Some(place) = Place::find(ctx, dirfd, path) {
        return Some(place.root);
    }
    let end = path.iter().rposition(|&c| c != b'/')? + 1;
    let slash = path.get(..end)?.iter().rposition(|&c| c == b'/')?;
    let real = real_path(path).or_else(|| real_path(path.get(..=slash)?))?;
    roots::at(ctx, real.get()).map(|(root, _)| root)
}
