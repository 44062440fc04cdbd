//! Output roots at, below or above data roots: what changes in the one changes in the other.

use super::place::Place;
use super::tree::Entry;

/// A call that is not the kernel's has made, replaced or removed a name; with `moves` what it was
/// has another one now. The directory of the place has no links in its path. `entry`: what the
/// overlay has, or had, under the name: of a file it says on which device that lies.
pub fn changed(place: &Place, entry: &Entry, moves: bool) {
    let ctx = &place.root.ctx;
    if ctx.map.roots().is_empty() {
        return;
    }
    let dev = match entry {
        Entry::File(file) => Some(file.dev),
        Entry::Clean(clean) => Some(clean.file.dev),
        _ => None,
    };
    if let Ok(path) = place.on_pfs() {
        crate::changes::real_name_changes(ctx, dev, path.get(), moves);
    }
}
