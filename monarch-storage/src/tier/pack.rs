//! Makes, opens and evicts packed copies. They lie beside the plain copies, under names that
//! readers never open.

use super::checksum::Sum;
use super::copy::{CopyFile, How, write_all_at};
use super::dir::{Allocating, Copy, TierDir};
use super::ledger::{NAME_COST, Reservation};
use super::lz4_format::{PackedFile, Packing};
use super::packed_usage::{PackedUsage, path_of};
use monarch_abi::hash::{CopyName, Identity, Stamp};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::io;
use std::sync::PoisonError;

/// A packed copy being written.
#[derive(Debug)]
pub struct PackedWriter<'a> {
    file: CopyFile<'a>,
    packing: Packing,
    size: u64,
}

impl TierDir {
    /// Reserves space for a packed copy of about `bytes` bytes; `None` when ledger or disk has
    /// none.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn reserve_packed(&self, bytes: u64) -> io::Result<Option<Reservation>> {
        let room = self.ledger.reserve(bytes);
        Ok(if room.is_some() && self.disk_has_room()? { room } else { None })
    }

    /// Begins a packed copy of a file of `size` bytes whose checksum is that of pieces of `piece`
    /// bytes (0: of the whole). `Ok(None)` when the disk is full.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn begin_packed(&self, room: Reservation, size: u64, piece: u64) -> io::Result<Option<PackedWriter<'_>>> {
        // (The bytes reserved for the name are no block.)
        let bytes = room.bytes().saturating_sub(NAME_COST).max(1);
        let _allocating = Allocating::new(&self.allocating, bytes);
        if !self.disk_has_room()? {
            return Ok(None);
        }
        let Some(file) = self.make_file(room)? else { return Ok(None) };
        match rustix::fs::fallocate(file.fd(), FallocateFlags::KEEP_SIZE, 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(Errno::NOSPC | Errno::DQUOT) => {
                self.rest();
                return Ok(None);
            }
            Err(e) => return Err(e.into()),
        }
        Ok(Some(PackedWriter { file, packing: Packing::new(size, piece), size }))
    }

    /// Opens a packed copy of the file with this identity, if there is one.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open_packed(&self, name: CopyName, identity: Identity) -> io::Result<Option<PackedFile>> {
        let fd = match self.fs.read_file(&path_of(name)) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        Ok(Some(PackedFile::new(fd, Some(identity))))
    }

    /// Whether there is a packed copy of this name.
    #[must_use]
    pub fn has_packed(&self, name: CopyName) -> bool {
        self.fs.stat(path_of(name)).is_ok()
    }

    /// Charge and stamp of the packed copy of a file of `size` bytes, if it exists.
    #[must_use]
    pub fn stat_packed(&self, name: CopyName, size: u64) -> Option<Copy> {
        let st = self.fs.stat(path_of(name)).ok()?;
        let nsec = u32::try_from(st.st_mtime_nsec).unwrap_or(u32::MAX);
        let stamp = Stamp::from_time(st.st_mtime, nsec).unwrap_or(Stamp(0));
        Some(Copy { name, size, charged: self.charge_of_copy(&st), stamp, check: None, packed: true })
    }

    /// Evicts the packed copy of a file of `size` bytes; the bytes that it was charged, if it
    /// existed.
    pub fn evict_packed(&self, name: CopyName, size: u64) -> Option<u64> {
        let path = path_of(name);
        let st = self.fs.stat(&path).ok()?;
        let charged = self.charge_of_copy(&st);
        let path = match self.move_to_trash(&path) {
            // Another thread has evicted it meanwhile.
            Err(Errno::NOENT) => return None,
            aside => aside.unwrap_or(path),
        };
        self.note_packed(-1, size, st.st_size as u64);
        self.ledger.release(0, 1);
        self.remove_once_closed(path, charged);
        Some(charged)
    }

    /// Counts a packed copy more (`files` of 1) or less (-1).
    pub(super) fn note_packed(&self, files: i64, size: u64, stored: u64) {
        let mut p = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        let add = |to: &mut u64, n: u64| *to = if files < 0 { to.saturating_sub(n) } else { *to + n };
        add(&mut p.files, 1);
        add(&mut p.bytes, size);
        add(&mut p.stored, stored);
    }

    /// The usage of its packed copies.
    #[must_use]
    pub fn packed(&self) -> PackedUsage {
        *self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PackedWriter<'_> {
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
        let tier = self.file.tier;
        let has = self.file.room.as_ref().map_or(0, Reservation::bytes);
        let needed = tier.ledger.cost(end + 4);
        if needed > has {
            let Some(more) = tier.ledger.reserve_bytes(needed - has) else { return Ok(false) };
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
    use crate::tier::TierDir;
    use xxhash_rust::xxh3::xxh3_64;

    fn tier(dir: &tempfile::TempDir) -> TierDir {
        TierDir::open("t", dir.path(), 64 << 20, 0).unwrap()
    }

    fn identity(size: u64) -> Identity {
        Identity { size, mtime_ns: 1, ctime_ns: 2, ino: 3 }
    }

    fn pack(tier: &TierDir, name: CopyName, raw: &[u8], estimate: u64) -> Option<Copy> {
        let room = tier.reserve_packed(estimate).unwrap().unwrap();
        let mut writer = tier.begin_packed(room, raw.len() as u64, 0).unwrap().unwrap();
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
        let empty = first.ledger.usage();
        // Too little and too much was reserved.
        for estimate in [1, size] {
            let copy = pack(&first, name, &raw, estimate).unwrap();
            let u = first.ledger.usage();
            assert_eq!((u.used - empty.used, u.reserved, u.files), (copy.charged, 0, 1));
            assert!(copy.packed && copy.size == size && copy.charged < size / 10);
        }
        assert_eq!(first.packed().bytes, size);
        assert!(first.stat(name).unwrap().is_none(), "nobody opens it as a copy");
        let before = (first.ledger.usage(), first.packed());
        drop(first);
        let again = tier(&dir);
        let mut found = Vec::new();
        again.recover(|c| found.push(c)).unwrap();
        assert!(found.len() == 1 && found[0].packed && found[0].size == size && found[0].name == name);
        // (The log is a new one: its blocks may differ.)
        assert_eq!((again.ledger.usage().files, again.packed()), (before.0.files, before.1));
        let file = again.open_packed(name, identity(size)).unwrap().unwrap();
        let mut back = vec![0; raw.len()];
        for (n, unit) in back.chunks_mut(256 << 10).enumerate() {
            assert_eq!(file.read_at(unit, (n as u64) << 18).unwrap(), unit.len());
        }
        assert!(back == raw && file.contents().unwrap() == (size, Sum::whole(xxh3_64(&raw))));
        assert!(again.open_packed(name, identity(size + 1)).unwrap().unwrap().contents().is_err());
        // While it is open it stays charged.
        drop(file);
        let used = again.ledger.usage().used;
        let charged = again.evict_packed(name, size).unwrap();
        assert_eq!((again.ledger.usage().used, again.ledger.usage().files), (used - charged, 0));
        assert!(again.packed() == PackedUsage::default() && again.evict_packed(name, size).is_none());
    }

    #[test]
    fn one_that_does_not_fit_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let small = TierDir::open("t", dir.path(), 3 << 20, 0).unwrap();
        small.recover(|_| {}).unwrap();
        let before = small.ledger.usage();
        let noise: Vec<u8> = (0u64..4 << 20).map(|n| xxh3_64(&n.to_le_bytes()) as u8).collect();
        assert!(pack(&small, CopyName(1), &noise, 4096).is_none());
        assert_eq!(small.ledger.usage(), before);
        assert_eq!(std::fs::read_dir(small.path.join("tmp")).unwrap().count(), 0);
    }
}
