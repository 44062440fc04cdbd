//! Whether a copy can be loaded at all. What cannot is left to the PFS, so that the loader's error
//! names the file that the program named.

use core::ffi::c_int;
use monarch_guest::sys::{self, Fd};

/// Bytes of the header that are looked at.
const HEADER_BYTES: usize = 64;
/// Magic, 64 bits, little-endian, version 1.
const IDENT: [u8; 7] = [0x7f, b'E', b'L', b'F', 2, 1, 1];
const SHARED_OBJECT: u16 = 3;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
/// Bytes that are mapped to see whether they may be executed.
const TRIED_BYTES: usize = 4096;

/// Whether a file of `size` bytes begins like a shared object for this machine.
#[must_use]
pub fn is_shared_object(file: &Fd, size: u64) -> bool {
    let mut header = [0u8; HEADER_BYTES];
    // SAFETY: a buffer as long as said.
    let n = unsafe { sys::pread(file.0, header.as_mut_ptr(), HEADER_BYTES, 0) };
    let number = |at: usize| match (header.get(at), header.get(at + 1)) {
        (Some(&low), Some(&high)) => u16::from_le_bytes([low, high]),
        _ => 0,
    };
    let table = header.get(32..40).and_then(|b| b.first_chunk()).map_or(u64::MAX, |b| u64::from_le_bytes(*b));
    let end = table.saturating_add(u64::from(number(54)) * u64::from(number(56)));
    n == HEADER_BYTES as isize
        && header.starts_with(&IDENT)
        && number(16) == SHARED_OBJECT
        && number(18) == MACHINE
        && end <= size
}

/// Which tiers can be mapped for execution in this process: a bit for each.
pub struct Tiers {
    tried: u32,
    executable: u32,
}

impl Tiers {
    /// None was tried.
    #[must_use]
    pub const fn empty() -> Self {
        Self { tried: 0, executable: 0 }
    }

    /// Whether `file`, which lies in a tier, can be mapped for execution. Tried once for each tier.
    pub fn is_executable(&mut self, tier: usize, file: c_int) -> bool {
        let bit = 1 << (tier & 31);
        if self.tried & bit == 0 {
            self.tried |= bit;
            if let Some(p) = sys::map(TRIED_BYTES, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE, file) {
                sys::unmap(p, TRIED_BYTES);
                self.executable |= bit;
            }
        }
        self.executable & bit != 0
    }
}
