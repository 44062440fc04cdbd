//! The packed copies of a tier. They lie beside the plain copies, under names that readers never
//! open.

use super::codec::Codec;
use super::found_copy::Copy;
use super::ledger::Reservation;
use super::packed_format::PackedFile;
use super::space::Space;
use super::trash::Trash;
use monarch_abi::hash::{CopyName, Identity, Stamp};
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Number and bytes of the packed copies of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PackedUsage {
    /// Packed copies.
    pub files: u64,
    /// Bytes of the files that they are copies of.
    pub bytes: u64,
    /// Bytes of the packed copies themselves.
    pub stored: u64,
}

/// Path of a packed copy below the tier's directory.
pub(super) fn path_of(name: CopyName, codec: Codec) -> String {
    format!("{}{}", String::from_utf8_lossy(&name.rel_path()), codec.suffix())
}

/// The name of a file in a directory of copies without the suffix of its codec; with the codec,
/// if it has one.
pub(super) fn split_suffix(file: &str) -> (&str, Option<Codec>) {
    let of = |codec: Codec| Some((file.strip_suffix(codec.suffix())?, Some(codec)));
    Codec::ALL.into_iter().find_map(of).unwrap_or((file, None))
}

/// Finds, opens, counts and evicts the packed copies of a tier. [`super::PackedWriter`] makes them.
/// A tier may hold copies of both codecs, of a file at most one.
#[derive(Debug)]
pub struct PackedCopies {
    space: Arc<Space>,
    trash: Arc<Trash>,
    /// By [`Codec::at`].
    usage: Mutex<[PackedUsage; Codec::ALL.len()]>,
}

impl PackedCopies {
    pub(super) fn new(space: Arc<Space>, trash: Arc<Trash>) -> Self {
        Self { space, trash, usage: Mutex::default() }
    }

    /// Reserves space for a packed copy of about `bytes` bytes; `None` when ledger or disk has
    /// none.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn reserve(&self, bytes: u64) -> io::Result<Option<Reservation>> {
        let room = self.space.ledger.reserve(bytes);
        Ok(if room.is_some() && self.space.disk_has_room()? { room } else { None })
    }

    /// Opens a packed copy of the file with this identity, if there is one.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(&self, name: CopyName, identity: Identity) -> io::Result<Option<PackedFile>> {
        for codec in self.codecs() {
            match self.space.fs.read_file(&path_of(name, codec)) {
                Err(Errno::NOENT) => {}
                fd => return Ok(Some(PackedFile::new(fd?, Some(identity)))),
            }
        }
        Ok(None)
    }

    /// Whether there is a packed copy of this name.
    #[must_use]
    pub fn has(&self, name: CopyName) -> bool {
        self.codecs().any(|codec| self.space.fs.stat(path_of(name, codec)).is_ok())
    }

    /// Charge and stamp of the packed copy of a file of `size` bytes, if it exists.
    #[must_use]
    pub fn stat(&self, name: CopyName, size: u64) -> Option<Copy> {
        let st = self.codecs().find_map(|codec| self.space.fs.stat(path_of(name, codec)).ok())?;
        let nsec = u32::try_from(st.st_mtime_nsec).unwrap_or(u32::MAX);
        let stamp = Stamp::from_time(st.st_mtime, nsec).unwrap_or(Stamp(0));
        Some(Copy { name, size, charged: self.space.charge_of_copy(&st), stamp, check: None, packed: true })
    }

    /// Evicts the packed copy of a file of `size` bytes; the bytes that it was charged, if it
    /// existed.
    pub fn evict(&self, name: CopyName, size: u64) -> Option<u64> {
        let charges = Codec::ALL.map(|codec| self.evict_of(name, size, codec));
        charges.into_iter().flatten().reduce(|a, b| a + b)
    }

    fn evict_of(&self, name: CopyName, size: u64, codec: Codec) -> Option<u64> {
        let path = path_of(name, codec);
        let st = self.space.fs.stat(&path).ok()?;
        let charged = self.space.charge_of_copy(&st);
        let path = match self.trash.move_to_trash(&path) {
            // Another thread has evicted it meanwhile.
            Err(Errno::NOENT) => return None,
            aside => aside.unwrap_or(path),
        };
        self.note(codec, -1, size, st.st_size as u64);
        self.space.ledger.release(0, 1);
        self.trash.remove_once_closed(path, charged);
        Some(charged)
    }

    /// Counts a packed copy more (`files` of 1) or less (-1).
    pub(super) fn note(&self, codec: Codec, files: i64, size: u64, stored: u64) {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let p = &mut usage[codec.at()];
        let add = |to: &mut u64, n: u64| *to = if files < 0 { to.saturating_sub(n) } else { *to + n };
        add(&mut p.files, 1);
        add(&mut p.bytes, size);
        add(&mut p.stored, stored);
    }

    /// Number and bytes of the packed copies.
    #[must_use]
    pub fn usage(&self) -> PackedUsage {
        let usage = *self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        usage.into_iter().fold(PackedUsage::default(), |sum, of| PackedUsage {
            files: sum.files + of.files,
            bytes: sum.bytes + of.bytes,
            stored: sum.stored + of.stored,
        })
    }

    /// The codecs of which the tier holds a copy: names of the other ones are not looked for.
    fn codecs(&self) -> impl Iterator<Item = Codec> {
        let usage = *self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        Codec::ALL.into_iter().filter(move |codec| usage[codec.at()].files > 0)
    }
}
