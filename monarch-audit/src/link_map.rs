//! Structures of the loader: the public part of its list of libraries, and the dynamic section.

use core::ffi::{CStr, c_char};

/// `struct link_map` of link.h.
#[repr(C)]
pub struct LinkMap {
    /// What is added to the addresses of its file.
    pub base: usize,
    /// Its name; memory of `malloc`.
    pub name: *mut c_char,
    dynamic: *const Entry,
    next: *mut LinkMap,
    previous: *mut LinkMap,
}

/// An entry of the dynamic section.
#[repr(C)]
struct Entry {
    tag: i64,
    value: usize,
}

const DT_NULL: i64 = 0;
const DT_STRTAB: i64 = 5;
const DT_RPATH: i64 = 15;
const DT_RUNPATH: i64 = 29;

/// Where a library says that its needs lie.
pub enum SearchPath<'a> {
    /// `DT_RUNPATH`: behind `LD_LIBRARY_PATH`.
    Runpath(&'a [u8]),
    /// `DT_RPATH` without `DT_RUNPATH`: in front of it.
    Rpath(&'a [u8]),
}

impl LinkMap {
    /// The library that a cookie stands for: its address is what the loader puts there at first.
    ///
    /// # Safety
    /// `cookie` is null or one of the loader's.
    #[must_use]
    pub unsafe fn of_cookie(cookie: *const usize) -> *mut Self {
        if cookie.is_null() {
            return core::ptr::null_mut();
        }
        // SAFETY: by contract.
        core::ptr::with_exposed_provenance_mut(unsafe { *cookie })
    }

    /// All libraries of the namespace that one is of.
    ///
    /// # Safety
    /// `library` is null or the loader's, whose lock is held as long as the result is used.
    pub unsafe fn all(library: *const Self) -> impl Iterator<Item = *const Self> {
        // SAFETY: the loader's list, by contract; it ends with null on both sides.
        let before = |map: &*const Self| Some(unsafe { (**map).previous }.cast_const()).filter(|map| !map.is_null());
        // SAFETY: as above.
        let after = |map: &*const Self| Some(unsafe { (**map).next }.cast_const()).filter(|map| !map.is_null());
        let this = Some(library).filter(|map| !map.is_null());
        core::iter::successors(core::iter::successors(this, before).last(), after)
    }

    /// Its name; empty for the program.
    ///
    /// # Safety
    /// The loader's, for as long as the loader's lock is held.
    #[must_use]
    pub unsafe fn name(&self) -> &[u8] {
        if self.name.is_null() {
            return &[];
        }
        // SAFETY: by contract.
        unsafe { CStr::from_ptr(self.name) }.to_bytes()
    }

    /// Where it says that its needs lie.
    ///
    /// # Safety
    /// As for [`LinkMap::name`].
    #[must_use]
    pub unsafe fn search_path(&self) -> Option<SearchPath<'_>> {
        let (mut strings, mut runpath, mut rpath) = (None, None, None);
        let mut at = self.dynamic;
        if at.is_null() {
            return None;
        }
        loop {
            // SAFETY: by contract; the section ends with `DT_NULL`.
            let entry = unsafe { &*at };
            match entry.tag {
                DT_NULL => break,
                DT_STRTAB => strings = Some(entry.value),
                DT_RPATH => rpath = Some(entry.value),
                DT_RUNPATH => runpath = Some(entry.value),
                _ => {}
            }
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        // The loader has added the base unless the section cannot be written.
        let strings = strings?;
        let strings = if strings < self.base { strings.wrapping_add(self.base) } else { strings };
        // SAFETY: an offset into the table of strings of a library that the loader has accepted.
        let text = |offset: usize| unsafe {
            let from = core::ptr::with_exposed_provenance::<c_char>(strings.wrapping_add(offset));
            CStr::from_ptr(from).to_bytes()
        };
        match (runpath, rpath) {
            (Some(path), _) => Some(SearchPath::Runpath(text(path))),
            (None, Some(path)) => Some(SearchPath::Rpath(text(path))),
            (None, None) => None,
        }
    }
}
