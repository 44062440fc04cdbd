//! Records of the log of a tier: 48 bytes each. [`log`](super::log) says what they mean.
//!
//! ```text
//! offset  0    1       2        4      8        24     32     40     48
//!        +----+-------+--------+------+--------+------+------+------+
//!        |kind|version| 0      |piece | name   | sum  | size |check |   little endian
//!        +----+-------+--------+------+--------+------+------+------+
//! ```
//! `check` is the XXH3-64 of the 40 bytes before it. `piece` is 0 where `sum` is the XXH3-64 of the
//! whole copy. Otherwise `sum` is the XXH3-64 of the XXH3-64s of its pieces, and `piece` is their
//! length in pages of 4 KiB.

use super::checksum::Sum;
use monarch_abi::hash::CopyName;
use xxhash_rust::xxh3::xxh3_64;

/// Name of the log in the tier's directory.
pub(super) const LOG: &str = "log";
/// Name of a log that is being written, to replace the one in use.
pub(super) const NEW: &str = "log.new";
/// Version of the records.
pub(super) const VERSION: u8 = 1;
/// Bytes of a record.
pub(super) const RECORD: usize = 48;
/// The name in the first record.
pub(super) const MAGIC: [u8; 16] = *b"Monarch tier log";
/// Unit of the length of pieces, in bytes.
const PAGE: u64 = 4096;
/// Bytes of records that are read or written at a time.
pub(super) const BUFFER_BYTES: usize = RECORD << 14;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The first record.
    Begin = 1,
    /// Names the boot of the machine in which the records behind it were written.
    Boot = 2,
    /// A copy.
    Copy = 3,
    /// The copies among the first `size` records that existed at the time `sum`, in seconds, have
    /// reached the disk.
    Synced = 4,
    /// A packed copy, with size and sum of the file.
    Packed = 5,
}

/// The bytes of a record.
pub(super) fn record(kind: Kind, piece: u32, name: [u8; 16], sum: u64, size: u64) -> [u8; RECORD] {
    let mut r = [0u8; RECORD];
    r[0] = kind as u8;
    r[1] = VERSION;
    r[4..8].copy_from_slice(&piece.to_le_bytes());
    r[8..24].copy_from_slice(&name);
    r[24..32].copy_from_slice(&sum.to_le_bytes());
    r[32..40].copy_from_slice(&size.to_le_bytes());
    let check = xxh3_64(&r[..40]);
    r[40..48].copy_from_slice(&check.to_le_bytes());
    r
}

/// The bytes of the record of a copy.
pub(super) fn copy_record(name: CopyName, sum: Sum, size: u64, packed: bool) -> [u8; RECORD] {
    let kind = if packed { Kind::Packed } else { Kind::Copy };
    // Pieces are chunks: whole pages, 4 KiB to 64 MiB.
    record(kind, (sum.piece / PAGE) as u32, name.0.to_le_bytes(), sum.value, size)
}

/// `N` bytes from `at` on; zeros where `bytes` is too short.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(part) = bytes.get(at..at + N) {
        out.copy_from_slice(part);
    }
    out
}

/// Kind, name, sum and size of a record; `None` if the bytes are not one.
pub(super) fn parse(r: &[u8]) -> Option<(Kind, [u8; 16], Sum, u64)> {
    if r.len() != RECORD || r[1] != VERSION || u64::from_le_bytes(array(r, 40)) != xxh3_64(&r[..40]) {
        return None;
    }
    let kind =
        [Kind::Begin, Kind::Boot, Kind::Copy, Kind::Synced, Kind::Packed].into_iter().find(|k| *k as u8 == r[0])?;
    let piece = u64::from(u32::from_le_bytes(array(r, 4))) * PAGE;
    let sum = Sum { value: u64::from_le_bytes(array(r, 24)), piece };
    Some((kind, array(r, 8), sum, u64::from_le_bytes(array(r, 32))))
}
