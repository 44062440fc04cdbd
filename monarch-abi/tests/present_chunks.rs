//! The bitmap of the chunks that are there of a large file: what a damaged one says.

use monarch_abi::chunks::{Large, LargeFile, WHOLE, bitmap_words_of, present_words_of};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Chunks of a word.
const PER_WORD: u32 = 32;
const CHUNKS: u32 = 100;
const PART: u64 = 0x0123_4567_89ab_cdef;

/// A file of a hundred chunks, of which these are there.
fn with_file(there: &[u32], work: impl Fn(LargeFile<'_>, &[AtomicU64])) {
    let words: [AtomicU64; bitmap_words_of(CHUNKS)] = [const { AtomicU64::new(0) }; bitmap_words_of(CHUNKS)];
    let head = Large {
        ino: 7,
        id: 3,
        slot: 5,
        bits: 0,
        chunks: CHUNKS,
        ahead: AtomicU32::new(0),
        part: AtomicU64::new(0),
        tick: AtomicU32::new(0),
        drops: AtomicU32::new(0),
        in_pfs: AtomicU32::new(0),
        mode: AtomicU32::new(WHOLE),
        rest: AtomicU32::new(0),
        reading: AtomicU32::new(0),
    };
    let file = LargeFile::new(2, &head, 4096, &words).unwrap();
    file.begin(PART, WHOLE);
    there.iter().for_each(|&chunk| file.arrived(chunk));
    work(file, &words);
}

fn present(file: &LargeFile<'_>) -> impl Iterator<Item = u32> {
    (0..CHUNKS + 64).filter(|&chunk| file.has(chunk))
}

const THERE: [u32; 7] = [0, 1, 31, 32, 63, 64, 99];

#[test]
fn chunks_are_told_as_they_come_and_all_go_with_the_copy() {
    with_file(&THERE, |file, _| {
        assert!(present(&file).eq(THERE) && file.count() == 7);
        file.begin(PART + 1, WHOLE);
        assert_eq!((present(&file).count(), file.count()), (0, 0));
    });
}

#[test]
fn no_flipped_bit_of_the_bitmap_makes_a_chunk_present() {
    with_file(&THERE, |file, words| {
        for (at, word) in words[..present_words_of(CHUNKS)].iter().enumerate() {
            let right = word.load(Ordering::Relaxed);
            let others = (0..64).flat_map(|a| (0..64).map(move |b| 1u64 << a | 1 << b)).map(|bits| right ^ bits);
            let whole = [0, u64::MAX, !right, right << 1, right >> 1, right.swap_bytes(), u64::from(u32::MAX)];
            for wrong in others.chain(whole).filter(|wrong| *wrong != right) {
                word.store(wrong, Ordering::Relaxed);
                let of_word = at as u32 * PER_WORD..(at as u32 + 1) * PER_WORD;
                assert!(!of_word.clone().any(|chunk| file.has(chunk)), "{wrong:x} for {right:x}");
                assert!(present(&file).eq(THERE.into_iter().filter(|chunk| !of_word.contains(chunk))));
            }
            word.store(right, Ordering::Relaxed);
        }
        assert!(present(&file).eq(THERE));
    });
}

#[test]
fn a_word_of_another_copy_another_place_or_another_chunk_size_counts_for_nothing() {
    with_file(&[0, 1, 31, 32, 33, 63], |file, words| {
        // The same bits: only the position differs.
        let (first, second) = (words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed));
        assert!(first as u32 == second as u32 && first != second);
        words[0].store(second, Ordering::Relaxed);
        assert!(!file.has(0) && file.has(32));
        words[0].store(first, Ordering::Relaxed);
        file.head.part.store(PART ^ 1, Ordering::Relaxed);
        assert_eq!(present(&file).count(), 0);
        file.head.part.store(PART, Ordering::Relaxed);
        assert_eq!(present(&LargeFile::new(2, file.head, 8192, words).unwrap()).count(), 0);
        assert_eq!(present(&LargeFile::new(3, file.head, 4096, words).unwrap()).count(), 0);
        assert!(present(&file).eq([0, 1, 31, 32, 33, 63]));
    });
}

#[test]
fn what_was_flipped_is_not_carried_over_by_the_next_chunk() {
    with_file(&[0, 1], |file, words| {
        words[0].fetch_xor(1 << 9, Ordering::Relaxed);
        file.arrived(5);
        assert!(present(&file).eq([5]), "neither what was flipped, nor what cannot be told from it");
        words[0].fetch_xor(1 << 9, Ordering::Relaxed);
        file.arrived(7);
        assert!(present(&file).eq([7]));
    });
}
