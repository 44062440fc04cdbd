//! What survives `run`: a file in memory, which the helper has open, too.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::MemfdFlags;

/// Offsets in the file.
const LAST: u64 = 0;
const IS_RESTRICTED: u64 = 8;

/// The file.
#[derive(Debug)]
pub(crate) struct Shared(OwnedFd);

impl Shared {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        rustix::fs::memfd_create(c"monarch-raw-calls", MemfdFlags::CLOEXEC).map(Self)
    }

    pub(crate) const fn of(file: OwnedFd) -> Self {
        Self(file)
    }

    /// A notification was received: numbers go up by one.
    pub(crate) fn received(&self, id: u64) {
        let _ = rustix::io::pwrite(&self.0, &id.to_ne_bytes(), LAST);
    }

    /// The last notification that was received.
    pub(crate) fn last(&self) -> Option<u64> {
        self.word(LAST)
    }

    /// Some process of the job has given up rights that no other process can see.
    pub(crate) fn restrict(&self) {
        let _ = rustix::io::pwrite(&self.0, &1u64.to_ne_bytes(), IS_RESTRICTED);
    }

    /// Whether [`Shared::restrict`] was called.
    pub(crate) fn is_restricted(&self) -> bool {
        self.word(IS_RESTRICTED).is_some_and(|word| word != 0)
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (rustix::io::pread(&self.0, &mut bytes, at) == Ok(8)).then(|| u64::from_ne_bytes(bytes))
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
