//! Builds the two files of a segment from a scanned tree.
//!
//! Entries are numbered depth-first, in the PFS's own order of names. Hard-linked files share the
//! state word of the name with the lowest id. The lookup table is filled bucket by bucket
//! ([`super::table`]). If two paths agree in all 96 bits of their hash, or a probe sequence gets
//! too long, another seed is tried; a name that is listed twice is looked up as the first.
//!
//! The parts are counted first, so that each byte is written where it stays: into memory, or into
//! the file that processes will map. The tree is freed directory by directory meanwhile.

use super::parts::{IndexTooLarge, MAX_ENTRIES, Parts, Sizes};
use super::read_dir::DirScan;
use super::scan::Tree;
use super::table::{Columns, Keys, fill};
use monarch_abi::index::{Dir, INDEX_CUT, INDEX_MAGIC, IndexHeader, LINK_OF_KERNEL, Record};
use monarch_abi::state::buckets_for;
use zerocopy::IntoBytes;

/// Seeds that are tried. Entries whose paths agree with that of another one under each of them have
/// the same path: some file systems list a name twice while a directory changes.
const MAX_SEEDS: u32 = 4;
/// Bytes of a tree that are freed before the C library is made to give them back.
const GIVE_BACK_BYTES: usize = 256 << 20;

/// An index and its lookup table, ready to be written.
#[derive(Debug)]
pub struct Built {
    /// The bytes of the index file.
    pub index: Vec<u8>,
    /// The bytes of the buckets of the state file.
    pub buckets: Vec<u8>,
}

impl Built {
    /// The header of the index.
    ///
    /// # Panics
    /// Never: `index` starts with a header by construction.
    #[must_use]
    pub fn header(&self) -> IndexHeader {
        zerocopy::FromBytes::read_from_prefix(&self.index).map(|(h, _)| h).expect("an index starts with its header")
    }
}

/// Why an index cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// More than an index holds.
    #[error(transparent)]
    TooLarge(#[from] IndexTooLarge),
    /// There is no place for it.
    #[error("no place for the index: {0}")]
    Place(#[from] std::io::Error),
}

/// Numbers the entries of `tree` and builds index and table in memory, with `seed` unless that does
/// not work.
///
/// # Errors
/// The tree has more entries than an index holds. (A scan reads no more.)
pub fn try_build(tree: Tree, seed: u64, uuid: [u8; 16]) -> Result<Built, BuildError> {
    let (index, buckets) = build_into(tree, seed, uuid, |len| Ok(vec![0; len]))?;
    Ok(Built { index, buckets })
}

/// [`try_build`] of a tree that is known to fit.
///
/// # Panics
/// It does not fit.
#[must_use]
pub fn build(tree: Tree, seed: u64, uuid: [u8; 16]) -> Built {
    try_build(tree, seed, uuid).expect("a tree that fits into an index")
}

/// Builds the index in what `place` makes of its length in bytes, which must be zero; gives that,
/// and the buckets.
///
/// # Errors
/// [`BuildError`].
pub fn build_into<P: AsMut<[u8]>>(
    tree: Tree,
    mut seed: u64,
    uuid: [u8; 16],
    place: impl FnOnce(usize) -> std::io::Result<P>,
) -> Result<(P, Vec<u8>), BuildError> {
    let sizes = Sizes::of(&tree);
    let parts = Parts::of(&sizes, MAX_ENTRIES)?;
    let mut placed = place(parts.len)?;
    let out = placed.as_mut();
    let mut header = IndexHeader {
        flags: u32::from(tree.incomplete) | if tree.cut { INDEX_CUT } else { 0 },
        root_id: tree.root_id,
        root_dev: tree.root_dev,
        root_ino: tree.root.ino,
        owners: tree.owners.len() as u64,
        parent_ino: tree.dirs.first().map_or(0, |d| d.parent_ino),
        scan_began_ns: tree.began_ns,
        ..IndexHeader::default()
    };
    let mut flat = Flat::new(&parts, out);
    flat.lay_out(tree);
    (header.files, header.bytes, header.links_len) = (flat.files, flat.bytes, flat.links_at as u64);
    let mut tries = MAX_SEEDS;
    let buckets = loop {
        tries -= 1;
        let mut keys = Keys::of(&mut flat.columns(), seed);
        match fill(&mut flat.columns(), &mut keys, tries == 0) {
            Some(buckets) => break buckets,
            None => seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1),
        }
    };
    parts.enter(&mut header);
    header = IndexHeader {
        magic: INDEX_MAGIC,
        layout: monarch_abi::LAYOUT,
        uuid,
        seed,
        entries: sizes.entries as u32,
        dirs: sizes.dirs as u32,
        names_len: sizes.names as u64,
        scanned_ns: crate::sys::now_ns(),
        buckets: buckets_for(sizes.entries as u64),
        ..header
    };
    out[..size_of::<IndexHeader>()].copy_from_slice(header.as_bytes());
    Ok((placed, buckets))
}

/// The parts of an index that is being made, and how far each has got. Fields: 12, one for each
/// part, its end, and what its header says of the files.
struct Flat<'a> {
    records: &'a mut [u8],
    dirs: &'a mut [u8],
    names: &'a mut [u8],
    links: &'a mut [u8],
    owners: &'a mut [u8],
    btimes: &'a mut [u8],
    entries: usize,
    directories: usize,
    names_at: usize,
    links_at: usize,
    files: u64,
    bytes: u64,
}

/// A directory whose children are being numbered.
struct Frame {
    scan: DirScan,
    next: usize,
    dir: usize,
}

impl<'a> Flat<'a> {
    fn new(parts: &Parts, out: &'a mut [u8]) -> Self {
        let [records, dirs, names, links, owners, btimes] = parts.split(out);
        let (entries, directories, names_at, links_at, files, bytes) = (0, 0, 0, 0, 0, 0);
        Self { records, dirs, names, links, owners, btimes, entries, directories, names_at, links_at, files, bytes }
    }

    fn columns(&mut self) -> Columns<'_> {
        Columns { records: self.records, dirs: self.dirs, names: self.names }
    }

    /// Writes all entries of a tree in depth-first order, and frees the tree.
    fn lay_out(&mut self, mut tree: Tree) {
        put(self.owners, 0, tree.owners.as_bytes());
        let first = take(&mut tree.dirs, 0);
        self.push(tree.root, tree.root_btime);
        self.push_dir(Dir { id: 0, end: 0, parent: 0, flags: first.flags });
        let mut stack = vec![Frame { scan: first, next: 0, dir: 0 }];
        let mut freed = 0;
        while let Some(top) = stack.last_mut() {
            let Some(&entry) = top.scan.entries.get(top.next) else {
                let end = self.entries as u32;
                self.end_dir(top.dir, end);
                freed += top.scan.held_bytes();
                stack.pop();
                if freed >= GIVE_BACK_BYTES {
                    freed = 0;
                    crate::sys::give_back_memory();
                }
                continue;
            };
            let (at, parent) = (top.next, top.dir);
            top.next += 1;
            let btime = top.scan.btimes.get(at).copied().unwrap_or(i64::MIN);
            let mut r = entry;
            let off = self.push_name(top.scan.name(&entry));
            r.name_lo = off as u32;
            r.name_hi = (off >> 32) as u8;
            if entry.is_link() {
                r.aux = self.push_link(&top.scan, entry.aux);
            }
            if entry.is_dir() {
                r.aux = self.directories as u32;
                let (id, dir) = (self.entries as u32, self.directories);
                let scan = take(&mut tree.dirs, entry.aux as usize);
                self.push_dir(Dir { id, end: 0, parent: parent as u32, flags: scan.flags });
                stack.push(Frame { scan, next: 0, dir });
            }
            self.push(r, btime);
        }
    }

    fn push(&mut self, r: Record, btime: i64) {
        put(self.records, self.entries * size_of::<Record>(), r.as_bytes());
        if !self.btimes.is_empty() {
            put(self.btimes, self.entries * size_of::<i64>(), &btime.to_le_bytes());
        }
        if r.is_file() {
            self.files += 1;
            // (Sparse files may have up to 2^63 bytes each.)
            self.bytes = self.bytes.saturating_add(r.size);
        }
        self.entries += 1;
    }

    fn push_dir(&mut self, dir: Dir) {
        put(self.dirs, self.directories * size_of::<Dir>(), dir.as_bytes());
        self.directories += 1;
    }

    fn end_dir(&mut self, at: usize, end: u32) {
        put(self.dirs, at * size_of::<Dir>() + std::mem::offset_of!(Dir, end), &end.to_le_bytes());
    }

    /// Adds a name; its offset.
    fn push_name(&mut self, name: &[u8]) -> u64 {
        let at = self.names_at;
        put(self.names, at, name);
        self.names_at += name.len();
        at as u64
    }

    /// Moves a link target from a directory's links to the common ones; its new offset.
    /// [`LINK_OF_KERNEL`] for one that has no place there.
    fn push_link(&mut self, scan: &DirScan, off: u32) -> u32 {
        let target = scan.link(off).unwrap_or(&[0; 4]);
        let Some(to) = self.links.get_mut(self.links_at..self.links_at + target.len()) else { return LINK_OF_KERNEL };
        to.copy_from_slice(target);
        let at = self.links_at as u32;
        self.links_at += target.len();
        at
    }
}

/// Takes a directory out of a tree; one that is not there is left to the kernel.
fn take(dirs: &mut [DirScan], at: usize) -> DirScan {
    dirs.get_mut(at).map_or_else(super::read_dir::unread, std::mem::take)
}

/// Writes bytes into a part. Its size was counted before: there is a place for each.
fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}
