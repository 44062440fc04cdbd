//! Logs of tiers, as an agent reads them at its start.

use super::input::Input;
use monarch_core::tier::read_log;
use rustix::fs::MemfdFlags;
use xxhash_rust::xxh3::xxh3_64;

/// Length of a record, in bytes.
const RECORD: usize = 48;

/// Reads `bytes` as the log of a tier.
pub(crate) fn tier_log(bytes: &[u8]) {
    let mut input = Input(bytes);
    let flags = input.u8();
    let mut log = input.0.to_vec();
    if flags & 1 == 0 {
        for record in log.chunks_exact_mut(RECORD) {
            record[1] = 1;
            let sum = xxh3_64(&record[..40]);
            record[40..].copy_from_slice(&sum.to_le_bytes());
        }
    }
    let file = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).expect("memory");
    rustix::io::pwrite(&file, &log, 0).expect("room");
    let boot = (flags & 2 != 0).then_some([7; 16]);
    let (copies, broken) = read_log(&file, boot).expect("a file that can be read");
    let records = (log.len() / RECORD) as u64;
    assert!(broken <= records && copies.len() as u64 + broken <= records);
    for (name, copy) in copies.iter() {
        assert!(copies.get(name) == Some(copy));
        let _ = (copy.is_safe(copy.synced), copy.is_safe(u64::MAX));
        assert!(copy.sum.piece.is_multiple_of(4096));
        // As a copy is compared with the log when it is read.
        let mut sum = monarch_abi::sum::Summing::new(copy.sum.piece);
        sum.update(&[1; 100]);
        let _ = sum.end();
    }
}
