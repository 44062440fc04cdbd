//! What a tier's log is charged.

/// What the log is charged: neither more nor less is given back when another one takes its place.
#[derive(Debug, Default)]
pub(super) struct LogCharge {
    /// Bytes charged.
    pub(super) charged: u64,
    /// Bytes that the file may grow to before more has to be charged.
    pub(super) covered: u64,
}

impl LogCharge {
    /// Of a log of `len` bytes that takes `blocks` bytes on disk: the file system may need some for
    /// itself, or not have counted all yet.
    pub(super) fn of(len: u64, blocks: u64, block: u64) -> Self {
        let covered = len.next_multiple_of(block);
        Self { charged: blocks.max(covered), covered }
    }
}
