//! Symbolic links that lead from one output root into another.
//!
//! Each output root has an overlay, a journal and counters of its own. A name behind such a link is
//! one of the root where it lies: that is looked for before the call asks a root about the name.

use super::barrier;
use super::kernel::Errno;
use super::place::Place;
use super::roots::{self, Root};
use super::tree;
use super::walk::walk;

/// Whether two output roots are the same one. (Each spelling of a root has an entry of its own.)
pub fn is_same(a: &Root, b: &Root) -> bool {
    a.staging() == b.staging()
}

/// Whether a link below an output root may lead to something pending below another one.
#[inline]
pub fn may_cross(root: &Root) -> bool {
    root.ctx.map.outputs().len() > 1 && may_cross_now(root)
}

#[cold]
#[inline(never)]
fn may_cross_now(root: &Root) -> bool {
    roots::any_pending(&root.ctx) && roots::all(&root.ctx).any(|other| !is_same(root, &other))
}

/// The same name as one of the output root where its directory lies. Where links on the way there
/// lead into another root, the kernel, which follows those of the PFS only, is not enough.
#[inline]
pub fn crossed(place: Place) -> Place {
    if place.parent().is_empty() || !may_cross(&place.root) { place } else { follow(place) }
}

#[cold]
#[inline(never)]
fn follow(place: Place) -> Place {
    let root = place.root;
    if tree::has_dir(&root, place.parent()) || place.has_real_parent() {
        return place;
    }
    let Some(walked) = place.on_pfs().ok().and_then(|path| walk(&root.ctx, path.get(), false)) else { return place };
    let Some((now, rest)) = roots::at(&root.ctx, walked.path.get()) else { return place };
    // (Of links of its own the root knows.)
    if !walked.by_other_root {
        return place;
    }
    let Some(mut next) = Place::at(now, rest) else { return place };
    next.is_dir_path = place.is_dir_path;
    next.by_overlay = walked.by_overlay;
    next.by_other_root = walked.by_overlay;
    next
}

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
