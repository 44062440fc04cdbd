//! Waiting for what is pending where a symbolic link may have led from one output root into
//! another.

use super::barrier;
use super::kernel::Errno;
use super::place::Place;
use super::roots::{self, Root, is_same};

/// Waits for what is pending below the root of a place, and for a link of another root that may
/// have led there, before a plain call by the path of the application.
pub fn wait_for_all(place: &Place) -> Result<bool, Errno> {
    if place.by_other_root { wait_for_roots(&place.root) } else { barrier::wait_for_all(&place.root) }
}

#[cold]
#[inline(never)]
fn wait_for_roots(root: &Root) -> Result<bool, Errno> {
    for other in roots::all(&root.ctx).filter(|other| !is_same(root, other) && other.map.may_be_overtaken()) {
        barrier::wait_for_all(&other)?;
    }
    barrier::wait_for_all(root)
}
