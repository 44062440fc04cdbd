//! [`MappedFile`]: a file in memory that the kernel reads bytes of the PFS straight into.
//!
//! It takes the place of a buffer and of a write, which cost as much as all else that an engine
//! does for a chunk. The engine never touches the mapping itself. So memory that is missing (a full
//! tmpfs) is an error of the kernel's call, where a load of the agent's would be a SIGBUS.

use memmap2::{MmapOptions, MmapRaw};
use rustix::fd::{AsFd, AsRawFd};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A file of slots of the same size, mapped.
#[derive(Debug)]
pub struct MappedFile {
    map: MmapRaw,
    slot_bytes: usize,
    /// For each slot, the parts of it that calls may write to.
    lent: Box<[AtomicU32]>,
}

impl MappedFile {
    /// Maps `slots` slots of `slot_bytes` bytes of a file that is open to read and to write.
    ///
    /// # Errors
    /// What the kernel said; `InvalidInput` if there are too many.
    pub fn of(file: &impl AsFd, slots: usize, slot_bytes: usize) -> io::Result<Self> {
        let len = slots.checked_mul(slot_bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let map = MmapOptions::new().len(len).map_raw(&file.as_fd())?;
        Ok(Self { map, slot_bytes, lent: (0..slots).map(|_| AtomicU32::new(0)).collect() })
    }

    /// Lends some bytes of a slot to a call; fewer if the slot ends before. `None` if there is no
    /// such slot.
    #[must_use]
    pub fn lend(self: &Arc<Self>, slot: usize, bytes: Range<usize>) -> Option<MappedBytes> {
        self.lent.get(slot)?.fetch_add(1, Ordering::AcqRel);
        let end = bytes.end.min(self.slot_bytes);
        Some(MappedBytes { file: self.clone(), slot, bytes: bytes.start.min(end)..end })
    }

    /// Whether a call may still write to a slot.
    #[must_use]
    pub fn is_lent(&self, slot: usize) -> bool {
        self.lent.get(slot).is_some_and(|calls| calls.load(Ordering::Acquire) > 0)
    }
}

/// Bytes of a [`MappedFile`] that are lent to one call, until this is dropped.
#[derive(Debug)]
pub struct MappedBytes {
    file: Arc<MappedFile>,
    slot: usize,
    bytes: Range<usize>,
}

impl MappedBytes {
    /// Where they begin. Memory that other processes read: it is for the kernel alone.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.file.map.as_mut_ptr().wrapping_add(self.slot * self.file.slot_bytes + self.bytes.start)
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Leaves the first `n` bytes out.
    pub(super) fn skip(&mut self, n: usize) {
        self.bytes.start = self.bytes.end.min(self.bytes.start.saturating_add(n));
    }

    /// Reads from a file at `off`; 0 at its end.
    ///
    /// # Errors
    /// What the kernel said: `EFAULT` where there is no memory.
    pub(super) fn read_from(&mut self, file: &impl AsFd, off: u64) -> io::Result<usize> {
        let (at, len) = (self.as_mut_ptr(), self.len());
        let off = libc::off_t::try_from(off).map_err(|_| io::ErrorKind::InvalidInput)?;
        loop {
            // SAFETY: the bytes lie in the mapping, which lives as long as `self`.
            let got = unsafe { libc::pread(file.as_fd().as_raw_fd(), at.cast(), len, off) };
            if let Ok(got) = usize::try_from(got) {
                return Ok(got);
            }
            let e = io::Error::last_os_error();
            if e.kind() != io::ErrorKind::Interrupted {
                return Err(e);
            }
        }
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        if let Some(calls) = self.file.lent.get(self.slot) {
            calls.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    fn mapped(slots: usize, slot_bytes: usize) -> (std::fs::File, Arc<MappedFile>) {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len((slots * slot_bytes) as u64).unwrap();
        let map = MappedFile::of(&file, slots, slot_bytes).unwrap();
        (file, Arc::new(map))
    }

    #[test]
    fn what_is_read_lies_in_its_slot_and_no_further() {
        let (file, map) = mapped(3, 4096);
        let mut from = tempfile::tempfile().unwrap();
        from.write_all(&[7; 10_000]).unwrap();
        let mut lent = map.lend(1, 96..9000).unwrap();
        assert_eq!((lent.len(), map.is_lent(1), map.is_lent(0)), (4000, true, false));
        assert_eq!(lent.read_from(&from, 0).unwrap(), 4000);
        lent.skip(3999);
        assert_eq!(lent.read_from(&from, 9_999).unwrap(), 1);
        lent.skip(9);
        assert_eq!((lent.len(), lent.read_from(&from, 0).unwrap()), (0, 0));
        drop(lent);
        assert!(!map.is_lent(1) && map.lend(3, 0..1).is_none());
        let mut all = vec![0; 3 * 4096];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all.iter().enumerate().all(|(at, &b)| (b == 7) == (4096 + 96..8192).contains(&at)));
    }

    /// A store of the agent's would be a SIGBUS.
    #[test]
    fn a_file_that_was_cut_is_an_error() {
        let (file, map) = mapped(2, 4096);
        file.set_len(4096).unwrap();
        let from = tempfile::tempfile().unwrap();
        from.write_all_at(&[7; 4096], 0).unwrap();
        let e = map.lend(1, 0..4096).unwrap().read_from(&from, 0).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EFAULT));
    }
}
