//! The bytes that a tier's log is charged.

/// The charge of a log. Exactly these bytes are released when another log replaces it.
#[derive(Debug, Default)]
pub(super) struct LogCharge {
    /// Bytes charged.
    pub(super) charged: u64,
    /// Length in bytes up to which the file needs no further charge.
    pub(super) covered: u64,
}

impl LogCharge {
    /// The charge of a log of `len` bytes that takes `blocks` bytes on disk. The file system may
    /// need some blocks for itself, or not have counted all yet.
    pub(super) fn of(len: u64, blocks: u64, block: u64) -> Self {
        let covered = len.next_multiple_of(block);
        Self { charged: blocks.max(covered), covered }
    }
}
