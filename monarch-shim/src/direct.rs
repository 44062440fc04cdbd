//! Reads past the page cache (`O_DIRECT`): a complete copy is opened with the flag where its tier
//! takes it (tmpfs does from Linux 6.6), otherwise the file is the PFS's.
//!
//! The file system of the tier may ask for more than that of the PFS: a copy that has to be read in
//! larger blocks than 4 KiB is not used, and a read that the tier refuses (`EINVAL`) is repeated on
//! the PFS ([`crate::hooks`], `read.rs`).

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_guest::sys::{self, Fd};

/// The largest block that programs are expected to read in, in bytes.
const MAX_BLOCK_BYTES: u32 = 4096;
/// One bit for each tier that refused the flag, or asks for larger blocks.
static REFUSING: AtomicU32 = AtomicU32::new(0);

/// Whether copies of a tier may be read past the page cache, as far as this process knows.
#[must_use]
pub fn may_be_taken(tier: usize) -> bool {
    u32::try_from(tier)
        .ok()
        .and_then(|tier| 1u32.checked_shl(tier))
        .is_some_and(|bit| REFUSING.load(Ordering::Relaxed) & bit == 0)
}

/// Opens a copy of a tier with `flags`, `O_DIRECT` among them.
#[must_use]
pub fn open(copy: &CStr, flags: c_int, tier: usize) -> Option<c_int> {
    if !may_be_taken(tier) {
        return None;
    }
    let opened = sys::open(copy, flags).map(Fd);
    if let Some(fd) = opened.as_ref().filter(|fd| has_small_blocks(fd.0)) {
        let number = fd.0;
        core::mem::forget(opened);
        return Some(number);
    }
    // A copy that has gone says nothing about the tier.
    if opened.is_some() || sys::open(copy, flags & !libc::O_DIRECT).map(Fd).is_some() {
        REFUSING
            .fetch_or(u32::try_from(tier).ok().and_then(|tier| 1u32.checked_shl(tier)).unwrap_or(0), Ordering::Relaxed);
    }
    None
}

/// Sets the status flags of a copy's descriptor, `O_DIRECT` among them. `false` where its file
/// system does not take it.
#[must_use]
pub fn set(fd: c_int, flags: usize) -> bool {
    has_small_blocks(fd) && sys::fcntl(fd, libc::F_SETFL, flags as c_int).is_some()
}

/// Whether a descriptor reads past the page cache.
#[must_use]
pub fn is_direct(fd: c_int) -> bool {
    sys::fcntl(fd, libc::F_GETFL, 0).is_some_and(|flags| flags & libc::O_DIRECT != 0)
}

/// Whether a file can be read past the page cache in blocks that programs use; what the kernel does
/// not say (before Linux 6.1, tmpfs), its `O_DIRECT` says.
fn has_small_blocks(fd: c_int) -> bool {
    let mut st = MaybeUninit::<libc::statx>::zeroed();
    let flags = (libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC) as usize;
    let mask = libc::STATX_DIOALIGN as usize;
    let args = [fd as isize as usize, c"".as_ptr() as usize, flags, mask, st.as_mut_ptr() as usize, 0];
    // SAFETY: a C string and a buffer of the right type, of which zero is a valid value.
    let st = unsafe {
        if sys::call(libc::SYS_statx, args) != 0 {
            return true;
        }
        st.assume_init_ref()
    };
    let fits = |block: u32| (1..=MAX_BLOCK_BYTES).contains(&block);
    st.stx_mask & libc::STATX_DIOALIGN == 0 || (fits(st.stx_dio_mem_align) && fits(st.stx_dio_offset_align))
}
