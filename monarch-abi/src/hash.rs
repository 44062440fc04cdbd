//! Fingerprints of paths, names of copies and the stamp that a copy carries.
//!
//! *Fingerprint.* XXH3-128 (Collet, xxHash 0.8) of the path relative to its root, seeded per index.
//! 64 bits pick the bucket and are kept in the slot, 32 more are kept in the record: With these 96
//! bits no name is compared.
//!
//! *Name.* A copy is named by a hash of (root id, fingerprint, size, mtime, ctime, inode): a name
//! is never reused for other bytes, so that a stale mapping gives the right bytes or ENOENT. Of its
//! 128 bits 16 are those of the root id, which identify copies that a scan of their root no longer
//! finds.
//!
//! *Stamp.* Monarch chooses the modification time of a copy. It holds 60 bits: 44 of the
//! fingerprint and 16 of the name. One `statx` of a descriptor thus says whether it is a copy and
//! of which file, in any process, whatever dup, fork, exec or SCM_RIGHTS did to the descriptor: no
//! table of descriptors is kept anywhere. Seconds stay below 2^31 so that every file system with
//! nanoseconds can hold the stamp.

use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

/// 96 bits of a seeded path hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathHash {
    /// Kept in the slot; its upper 44 bits choose the bucket.
    pub fp: u64,
    /// Kept in the record.
    pub check: u32,
}

/// Hash of `rel`, a path relative to its root without leading, doubled or trailing slashes.
#[must_use]
#[inline]
pub fn path_hash(seed: u64, rel: &[u8]) -> PathHash {
    let h = xxh3_128_with_seed(rel, seed);
    #[expect(clippy::cast_possible_truncation, reason = "the halves of a hash")]
    PathHash { fp: h as u64, check: (h >> 64) as u32 }
}

/// What makes one version of one file: the "before" of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Change time, nanoseconds since the epoch.
    pub ctime_ns: i64,
    /// Inode number on the PFS.
    pub ino: u64,
}

/// The name of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CopyName(pub u128);

/// Where a name has bits of the root id: neither where it has those of the stamp nor those of the
/// subdirectory.
const ROOT_SHIFT: u32 = 64;
const ROOT_BITS: u128 = 0xffff << ROOT_SHIFT;

/// Length of a copy's path below its tier: `copies/xx/` and 32 hex digits.
pub const COPY_REL_LEN: usize = 7 + 3 + 32;

impl CopyName {
    /// The name of the copy of version `id` of the file with hash `path` below root `root_id`.
    #[must_use]
    #[inline]
    pub fn new(root_id: u64, path: PathHash, id: &Identity) -> Self {
        let mut b = [0u8; 56];
        b[0..8].copy_from_slice(&root_id.to_le_bytes());
        b[8..16].copy_from_slice(&path.fp.to_le_bytes());
        b[16..24].copy_from_slice(&u64::from(path.check).to_le_bytes());
        b[24..32].copy_from_slice(&id.size.to_le_bytes());
        b[32..40].copy_from_slice(&id.mtime_ns.to_le_bytes());
        b[40..48].copy_from_slice(&id.ctime_ns.to_le_bytes());
        b[48..56].copy_from_slice(&id.ino.to_le_bytes());
        Self(xxh3_128(&b) & !ROOT_BITS | (root_id as u128) << ROOT_SHIFT & ROOT_BITS)
    }

    /// Whether it can be the name of a copy from below this root; of 65,536 others one looks the
    /// same.
    #[must_use]
    pub const fn is_below(self, root_id: u64) -> bool {
        self.0 & ROOT_BITS == (root_id as u128) << ROOT_SHIFT & ROOT_BITS
    }

    /// 32 lower-case hex digits, most significant first.
    #[must_use]
    #[inline]
    pub fn hex(self) -> [u8; 32] {
        let mut out = [0u8; 32];
        for (chunk, half) in out.chunks_exact_mut(16).zip([(self.0 >> 64) as u64, self.0 as u64]) {
            chunk.copy_from_slice(&hex16(half));
        }
        out
    }

    /// Reads what [`CopyName::hex`] wrote.
    #[must_use]
    pub fn parse(hex: &[u8]) -> Option<Self> {
        if hex.len() != 32 {
            return None;
        }
        let mut v = 0u128;
        for &c in hex {
            let d = match c {
                b'0'..=b'9' => c - b'0',
                b'a'..=b'f' => c - b'a' + 10,
                _ => return None,
            };
            v = v << 4 | u128::from(d);
        }
        Some(Self(v))
    }

    /// The path below the tier's directory, `copies/xx/<32 hex>`.
    #[must_use]
    #[inline]
    pub fn rel_path(self) -> [u8; COPY_REL_LEN] {
        let hex = self.hex();
        let mut out = [0u8; COPY_REL_LEN];
        out[..7].copy_from_slice(b"copies/");
        out[7] = hex[0];
        out[8] = hex[1];
        out[9] = b'/';
        out[10..].copy_from_slice(&hex);
        out
    }

    /// The stamp of this copy.
    #[must_use]
    #[inline]
    pub fn stamp(self, path: PathHash) -> Stamp {
        Stamp((path.fp >> 20) << 16 | (self.0 as u64 & 0xffff))
    }
}

/// 16 hex digits of `v`, most significant first, all at once: bytes are spread over two, then
/// digits are made of the nibbles without a table or a branch.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn hex16(v: u64) -> [u8; 16] {
    use core::arch::x86_64::{
        _mm_add_epi8, _mm_and_si128, _mm_cmpgt_epi8, _mm_cvtsi64_si128, _mm_set1_epi8, _mm_srli_epi16,
        _mm_storeu_si128, _mm_unpacklo_epi8,
    };
    let mut out = [0; 16];
    // SAFETY: SSE2 is part of the architecture, and the store is as long as the array.
    unsafe {
        let bytes = _mm_cvtsi64_si128(v.swap_bytes().cast_signed());
        let pairs = _mm_unpacklo_epi8(_mm_srli_epi16(bytes, 4), bytes);
        let nibbles = _mm_and_si128(pairs, _mm_set1_epi8(0xf));
        // '0' + nibble, and 39 more ('a' - '0' - 10) where the nibble is above 9.
        let over = _mm_and_si128(_mm_cmpgt_epi8(nibbles, _mm_set1_epi8(9)), _mm_set1_epi8(39));
        let digits = _mm_add_epi8(_mm_add_epi8(nibbles, _mm_set1_epi8(0x30)), over);
        _mm_storeu_si128(out.as_mut_ptr().cast(), digits);
    }
    out
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use hex16_in_words as hex16;

/// [`hex16`] in registers of eight bytes.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline]
pub(crate) fn hex16_in_words(v: u64) -> [u8; 16] {
    let mut out = [0; 16];
    for (chunk, half) in out.chunks_exact_mut(8).zip([(v >> 32) as u32, v as u32]) {
        let mut x = u64::from(half.swap_bytes());
        x = (x | x << 16) & 0x0000_ffff_0000_ffff;
        x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
        x = (x >> 4 & 0x000f_000f_000f_000f) | (x & 0x000f_000f_000f_000f) << 8;
        let over = (x + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101;
        chunk.copy_from_slice(&(x + 0x3030_3030_3030_3030 + over * 39).to_le_bytes());
    }
    out
}

/// The modification time that a copy carries: 60 bits that name the file it is a copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(pub u64);

const NSEC_BITS: u32 = 29;

impl Stamp {
    /// Seconds and nanoseconds to give to the copy.
    #[must_use]
    pub const fn to_time(self) -> (i64, i64) {
        ((self.0 >> NSEC_BITS) as i64, (self.0 & ((1 << NSEC_BITS) - 1)) as i64)
    }

    /// The stamp that a modification time holds, if it can be one.
    #[must_use]
    #[inline]
    pub fn from_time(sec: i64, nsec: u32) -> Option<Self> {
        if !(0..1 << 31).contains(&sec) || nsec >= 1 << NSEC_BITS {
            return None;
        }
        Some(Self((sec as u64) << NSEC_BITS | u64::from(nsec)))
    }

    /// The upper 44 bits of the path's fingerprint.
    #[must_use]
    #[inline]
    pub const fn fp44(self) -> u64 {
        self.0 >> 16
    }

    /// Whether `name` could carry this stamp.
    #[must_use]
    #[inline]
    pub const fn matches(self, name: CopyName) -> bool {
        self.0 & 0xffff == name.0 as u64 & 0xffff
    }
}

/// Hash of a process's groups: the effective one and the others, in any order. Never 0.
#[must_use]
pub fn hash_groups(effective: u32, others: &[u32]) -> u64 {
    let mix =
        |g: u32| (u64::from(g) ^ 0x5bd1_e995).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(31);
    others.iter().fold(mix(effective).rotate_left(7), |h, &g| h.wrapping_add(mix(g))) | 1
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn hex_is_what_format_says_and_parses_back() {
        for v in [0, 1, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210, u128::MAX, 0xa9 << 120, 0xf0] {
            let text = std::format!("{v:032x}");
            assert_eq!(CopyName(v).hex().as_slice(), text.as_bytes());
            assert_eq!(CopyName::parse(text.as_bytes()), Some(CopyName(v)));
            assert_eq!([hex16_in_words((v >> 64) as u64), hex16_in_words(v as u64)].concat(), text.as_bytes());
        }
    }

    #[test]
    fn a_name_tells_its_root() {
        let id = Identity { size: 1, mtime_ns: 2, ctime_ns: 3, ino: 4 };
        for root in [0, 1, 0xffff, 0x1234_5678_9abc_def0, u64::MAX] {
            let name = |fp| CopyName::new(root, PathHash { fp, check: 5 }, &id);
            assert!((0..50).all(|fp| name(fp).is_below(root) && !name(fp).is_below(root ^ 0x10)));
            assert_ne!(name(1), name(2));
        }
    }

    #[test]
    fn groups_are_the_same_in_any_order() {
        assert_eq!(hash_groups(5, &[1, 2, 3]), hash_groups(5, &[3, 1, 2]));
        assert_ne!(hash_groups(5, &[1, 2, 3]), hash_groups(5, &[1, 2]));
        assert_ne!(hash_groups(5, &[]), hash_groups(6, &[]));
    }

    #[test]
    fn a_stamp_survives_the_way_through_a_timestamp() {
        for v in [0, 1, (1 << 60) - 1, 0x0abc_def0_1234_5678 & ((1 << 60) - 1)] {
            let (s, n) = Stamp(v).to_time();
            assert!((0..1_000_000_000).contains(&n));
            assert_eq!(Stamp::from_time(s, u32::try_from(n).expect("below 2^29")), Some(Stamp(v)));
        }
        assert_eq!(Stamp::from_time(-1, 0), None);
        assert_eq!(Stamp::from_time(0, 999_999_999), None);
    }
}
