//! Fills the lookup table of an index, and the slot numbers of hard-linked names.

use monarch_abi::hash::path_hash;
use monarch_abi::index::{Dir, Record};
use monarch_abi::state::{Bucket, MAX_PROBES, NO_ID, SLOTS, Slot, buckets_for, home_bucket};
use monarch_abi::word::{State, Word};
use std::collections::HashMap;
use std::mem::offset_of;
use zerocopy::FromBytes;

/// The records, directories and names of an index that is being made.
pub(super) struct Columns<'a> {
    pub(super) records: &'a mut [u8],
    pub(super) dirs: &'a [u8],
    pub(super) names: &'a [u8],
}

/// What a table needs to know of an entry: 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Key {
    fp: u64,
    id: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    /// A file with several names.
    Linked,
    NonFile,
    /// Not in the table.
    LeftOut,
}

/// The hashes of all paths, in the order of their home buckets.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Vec<Key>,
    has_links: bool,
}

fn field(records: &[u8], id: usize, field: usize) -> &[u8] {
    &records[id * size_of::<Record>() + field..]
}

fn set_u32(records: &mut [u8], id: u32, field: usize, value: u32) {
    let at = id as usize * size_of::<Record>() + field;
    records[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn u32_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
}

impl Keys {
    /// Hashes the paths of all entries with `seed`, and enters the second part of each hash into
    /// its record.
    pub(super) fn of(of: &mut Columns<'_>, seed: u64) -> Self {
        let entries = of.records.len() / size_of::<Record>();
        let (mut keys, mut has_links) = (Vec::with_capacity(entries), false);
        let mut path: Vec<u8> = Vec::new();
        // Of each open directory: the end of its subtree, the length of its path.
        let mut open: Vec<(u32, usize)> = Vec::new();
        for id in 0..entries as u32 {
            let Ok((r, _)) = Record::read_from_prefix(field(of.records, id as usize, 0)) else { break };
            while open.pop_if(|(end, _)| *end <= id).is_some() {}
            path.truncate(open.last().map_or(0, |(_, len)| *len));
            if !path.is_empty() {
                path.push(b'/');
            }
            let (from, len) = (r.name_off() as usize, usize::from(r.name_len));
            path.extend_from_slice(of.names.get(from..from + len).unwrap_or_default());
            if r.is_dir() {
                let end = r.aux as usize * size_of::<Dir>() + offset_of!(Dir, end);
                open.push((of.dirs.get(end..).map_or(0, u32_of), path.len()));
            }
            let hash = path_hash(seed, &path);
            set_u32(of.records, id, offset_of!(Record, check), hash.check);
            let kind = match r.is_file() {
                true if r.nlink > 1 => Kind::Linked,
                true => Kind::File,
                false => Kind::NonFile,
            };
            has_links |= kind == Kind::Linked;
            keys.push(Key { fp: hash.fp, id, kind });
        }
        // The longest way to a slot is far shorter than in another order, the mean way is the same,
        // and the table is written from front to back.
        keys.sort_unstable_by_key(|key| (key.fp, key.id));
        Self { keys, has_links }
    }
}

/// Fills the lookup table; its bytes. `None` when another seed is needed: two paths agree in their
/// hashes, or a probe sequence is too long. The last time such entries are left out, so that only
/// the kernel finds them.
pub(super) fn fill(of: &mut Columns<'_>, keys: &mut Keys, is_last: bool) -> Option<Vec<u8>> {
    let buckets = buckets_for(keys.keys.len() as u64);
    let mut table = vec![0u8; buckets as usize * size_of::<Bucket>()];
    for slot in table.chunks_exact_mut(size_of::<Slot>()) {
        slot[12..].copy_from_slice(&NO_ID.to_le_bytes());
    }
    let mut before: Option<(u64, u32)> = None;
    for key in &mut keys.keys {
        // (Those of one fingerprint follow each other.)
        let is_twice = before.is_some_and(|(fp, id)| fp == key.fp && is_same(of.records, id, key.id));
        let slot = if is_twice { None } else { insert(&mut table, buckets, key) };
        match slot {
            Some(slot) if key.kind == Kind::Linked => set_u32(of.records, key.id, offset_of!(Record, aux), slot),
            Some(_) => {}
            None if is_last => key.kind = Kind::LeftOut,
            None => return None,
        }
        if !is_twice {
            before = Some((key.fp, key.id));
        }
    }
    if keys.has_links {
        keys.keys.retain(|key| key.kind == Kind::Linked);
        keys.keys.sort_unstable_by_key(|key| key.id);
        join_links(of.records, &keys.keys, &mut table);
    }
    Some(table)
}

/// Whether the check halves of the hashes of two entries are the same.
fn is_same(records: &[u8], one: u32, other: u32) -> bool {
    let check = |id: u32| u32_of(field(records, id as usize, offset_of!(Record, check)));
    check(one) == check(other)
}

/// Makes all names of a file share the word of the first one.
fn join_links(records: &mut [u8], linked: &[Key], table: &mut [u8]) {
    let mut masters: HashMap<u64, u32> = HashMap::new();
    for &Key { id, .. } in linked {
        let own = u32_of(field(records, id as usize, offset_of!(Record, aux)));
        let ino =
            field(records, id as usize, offset_of!(Record, ino)).first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let master = *masters.entry(ino).or_insert(own);
        if master != own {
            set_u32(records, id, offset_of!(Record, aux), master);
            let at = own as usize * 16;
            table[at + 8..at + 12].copy_from_slice(&Word::new(State::Link).0.to_le_bytes());
        }
    }
}

/// Puts an entry into the first free slot from its home bucket on; its slot number.
fn insert(table: &mut [u8], buckets: u64, key: &Key) -> Option<u32> {
    let state = if key.kind == Kind::NonFile { State::NonFile } else { State::Absent };
    let mut bucket = home_bucket(key.fp >> 20, buckets) as usize;
    for _ in 0..MAX_PROBES {
        for pos in 0..SLOTS {
            let at = bucket * 64 + pos * 16;
            let slot = &mut table[at..at + 16];
            if u32::from_le_bytes(*slot[12..].first_chunk()?) == NO_ID {
                slot[..8].copy_from_slice(&key.fp.to_le_bytes());
                slot[8..12].copy_from_slice(&Word::new(state).0.to_le_bytes());
                slot[12..].copy_from_slice(&key.id.to_le_bytes());
                return u32::try_from(bucket * SLOTS + pos).ok();
            }
        }
        bucket = if bucket as u64 + 1 == buckets { 0 } else { bucket + 1 };
    }
    None
}
