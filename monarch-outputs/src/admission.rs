//! How many more files may be staged before the agent looks again. Pure.

use monarch_abi::outputs::FIRST_RESERVATION;

/// Most files that are admitted ahead of the agent's next look when they are large.
const MAX_LARGE_FILES: u64 = 16;
/// Bytes that are admitted ahead of the agent's next look, if the files are small.
pub const BYTES_AHEAD: u64 = 64 << 20;
/// Space that stays free on the tier's disk for files that grow, at most.
const MAX_MARGIN_BYTES: u64 = 64 << 20;
/// Inodes that stay free for links of the overlay, at most.
const MAX_MARGIN_INODES: u64 = 4096;
/// Inodes of a staged file: its data, its link, and a directory of the overlay.
const INODES_OF_A_FILE: u64 = 3;

/// Space of the disk that a tier lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that this user may still write.
    pub free: u64,
    /// Bytes of the disk; 0 where the file system does not say.
    pub total: u64,
}

impl DiskSpace {
    /// Bytes that new files may get: some stay free for those that are being written.
    #[must_use]
    pub fn for_files(&self) -> u64 {
        if self.total == 0 {
            return u64::MAX;
        }
        self.free.saturating_sub(MAX_MARGIN_BYTES.min(self.total / 20))
    }
}

/// Inodes of the disk that a tier lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskInodes {
    /// Inodes that this user may still use.
    pub free: u64,
    /// Inodes of the disk; 0 where it makes them as they are needed, or does not say.
    pub total: u64,
}

impl DiskInodes {
    /// How many files may be staged: some inodes stay free for links of the overlay.
    #[must_use]
    pub fn for_files(&self) -> u64 {
        if self.total == 0 {
            return u64::MAX;
        }
        self.free.saturating_sub(MAX_MARGIN_INODES.min(self.total / 20)) / INODES_OF_A_FILE
    }
}

/// Admits files by the size that files have had lately.
#[derive(Debug)]
pub struct Admission {
    expected: u64,
}

impl Default for Admission {
    fn default() -> Self {
        Self { expected: FIRST_RESERVATION }
    }
}

impl Admission {
    /// A file was closed with that size. The largest of late counts; small ones let it fade.
    pub fn closed(&mut self, size: u64) {
        self.expected = size.max(self.expected - self.expected / 8).max(FIRST_RESERVATION);
    }

    /// Bytes that a file is expected to get.
    #[must_use]
    pub const fn expected_bytes(&self) -> u64 {
        self.expected
    }

    /// How many files may be admitted, of which `left` bytes may be pending and the disk has
    /// `free` bytes. `is_first`: nothing is pending, so that a file larger than the bound is
    /// admitted, too.
    #[must_use]
    pub fn files(&self, left: u64, free: u64, is_first: bool) -> u64 {
        let ahead = BYTES_AHEAD.max(self.expected.saturating_mul(MAX_LARGE_FILES));
        let files = left.min(ahead) / self.expected;
        let files = if is_first && left > 0 { files.max(1) } else { files };
        files.min(free / self.expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn small_files_are_admitted_by_the_thousand_and_large_ones_by_the_size_that_they_had() {
        let mut admission = Admission::default();
        assert_eq!(admission.files(u64::MAX, u64::MAX, true), BYTES_AHEAD / FIRST_RESERVATION);
        admission.closed(100 * MIB);
        assert_eq!(admission.files(u64::MAX, u64::MAX, false), MAX_LARGE_FILES);
        assert_eq!(admission.files(350 * MIB, u64::MAX, false), 3);
        assert_eq!(admission.files(50 * MIB, u64::MAX, false), 0);
        assert_eq!(admission.files(50 * MIB, u64::MAX, true), 1, "nothing else is pending");
        assert_eq!(admission.files(u64::MAX, 250 * MIB, false), 2, "the disk is nearly full");
        assert_eq!(admission.files(u64::MAX, 0, true), 0);
        assert_eq!(admission.files(0, u64::MAX, true), 0, "nothing may be pending");
    }

    #[test]
    fn the_size_of_a_large_file_fades_behind_small_ones() {
        let mut admission = Admission::default();
        admission.closed(100 * MIB);
        admission.closed(1);
        assert_eq!(admission.expected_bytes(), 100 * MIB - 100 * MIB / 8);
        (0..200).for_each(|_| admission.closed(1));
        assert_eq!(admission.expected_bytes(), FIRST_RESERVATION);
    }

    #[test]
    fn no_file_is_admitted_when_the_disk_has_no_inodes() {
        let inodes = |free, total| DiskInodes { free, total }.for_files();
        assert_eq!(inodes(0, 400), 0);
        assert_eq!(inodes(22, 400), 0, "a part stays free");
        assert_eq!(inodes(50, 400), 10);
        assert_eq!(inodes(1_000_000, 1_000_000), (1_000_000 - 4096) / 3);
        assert_eq!(inodes(0, 0), u64::MAX, "made as they are needed");
    }

    #[test]
    fn a_part_of_the_disk_stays_free_for_files_that_grow() {
        let disk = |free, total| DiskSpace { free, total }.for_files();
        assert_eq!(disk(100 * MIB, 10_000 * MIB), 36 * MIB);
        assert_eq!(disk(100 * MIB, 200 * MIB), 90 * MIB);
        assert_eq!(disk(5 * MIB, 200 * MIB), 0);
        assert_eq!(disk(0, 0), u64::MAX, "unknown");
    }
}
