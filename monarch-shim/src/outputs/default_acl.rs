//! Directories with a default access list, which new files get: whether a directory has one is
//! asked once in a while, and all processes of the node know it then.

use super::kernel;
use super::place::Place;
use super::roots;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_abi::hash::path_hash;
use monarch_abi::scratch::Scratch;
use monarch_guest::ctx;
use monarch_guest::sys::coarse_ms;

/// The extended attribute that is the list.
const NAME: &CStr = c"system.posix_acl_default";
/// How long a directory is believed to have none, as a power of two of milliseconds: 16 s. Others
/// may have given it one.
const PERIOD_BITS: u32 = 14;

/// Whether a new file at a place may get an access list from its directory.
pub fn may_have(place: &Place) -> bool {
    let key = path_hash(coarse_ms() >> PERIOD_BITS, place.parent()).fp | 1;
    let slots = &place.root.state().without_default_acl;
    // (The lowest bit is the same in all.)
    let Some(slot) = slots.get((key >> 1) as usize % slots.len()) else { return true };
    if slot.load(Ordering::Relaxed) == key {
        return false;
    }
    let has = has_list(place);
    if !has {
        slot.store(key, Ordering::Relaxed);
    }
    has
}

#[cold]
#[inline(never)]
fn has_list(place: &Place) -> bool {
    let mut room = Scratch::take();
    let mut asked = || {
        let mut dir = place.parent_on_pfs().ok()?;
        let asked = kernel::extended(dir.c_str()?, NAME, room.bytes()?).map(drop);
        Some(!matches!(asked, Err(libc::ENODATA | libc::EOPNOTSUPP | libc::ENOSYS)))
    };
    asked().unwrap_or(true)
}

/// A call has set an extended attribute: if it is such a list, directories are asked again.
pub fn extended_set(name: &CStr) {
    if name == NAME
        && let Some(ctx) = ctx::for_outputs()
    {
        let forget = |slot: &AtomicU64| slot.store(0, Ordering::Relaxed);
        roots::all(&ctx).for_each(|root| root.state().without_default_acl.iter().for_each(forget));
    }
}
