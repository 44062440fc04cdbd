//! A copy that was opened for the loader.

use core::ffi::CStr;
use core::mem::MaybeUninit;
use monarch_abi::COPY_PATH_MAX;
use monarch_abi::hash::CopyName;
use monarch_guest::sys::Fd;

/// A copy, open.
pub struct Opened {
    /// Its descriptor.
    pub file: Fd,
    /// Its name.
    pub version: CopyName,
    /// Whether the process has mapped it already.
    pub is_mapped: bool,
    /// Where it lies, as `copy_path` has written it.
    pub(crate) path: MaybeUninit<[u8; COPY_PATH_MAX]>,
}

impl Opened {
    /// Where it lies.
    #[must_use]
    pub const fn path(&self) -> &CStr {
        // SAFETY: written by `copy_path`, before the value was made.
        unsafe { CStr::from_ptr(self.path.as_ptr().cast()) }
    }
}
