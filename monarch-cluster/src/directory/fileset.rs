//! How sets of files travel: per index, the numbers as distances or as a bitmap, whichever is
//! smaller.
//!
//! ```text
//! message = index*                     index = uuid[16] varint(len) set[len]
//! set     = 0 varint(count) varint(distance to the one before, less one)*
//!         | 1 varint(first) bits...    bit i of the bitmap: file first + i
//! ```
//! Numbers are LEB128. A full set of 1.28 million files takes 160 kB, a thousandth of them 3 kB.
//! What comes in is bounded by the number of files that the index has here: no message makes a node
//! allocate more.
//!
//! The format is ours, and not that of the crate `roaring`: it is part of the protocol, as small
//! for these sets, and read without a set in memory that is larger than the message.

use super::Uuid;
use integer_encoding::VarInt;
use monarch_storage::sharing::FileRef;
use std::collections::{BTreeMap, BTreeSet};

/// A message of files that is not right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileSetError {
    /// It ends early.
    #[error(
        "a set of files ends early: the message was cut, or the other node runs another version; use one version on all nodes"
    )]
    Short,
    /// A number, a kind or an order that cannot be.
    #[error("a set of files is malformed ({0}): the other node runs another version; use one version on all nodes")]
    Malformed(&'static str),
    /// A file that the index does not have.
    #[error(
        "a set of files names file {id} of an index of {files}: the nodes hold different indexes under one name; build the index again"
    )]
    Beyond {
        /// The file.
        id: u64,
        /// How many the index has.
        files: u32,
    },
}

/// Files by index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSets(BTreeMap<Uuid, BTreeSet<u32>>);

impl FileSets {
    /// Adds a file.
    pub fn add(&mut self, file: FileRef) {
        self.0.entry(file.index).or_default().insert(file.id);
    }

    /// Adds files of one index.
    pub fn add_ids(&mut self, index: Uuid, ids: impl IntoIterator<Item = u32>) {
        self.0.entry(index).or_default().extend(ids);
    }

    /// Adds all files of `more`.
    pub fn merge(&mut self, more: Self) {
        more.0.into_iter().for_each(|(index, ids)| self.add_ids(index, ids));
    }

    /// Removes all files.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether there is no index in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Appends the sets as they are sent.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for (index, ids) in &self.0 {
            let ids: Vec<u32> = ids.iter().copied().collect();
            encode(index, &ids, out);
        }
    }
}

/// Appends the files of one index, which must ascend.
pub fn encode(index: &Uuid, ids: &[u32], out: &mut Vec<u8>) {
    let set = encode_set(ids);
    out.extend(index);
    put(set.len() as u64, out);
    out.extend(set);
}

fn encode_set(ids: &[u32]) -> Vec<u8> {
    let mut far = vec![0];
    put(ids.len() as u64, &mut far);
    let mut next = 0;
    for id in ids {
        put(u64::from(*id) - next, &mut far);
        next = u64::from(*id) + 1;
    }
    match (ids.first(), ids.last()) {
        (Some(first), Some(last)) if ((last - first) / 8) as usize + 7 < far.len() => bitmap(*first, *last, ids),
        _ => far,
    }
}

fn bitmap(first: u32, last: u32, ids: &[u32]) -> Vec<u8> {
    let mut out = vec![1];
    put(u64::from(first), &mut out);
    let start = out.len();
    out.resize(start + ((last - first) / 8) as usize + 1, 0);
    for bit in ids.iter().map(|id| (id - first) as usize) {
        out[start + bit / 8] |= 1 << (bit % 8);
    }
    out
}

/// Takes a message apart. `files` says how many files an index has here; one that it does not know
/// is skipped.
pub fn decode(mut bytes: &[u8], files: impl Fn(&Uuid) -> Option<u32>) -> Result<Vec<(Uuid, Vec<u32>)>, FileSetError> {
    let mut sets: Vec<(Uuid, Vec<u32>)> = Vec::new();
    while !bytes.is_empty() {
        let (index, rest) = bytes.split_first_chunk::<16>().ok_or(FileSetError::Short)?;
        bytes = rest;
        let len = take(&mut bytes)?;
        let set = bytes.get(..usize::try_from(len).map_err(|_| FileSetError::Short)?).ok_or(FileSetError::Short)?;
        bytes = &bytes[set.len()..];
        if sets.iter().any(|(seen, _)| seen == index) {
            return Err(FileSetError::Malformed("an index comes twice"));
        }
        if let Some(files) = files(index) {
            sets.push((*index, decode_set(set, files)?));
        }
    }
    Ok(sets)
}

fn decode_set(set: &[u8], files: u32) -> Result<Vec<u32>, FileSetError> {
    match set.split_first().ok_or(FileSetError::Short)? {
        (0, rest) => decode_far(rest, files),
        (1, rest) => decode_bitmap(rest, files),
        _ => Err(FileSetError::Malformed("its kind is not known")),
    }
}

fn decode_far(mut bytes: &[u8], files: u32) -> Result<Vec<u32>, FileSetError> {
    let count = take(&mut bytes)?;
    // Each number takes a byte at least: no count makes this allocate more than came in.
    if count > bytes.len() as u64 {
        return Err(FileSetError::Short);
    }
    let (mut ids, mut next) = (Vec::with_capacity(count as usize), 0_u64);
    for _ in 0..count {
        let id = next.saturating_add(take(&mut bytes)?);
        ids.push(within(id, files)?);
        next = id + 1;
    }
    if bytes.is_empty() { Ok(ids) } else { Err(FileSetError::Malformed("bytes follow it")) }
}

fn decode_bitmap(mut bytes: &[u8], files: u32) -> Result<Vec<u32>, FileSetError> {
    let first = u64::from(within(take(&mut bytes)?, files)?);
    let mut ids = Vec::new();
    for (n, byte) in bytes.iter().enumerate() {
        for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
            ids.push(within(first + n as u64 * 8 + bit, files)?);
        }
    }
    Ok(ids)
}

fn within(id: u64, files: u32) -> Result<u32, FileSetError> {
    u32::try_from(id).ok().filter(|id| *id < files).ok_or(FileSetError::Beyond { id, files })
}

fn put(n: u64, out: &mut Vec<u8>) {
    let mut bytes = [0; MAX_NUMBER_BYTES];
    let len = n.encode_var(&mut bytes);
    out.extend_from_slice(&bytes[..len]);
}

fn take(bytes: &mut &[u8]) -> Result<u64, FileSetError> {
    let malformed = if bytes.len() < MAX_NUMBER_BYTES {
        FileSetError::Short
    } else {
        FileSetError::Malformed("a number is too long")
    };
    let (n, len) = u64::decode_var(bytes).ok_or(malformed)?;
    *bytes = bytes.get(len..).unwrap_or_default();
    Ok(n)
}

/// Bytes of the longest number.
const MAX_NUMBER_BYTES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INDEX: Uuid = [3; 16];

    fn sent(ids: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&INDEX, ids, &mut out);
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_sent_arrives(ids in proptest::collection::btree_set(0..5000_u32, 0..900)) {
            let ids: Vec<u32> = ids.into_iter().collect();
            prop_assert_eq!(decode(&sent(&ids), |_| Some(5000)), Ok(vec![(INDEX, ids.clone())]));
            prop_assert_eq!(decode(&sent(&ids), |_| None), Ok(vec![]));
        }

        #[test]
        fn what_is_not_a_message_is_an_error_or_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut message = sent(&[1, 2]);
            message.extend(&bytes);
            for raw in [&bytes[..], &message[..]] {
                for (_, ids) in decode(raw, |_| Some(1000)).unwrap_or_default() {
                    prop_assert!(ids.windows(2).all(|w| w[0] < w[1]) && ids.iter().all(|id| *id < 1000));
                }
            }
        }
    }

    #[test]
    fn messages_are_what_nodes_of_earlier_versions_send() {
        let message = |set: &[u8]| [&INDEX[..], &[set.len() as u8], set].concat();
        assert_eq!(sent(&[1, 2, 300]), message(&[0, 3, 1, 0, 0xa9, 2]));
        assert_eq!(sent(&Vec::from_iter(5..=20)), message(&[1, 5, 0xff, 0xff]));
        assert_eq!(sent(&[]), message(&[0, 0]));
    }

    #[test]
    fn dense_sets_are_bitmaps_and_sparse_ones_are_not() {
        let all: Vec<u32> = (0..1_280_000).collect();
        assert!(sent(&all).len() < 160_100, "{}", sent(&all).len());
        let few: Vec<u32> = all.iter().copied().step_by(1000).collect();
        assert!(sent(&few).len() < 3_000, "{}", sent(&few).len());
    }

    #[test]
    fn bad_messages_say_what_is_wrong() {
        assert_eq!(decode(&sent(&[7]), |_| Some(7)), Err(FileSetError::Beyond { id: 7, files: 7 }));
        assert_eq!(decode(&sent(&[7])[..18], |_| Some(9)), Err(FileSetError::Short));
        assert_eq!(
            decode(&[sent(&[7]), sent(&[8])].concat(), |_| Some(9)),
            Err(FileSetError::Malformed("an index comes twice"))
        );
        let huge = [&INDEX[..], &[6, 0, 0xff, 0xff, 0xff, 0x7f, 1]].concat();
        assert_eq!(decode(&huge, |_| Some(9)), Err(FileSetError::Short));
    }
}
