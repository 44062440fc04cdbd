//! XXH3-64 of bytes that come in parts (Collet, xxHash 0.8: the variant of inputs above 240 bytes,
//! without seed, with the usual secret).
//!
//! The crate from which the rest of the hashes come can do that, too, but may panic as far as a
//! compiler can tell; in the preload library nothing may. Short inputs are given to it as a whole.
//! (The streams of `twox-hash` cannot panic, but cannot be made in place in scratch memory either.)

use xxhash_rust::xxh3::xxh3_64;

/// A stripe: a lane of eight bytes for each accumulator.
const STRIPE: usize = 64;
/// Bytes between two scramblings: as many stripes as the secret has room for, eight bytes further
/// for each.
const BLOCK: usize = 1024;
/// Longest input that is hashed in another way.
const SHORT: u64 = 240;
/// Of the secret: where the last stripe, the scrambling and the merge begin.
const LAST: usize = SECRET.len() - STRIPE - 7;
const SCRAMBLE: usize = SECRET.len() - STRIPE;
const MERGE: usize = 11;

const P32: [u64; 3] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];
const P64: [u64; 5] =
    [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];
const START: [u64; 8] = [P32[2], P64[0], P64[1], P64[2], P64[3], P32[1], P64[4], P32[0]];

#[rustfmt::skip]
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// A hash in the making.
pub(crate) struct Xxh3 {
    acc: [u64; 8],
    /// The last stripe before the bytes that are yet to be hashed, then those.
    tail: [u8; STRIPE],
    block: [u8; BLOCK],
    /// How many those are; a block is hashed when it is known that more follows.
    held: usize,
    total: u64,
}

impl Xxh3 {
    /// That of nothing.
    pub(crate) const fn new() -> Self {
        Self { acc: START, tail: [0; STRIPE], block: [0; BLOCK], held: 0, total: 0 }
    }

    /// The bytes that come next.
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.total = self.total.wrapping_add(bytes.len() as u64);
        while !bytes.is_empty() {
            if self.held >= BLOCK {
                whole_block(&mut self.acc, &mut self.tail, &self.block);
                self.held = 0;
            }
            if self.held == 0 {
                while let Some((block, rest @ [_, ..])) = bytes.split_first_chunk::<BLOCK>() {
                    whole_block(&mut self.acc, &mut self.tail, block);
                    bytes = rest;
                }
            }
            let Some(room) = self.block.get_mut(self.held..) else { return };
            let n = room.len().min(bytes.len());
            let (now, rest) = bytes.split_at(n);
            for (to, from) in room.iter_mut().zip(now) {
                *to = *from;
            }
            self.held += n;
            bytes = rest;
        }
    }

    /// Begins again with nothing, in place: a whole value is too large for some stacks.
    pub(crate) fn reset(&mut self) {
        self.acc = START;
        self.tail = [0; STRIPE];
        (self.held, self.total) = (0, 0);
    }

    /// The hash of all bytes so far.
    pub(crate) fn digest(&self) -> u64 {
        let held = self.block.get(..self.held).unwrap_or(&[]);
        if self.total <= SHORT {
            return xxh3_64(held);
        }
        let mut acc = self.acc;
        // The last stripe, which may be a part of one, is taken from the end.
        let whole = held.get(..held.len().saturating_sub(1)).unwrap_or(&[]);
        for (n, stripe) in whole.as_chunks::<STRIPE>().0.iter().enumerate() {
            accumulate(&mut acc, stripe, n * 8);
        }
        let mut last = [0; STRIPE];
        let before = self.tail.iter().chain(held).skip(held.len());
        for (to, from) in last.iter_mut().zip(before) {
            *to = *from;
        }
        accumulate(&mut acc, &last, LAST);
        let merged =
            acc.as_chunks::<2>().0.iter().enumerate().fold(self.total.wrapping_mul(P64[0]), |sum, (i, pair)| {
                let product =
                    u128::from(pair[0] ^ secret(MERGE + 16 * i)) * u128::from(pair[1] ^ secret(MERGE + 16 * i + 8));
                #[expect(clippy::cast_possible_truncation, reason = "the halves of a product")]
                sum.wrapping_add(product as u64 ^ (product >> 64) as u64)
            });
        let mixed = (merged ^ merged >> 37).wrapping_mul(0x1656_6791_9e37_79f9);
        mixed ^ mixed >> 32
    }
}

/// Takes a block in and keeps its last stripe.
fn whole_block(sums: &mut [u64; 8], tail: &mut [u8; STRIPE], block: &[u8; BLOCK]) {
    for (n, stripe) in block.as_chunks::<STRIPE>().0.iter().enumerate() {
        accumulate(sums, stripe, n * 8);
    }
    for (i, acc) in sums.iter_mut().enumerate() {
        *acc = (*acc ^ *acc >> 47 ^ secret(SCRAMBLE + 8 * i)).wrapping_mul(P32[0]);
    }
    if let Some(last) = block.last_chunk() {
        *tail = *last;
    }
}

/// Eight bytes of the secret.
#[inline]
fn secret(at: usize) -> u64 {
    SECRET.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |b| u64::from_le_bytes(*b))
}

/// Takes a stripe in, with the secret from `at` on.
#[inline]
fn accumulate(acc: &mut [u64; 8], stripe: &[u8; STRIPE], at: usize) {
    let lanes = stripe.as_chunks::<8>().0;
    let keys = SECRET.get(at..).unwrap_or(&[]).as_chunks::<8>().0;
    let mut crossed = [0; 8];
    for (((sum, cross), lane), key) in acc.iter_mut().zip(&mut crossed).zip(lanes).zip(keys) {
        *cross = u64::from_le_bytes(*lane);
        let mixed = *cross ^ u64::from_le_bytes(*key);
        *sum = sum.wrapping_add((mixed & 0xffff_ffff).wrapping_mul(mixed >> 32));
    }
    // Each lane itself goes to its neighbour.
    for (pair, cross) in acc.as_chunks_mut::<2>().0.iter_mut().zip(crossed.as_chunks::<2>().0) {
        pair[0] = pair[0].wrapping_add(cross[1]);
        pair[1] = pair[1].wrapping_add(cross[0]);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn it_is_what_the_crate_says_in_any_parts() {
        let bytes: Vec<u8> = (0..10_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let around = |n: usize| n.saturating_sub(2)..=n + 2;
        let marks = [0, 8, 64, 128, 240, 1024, 1088, 2048, 3000, 4096, 9000];
        for len in marks.into_iter().flat_map(around) {
            for part in [1, 7, 63, 64, 65, 1000, 1023, 1024, 1025, 4096, 10_000] {
                let mut hash = Xxh3::new();
                bytes[..len].chunks(part).for_each(|b| hash.update(b));
                assert_eq!(hash.digest(), xxh3_64(&bytes[..len]), "{len} in parts of {part}");
            }
        }
    }
}
