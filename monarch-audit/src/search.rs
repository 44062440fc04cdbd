//! Names and candidates: what is answered.
//!
//! | question | answer |
//! |---|---|
//! | a name with a slash (extensions, ctypes) | the copy, whose path the loader takes for the library's; put right once it is mapped |
//! | a name without one (`DT_NEEDED`) | the same, if the search path of the library that needs it shows where it is |
//! | a candidate of such a search | the copy, or no file where it is known that there is none |

use crate::directories::Known;
use crate::library::{self, Library, find, version_of};
use crate::link_map::{LinkMap, SearchPath};
use crate::origin::directory;
use crate::search_path::{VARIANTS, expanded};
use crate::state::State;
use core::ffi::{CStr, c_char, c_uint};
use monarch_abi::control::{ControlMap, Start};
use monarch_abi::mem::PathBuffer;
use monarch_abi::resolve::{Miss, resolve};
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::{absent, cwd};

/// `LA_SER_ORIG`: the name as the program or the library has it.
const ORIG: c_uint = 1;
/// `LA_SER_RUNPATH`: a candidate from `DT_RUNPATH` or `DT_RPATH`.
const RUNPATH: c_uint = 4;

/// What is answered to a question of the loader; `None`: the name as it is.
///
/// # Safety
/// `name` and `loader` are the loader's, and its lock is held.
pub unsafe fn search(
    state: &mut State,
    name: *const c_char,
    loader: *const LinkMap,
    flag: c_uint,
) -> Option<*const c_char> {
    state.answer.settle();
    // SAFETY: by contract.
    let name = unsafe { CStr::from_ptr(name) };
    if flag != ORIG {
        // SAFETY: by contract.
        return unsafe { candidate(state, name, loader, flag) };
    }
    state.begin();
    // SAFETY: by contract.
    unsafe { note_early_libraries(state) };
    if name.to_bytes().contains(&b'/') {
        return named(state, name.to_bytes());
    }
    // SAFETY: by contract.
    unsafe { needed(state, name.to_bytes(), loader.as_ref()?) }
}

/// A library was mapped.
///
/// # Safety
/// `map` is the loader's, and its lock is held.
pub unsafe fn opened(state: &mut State, map: *mut LinkMap) {
    if map.is_null() {
        return;
    }
    // SAFETY: by contract.
    let copy = unsafe { state.answer.opened(map, &state.origin) };
    state.answer.settle();
    // SAFETY: by contract.
    let name = unsafe { (*map).name() };
    if name.first() != Some(&b'/') {
        return;
    }
    // SAFETY: by contract.
    unsafe { state.origin.learn(map, name) };
    let found = copy.map_or_else(|| near(state, name).map(|ctx| version_of(&ctx, name)), |version| Some(Ok(version)));
    match found {
        Some(Ok(version)) => state.mapped.opened(map.addr(), version, copy.is_some()),
        Some(Err(Miss::NoSegment(_))) => state.remember_early(map.expose_provenance()),
        Some(Err(_)) | None => {}
    }
}

/// Makes up for libraries that were mapped before their root had an index, if it has one by now.
///
/// # Safety
/// The loader's lock is held.
unsafe fn note_early_libraries(state: &mut State) {
    for address in state.early.take_all() {
        let map = core::ptr::with_exposed_provenance::<LinkMap>(address);
        // SAFETY: a library that was not unmapped since.
        let name = unsafe { (*map).name() };
        match near(state, name).map(|ctx| library::note_early(&ctx, name)) {
            Some(Ok(version)) => state.mapped.opened(address, version, false),
            Some(Err(Miss::NoSegment(_))) => state.remember_early(address),
            Some(Err(_)) | None => {}
        }
    }
}

/// The shared memory, if a path may lead below a root, and this process may be answered.
fn near(state: &mut State, path: &[u8]) -> Option<Ctx> {
    is_near(ctx::mapped()?.map, path).then_some(())?;
    state.ctx()
}

fn is_near(map: &ControlMap<'_>, path: &[u8]) -> bool {
    path.first() == Some(&b'/') && !matches!(map.match_root(path), Start::Outside)
}

/// The loader is about to open a candidate.
///
/// # Safety
/// `loader` is the loader's, and its lock is held.
unsafe fn candidate(state: &mut State, path: &CStr, loader: *const LinkMap, flag: c_uint) -> Option<*const c_char> {
    let ctx = near(state, path.to_bytes())?;
    match find(state, &ctx, path, true) {
        Library::Copy(copy) => state.answer.candidate(path.to_bytes(), copy),
        Library::Absent => {
            if flag == RUNPATH {
                // SAFETY: by contract.
                unsafe { spare_question(state, &ctx, path.to_bytes(), loader) };
            }
            Some(c"".as_ptr())
        }
        Library::Pfs => None,
    }
}

/// There is no such file: next the loader asks the kernel whether there is such a directory, unless
/// it is shown the answer.
///
/// # Safety
/// `loader` is the loader's, and its lock is held.
unsafe fn spare_question(state: &mut State, ctx: &Ctx, path: &[u8], loader: *const LinkMap) {
    let directory = directory(path);
    if state.directories.is_noted(directory) {
        return;
    }
    let known = match is_directory(ctx, directory) {
        Some(true) => Known::Existing,
        Some(false) => Known::NonExisting,
        None => return,
    };
    // SAFETY: by contract.
    unsafe { state.directories.note(loader, path, directory, known) };
}

/// Whether a directory is there, if the index knows.
fn is_directory(ctx: &Ctx, path: &[u8]) -> Option<bool> {
    match resolve(ctx.map, ctx, path, true) {
        Ok(f) => f.entry.record.is_dir().then_some(true),
        Err(miss) => {
            let mut dir = PathBuffer::front();
            dir.append(path)?;
            absent::is_known(ctx, libc::AT_FDCWD, dir.c_str()?.to_bytes(), &miss).then_some(false)
        }
    }
}

/// The loader is about to open a name as it is.
fn named(state: &mut State, name: &[u8]) -> Option<*const c_char> {
    if !state.origin.is_known() || name.contains(&b'$') {
        return None;
    }
    let mut path = whole(name)?;
    let path = path.c_str()?;
    let ctx = near(state, path.to_bytes())?;
    match find(state, &ctx, path, true) {
        Library::Copy(copy) => state.answer.named(name, path.to_bytes(), copy),
        Library::Pfs | Library::Absent => None,
    }
}

/// A name, made absolute.
fn whole(name: &[u8]) -> Option<Absolute> {
    let mut here = PathBuffer::front();
    if name.first() == Some(&b'/') {
        here.append(name)?;
        return Some(Absolute(here));
    }
    let map = ctx::mapped()?.map;
    // SAFETY: `get` writes as many bytes as it says.
    unsafe { here.fill(|out| cwd::get(map, out))? };
    Absolute::join(here.get(), name)
}

/// A library needs another one, or a program opens one by its name alone: it is looked for in the
/// search path of the library that asks, as long as all that comes before is known not to exist.
///
/// # Safety
/// `loader` is the loader's, and its lock is held.
unsafe fn needed(state: &mut State, name: &[u8], loader: &LinkMap) -> Option<*const c_char> {
    if !state.origin.is_known() || name.is_empty() {
        return None;
    }
    // SAFETY: by contract.
    let places = match unsafe { loader.search_path()? } {
        SearchPath::Runpath(_) if state.has_library_path => return None,
        SearchPath::Runpath(places) | SearchPath::Rpath(places) => places,
    };
    // SAFETY: by contract.
    let loader_name = unsafe { loader.name() };
    for place in places.split(|&c| c == b':') {
        let mut path = expanded(place, loader_name)?;
        let len = path.get().len();
        let ctx = near(state, path.get())?;
        for variant in VARIANTS {
            path.append(variant)?;
            if !matches!(find(state, &ctx, path.c_str()?, false), Library::Absent) {
                return None;
            }
            path.0.truncate(len);
        }
        path.append(name)?;
        let path = path.c_str()?;
        match find(state, &ctx, path, false) {
            Library::Absent => {}
            // The loader would not learn that the library has this name, too.
            Library::Copy(copy) if copy.is_mapped => return None,
            Library::Copy(copy) => return state.answer.named(path.to_bytes(), path.to_bytes(), copy),
            Library::Pfs => return None,
        }
    }
    None
}
