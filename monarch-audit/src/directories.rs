//! What the loader remembers about the directories of a search path: whether they are there.
//!
//! Where a candidate cannot be opened, the loader asks the kernel once whether its directory exists,
//! and those of variants (`glibc-hwcaps`, `tls`, ...) mostly do not: 132 questions to the PFS in an
//! import of PyTorch. The index knows the answers. They are put where the loader would put them,
//! into `struct r_search_path_elem`, which no header describes but which has been the same since
//! glibc 2.1. It is found by what it says: in a list that a library's `struct link_map` points to,
//! an element whose kind and whose directory, text and length, are those of the candidate.

use crate::link_map::{LinkMap, SearchPath};
use crate::search::{VARIANTS, expanded};
use monarch_abi::PATH_MAX;
use monarch_guest::absolute::Absolute;
use monarch_guest::user::is_readable;

/// Words of a library's structure that are looked at, behind its public part.
const FIRST_WORD: usize = size_of::<LinkMap>() / size_of::<usize>();
const LAST_WORD: usize = 192;
const WORD: usize = size_of::<usize>();
const PAGE: usize = 4096;
/// Directories of a search path that are looked at.
const MOST_DIRECTORIES: usize = 64;
/// Variants of a directory that the loader can know of.
const MOST_VARIANTS: usize = 48;
/// In how many structures the places are looked for.
const TRIES: u8 = 24;

/// What is known about a directory: values of the loader's `enum r_dir_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Known {
    /// It is not there.
    NonExisting = 1,
    /// It is there.
    Existing = 2,
}

/// The loader's `unknown`.
const UNKNOWN: u32 = 0;

/// `struct r_search_path_elem`; words for the variants follow.
#[repr(C)]
struct Element {
    next: usize,
    what: *const u8,
    location: *const u8,
    directory: *const u8,
    len: usize,
    status: [u32; 0],
}

/// Where libraries keep their search paths.
pub struct Directories {
    /// Words of the structure for `DT_RUNPATH` and `DT_RPATH`; 0 while one is not known.
    words: [usize; 2],
    tries: u8,
}

/// What an element says of where its directory was named.
const KINDS: [&[u8]; 2] = [b"RUNPATH\0", b"RPATH\0"];
/// Bytes that are read of it: the loader's strings lie in its own pages, and the longest of all is
/// longer.
const KIND_BYTES: usize = 8;

impl Directories {
    /// Not known.
    #[must_use]
    pub const fn empty() -> Self {
        Self { words: [0; 2], tries: 0 }
    }

    /// Notes what is known about the directory of a candidate from a search path that the loader is
    /// about to try. `library`: any of the namespace in which it is looked for.
    ///
    /// # Safety
    /// `library` is the loader's, and its lock is held.
    pub unsafe fn note(&mut self, library: *const LinkMap, candidate: &[u8], known: Known) {
        let mut found = None;
        // SAFETY: by contract.
        for map in unsafe { LinkMap::all(library) } {
            // SAFETY: from the loader's list.
            let element = unsafe { self.element_of(map, candidate) };
            // Equal directories are one element. Of `lib/` and `lib/tls/`, nothing says which one
            // is being tried.
            if found.is_some() && element.is_some() && found != element {
                return;
            }
            found = found.or(element);
        }
        if let Some(element) = found {
            // SAFETY: an element of the loader.
            unsafe { settle(element, known) };
        }
    }

    /// The element of a library that a candidate belongs to.
    ///
    /// # Safety
    /// `map` is the loader's, and its lock is held.
    unsafe fn element_of(&mut self, map: *const LinkMap, candidate: &[u8]) -> Option<*mut Element> {
        // SAFETY: by contract.
        let (kind, path) = match unsafe { (*map).search_path()? } {
            SearchPath::Runpath(path) => (0, path),
            SearchPath::Rpath(path) => (1, path),
        };
        match self.words.get(kind).copied().unwrap_or(0) {
            // SAFETY: by contract.
            0 if self.tries < TRIES && leads_to(path, unsafe { (*map).name() }, candidate) => {
                self.tries += 1;
                // SAFETY: by contract.
                unsafe { self.learn(map, candidate, kind) }
            }
            0 => None,
            word => {
                // SAFETY: a word of the structure that was a list in another one.
                let list = unsafe { map.cast::<usize>().add(word).read() };
                // SAFETY: the loader's lists are whole while its lock is held.
                unsafe { element(list, candidate, kind, false) }
            }
        }
    }

    /// Looks for the place of a kind in a structure, by a candidate of its search path.
    ///
    /// # Safety
    /// `map` is the loader's, and its lock is held.
    unsafe fn learn(&mut self, map: *const LinkMap, candidate: &[u8], kind: usize) -> Option<*mut Element> {
        for word in FIRST_WORD..LAST_WORD {
            let at = map.cast::<usize>().wrapping_add(word);
            if (word == FIRST_WORD || at.addr().is_multiple_of(PAGE)) && !is_readable(at.addr()) {
                return None;
            }
            // SAFETY: its page was just tested.
            let list = unsafe { at.read() };
            // SAFETY: all that it points to is tested before it is read.
            let Some(found) = (unsafe { element(list, candidate, kind, true) }) else { continue };
            if let Some(to) = self.words.get_mut(kind) {
                *to = word;
            }
            return Some(found);
        }
        None
    }
}

/// Whether the rest of a candidate is the library, or a variant of it in a directory of the loader's.
fn is_variant(rest: &[u8]) -> bool {
    let first = rest.iter().position(|&c| c == b'/').and_then(|slash| rest.get(..slash));
    first.is_none_or(|name| VARIANTS.contains(&name))
}

/// Whether a search path of the library of this name has a directory that a candidate lies below.
fn leads_to(path: &[u8], library: &[u8], candidate: &[u8]) -> bool {
    let begins = |dir: &mut Absolute| candidate.strip_prefix(dir.get()).is_some_and(|rest| rest.first() == Some(&b'/'));
    path.split(|&c| c == b':').any(|place| expanded(place, library).as_mut().is_some_and(begins))
}

/// Whether `bytes` from an address, which is that of a word, can be read.
fn can_read(address: usize, bytes: usize) -> bool {
    address >= PAGE
        && address.is_multiple_of(WORD)
        && address >> 56 == 0
        && is_readable(address)
        && (address % PAGE + bytes <= PAGE || is_readable(address + bytes))
}

/// The one element of a list of directories of this kind that a candidate belongs to. `tested`:
/// whether it is only supposed that this is a list.
///
/// # Safety
/// Without `tested`, a list of the loader, whose lock is held.
unsafe fn element(list: usize, candidate: &[u8], kind: usize, tested: bool) -> Option<*mut Element> {
    let kind = KINDS.get(kind)?;
    // (-1: a library without such a path.)
    if list == 0 || list == usize::MAX {
        return None;
    }
    let mut found = None;
    for position in 0..MOST_DIRECTORIES {
        let at = list.wrapping_add(position * WORD);
        if tested && !can_read(at, WORD) {
            return None;
        }
        // SAFETY: tested, or the loader's list, which ends with null.
        let address = unsafe { core::ptr::with_exposed_provenance::<usize>(at).read() };
        if address == 0 {
            return found;
        }
        if tested && !can_read(address, size_of::<Element>() + WORD) {
            return None;
        }
        let at = core::ptr::with_exposed_provenance_mut::<Element>(address);
        // SAFETY: tested, or the loader's.
        let of = unsafe { &*at };
        let is_one = of.len >= 2 && of.len < PATH_MAX;
        if !is_one || (tested && !(is_readable_text(of.what, KIND_BYTES) && is_readable_text(of.directory, of.len))) {
            return None;
        }
        // SAFETY: a string of the loader; its pages were tested where it is only supposed.
        let (what, directory) =
            unsafe { (of.what.cast::<[u8; KIND_BYTES]>().read(), core::slice::from_raw_parts(of.directory, of.len)) };
        if tested && !KINDS.iter().any(|kind| what.starts_with(kind)) {
            return None;
        }
        // (An element of equal directories says where it was named first.)
        if candidate.strip_prefix(directory).is_some_and(is_variant) {
            if found.is_some_and(|other| other != at) || (tested && !what.starts_with(kind)) {
                return None;
            }
            found = Some(at);
        }
    }
    None
}

/// Whether a string of so many bytes, no more than a page, can be read.
fn is_readable_text(text: *const u8, bytes: usize) -> bool {
    let address = text.addr();
    address >= PAGE && address >> 56 == 0 && is_readable(address) && is_readable(address + bytes - 1)
}

/// Puts down what is known about the variant that is being tried: the loader tries them in order,
/// and knows all in front of it.
unsafe fn settle(at: *mut Element, known: Known) {
    // SAFETY: by contract, words follow the element, of which the one being tried is unknown.
    let status = unsafe { (&raw mut (*at).status).cast::<u32>() };
    for variant in 0..MOST_VARIANTS {
        // SAFETY: as above.
        let word = unsafe { status.add(variant) };
        // SAFETY: as above.
        match unsafe { word.read() } {
            // SAFETY: as above.
            UNKNOWN => return unsafe { word.write(known as u32) },
            1 | 2 => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element with words behind it, as the loader has it.
    #[repr(C)]
    struct Whole {
        element: Element,
        status: [u32; 4],
    }

    fn whole(what: &'static [u8], directory: &'static str, status: [u32; 4]) -> Box<Whole> {
        let (directory, len) = (directory.as_ptr(), directory.len());
        let element = Element { next: 0, what: what.as_ptr(), location: what.as_ptr(), directory, len, status: [] };
        Box::new(Whole { element, status })
    }

    /// A structure of the loader: its public part with a dynamic section, and a list as word 40.
    struct Structure {
        words: Vec<usize>,
        _list: Vec<usize>,
        _dynamic: Vec<usize>,
    }

    /// One whose search path is of this kind.
    fn structure(tag: usize, of: &mut [Box<Whole>]) -> Structure {
        let mut list: Vec<_> = of.iter_mut().map(|w| (&raw mut **w).expose_provenance()).collect();
        list.push(0);
        let text: &'static [u8] = b"path\0";
        let dynamic = vec![5, text.as_ptr().expose_provenance(), tag, 0, 0, 0];
        let mut words = vec![0usize; LAST_WORD + 512];
        words[2] = dynamic.as_ptr().expose_provenance();
        words[40] = list.as_ptr().expose_provenance();
        (words[30], words[31]) = (77, usize::MAX);
        Structure { words, _list: list, _dynamic: dynamic }
    }

    fn note(directories: &mut Directories, map: &Structure, candidate: &str, known: Known) {
        // SAFETY: a structure of this test.
        unsafe { directories.note(map.words.as_ptr().cast(), candidate.as_bytes(), known) };
    }

    const RPATH: usize = 15;
    const RUNPATH: usize = 29;

    #[test]
    fn what_is_known_stands_where_the_loader_would_put_it() {
        let mut of = [whole(b"RUNPATH\0", "/r/a/", [0, 0, 0, 7]), whole(b"RUNPATH\0", "/r/b/../c/", [2, 1, 0, 0])];
        let map = structure(RUNPATH, &mut of);
        let mut directories = Directories::empty();
        note(&mut directories, &map, "/r/a/tls/libx.so", Known::NonExisting);
        assert_eq!((directories.words, of[0].status), ([40, 0], [1, 0, 0, 7]));
        note(&mut directories, &map, "/r/a/libx.so", Known::Existing);
        note(&mut directories, &map, "/r/b/../c/libx.so", Known::Existing);
        assert_eq!((of[0].status, of[1].status), ([1, 2, 0, 7], [2, 1, 2, 0]));
        // No directory of the list, and none that is unknown.
        note(&mut directories, &map, "/r/other/libx.so", Known::Existing);
        of[1].status = [2, 1, 2, 9];
        note(&mut directories, &map, "/r/b/../c/libx.so", Known::NonExisting);
        assert_eq!((of[0].status, of[1].status), ([1, 2, 0, 7], [2, 1, 2, 9]));
    }

    #[test]
    fn a_path_of_another_library_is_found_in_the_list_of_all() {
        let mut of = [whole(b"RPATH\0\0\0", "/r/a/", [0; 4])];
        let mut map = structure(RPATH, &mut of);
        let mut asking = structure(RUNPATH, &mut []);
        asking.words[4] = map.words.as_ptr().expose_provenance();
        map.words[3] = asking.words.as_ptr().expose_provenance();
        let mut directories = Directories::empty();
        note(&mut directories, &asking, "/r/a/libx.so", Known::NonExisting);
        assert_eq!((directories.words, of[0].status), ([0, 40], [1, 0, 0, 0]));
    }

    #[test]
    fn nothing_is_written_where_it_is_not_certain() {
        // Of another kind; two directories that one candidate may belong to; no list at all.
        for (kind, second) in [(&b"LD_LIBRARY_PATH\0"[..], "/r/b/"), (b"RPATH\0\0\0", "/r/a/tls/")] {
            let mut of = [whole(kind, "/r/a/", [0; 4]), whole(kind, second, [0; 4])];
            let map = structure(RPATH, &mut of);
            let mut directories = Directories::empty();
            note(&mut directories, &map, "/r/a/tls/libx.so", Known::NonExisting);
            assert_eq!((directories.words, of[0].status, of[1].status), ([0; 2], [0; 4], [0; 4]));
        }
        let mut directories = Directories::empty();
        let mut map = structure(RUNPATH, &mut []);
        map.words[40..].fill(1 << 40);
        for _ in 0..2 * TRIES {
            note(&mut directories, &map, "/r/a/libx.so", Known::Existing);
        }
        assert_eq!((directories.words, directories.tries), ([0; 2], TRIES));
    }
}
