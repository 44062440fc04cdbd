//! What the loader remembers about the directories of a search path: whether they are there.
//!
//! Where a candidate cannot be opened, the loader asks the kernel once whether its directory
//! exists, and those of variants (`glibc-hwcaps`, `tls`, ...) mostly do not: 132 questions to the
//! PFS in an import of PyTorch. The index knows the answers. They are put where the loader would
//! put them, into `struct r_search_path_elem`, which no header describes but which has been the
//! same since glibc 2.1 (elf/dl-load.c, `fillin_rpath`). It is found by what it says: in a list
//! that a library's `struct link_map` points to, an element whose kind and whose directory, text
//! and length, are those of the candidate, and whose directory stands behind its words.

use crate::link_map::{LinkMap, SearchPath};
use crate::search_path::{is_variant, leads_to};
use monarch_abi::PATH_MAX;
use monarch_guest::user::is_readable;

/// Words of a library's structure that are looked at, behind its public part.
const FIRST_WORD: usize = size_of::<LinkMap>() / size_of::<usize>();
const LAST_WORD: usize = 192;
const WORD: usize = size_of::<usize>();
const PAGE: usize = 4096;
/// Directories of a search path that are looked at.
const MAX_DIRECTORIES: usize = 64;
/// Variants of a directory that a loader knows of.
const MAX_VARIANTS: usize = 48;
/// In how many structures the place of a kind is looked for.
const MAX_LEARN_TRIES: u8 = 16;
/// Directories that are remembered as noted.
const MAX_NOTED: usize = 64;

/// What is known about a directory: values of the loader's `enum r_dir_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Known {
    /// It is not there.
    NonExisting = 1,
    /// It is there.
    Existing = 2,
}

/// The loader's `unknown` and `nonexisting`.
const UNKNOWN: u32 = 0;
const NON_EXISTING: u32 = Known::NonExisting as u32;

/// `struct r_search_path_elem`; a word for each variant follows, and behind these the directory.
#[repr(C)]
struct Element {
    next: usize,
    what: *const u8,
    location: *const u8,
    directory: *const u8,
    len: usize,
    status: [u32; 0],
}

/// What an element says of where its directory was named.
const KINDS: [&[u8]; 2] = [b"RUNPATH\0", b"RPATH\0"];
/// Bytes that are read of it: the loader's strings lie in its own pages, and the longest of all is
/// longer.
const KIND_BYTES: usize = 8;

/// Where libraries keep their search paths.
pub struct Directories {
    /// Words of the structure for `DT_RUNPATH` and `DT_RPATH`; 0 while one is not known.
    words: [usize; 2],
    tries: [u8; 2],
    /// Hashes of directories that need no further note.
    noted: [u64; MAX_NOTED],
    next_noted: usize,
}

impl Directories {
    /// Not known.
    #[must_use]
    pub const fn empty() -> Self {
        Self { words: [0; 2], tries: [0; 2], noted: [0; MAX_NOTED], next_noted: 0 }
    }

    /// Whether a directory needs no further note: the loader asks about each once.
    #[must_use]
    pub fn is_noted(&self, directory: &[u8]) -> bool {
        self.noted.contains(&hash(directory))
    }

    /// Notes what is known about `directory`, that of a candidate from a search path, which the
    /// loader is about to try. `library`: any of the namespace in which it is looked for.
    ///
    /// # Safety
    /// `library` is the loader's, and its lock is held.
    pub unsafe fn note(&mut self, library: *const LinkMap, candidate: &[u8], directory: &[u8], known: Known) {
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
        // (Two variants may have one directory, and one that is not there is not asked about
        // again.)
        // SAFETY: an element of the loader.
        if found.is_some_and(|element| unsafe { put_down(element, known) })
            && known == Known::Existing
            && let Some(place) = self.noted.get_mut(self.next_noted)
        {
            *place = hash(directory);
            self.next_noted = (self.next_noted + 1) % MAX_NOTED;
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
        let word = *self.words.get(kind)?;
        if word != 0 {
            // SAFETY: a word of the structure that was a list in another one.
            let list = unsafe { map.cast::<usize>().add(word).read() };
            // SAFETY: the loader's lists are whole while its lock is held.
            return unsafe { element(list, candidate, false) };
        }
        let tries = self.tries.get_mut(kind)?;
        // SAFETY: by contract.
        if *tries >= MAX_LEARN_TRIES || !leads_to(path, unsafe { (*map).name() }, candidate) {
            return None;
        }
        *tries += 1;
        // SAFETY: by contract.
        unsafe { self.learn(map, candidate, kind) }
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
            let Some(found) = (unsafe { element(list, candidate, true) }) else { continue };
            // (An element of equal directories says where its directory was named first.)
            // SAFETY: an element, whose text was tested.
            if unsafe { (*found).kind() } != Some(kind) {
                return None;
            }
            *self.words.get_mut(kind)? = word;
            return Some(found);
        }
        None
    }
}

impl Element {
    /// Whether its texts can be read.
    fn is_readable(&self) -> bool {
        is_readable_text(self.what, KIND_BYTES) && is_readable_text(self.directory, self.len)
    }

    /// Whether it was made of a search path, by what it says, and by where its directory stands.
    fn is_of_search_path(&self) -> bool {
        self.kind().is_some() && self.variants().is_some()
    }

    fn kind(&self) -> Option<usize> {
        // SAFETY: a string of the loader; its pages were tested where it is only supposed.
        let what = unsafe { self.what.cast::<[u8; KIND_BYTES]>().read() };
        KINDS.iter().position(|kind| what.starts_with(kind))
    }

    /// Number of its words.
    fn variants(&self) -> Option<usize> {
        let bytes = self.directory.addr().checked_sub((&raw const self.status).addr())?;
        let is_whole = bytes.is_multiple_of(size_of::<u32>());
        Some(bytes / size_of::<u32>()).filter(|n| is_whole && (1..=MAX_VARIANTS).contains(n))
    }

    /// The directory, with a slash behind it.
    fn directory(&self) -> &[u8] {
        // SAFETY: a text of the loader; its pages were tested where it is only supposed.
        unsafe { core::slice::from_raw_parts(self.directory, self.len) }
    }
}

/// FNV-1a, 64 bits; never 0.
fn hash(text: &[u8]) -> u64 {
    text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)).max(1)
}

/// Whether `bytes` from an address, which is that of a word, can be read.
fn can_read(address: usize, bytes: usize) -> bool {
    address >= PAGE
        && address.is_multiple_of(WORD)
        && address >> 56 == 0
        && is_readable(address)
        && (address % PAGE + bytes <= PAGE || is_readable(address + bytes))
}

/// The one element of a list of directories that a candidate belongs to, if it was made of a search
/// path. `is_supposed`: whether this may be no list at all.
///
/// # Safety
/// A list of the loader, whose lock is held, unless it `is_supposed`.
unsafe fn element(list: usize, candidate: &[u8], is_supposed: bool) -> Option<*mut Element> {
    // (-1: a library without such a path.)
    if list == 0 || list == usize::MAX {
        return None;
    }
    let mut found = None;
    for position in 0..MAX_DIRECTORIES {
        let at = list.wrapping_add(position * WORD);
        if is_supposed && !can_read(at, WORD) {
            return None;
        }
        // SAFETY: tested, or the loader's list, which ends with null.
        let address = unsafe { core::ptr::with_exposed_provenance::<usize>(at).read() };
        if address == 0 {
            return found;
        }
        if is_supposed && !can_read(address, size_of::<Element>() + WORD) {
            return None;
        }
        let at = core::ptr::with_exposed_provenance_mut::<Element>(address);
        // SAFETY: tested, or the loader's.
        let of = unsafe { &*at };
        if !(2..PATH_MAX).contains(&of.len) || (is_supposed && !of.is_readable()) {
            return None;
        }
        if candidate.strip_prefix(of.directory()).is_some_and(is_variant) {
            if found.is_some_and(|other| other != at) || !of.is_of_search_path() {
                return None;
            }
            found = Some(at);
        } else if is_supposed && of.kind().is_none() {
            return None;
        }
    }
    None
}

/// Whether a string of so many bytes, no more than a page, can be read.
fn is_readable_text(text: *const u8, bytes: usize) -> bool {
    let address = text.addr();
    address >= PAGE && address >> 56 == 0 && is_readable(address) && is_readable(address + bytes - 1)
}

/// Puts down what is known about the variant that is being tried. Returns whether nothing is left
/// to put down for it.
///
/// The loader tries variants in order and passes over those that are not there, so that this one is
/// the first unknown one, unless a variant in front of it exists: then that one may be tried.
unsafe fn put_down(at: *mut Element, known: Known) -> bool {
    // SAFETY: by contract.
    let Some(variants) = (unsafe { (*at).variants() }) else { return false };
    // SAFETY: by contract, so many words follow the element.
    let status = unsafe { core::slice::from_raw_parts_mut((&raw mut (*at).status).cast::<u32>(), variants) };
    match status.iter_mut().find(|word| **word != NON_EXISTING) {
        Some(word) if *word == UNKNOWN => {
            *word = known as u32;
            true
        }
        Some(_) => true,
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element with words behind it, and the directory behind these, as the loader has it.
    #[repr(C)]
    struct Whole {
        element: Element,
        status: [u32; 4],
        directory: [u8; 32],
    }

    fn whole(what: &'static [u8], directory: &str, status: [u32; 4]) -> Box<Whole> {
        let null = core::ptr::null();
        let element =
            Element { next: 0, what: what.as_ptr(), location: null, directory: null, len: directory.len(), status: [] };
        let mut whole = Box::new(Whole { element, status, directory: [0; 32] });
        whole.directory[..directory.len()].copy_from_slice(directory.as_bytes());
        whole.element.directory = (&raw const whole.directory).cast();
        whole
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
        let text: &'static [u8] = b"/r/a:/r/b/../c\0";
        let dynamic = vec![5, text.as_ptr().expose_provenance(), tag, 0, 0, 0];
        let mut words = vec![0usize; LAST_WORD + 512];
        words[2] = dynamic.as_ptr().expose_provenance();
        words[40] = list.as_ptr().expose_provenance();
        (words[30], words[31]) = (77, usize::MAX);
        Structure { words, _list: list, _dynamic: dynamic }
    }

    fn note(directories: &mut Directories, map: &Structure, candidate: &str, known: Known) {
        // SAFETY: a structure of this test.
        unsafe { directories.note(map.words.as_ptr().cast(), candidate.as_bytes(), candidate.as_bytes(), known) };
    }

    const RPATH: usize = 15;
    const RUNPATH: usize = 29;

    #[test]
    fn what_is_known_stands_where_the_loader_would_put_it() {
        let mut of = [whole(b"RUNPATH\0", "/r/a/", [0; 4]), whole(b"RUNPATH\0", "/r/b/../c/", [1, 1, 0, 0])];
        let map = structure(RUNPATH, &mut of);
        let mut directories = Directories::empty();
        note(&mut directories, &map, "/r/a/tls/libx.so", Known::NonExisting);
        assert_eq!((directories.words, of[0].status), ([40, 0], [1, 0, 0, 0]));
        note(&mut directories, &map, "/r/a/libx.so", Known::Existing);
        note(&mut directories, &map, "/r/b/../c/libx.so", Known::Existing);
        assert_eq!((of[0].status, of[1].status), ([1, 2, 0, 0], [1, 1, 2, 0]));
        assert!(directories.is_noted(b"/r/a/libx.so") && !directories.is_noted(b"/r/other/libx.so"));
        // No directory of the list.
        note(&mut directories, &map, "/r/other/libx.so", Known::Existing);
        assert_eq!((of[0].status, of[1].status), ([1, 2, 0, 0], [1, 1, 2, 0]));
    }

    /// A search that ended in a directory of variants has left what is behind it unknown: found in
    /// review, where the directory itself was noted as one that is not there.
    #[test]
    fn behind_a_variant_that_exists_nothing_is_put_down() {
        let mut of = [whole(b"RUNPATH\0", "/r/a/", [2, 0, 0, 0])];
        let map = structure(RUNPATH, &mut of);
        let mut directories = Directories::empty();
        for (candidate, known) in [
            ("/r/a/glibc-hwcaps/x86-64-v3/libbar.so", Known::Existing),
            ("/r/a/glibc-hwcaps/x86-64-v2/libbar.so", Known::NonExisting),
            ("/r/a/libother.so", Known::Existing),
        ] {
            note(&mut directories, &map, candidate, known);
            assert_eq!(of[0].status, [2, 0, 0, 0], "{candidate}");
        }
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
        // Of another kind; two directories that one candidate may belong to.
        for (kind, second) in [(&b"LD_LIBRARY_PATH\0"[..], "/r/b/"), (b"RPATH\0\0\0", "/r/a/tls/")] {
            let mut of = [whole(kind, "/r/a/", [0; 4]), whole(kind, second, [0; 4])];
            let map = structure(RPATH, &mut of);
            let mut directories = Directories::empty();
            note(&mut directories, &map, "/r/a/tls/libx.so", Known::NonExisting);
            assert_eq!((directories.words, of[0].status, of[1].status), ([0; 2], [0; 4], [0; 4]));
        }
        // A directory of the system's: its text stands elsewhere, and how many words it has is not
        // known.
        let mut of = [whole(b"RPATH\0\0\0", "/r/a/", [0; 4])];
        of[0].element.directory = b"/r/a/".as_ptr();
        let map = structure(RPATH, &mut of);
        let mut directories = Directories { words: [0, 40], ..Directories::empty() };
        note(&mut directories, &map, "/r/a/libx.so", Known::NonExisting);
        assert_eq!(of[0].status, [0; 4]);
        // No list at all.
        let mut directories = Directories::empty();
        let mut map = structure(RUNPATH, &mut []);
        map.words[40..].fill(1 << 40);
        for _ in 0..2 * MAX_LEARN_TRIES {
            note(&mut directories, &map, "/r/a/libx.so", Known::Existing);
        }
        assert_eq!((directories.words, directories.tries), ([0; 2], [MAX_LEARN_TRIES, 0]));
    }
}
