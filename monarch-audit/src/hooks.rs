//! The exported functions: rtld-audit(7). None for bindings and calls of symbols, so that calls
//! cost what they cost without.

use crate::boot;
use crate::link_map::LinkMap;
use crate::search;
use crate::state;
use core::ffi::{c_char, c_long, c_uint};

/// The first call: which version of the interface the loader offers.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(offered: c_uint) -> c_uint {
    boot::version(offered)
}

/// The loader looks for a library. The answer is what it opens instead of `name`.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(name: *const c_char, cookie: *const usize, flag: c_uint) -> *const c_char {
    let Some(mut state) = state::enter() else { return name };
    // SAFETY: from the loader.
    unsafe { search::search(&mut state, name, LinkMap::of_cookie(cookie), flag) }.unwrap_or(name)
}

/// A library was mapped.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objopen(map: *mut LinkMap, _namespace: c_long, _cookie: *mut usize) -> c_uint {
    if let Some(mut state) = state::enter() {
        // SAFETY: from the loader.
        unsafe { search::opened(&mut state, map) };
    }
    0
}

/// A library is unmapped.
///
/// # Safety
/// Called by the loader.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objclose(cookie: *const usize) -> c_uint {
    if let Some(mut state) = state::enter() {
        state.answer.settle();
        // SAFETY: from the loader.
        let map = unsafe { LinkMap::of_cookie(cookie) }.addr();
        state.mapped.closed(map);
        state.early.closed(map);
    }
    0
}
