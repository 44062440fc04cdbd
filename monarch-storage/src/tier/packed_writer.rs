//! Writes packed copies.

use super::checksum::Sum;
use super::codec::Codec;
use super::copy::{Copies, CopyFile, How, PackedAs, write_all_at};
use super::found_copy::Copy;
use super::ledger::{NAME_COST, Reservation};
use super::packed_format::Packing;
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
    pub fn begin(
        copies: &'a Copies,
        codec: Codec,
        room: Reservation,
        size: u64,
        piece: u64,
    ) -> io::Result<Option<Self>> {
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
        Ok(Some(Self { file, packing: Packing::new(codec, size, piece), size }))
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
        let (block, at) = self.packing.next(unit)?;
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
        let packed = PackedAs { size: self.size, codec: self.packing.codec() };
        let (parts, len) = self.packing.end(sum);
        for (bytes, at) in parts {
            write_all_at(self.file.fd(), &bytes, at)?;
        }
        // Blocks that were allocated behind its end are given back.
        rustix::fs::ftruncate(self.file.fd(), len)?;
        self.file.publish_as(name, stamp, sum, How { packed: Some(packed), ..How::default() })
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

    fn pack(tier: &TierDir, codec: Codec, name: CopyName, raw: &[u8], estimate: u64) -> Option<Copy> {
        let room = tier.packed.reserve(estimate).unwrap().unwrap();
        let mut writer = PackedWriter::begin(&tier.copies, codec, room, raw.len() as u64, 0).unwrap().unwrap();
        for unit in raw.chunks(writer.unit()) {
            if !writer.add(unit).unwrap() {
                return None;
            }
        }
        writer.publish(name, Stamp(name.0 as u64 & 0xffff), Sum::whole(xxh3_64(raw))).unwrap()
    }

    #[test]
    fn a_packed_copy_is_charged_what_it_takes_and_found_again() {
        Codec::ALL.into_iter().for_each(is_charged_and_found_again);
    }

    fn is_charged_and_found_again(codec: Codec) {
        let dir = tempfile::tempdir().unwrap();
        let raw = b"a line of text, and one more of it\n".repeat(90_000);
        let (name, size) = (CopyName(77), raw.len() as u64);
        let first = tier(&dir);
        first.recover(|_| {}).unwrap();
        let empty = first.space.ledger.usage();
        // Too little and too much was reserved. A copy of another codec replaces the one before.
        for (estimate, codec) in [(1, Codec::Zstd), (size, Codec::Zstd), (1, Codec::Lz4), (size, codec)] {
            let copy = pack(&first, codec, name, &raw, estimate).unwrap();
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

    /// The names of the files with this suffix.
    fn names(tier: &TierDir, codec: Codec) -> Vec<String> {
        let dirs = (0..256).map(|n| tier.path.join(format!("copies/{n:02x}")));
        let files = dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap());
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(codec.suffix())).collect()
    }

    #[test]
    fn a_tier_with_copies_of_both_codecs_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let raw = b"some words that come again\n".repeat(50_000);
        let (size, of) = (raw.len() as u64, |n: u64| Codec::ALL[n as usize % 2]);
        let first = tier(&dir);
        first.recover(|_| {}).unwrap();
        for n in 1..9 {
            pack(&first, of(n), CopyName(u128::from(n)), &raw, size).unwrap();
        }
        let was = first.packed.usage();
        drop(first);
        // A user has put a copy of one there as one of the other codec.
        let path =
            |n: u64, codec| dir_of(&dir).join(super::super::packed_copies::path_of(CopyName(u128::from(n)), codec));
        let second = std::process::Command::new("cp").arg("-p").args([path(1, of(1)), path(1, of(2))]).status();
        assert!(second.unwrap().success());
        let again = tier(&dir);
        let mut found = Vec::new();
        again.recover(|c| found.push(c.name.0)).unwrap();
        found.sort_unstable();
        assert_eq!((found, again.packed.usage().files, was.files), ((1..9).collect(), 8, 8));
        assert_eq!((names(&again, Codec::Lz4).len(), names(&again, Codec::Zstd).len()), (5, 3));
        for n in 2..9u64 {
            let name = CopyName(u128::from(n));
            let file = again.packed.open(name, identity(size)).unwrap().unwrap();
            assert_eq!(file.contents().unwrap(), (size, Sum::whole(xxh3_64(&raw))));
            assert!(again.packed.has(name) && again.packed.stat(name, size).is_some_and(|copy| copy.packed));
            drop(file);
            assert!(again.packed.evict(name, size).is_some() && !again.packed.has(name));
        }
        assert_eq!(again.packed.usage().files, 1);
    }

    fn dir_of(dir: &tempfile::TempDir) -> std::path::PathBuf {
        dir.path().join(crate::private_dir::name("monarch", 0))
    }

    #[test]
    fn one_that_does_not_fit_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let small = TierDir::open("t", dir.path(), 3 << 20, 0).unwrap();
        small.recover(|_| {}).unwrap();
        let before = small.space.ledger.usage();
        let noise: Vec<u8> = (0u64..4 << 20).map(|n| xxh3_64(&n.to_le_bytes()) as u8).collect();
        assert!(pack(&small, Codec::Lz4, CopyName(1), &noise, 4096).is_none());
        assert_eq!(small.space.ledger.usage(), before);
        assert_eq!(std::fs::read_dir(small.path.join("tmp")).unwrap().count(), 0);
    }
}
