//! Writes packed copies.

use super::checksum::Sum;
use super::copy::{Copies, CopyFile, How, write_all_at};
use super::found_copy::Copy;
use super::ledger::{NAME_COST, Reservation};
use super::lz4_format::Packing;
use super::space::Allocating;
use monarch_abi::hash::{CopyName, Stamp};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io;

/// A packed copy being written.
#[derive(Debug)]
pub struct PackedWriter<'a> {
    file: CopyFile<'a>,
    packing: Packing,
    size: u64,
}

impl<'a> PackedWriter<'a> {
    /// Begins a packed copy of a file of `size` bytes whose checksum is that of pieces of `piece`
    /// bytes (0: of the whole). `Ok(None)` when the disk is full.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn begin(copies: &'a Copies, room: Reservation, size: u64, piece: u64) -> io::Result<Option<Self>> {
        // (The bytes reserved for the name are no block.)
        let bytes = room.bytes().saturating_sub(NAME_COST).max(1);
        let _allocating = Allocating::new(&copies.space.allocating, bytes);
        if !copies.space.disk_has_room()? {
            return Ok(None);
        }
        let Some(file) = copies.make_file(room)? else { return Ok(None) };
        match rustix::fs::fallocate(file.fd(), FallocateFlags::KEEP_SIZE, 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => {
                copies.space.rest();
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        }
        Ok(Some(Self { file, packing: Packing::new(size, piece), size }))
    }

    /// Bytes of a unit, which are added at a time; the last unit may be shorter.
    #[must_use]
    pub fn unit(&self) -> usize {
        self.packing.unit() as usize
    }

    /// Adds the next unit; `false` when the quota has no space for it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn add(&mut self, unit: &[u8]) -> io::Result<bool> {
        let (block, at) = self.packing.next(unit);
        let end = at + block.len() as u64;
        let ledger = &self.file.copies.space.ledger;
        let has = self.file.room.as_ref().map_or(0, Reservation::bytes);
        let needed = ledger.cost(end + 4);
        if needed > has {
            let Some(more) = ledger.reserve_bytes(needed - has) else { return Ok(false) };
            if let Some(room) = &mut self.file.room {
                room.absorb(more);
            }
        }
        write_all_at(self.file.fd(), block, at)?;
        Ok(true)
    }

    /// Bytes written so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.packing.at()
    }

    /// Completes and publishes it, as [`CopyFile::publish`] does.
    ///
    /// # Errors
    /// What the kernel said; the file is removed.
    pub fn publish(self, name: CopyName, stamp: Stamp, sum: Sum) -> io::Result<Option<Copy>> {
        let (parts, len) = self.packing.end(sum);
        for (bytes, at) in parts {
            write_all_at(self.file.fd(), &bytes, at)?;
        }
        // Blocks that were allocated behind its end are given back.
        rustix::fs::ftruncate(self.file.fd(), len)?;
        self.file.publish_as(name, stamp, sum, How { packed: Some(self.size), ..How::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SourceFile;
    use crate::tier::{PackedUsage, TierDir};
    use monarch_abi::hash::Identity;
    use xxhash_rust::xxh3::xxh3_64;

    fn tier(dir: &tempfile::TempDir) -> TierDir {
        TierDir::open("t", dir.path(), 64 << 20, 0).unwrap()
    }

    fn identity(size: u64) -> Identity {
        Identity { size, mtime_ns: 1, ctime_ns: 2, ino: 3 }
    }

    fn pack(tier: &TierDir, name: CopyName, raw: &[u8], estimate: u64) -> Option<Copy> {
        let room = tier.packed.reserve(estimate).unwrap().unwrap();
        let mut writer = PackedWriter::begin(&tier.copies, room, raw.len() as u64, 0).unwrap().unwrap();
        for unit in raw.chunks(writer.unit()) {
            if !writer.add(unit).unwrap() {
                return None;
            }
        }
        writer.publish(name, Stamp(name.0 as u64 & 0xffff), Sum::whole(xxh3_64(raw))).unwrap()
    }

    #[test]
    fn a_packed_copy_is_charged_what_it_takes_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let raw = b"a line of text, and one more of it\n".repeat(90_000);
        let (name, size) = (CopyName(77), raw.len() as u64);
        let first = tier(&dir);
        first.recover(|_| {}).unwrap();
        let empty = first.space.ledger.usage();
        // Too little and too much was reserved.
        for estimate in [1, size] {
            let copy = pack(&first, name, &raw, estimate).unwrap();
            let u = first.space.ledger.usage();
            assert_eq!((u.used - empty.used, u.reserved, u.files), (copy.charged, 0, 1));
            assert!(copy.packed && copy.size == size && copy.charged < size / 10);
        }
        assert_eq!(first.packed.usage().bytes, size);
        assert!(first.copies.stat(name).unwrap().is_none(), "nobody opens it as a copy");
        let before = (first.space.ledger.usage(), first.packed.usage());
        drop(first);
        let again = tier(&dir);
        let mut found = Vec::new();
        again.recover(|c| found.push(c)).unwrap();
        assert!(found.len() == 1 && found[0].packed && found[0].size == size && found[0].name == name);
        // (The log is a new one: its blocks may differ.)
        assert_eq!((again.space.ledger.usage().files, again.packed.usage()), (before.0.files, before.1));
        let file = again.packed.open(name, identity(size)).unwrap().unwrap();
        let mut back = vec![0; raw.len()];
        for (n, unit) in back.chunks_mut(256 << 10).enumerate() {
            assert_eq!(file.read_at(unit, (n as u64) << 18).unwrap(), unit.len());
        }
        assert!(back == raw && file.contents().unwrap() == (size, Sum::whole(xxh3_64(&raw))));
        assert!(again.packed.open(name, identity(size + 1)).unwrap().unwrap().contents().is_err());
        // While it is open it stays charged.
        drop(file);
        let used = again.space.ledger.usage().used;
        let charged = again.packed.evict(name, size).unwrap();
        assert_eq!((again.space.ledger.usage().used, again.space.ledger.usage().files), (used - charged, 0));
        assert!(again.packed.usage() == PackedUsage::default() && again.packed.evict(name, size).is_none());
    }

    #[test]
    fn one_that_does_not_fit_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let small = TierDir::open("t", dir.path(), 3 << 20, 0).unwrap();
        small.recover(|_| {}).unwrap();
        let before = small.space.ledger.usage();
        let noise: Vec<u8> = (0u64..4 << 20).map(|n| xxh3_64(&n.to_le_bytes()) as u8).collect();
        assert!(pack(&small, CopyName(1), &noise, 4096).is_none());
        assert_eq!(small.space.ledger.usage(), before);
        assert_eq!(std::fs::read_dir(small.path.join("tmp")).unwrap().count(), 0);
    }
}
