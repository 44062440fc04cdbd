//! Which libraries below roots are mapped, and from where.
//!
//! The loader tells files by device and inode. A library that is mapped from the PFS is not mapped
//! from its copy, too, when it is opened by another spelling, nor the reverse.

use monarch_abi::hash::CopyName;

/// Most libraries that are remembered. Beyond, no further library is mapped from its copy.
const MAX_MAPPED: usize = 1024;

/// A library.
#[derive(Clone, Copy)]
struct Library {
    /// The name of the copy of its version; 0 for none.
    version: u128,
    /// Address of its `struct link_map`.
    map: usize,
    is_copy: bool,
}

/// All of them.
pub struct Mapped {
    all: [Library; MAX_MAPPED],
    /// Places that were ever taken.
    used: usize,
    overflowed: bool,
}

impl Mapped {
    /// None.
    #[must_use]
    pub const fn empty() -> Self {
        Self { all: [Library { version: 0, map: 0, is_copy: false }; MAX_MAPPED], used: 0, overflowed: false }
    }

    /// Whether a version of a library is mapped from its copy (`true`) or from the PFS. `None`: it
    /// is not mapped.
    #[must_use]
    pub fn is_copy(&self, version: CopyName) -> Option<bool> {
        if let Some(library) = self.all.iter().take(self.used).find(|l| l.map != 0 && l.version == version.0) {
            return Some(library.is_copy);
        }
        self.overflowed.then_some(false)
    }

    /// A library was mapped.
    pub fn opened(&mut self, map: usize, version: CopyName, is_copy: bool) {
        if let Some(place) = self.all.iter().position(|l| l.map == 0) {
            self.used = self.used.max(place + 1);
            if let Some(library) = self.all.get_mut(place) {
                *library = Library { version: version.0, map, is_copy };
            }
        } else {
            self.overflowed = true;
        }
    }

    /// One more is mapped than is remembered.
    pub const fn overflow(&mut self) {
        self.overflowed = true;
    }

    /// A library is unmapped.
    pub fn closed(&mut self, map: usize) {
        for library in self.all.iter_mut().take(self.used).filter(|l| l.map == map) {
            library.map = 0;
        }
    }
}
