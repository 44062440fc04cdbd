//! Memory in whole pages, as reads past the page cache need it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Unit and alignment of the memory, in bytes.
pub(super) const PAGE: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Whole pages.
#[derive(Default)]
pub(super) struct Pages(Vec<Page>);

impl Pages {
    /// At least `len` bytes.
    pub(super) fn new(len: usize) -> Self {
        Self(vec![Page([0; PAGE]); len.div_ceil(PAGE)])
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len() * PAGE
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pages({})", self.0.len())
    }
}
