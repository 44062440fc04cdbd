//! A batch on the wire: small files of one index that a node asks another one for at a time.
//!
//! | part | bytes |
//! |---|---|
//! | request | the number of each file, 4 bytes, little endian; 1 to [`MAX_BATCH_FILES`] of them |
//! | front of the answer | for each file, in the order asked: 1 if it follows or 0; its length, 4 bytes, little endian; its tag, 16 bytes |
//! | rest of the answer | the bytes of the files that follow, in that order |
//!
//! The front is authentic as the body of a message is, and each file has the tag that it has when
//! it is asked for by itself. A file that does not follow has no length and no tag. What an asker
//! allocates is bounded by what it asked for, whatever the answer says.

use crate::tag::{TAG_BYTES, Tag};
use monarch_config::MAX_BATCH_FILES;
use monarch_storage::sharing::MAX_BATCH_BYTES;

/// Bytes of a number in a request.
const ID_BYTES: usize = 4;
/// Bytes of a file in the front.
const ENTRY_BYTES: usize = 1 + 4 + TAG_BYTES;
/// Marks of files in the front.
const ABSENT: u8 = 0;
const FOLLOWS: u8 = 1;

/// A file that follows the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Following {
    /// Its length in bytes.
    pub(super) len: u32,
    /// Its tag.
    pub(super) tag: Tag,
}

/// The body of a request for these files.
pub(super) fn encode_request(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    ids.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// The files that a request names; `None` if it names none, too many, or half a one.
pub(super) fn decode_request(body: &[u8]) -> Option<Vec<u32>> {
    let (ids, rest) = body.as_chunks::<ID_BYTES>();
    let fits = rest.is_empty() && (1..=MAX_BATCH_FILES).contains(&ids.len());
    fits.then(|| ids.iter().map(|id| u32::from_le_bytes(*id)).collect())
}

/// Bytes of the front of an answer about this number of files.
pub(super) const fn front_bytes(files: usize) -> usize {
    files * ENTRY_BYTES
}

/// The front of an answer.
pub(super) fn encode_front(files: &[Option<Following>]) -> Vec<u8> {
    let mut front = Vec::with_capacity(front_bytes(files.len()));
    for file in files {
        front.push(if file.is_some() { FOLLOWS } else { ABSENT });
        front.extend_from_slice(&file.map_or(0, |file| file.len).to_le_bytes());
        front.extend_from_slice(&file.map_or([0; TAG_BYTES], |file| file.tag.to_bytes()));
    }
    front
}

/// What an answer with this front has of files of these sizes; `rest` is the number of bytes that
/// come after it. `None` if it is no such answer.
pub(super) fn decode_front(front: &[u8], sizes: &[u64], rest: u64) -> Option<Vec<Option<Following>>> {
    let (entries, none) = front.as_chunks::<ENTRY_BYTES>();
    if !none.is_empty() || entries.len() != sizes.len() {
        return None;
    }
    let files = entries.iter().zip(sizes).map(|(entry, size)| decode_entry(entry, *size));
    let files = files.collect::<Option<Vec<_>>>()?;
    let all: u64 = files.iter().flatten().map(|file| u64::from(file.len)).sum();
    (all == rest && all <= MAX_BATCH_BYTES).then_some(files)
}

fn decode_entry(entry: &[u8; ENTRY_BYTES], size: u64) -> Option<Option<Following>> {
    let (mark, rest) = entry.split_first()?;
    let (len, tag) = rest.split_first_chunk()?;
    let len = u32::from_le_bytes(*len);
    match *mark {
        FOLLOWS if u64::from(len) == size => Some(Some(Following { len, tag: Tag::from_bytes(*tag.first_chunk()?) })),
        ABSENT if rest.iter().all(|byte| *byte == 0) => Some(None),
        _ => None,
    }
}

/// The numbers that the body of a request for a batch names: a door for tests of the parser.
#[must_use]
pub fn batched_numbers(body: &[u8]) -> Option<Vec<u32>> {
    decode_request(body)
}

/// The lengths of the files that follow the front of an answer, and that front written again: a
/// door for tests of the parser.
#[must_use]
pub fn batched_lengths(front: &[u8], sizes: &[u64], rest: u64) -> Option<(Vec<Option<u32>>, Vec<u8>)> {
    let files = decode_front(front, sizes, rest)?;
    Some((files.iter().map(|file| file.map(|file| file.len)).collect(), encode_front(&files)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn following(len: u32) -> Option<Following> {
        Some(Following { len, tag: Tag::from_bytes([len as u8; TAG_BYTES]) })
    }

    #[test]
    fn a_request_names_one_to_sixty_four_files() {
        let all: Vec<u32> = (0..MAX_BATCH_FILES as u32).map(|n| n * 0x0101_0101).collect();
        let body = encode_request(all.iter().copied());
        assert_eq!(decode_request(&body), Some(all));
        for bad in [&[][..], &body[..body.len() - 1], &[&body[..], &[0; 4]].concat()] {
            assert_eq!(decode_request(bad), None, "{} bytes", bad.len());
        }
    }

    #[test]
    fn an_answer_is_about_the_files_that_were_asked_for_and_their_sizes() {
        let files = [following(7), None, following(1)];
        let front = encode_front(&files);
        assert_eq!(front.len(), front_bytes(3));
        assert_eq!(decode_front(&front, &[7, 9, 1], 8), Some(files.to_vec()));
        assert_eq!(decode_front(&front, &[7, 9, 2], 8), None, "another size");
        assert_eq!(decode_front(&front, &[7, 9, 1], 9), None, "more than the files");
        assert_eq!(decode_front(&front, &[7, 9], 8), None, "other files");
        let large = [following(1 << 20), following(1)];
        assert_eq!(decode_front(&encode_front(&large), &[1 << 20, 1], (1 << 20) + 1), None, "more than a batch");
        let mut odd = front.clone();
        odd[ENTRY_BYTES + 3] = 1;
        assert_eq!(decode_front(&odd, &[7, 9, 1], 8), None, "a length of what does not follow");
        odd[ENTRY_BYTES] = 2;
        assert_eq!(decode_front(&odd, &[7, 9, 1], 8), None, "no such mark");
    }

    proptest! {
        #[test]
        fn every_front_is_read_as_it_was_written_and_no_part_of_it_is(
            sizes in prop::collection::vec((1u32..1 << 14, any::<bool>()), 1..MAX_BATCH_FILES),
        ) {
            let files: Vec<_> = sizes.iter().map(|(len, there)| following(*len).filter(|_| *there)).collect();
            let (front, sizes) = (encode_front(&files), sizes.iter().map(|(len, _)| u64::from(*len)).collect::<Vec<_>>());
            let rest = files.iter().flatten().map(|file| u64::from(file.len)).sum();
            for end in 0..front.len() {
                prop_assert_eq!(decode_front(&front[..end], &sizes, rest), None);
            }
            prop_assert_eq!(decode_front(&front, &sizes, rest), Some(files));
        }

        #[test]
        fn whatever_comes_no_more_is_promised_than_was_asked_for(
            front in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..3 * ENTRY_BYTES),
            sizes in prop::collection::vec(0u64..300, 0..4),
            rest in 0u64..900,
        ) {
            if let Some(files) = decode_front(&front, &sizes, rest) {
                prop_assert_eq!(files.len(), sizes.len());
                for (file, size) in files.iter().zip(&sizes) {
                    prop_assert!(file.is_none_or(|file| u64::from(file.len) == *size));
                }
            }
            if let Some(ids) = decode_request(&front) {
                prop_assert_eq!(encode_request(ids), front);
            }
        }
    }
}
