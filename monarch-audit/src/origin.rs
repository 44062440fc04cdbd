//! The directory of a library as the loader remembers it.
//!
//! The loader takes `$ORIGIN` from the path that it opened, before any audit library hears of it,
//! and keeps it in a part of its `struct link_map` that no header describes. Where the answer was
//! the path of a copy, that directory is put right in place. Its place in the structure is learned
//! from libraries whose directory is known: it is where the address of such a string is found.
//! Until it is known, no answer is given that would change a directory.

use crate::link_map::LinkMap;
use monarch_guest::user::is_readable;

/// Words of a structure that are looked at, behind its public part.
const FIRST_WORD: usize = size_of::<LinkMap>() / size_of::<usize>();
const LAST_WORD: usize = 192;
/// What `malloc` aligns to.
const MALLOC_ALIGNMENT: usize = 16;
const PAGE: usize = 4096;

/// Where the directory is.
pub struct Origin {
    /// Word of the structure; 0 while it is not known.
    word: usize,
}

/// The part of a path in front of its last slash; `/` for what lies there.
#[must_use]
pub fn directory(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|&c| c == b'/') {
        Some(0) => path.get(..1).unwrap_or_default(),
        Some(slash) => path.get(..slash).unwrap_or_default(),
        None => &[],
    }
}

impl Origin {
    /// Not known.
    #[must_use]
    pub const fn empty() -> Self {
        Self { word: 0 }
    }

    /// Whether it is known.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.word != 0
    }

    /// Looks for it in a library of this absolute path.
    ///
    /// # Safety
    /// `map` is the loader's.
    pub unsafe fn learn(&mut self, map: *const LinkMap, path: &[u8]) {
        let directory = directory(path);
        if self.is_known() || directory.len() < 2 {
            return;
        }
        for word in FIRST_WORD..LAST_WORD {
            let at = map.cast::<usize>().wrapping_add(word);
            if (word == FIRST_WORD || at.addr().is_multiple_of(PAGE)) && !is_readable(at.addr()) {
                return;
            }
            // SAFETY: its page was just tested.
            let text = unsafe { at.read() };
            if is_text(text, directory) {
                self.word = word;
                return;
            }
        }
    }

    /// Puts a directory right that is `wrong`, if it is no longer than that.
    ///
    /// # Safety
    /// `map` is the loader's, and the loader's lock is held.
    pub unsafe fn put_right(&self, map: *mut LinkMap, wrong: &[u8], right: &[u8]) {
        if !self.is_known() || right.len() > wrong.len() {
            return;
        }
        // SAFETY: a word of the structure, as was found in another one.
        let text = unsafe { map.cast::<usize>().add(self.word).read() };
        if is_text(text, wrong) {
            // SAFETY: the loader has allocated it for the longer text.
            unsafe { put(core::ptr::with_exposed_provenance_mut(text), right) };
        }
    }
}

/// Whether there is a string of `malloc` at an address, and it is `text`.
fn is_text(address: usize, text: &[u8]) -> bool {
    if address < PAGE || !address.is_multiple_of(MALLOC_ALIGNMENT) || address >> 56 != 0 {
        return false;
    }
    let end = address + text.len();
    let mut page = address;
    while page <= end {
        if !is_readable(page) {
            return false;
        }
        page = (page / PAGE + 1) * PAGE;
    }
    let at = core::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the pages were just tested, and lie in the heap of a loader whose lock is held.
    unsafe { core::slice::from_raw_parts(at, text.len()) == text && at.add(text.len()).read() == 0 }
}

/// Writes a text and a NUL.
///
/// # Safety
/// There is room for them.
pub unsafe fn put(to: *mut u8, text: &[u8]) {
    // SAFETY: by contract.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
        to.add(text.len()).write(0);
    }
}
