//! Builds the two files of a segment from a scanned tree.
//!
//! Entries are numbered depth-first, in the PFS's own order of names. Hard-linked files share the
//! state word of the name with the lowest id. The lookup table is filled bucket by bucket. If two
//! paths agree in all 96 bits of their hash, or a probe sequence gets too long, another seed is
//! tried.

use super::read_dir::DirScan;
use super::scan::Tree;
use monarch_abi::hash::{PathHash, path_hash};
use monarch_abi::index::{Dir, INDEX_CUT, INDEX_MAGIC, IndexHeader, Record};
use monarch_abi::state::{MAX_PROBES, NO_ID, SLOTS, buckets_for, home_bucket};
use monarch_abi::word::{State, Word};
use std::collections::HashMap;
use zerocopy::IntoBytes;

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

/// Everything in depth-first order.
#[derive(Default)]
pub(super) struct Flat {
    records: Vec<Record>,
    dirs: Vec<Dir>,
    names: Vec<u8>,
    links: Vec<u8>,
    btimes: Vec<i64>,
    hashes: Vec<PathHash>,
}

/// A directory whose children are being numbered.
struct Frame {
    scan: usize,
    next: usize,
    dir: usize,
    path_len: usize,
}

/// Numbers the entries of `tree` and builds index and table, with `seed` unless that does not work.
#[must_use]
pub fn build(mut tree: Tree, mut seed: u64, uuid: [u8; 16]) -> Built {
    loop {
        let mut flat = flatten(&tree, seed);
        let parent_ino = tree.dirs.first().map_or(0, |d| d.parent_ino);
        if let Some(buckets) = fill_table(&mut flat) {
            let has_btime = flat.btimes.iter().any(|&t| t != i64::MIN);
            tree.dirs.clear();
            return Built { index: assemble(&tree, &flat, seed, uuid, has_btime, parent_ino), buckets };
        }
        seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    }
}

pub(super) fn flatten(tree: &Tree, seed: u64) -> Flat {
    let total = 1 + tree.dirs.iter().map(|d| d.entries.len()).sum::<usize>();
    let mut f = Flat {
        records: Vec::with_capacity(total),
        btimes: Vec::with_capacity(total),
        hashes: Vec::with_capacity(total),
        dirs: Vec::with_capacity(tree.dirs.len()),
        names: Vec::with_capacity(tree.dirs.iter().map(|d| d.names.len()).sum()),
        links: Vec::new(),
    };
    let mut path: Vec<u8> = Vec::new();
    push(&mut f, tree.root, tree.root_btime, path_hash(seed, b""));
    f.dirs.push(Dir { id: 0, end: 0, parent: 0, flags: tree.dirs.first().map_or(0, |d| d.flags) });
    let mut stack = vec![Frame { scan: 0, next: 0, dir: 0, path_len: 0 }];
    while let Some(top) = stack.last_mut() {
        let Some(scan) = tree.dirs.get(top.scan) else { break };
        path.truncate(top.path_len);
        let Some(&entry) = scan.entries.get(top.next) else {
            f.dirs[top.dir].end = f.records.len() as u32;
            stack.pop();
            continue;
        };
        let at = top.next;
        top.next += 1;
        let name = scan.name(&entry);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        let (dir, path_len, parent) = (f.dirs.len(), path.len(), top.dir);
        let id = f.records.len() as u32;
        let mut r = entry;
        let off = f.names.len() as u64;
        f.names.extend_from_slice(name);
        r.name_lo = off as u32;
        r.name_hi = (off >> 32) as u8;
        if entry.is_link() {
            r.aux = copy_link(&mut f.links, scan, entry.aux);
        }
        if entry.is_dir() {
            r.aux = dir as u32;
            let scan = entry.aux as usize;
            let flags = tree.dirs.get(scan).map_or(monarch_abi::index::DIR_INCOMPLETE, |d| d.flags);
            f.dirs.push(Dir { id, end: 0, parent: parent as u32, flags });
            stack.push(Frame { scan, next: 0, dir, path_len });
        }
        push(&mut f, r, scan.btimes.get(at).copied().unwrap_or(i64::MIN), path_hash(seed, &path));
    }
    f
}

fn push(f: &mut Flat, mut r: Record, btime: i64, h: PathHash) {
    r.check = h.check;
    f.records.push(r);
    f.btimes.push(btime);
    f.hashes.push(h);
}

/// Moves a link target from a directory's links to the common ones; its new offset.
fn copy_link(links: &mut Vec<u8>, scan: &DirScan, off: u32) -> u32 {
    let at = links.len() as u32;
    let from = scan.links.get(off as usize..).unwrap_or(&[]);
    let len = from.first_chunk().map_or(0, |b| u32::from_le_bytes(*b) as usize);
    links.extend_from_slice(from.get(..4 + len).unwrap_or(&[0; 4]));
    at
}

/// Fills the lookup table and the slot numbers of hard-linked names; `None` when another seed is
/// needed.
pub(super) fn fill_table(f: &mut Flat) -> Option<Vec<u8>> {
    let buckets = buckets_for(f.records.len() as u64);
    let mut table = vec![0u8; buckets as usize * 64];
    for slot in table.chunks_exact_mut(16) {
        slot[12..].copy_from_slice(&NO_ID.to_le_bytes());
    }
    let mut place = vec![0u32; f.records.len()];
    // In the order of their home buckets: the longest way to a slot is far shorter than in another
    // order, the mean way is the same, and the table is written from front to back.
    let mut order: Vec<u32> = (0..f.records.len() as u32).collect();
    order.sort_unstable_by_key(|&id| f.hashes[id as usize].fp);
    for id in order {
        let (at, fp) = (id as usize, f.hashes[id as usize].fp);
        place[at] = insert(&mut table, buckets, fp, id, initial_state(&f.records[at]), &f.hashes)?;
    }
    let mut masters: HashMap<u64, u32> = HashMap::new();
    for (id, r) in f.records.iter_mut().enumerate() {
        if r.is_file() && r.nlink > 1 {
            let master = *masters.entry(r.ino).or_insert(id as u32);
            r.aux = place[master as usize];
            if master != id as u32 {
                let at = place[id] as usize * 16;
                table[at + 8..at + 12].copy_from_slice(&Word::new(State::Link).0.to_le_bytes());
            }
        }
    }
    Some(table)
}

fn initial_state(r: &Record) -> State {
    if r.is_file() { State::Absent } else { State::NonFile }
}

/// Puts an entry into the first free slot from its home bucket on; its slot number.
fn insert(table: &mut [u8], buckets: u64, fp: u64, id: u32, state: State, hashes: &[PathHash]) -> Option<u32> {
    let mut bucket = home_bucket(fp >> 20, buckets) as usize;
    for _ in 0..MAX_PROBES {
        for pos in 0..SLOTS {
            let at = bucket * 64 + pos * 16;
            let slot = &mut table[at..at + 16];
            let other = u32::from_le_bytes(*slot[12..].first_chunk()?);
            if other == NO_ID {
                slot[..8].copy_from_slice(&fp.to_le_bytes());
                slot[8..12].copy_from_slice(&Word::new(state).0.to_le_bytes());
                slot[12..].copy_from_slice(&id.to_le_bytes());
                return Some((bucket * SLOTS + pos) as u32);
            }
            if hashes.get(other as usize) == hashes.get(id as usize) {
                return None;
            }
        }
        bucket = if bucket as u64 + 1 == buckets { 0 } else { bucket + 1 };
    }
    None
}

/// Lays out the parts behind a header.
fn assemble(tree: &Tree, f: &Flat, seed: u64, uuid: [u8; 16], has_btime: bool, parent_ino: u64) -> Vec<u8> {
    let owners: &[u8] = tree.owners.as_bytes();
    let btimes: &[u8] = if has_btime { f.btimes.as_bytes() } else { &[] };
    let parts: [&[u8]; 6] = [f.records.as_bytes(), f.dirs.as_bytes(), &f.names, &f.links, owners, btimes];
    let mut offs = [0u64; 6];
    let mut at = size_of::<IndexHeader>() as u64;
    for (off, part) in offs.iter_mut().zip(parts) {
        at = at.next_multiple_of(64);
        *off = at;
        at += part.len() as u64;
    }
    let len = at.next_multiple_of(4096);
    let regular = f.records.iter().filter(|r| r.is_file());
    let header = IndexHeader {
        magic: INDEX_MAGIC,
        layout: monarch_abi::LAYOUT,
        flags: u32::from(tree.incomplete) | if tree.cut { INDEX_CUT } else { 0 },
        uuid,
        seed,
        root_id: tree.root_id,
        len,
        entries: f.records.len() as u32,
        dirs: f.dirs.len() as u32,
        records_off: offs[0],
        dirs_off: offs[1],
        names_off: offs[2],
        names_len: f.names.len() as u64,
        links_off: offs[3],
        links_len: f.links.len() as u64,
        owners_off: offs[4],
        owners: tree.owners.len() as u64,
        btimes_off: if has_btime { offs[5] } else { 0 },
        scanned_ns: crate::sys::now_ns(),
        root_dev: tree.root_dev,
        root_ino: tree.root.ino,
        buckets: buckets_for(f.records.len() as u64),
        // (Sparse files may have up to 2^63 bytes each.)
        bytes: regular.clone().map(|r| r.size).fold(0, u64::saturating_add),
        files: regular.count() as u64,
        parent_ino,
        scan_began_ns: tree.began_ns,
        reserved: [0; 7],
    };
    let mut out = Vec::with_capacity(len as usize);
    out.extend_from_slice(header.as_bytes());
    for (off, part) in offs.iter().zip(parts) {
        out.resize(*off as usize, 0);
        out.extend_from_slice(part);
    }
    out.resize(len as usize, 0);
    out
}
