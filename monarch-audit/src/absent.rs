//! Which names are known not to exist.

use core::ffi::CStr;
use monarch_abi::resolve::Miss;
use monarch_guest::ctx::Ctx;

/// Whether nothing exists at `path`, for which the index gives `miss`. The kernel decides about
/// every name that is not in the index.
#[must_use]
pub const fn is_absent(_ctx: &Ctx, _path: &CStr, miss: &Miss) -> bool {
    match miss {
        Miss::Outside | Miss::NoSegment(_) | Miss::Unknown(_) | Miss::Changed(_) => false,
    }
}
