//! The immutable index of a namespace.
//!
//! One entry per path, in depth-first order: entry 0 is the root itself and a subtree is a range of
//! ids. Entries have fixed 64-byte [`Record`]s, one cache line each; names lie apart in the same
//! order, because a lookup is decided by hashes alone and reads names only for listings.
//! Directories also have a [`Dir`] with the end of their subtree.

use crate::mem::{Map, PathBuffer, pod};

/// First bytes of an index file.
pub const INDEX_MAGIC: u64 = u64::from_le_bytes(*b"MONINDX1");

/// Header of an index file, 256 bytes. Offsets are from the start of the file. Fields: 27, because
/// this is the byte map of that header.
#[derive(
    Clone, Copy, Debug, Default, zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout,
)]
#[repr(C)]
pub struct IndexHeader {
    /// [`INDEX_MAGIC`].
    pub magic: u64,
    /// [`crate::LAYOUT`].
    pub layout: u32,
    /// Bit 0: some part of the tree is not held (memory bound, unreadable directory).
    /// [`INDEX_CUT`].
    pub flags: u32,
    /// Random name of this index.
    pub uuid: [u8; 16],
    /// Seed of the path hashes.
    pub seed: u64,
    /// Which root: hash of its real path, part of the copies' names.
    pub root_id: u64,
    /// Whole length in bytes.
    pub len: u64,
    /// Number of entries.
    pub entries: u32,
    /// Number of directories.
    pub dirs: u32,
    /// Offset of the records.
    pub records_off: u64,
    /// Offset of the directories.
    pub dirs_off: u64,
    /// Offset of the names.
    pub names_off: u64,
    /// Length of the names in bytes.
    pub names_len: u64,
    /// Offset of link targets: u32 length, bytes.
    pub links_off: u64,
    /// Length of the link targets.
    pub links_len: u64,
    /// Offset of (uid, gid) pairs.
    pub owners_off: u64,
    /// Number of pairs.
    pub owners: u64,
    /// Offset of birth times (i64 ns per entry), 0 when the file system has none.
    pub btimes_off: u64,
    /// Wall-clock time of the scan, ns.
    pub scanned_ns: i64,
    /// st_dev of the root when it was scanned.
    pub root_dev: u64,
    /// Inode of the root when it was scanned.
    pub root_ino: u64,
    /// Buckets of the lookup table that belongs to this index.
    pub buckets: u64,
    /// Sum of the sizes of regular files.
    pub bytes: u64,
    /// Number of regular files.
    pub files: u64,
    /// Inode that a listing of the root shows for `..`, 0 when unknown.
    pub parent_ino: u64,
    /// Wall-clock time at which the scan began, ns; 0 when unknown.
    pub scan_began_ns: i64,
    /// Zero.
    pub reserved: [u64; 7],
}
const _: () = assert!(size_of::<IndexHeader>() == 256);
// (Never written while mapped.)
pod!(IndexHeader);

/// [`IndexHeader::flags`]: the scan did not reach everything that its user may see (memory bound,
/// errors of the PFS).
pub const INDEX_CUT: u32 = 2;

/// `aux` of a symbolic link whose target is not held: the kernel is asked for it.
pub const LINK_OF_KERNEL: u32 = u32::MAX;

/// Owner value of a record whose metadata does not fit: the kernel answers stat.
pub const OWNER_KERNEL: u16 = u16::MAX;

/// Everything `stat` returns about an entry, 64 bytes. Fields: 14, because this is the byte map of
/// a record.
#[derive(
    Clone, Copy, Debug, Default, zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout,
)]
#[repr(C)]
pub struct Record {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, ns since the epoch.
    pub mtime_ns: i64,
    /// Change time, ns since the epoch.
    pub ctime_ns: i64,
    /// Access time when scanned, ns since the epoch.
    pub atime_ns: i64,
    /// Inode number.
    pub ino: u64,
    /// Second part of the path hash.
    pub check: u32,
    /// Allocated 512-byte blocks.
    pub blocks: u32,
    /// Directories: position in the table of directories. Symbolic links: offset of the target, or
    /// [`LINK_OF_KERNEL`].
    /// Hard-linked files: slot number of the name whose word counts.
    pub aux: u32,
    /// Lower half of the offset of the name.
    pub name_lo: u32,
    /// Upper half of the offset of the name.
    pub name_hi: u8,
    /// Length of the name in bytes.
    pub name_len: u8,
    /// Type and permissions, as st_mode.
    pub mode: u16,
    /// Position in the table of owners, or [`OWNER_KERNEL`].
    pub owner: u16,
    /// Number of hard links.
    pub nlink: u16,
}
const _: () = assert!(size_of::<Record>() == 64);
// (Never written while mapped.)
pod!(Record);

const S_IFMT: u16 = 0o170_000;

impl Record {
    /// Whether this is a regular file.
    #[must_use]
    #[inline]
    pub const fn is_file(&self) -> bool {
        self.mode & S_IFMT == 0o100_000
    }
    /// Whether this is a directory.
    #[must_use]
    pub const fn is_dir(&self) -> bool {
        self.mode & S_IFMT == 0o040_000
    }
    /// Whether this is a symbolic link.
    #[must_use]
    #[inline]
    pub const fn is_link(&self) -> bool {
        self.mode & S_IFMT == 0o120_000
    }
    /// The version of the file that this record describes.
    #[must_use]
    #[inline]
    pub const fn identity(&self) -> crate::hash::Identity {
        crate::hash::Identity { size: self.size, mtime_ns: self.mtime_ns, ctime_ns: self.ctime_ns, ino: self.ino }
    }
    /// Whether the PFS says of a path what this record says. The size of a directory means nothing.
    #[must_use]
    pub const fn is_still(&self, now: &crate::hash::Identity) -> bool {
        now.ino == self.ino
            && now.mtime_ns == self.mtime_ns
            && now.ctime_ns == self.ctime_ns
            && (now.size == self.size || self.is_dir())
    }
    /// d_type of a directory entry.
    #[must_use]
    pub const fn d_type(&self) -> u8 {
        (self.mode >> 12) as u8
    }
    /// Offset of the name in the table of names.
    #[must_use]
    pub const fn name_off(&self) -> u64 {
        (self.name_hi as u64) << 32 | self.name_lo as u64
    }
}

/// A directory: the end of its subtree and its parent, 16 bytes.
#[derive(
    Clone, Copy, Debug, Default, zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout,
)]
#[repr(C)]
pub struct Dir {
    /// Its own id.
    pub id: u32,
    /// First id behind its subtree.
    pub end: u32,
    /// Position of its parent in the table of directories; its own for the root.
    pub parent: u32,
    /// Bit 0: the listing is not held (unreadable, another device, beyond the memory bound).
    pub flags: u32,
}
// (Never written while mapped.)
pod!(Dir);

/// [`Dir::flags`]: the kernel answers listings of this directory.
pub const DIR_INCOMPLETE: u32 = 1;

/// A mapped index.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    /// Its header.
    pub header: &'a IndexHeader,
    records: &'a [Record],
    dirs: &'a [Dir],
    names: &'a [u8],
    links: &'a [u8],
    owners: &'a [u64],
    btimes: &'a [i64],
}

impl<'a> Index<'a> {
    /// Checks the header and the bounds of all parts.
    #[must_use]
    pub fn open(map: Map<'a>) -> Option<Self> {
        let h: &IndexHeader = map.get(0)?;
        if h.magic != INDEX_MAGIC || h.layout != crate::LAYOUT || h.len != map.len() as u64 || h.entries == 0 {
            return None;
        }
        let n = h.entries as usize;
        Some(Self {
            header: h,
            records: map.array(h.records_off as usize, n)?,
            dirs: map.array(h.dirs_off as usize, h.dirs as usize)?,
            names: map.array(h.names_off as usize, h.names_len as usize)?,
            links: map.array(h.links_off as usize, h.links_len as usize)?,
            owners: map.array(h.owners_off as usize, h.owners as usize)?,
            btimes: if h.btimes_off == 0 { &[] } else { map.array(h.btimes_off as usize, n)? },
        })
    }

    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.len()
    }

    /// Never true: the root itself is an entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// All records, by id.
    #[must_use]
    pub const fn records(&self) -> &'a [Record] {
        self.records
    }

    /// The records of a range of ids, as far as there are some.
    #[must_use]
    pub fn records_of(&self, ids: core::ops::Range<u32>) -> &'a [Record] {
        let end = self.records.len().min(ids.end as usize);
        self.records.get(ids.start as usize..end).unwrap_or_default()
    }

    /// The directories whose ids are in a range, and the position of the first.
    #[must_use]
    pub fn dirs_of(&self, ids: core::ops::Range<u32>) -> (usize, &'a [Dir]) {
        let position = |id: u32| self.dirs.partition_point(|d| d.id < id);
        let first = position(ids.start);
        (first, self.dirs.get(first..position(ids.end)).unwrap_or_default())
    }

    /// The record of entry `id`.
    #[must_use]
    #[inline]
    pub fn record(&self, id: u32) -> Option<&'a Record> {
        self.records.get(id as usize)
    }

    /// The last component of the path of an entry.
    #[must_use]
    pub fn name(&self, r: &Record) -> Option<&'a [u8]> {
        let off = usize::try_from(r.name_off()).ok()?;
        self.names.get(off..off.checked_add(r.name_len as usize)?)
    }

    /// The directory part of a directory's record.
    #[must_use]
    pub fn dir(&self, r: &Record) -> Option<&'a Dir> {
        if r.is_dir() { self.dirs.get(r.aux as usize) } else { None }
    }

    /// All directories, by id.
    #[must_use]
    pub const fn dirs(&self) -> &'a [Dir] {
        self.dirs
    }

    /// Target of a symbolic link.
    #[must_use]
    pub fn link_target(&self, r: &Record) -> Option<&'a [u8]> {
        if !r.is_link() || r.aux == LINK_OF_KERNEL {
            return None;
        }
        let off = r.aux as usize;
        let len = u32::from_le_bytes(*self.links.get(off..)?.first_chunk()?) as usize;
        let start = off.checked_add(4)?;
        self.links.get(start..start.checked_add(len)?)
    }

    /// (uid, gid) of an entry, `None` when the kernel has to be asked.
    #[must_use]
    #[inline]
    pub fn owner(&self, r: &Record) -> Option<(u32, u32)> {
        let pair = *self.owners.get(r.owner as usize)?;
        Some((pair as u32, (pair >> 32) as u32))
    }

    /// Birth time of an entry in ns, where the file system has one.
    #[must_use]
    pub fn btime_ns(&self, id: u32) -> Option<i64> {
        self.btimes.get(id as usize).copied().filter(|&t| t != i64::MIN)
    }

    /// The directory at a position of the table.
    #[must_use]
    pub fn dir_at(&self, at: usize) -> Option<&'a Dir> {
        self.dirs.get(at)
    }

    /// Position in the table of directories of the directory that holds entry `id` (not the root).
    #[must_use]
    pub fn parent_of(&self, id: u32) -> Option<usize> {
        if id == 0 {
            return None;
        }
        // The last directory that starts before `id`; its subtree or that of one of its ancestors
        // holds
        // `id`.
        let mut at = self.dirs.partition_point(|d| d.id < id).checked_sub(1)?;
        loop {
            let d = self.dirs.get(at)?;
            if id < d.end {
                return Some(at);
            }
            // A damaged index must not lead in circles: a parent comes before its children.
            at = Some(d.parent as usize).filter(|&up| up < at)?;
        }
    }

    /// Whether directories lie within each other, names are names, and all that a record refers to
    /// is there. To be asked once about an index that comes from a file or another node; what
    /// is read of it later is checked for bounds only.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.is_sound_between(0, u32::try_from(self.len()).unwrap_or(u32::MAX))
    }

    /// The part of [`Index::is_sound`] that concerns the entries `from..end`. It is true of the
    /// whole if it is of parts that make up the whole.
    #[must_use]
    pub fn is_sound_between(&self, from: u32, end: u32) -> bool {
        let root = self.dirs.first().is_some_and(|d| d.id == 0 && d.parent == 0 && d.end as usize == self.len());
        // Where the directories of this part begin, and those of the next. (Whatever the order of
        // a damaged table is, the next part begins its count where this one has to end.)
        let starts_at = |id: u32| self.dirs.partition_point(|d| d.id < id);
        let is_last = end as usize == self.len();
        let mut seen = if from == 0 { 0 } else { starts_at(from) };
        let until = if is_last { self.dirs.len() } else { starts_at(end) };
        let entries = self.records.get(from as usize..end as usize).unwrap_or_default();
        let sound = (from..end).zip(entries).all(|(id, r)| {
            if r.is_dir() {
                // They are numbered in the order of their records.
                let here = r.aux as usize == seen && self.is_nested(id, seen);
                seen += 1;
                here && (id == 0 || self.has_name(r))
            } else {
                self.has_name(r) && (!r.is_link() || r.aux == LINK_OF_KERNEL || self.link_target(r).is_some())
            }
        });
        root && sound && seen == until
    }

    /// Whether the directory at a position is that of record `id` and ends within its parent.
    fn is_nested(&self, id: u32, at: usize) -> bool {
        let Some(d) = self.dirs.get(at).filter(|d| d.id == id && d.end > id && d.end as usize <= self.len()) else {
            return false;
        };
        let parent = Some(d.parent as usize).filter(|&up| up < at).and_then(|up| self.dirs.get(up));
        at == 0 || parent.is_some_and(|up| up.id < id && d.end <= up.end)
    }

    fn has_name(&self, r: &Record) -> bool {
        let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.iter().any(|c| matches!(c, b'/' | 0));
        self.name(r).is_some_and(is_name)
    }

    /// The path of entry `id` relative to the root, written into `out`; its length.
    #[must_use]
    pub fn path(&self, id: u32, out: &mut [u8; crate::PATH_MAX]) -> Option<usize> {
        // Built from the end towards the front, then moved.
        let mut start = out.len();
        let mut at = id;
        while at != 0 {
            // A damaged index must not lead in circles: every step costs room, and a parent comes
            // before its children.
            let name = self.name(self.record(at)?).filter(|n| !n.is_empty())?;
            if start != out.len() {
                start = start.checked_sub(1)?;
                *out.get_mut(start)? = b'/';
            }
            let end = start;
            start = start.checked_sub(name.len())?;
            out.get_mut(start..end)?.copy_from_slice(name);
            at = Some(self.dirs.get(self.parent_of(at)?)?.id).filter(|&up| up < at)?;
        }
        let len = out.len().checked_sub(start)?;
        for to in 0..len {
            *out.get_mut(to)? = *out.get(start + to)?;
        }
        Some(len)
    }

    /// [`Index::path`] in scratch memory.
    #[must_use]
    pub fn path_of(&self, id: u32) -> Option<PathBuffer> {
        let mut path = PathBuffer::back();
        let mut at = id;
        while at != 0 {
            let name = self.name(self.record(at)?).filter(|n| !n.is_empty())?;
            if at != id {
                path.prepend(b"/")?;
            }
            path.prepend(name)?;
            at = Some(self.dirs.get(self.parent_of(at)?)?.id).filter(|&up| up < at)?;
        }
        Some(path)
    }

    /// The children of directory `id` in the order of the PFS, starting at child `from` (an id, or
    /// 0 for the first).
    #[must_use]
    pub fn children(&self, dir: &Dir, from: u32) -> Children<'a> {
        Children { index: *self, next: if from == 0 { dir.id.saturating_add(1) } else { from }, end: dir.end }
    }
}

/// Iterator over the children of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Children<'a> {
    index: Index<'a>,
    next: u32,
    end: u32,
}

impl<'a> Iterator for Children<'a> {
    type Item = (u32, &'a Record);
    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let id = self.next;
        let r = self.index.record(id)?;
        let after = self.index.dir(r).map_or(id + 1, |d| d.end);
        // A damaged subtree end must not make the walk go backwards.
        self.next = after.max(id + 1);
        Some((id, r))
    }
}
