//! Packed copies: compressed a unit at a time, so that a part of a large file can be decoded
//! without the rest.
//!
//! ```text
//! offset  0      4     8          16      20    24     32    40     48      56    64
//!        +------+-----+----------+-------+-----+------+-----+------+-------+-----+----------+-------+--------+
//!        |magic |bytes| MONPACKn | unit  |codec| size | sum |piece | check |  0  | table    | frames         |
//!        +------+-----+----------+-------+-----+------+-----+------+-------+-----+----------+-------+--------+
//!        `--- skippable frame of LZ4 and of zstd ----------------------------------------'  little endian
//! ```
//! * LZ4: `MONPACK1`, codec 0. One frame: an independent block for each unit, no checksums.
//! * zstd: `MONPACK2`, codec 2. One frame for each unit, with its length and no checksum. Versions
//!   that know LZ4 only refuse the magic, and remove files with the suffix `.zst`.
//! * The table has 16 bytes for each unit of `unit` bytes (the last may be shorter): length of its
//!   block or frame (u32; highest bit: stored uncompressed, LZ4 only), 4 zeros, XXH3-64 of its
//!   bytes.
//! * `size`, `sum` and `piece` are those of the file, as in the [log](super::log_record). `check`
//!   is the XXH3-64 of the 40 bytes at 8 and of the table.
//! * `lz4 -d` or `zstd -d` reads the whole file.

use super::checksum::{Sum, Summing};
use super::codec::Codec;
use crate::engine::SourceFile;
use monarch_abi::hash::Identity;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::num::NonZeroU64;
use std::sync::{Mutex, OnceLock, PoisonError};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes of a unit, at most. Independent blocks of this size lose less than half a percent of the
/// ratio, and a decoded unit is written while it is in the processor's cache.
const MAX_UNIT_BYTES: u64 = 256 << 10;
/// Bytes that the kernel is asked to read ahead when a packed copy is opened.
const READ_AHEAD_BYTES: u64 = 8 << 20;

const SKIPPABLE: u32 = 0x184d_2a50;
/// The magic of copies with LZ4, which older versions read, and of copies that name their
/// codec.
const LZ4_MAGIC: [u8; 8] = *b"MONPACK1";
const CODEC_MAGIC: [u8; 8] = *b"MONPACK2";
/// The codec zstd in a header.
const ZSTD: u32 = 2;
const HEADER: usize = 64;
const ENTRY: usize = 16;
/// Units of a file, at most: 4 TiB in units of the largest size, and a table that fits into memory.
const MAX_UNITS: u64 = 1 << 24;
/// LZ4: magic, version 1 with independent blocks and no checksums, blocks of up to 4 MiB, checksum
/// of these two bytes.
const LZ4_FRAME: [u8; 7] = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73];
const LZ4_END: [u8; 4] = [0; 4];
/// LZ4: the bit of a block's length that says: stored uncompressed.
const STORED: u32 = 1 << 31;

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What the format has around the units.
#[derive(Debug)]
struct Framing {
    magic: [u8; 8],
    codec: u32,
    /// Before the first unit.
    head: &'static [u8],
    /// Bytes before each unit: its word of the table again.
    prefix: usize,
    /// Behind the last unit.
    end: &'static [u8],
}

const fn framing(codec: Codec) -> Framing {
    match codec {
        Codec::Lz4 => Framing { magic: LZ4_MAGIC, codec: 0, head: &LZ4_FRAME, prefix: 4, end: &LZ4_END },
        Codec::Zstd => Framing { magic: CODEC_MAGIC, codec: ZSTD, head: &[], prefix: 0, end: &[] },
    }
}

fn units(size: u64, unit: u64) -> u64 {
    size.div_ceil(unit.max(1))
}

/// Where the skippable frame ends in the packed copy of a file.
fn frame_at(size: u64, unit: u64) -> u64 {
    HEADER as u64 + units(size, unit) * ENTRY as u64
}

/// A unit, as the table has it.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// Offset of its block in the file.
    at: u64,
    len: u32,
    stored: bool,
    sum: u64,
}

/// Packs a file, unit by unit.
#[derive(Debug)]
pub(super) struct Packing {
    codec: Codec,
    size: u64,
    unit: u64,
    table: Vec<u8>,
    out: Vec<u8>,
    /// Offset of the next block in the packed copy.
    at: u64,
}

impl Packing {
    /// Begins a file of `size` bytes that is read in pieces of `piece` bytes (0: as a whole).
    pub(super) fn new(codec: Codec, size: u64, piece: u64) -> Self {
        let unit = if piece == 0 { MAX_UNIT_BYTES } else { MAX_UNIT_BYTES.min(piece) };
        let at = frame_at(size, unit) + framing(codec).head.len() as u64;
        Self { codec, size, unit, table: Vec::new(), out: Vec::new(), at }
    }

    pub(super) const fn codec(&self) -> Codec {
        self.codec
    }

    pub(super) const fn unit(&self) -> u64 {
        self.unit
    }

    pub(super) const fn at(&self) -> u64 {
        self.at
    }

    /// Packs the next unit; its block, and the offset of that.
    ///
    /// # Errors
    /// The compressor refuses it: zstd has no memory.
    pub(super) fn next(&mut self, raw: &[u8]) -> io::Result<(&[u8], u64)> {
        let Framing { prefix, .. } = framing(self.codec);
        let most = prefix + self.codec.max_packed_bytes(raw.len());
        if self.out.len() < most {
            self.out.resize(most, 0);
        }
        let packed = self.codec.compress(raw, &mut self.out[prefix..]);
        let (len, mark) = match (packed, self.codec) {
            (Some(len), Codec::Zstd) => (len, 0),
            (None, Codec::Zstd) => return Err(io::ErrorKind::OutOfMemory.into()),
            (Some(len), Codec::Lz4) if len < raw.len() => (len, 0),
            (_, Codec::Lz4) => {
                self.out[prefix..prefix + raw.len()].copy_from_slice(raw);
                (raw.len(), STORED)
            }
        };
        let word = (len as u32 | mark).to_le_bytes();
        self.out[..prefix].copy_from_slice(&word[..prefix]);
        self.table.extend(word);
        self.table.extend([0; 4]);
        self.table.extend(xxh3_64(raw).to_le_bytes());
        let at = self.at;
        self.at += (prefix + len) as u64;
        Ok((&self.out[..prefix + len], at))
    }

    /// The bytes for the beginning and the end of the packed copy, with their offsets, and its
    /// length.
    pub(super) fn end(self, sum: Sum) -> ([(Vec<u8>, u64); 2], u64) {
        let framing = framing(self.codec);
        let mut head = vec![0; HEADER];
        let bytes = (HEADER - 8 + self.table.len()) as u32;
        head[..4].copy_from_slice(&SKIPPABLE.to_le_bytes());
        head[4..8].copy_from_slice(&bytes.to_le_bytes());
        head[8..16].copy_from_slice(&framing.magic);
        head[16..20].copy_from_slice(&(self.unit as u32).to_le_bytes());
        head[20..24].copy_from_slice(&framing.codec.to_le_bytes());
        head[24..32].copy_from_slice(&self.size.to_le_bytes());
        head[32..40].copy_from_slice(&sum.value.to_le_bytes());
        head[40..48].copy_from_slice(&sum.piece.to_le_bytes());
        let check = check_of(&head, &self.table);
        head[48..56].copy_from_slice(&check.to_le_bytes());
        head.extend(&self.table);
        head.extend(framing.head);
        ([(head, 0), (framing.end.to_vec(), self.at)], self.at + framing.end.len() as u64)
    }
}

fn check_of(head: &[u8], table: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(head.get(8..48).unwrap_or_default());
    hash.update(table);
    hash.digest()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn read_exact_at(file: impl AsFd, mut buf: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match rustix::io::pread(&file, &mut *buf, at) {
            Ok(0) => return Err(damaged("the packed copy is too short")),
            Ok(n) => {
                buf = &mut buf[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// An open packed copy. Reads give the bytes of the file; each unit is compared with its checksum.
#[derive(Debug)]
pub struct PackedFile {
    fd: OwnedFd,
    /// Read when it is first needed: meanwhile the disk reads ahead, and the copier makes space.
    table: OnceLock<Table>,
    /// The identity of the file that it is a copy of, as far as known.
    identity: Option<Identity>,
    /// Number and bytes of the unit of which a part was read last.
    last: Mutex<(usize, Vec<u8>)>,
    /// The buffer for blocks.
    block: Mutex<Vec<u8>>,
}

/// Header and table in front of the units.
#[derive(Debug)]
struct Table {
    codec: Codec,
    size: u64,
    unit: u64,
    sum: Sum,
    units: Vec<Unit>,
}

impl PackedFile {
    /// The packed copy of the file with this identity, as far as known, which is read soon.
    #[must_use]
    pub fn new(fd: OwnedFd, identity: Option<Identity>) -> Self {
        // The kernel reads the rest of a large one ahead as it is read.
        let _ = rustix::fs::fadvise(&fd, 0, NonZeroU64::new(READ_AHEAD_BYTES), rustix::fs::Advice::WillNeed);
        let (last, block) = (Mutex::new((usize::MAX, Vec::new())), Mutex::default());
        Self { fd, table: OnceLock::new(), identity, last, block }
    }

    /// Header and table, which are read once.
    ///
    /// # Errors
    /// What the kernel said; `InvalidData` when they are damaged, or of another file.
    fn table(&self) -> io::Result<&Table> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let table = Table::read(&self.fd)?;
        if self.identity.is_some_and(|id| id.size != table.size) {
            return Err(damaged("it is of another size"));
        }
        Ok(self.table.get_or_init(|| table))
    }

    /// Size and checksum of the file that it is a copy of.
    ///
    /// # Errors
    /// What the kernel said; `InvalidData` when it is damaged, or no packed copy.
    pub fn contents(&self) -> io::Result<(u64, Sum)> {
        self.table().map(|table| (table.size, table.sum))
    }

    /// Whether all of it can be decoded and has this checksum.
    ///
    /// # Errors
    /// What the kernel said; `InvalidData` says what is wrong with it.
    pub(super) fn fits(&self, sum: Sum) -> io::Result<bool> {
        let table = self.table()?;
        let mut summing = Summing::new(sum.piece);
        let mut buf = vec![0; table.len_of(0)];
        for number in 0..table.units.len() {
            let unit = &mut buf[..table.len_of(number)];
            self.decode(table, number, unit)?;
            summing.update(unit);
        }
        Ok(summing.bytes == table.size && summing.end() == sum)
    }

    /// Decodes a unit into a buffer of exactly its length.
    fn decode(&self, table: &Table, number: usize, out: &mut [u8]) -> io::Result<()> {
        let unit = table.units.get(number).ok_or_else(|| damaged("it is no packed copy"))?;
        let len = unit.len as usize;
        if unit.stored {
            if len != out.len() {
                return Err(damaged("its table is damaged"));
            }
            read_exact_at(&self.fd, out, unit.at)?;
        } else {
            // Several copiers decode chunks of a large file at a time.
            let (mut shared, mut own) = (self.block.try_lock(), Vec::new());
            let block = shared.as_mut().map_or(&mut own, |block| &mut **block);
            if block.len() < len {
                block.resize(len, 0);
            }
            let packed = &mut block[..len];
            read_exact_at(&self.fd, packed, unit.at)?;
            if !table.codec.decompress(packed, out) {
                return Err(damaged("a unit of it cannot be decoded"));
            }
        }
        if xxh3_64(out) == unit.sum { Ok(()) } else { Err(damaged("its bytes are not those that were copied")) }
    }
}

impl Table {
    fn read(fd: &OwnedFd) -> io::Result<Self> {
        let mut head = [0; HEADER];
        read_exact_at(fd, &mut head, 0)?;
        let (unit, size) = (u64::from(u32_at(&head, 16)), u64_at(&head, 24));
        let n = units(size, unit);
        // Older versions wrote no other number at 20 than 0.
        let names = |codec: &Codec| {
            let Framing { magic, codec, .. } = framing(*codec);
            head[8..16] == magic && u32_at(&head, 20) == codec
        };
        let known = u32_at(&head, 0) == SKIPPABLE && (1..=MAX_UNIT_BYTES).contains(&unit) && n <= MAX_UNITS;
        let codec = Codec::ALL.into_iter().find(names).filter(|_| known);
        let codec = codec.ok_or_else(|| damaged("it is no packed copy"))?;
        // Memory is allocated only for what the file holds.
        let held = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if frame_at(size, unit) > held {
            return Err(damaged("the packed copy is too short"));
        }
        let mut table = vec![0; n as usize * ENTRY];
        read_exact_at(fd, &mut table, HEADER as u64)?;
        if check_of(&head, &table) != u64_at(&head, 48) {
            return Err(damaged("its table is damaged"));
        }
        let Framing { head: frame_head, prefix, .. } = framing(codec);
        let mut at = frame_at(size, unit) + frame_head.len() as u64;
        let of = |e: &[u8]| {
            let (word, start) = (u32_at(e, 0), at + prefix as u64);
            let len = word & !STORED;
            at = start + u64::from(len);
            Unit { at: start, len, stored: word & STORED != 0, sum: u64_at(e, 8) }
        };
        let units: Vec<Unit> = table.chunks_exact(ENTRY).map(of).collect();
        if at > held {
            return Err(damaged("the packed copy is too short"));
        }
        // No block is longer than what a unit is compressed to at most, so that a buffer for it is
        // not larger either.
        let most = codec.max_packed_bytes(unit as usize);
        let fits = |u: &Unit| u.len as usize <= most && !(u.stored && codec == Codec::Zstd);
        if !units.iter().all(fits) {
            return Err(damaged("its table is damaged"));
        }
        let sum = Sum { value: u64_at(&head, 32), piece: u64_at(&head, 40) };
        Ok(Self { codec, size, unit, sum, units })
    }

    /// Bytes of the unit with this number.
    fn len_of(&self, number: usize) -> usize {
        (self.size - (number as u64 * self.unit).min(self.size)).min(self.unit) as usize
    }
}

impl SourceFile for PackedFile {
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<usize> {
        let table = self.table()?;
        if off >= table.size || buf.is_empty() {
            return Ok(0);
        }
        let (number, inside) = ((off / table.unit) as usize, (off % table.unit) as usize);
        let len = table.len_of(number);
        if inside == 0 && buf.len() >= len {
            self.decode(table, number, &mut buf[..len])?;
            return Ok(len);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != number {
            last.0 = usize::MAX;
            last.1.resize(len, 0);
            self.decode(table, number, &mut last.1)?;
            last.0 = number;
        }
        let n = buf.len().min(len - inside);
        buf[..n].copy_from_slice(&last.1[inside..inside + n]);
        Ok(n)
    }

    fn identity_now(&self) -> io::Result<Identity> {
        // A packed copy has the identity in its name.
        self.identity.ok_or_else(|| Errno::NODATA.into())
    }

    fn is_local(&self) -> bool {
        true
    }

    fn at_once(&self) -> Option<usize> {
        Some(MAX_UNIT_BYTES as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;
    use std::os::unix::fs::FileExt;

    /// The whole of a packed copy.
    fn pack(codec: Codec, raw: &[u8], piece: u64) -> Vec<u8> {
        let sums: Vec<u64> = raw.chunks(piece.max(1) as usize).map(xxh3_64).collect();
        let sum = if piece == 0 { Sum::whole(xxh3_64(raw)) } else { Sum::of_pieces(&sums, piece) };
        let mut packing = Packing::new(codec, raw.len() as u64, piece);
        let mut file = Vec::new();
        let put = |file: &mut Vec<u8>, bytes: &[u8], at: u64| {
            let end = at as usize + bytes.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            file[at as usize..end].copy_from_slice(bytes);
        };
        for unit in raw.chunks(packing.unit() as usize) {
            let (block, at) = packing.next(unit).unwrap();
            put(&mut file, block, at);
        }
        let (parts, len) = packing.end(sum);
        parts.iter().for_each(|(bytes, at)| put(&mut file, bytes, *at));
        assert_eq!(file.len() as u64, len);
        file
    }

    fn open(packed: &[u8]) -> io::Result<PackedFile> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(packed, 0).unwrap();
        let file = PackedFile::new(file.into(), None);
        file.table()?;
        Ok(file)
    }

    fn read_all(file: &PackedFile, at_once: usize) -> io::Result<Vec<u8>> {
        let (mut out, mut buf) = (Vec::new(), vec![0; at_once]);
        loop {
            match file.read_at(&mut buf, out.len() as u64)? {
                0 => return Ok(out),
                n => out.extend(&buf[..n]),
            }
        }
    }

    fn text(len: usize) -> Vec<u8> {
        (0u64..).flat_map(|n| format!("{}, step {n}\n", n * n % 977).into_bytes()).take(len).collect()
    }

    #[test]
    fn what_is_packed_is_read_back_and_is_a_file_of_the_tools_of_its_codec() {
        let noise: Vec<u8> = (0u64..3_000_000).map(|n| (xxh3_64(&n.to_le_bytes()) >> 9) as u8).collect();
        let files = [
            (Vec::new(), 0),
            (text(1), 0),
            (text(3_000_001), 0),
            (noise.clone(), 0),
            ([text(1 << 20), noise].concat(), 256 << 10),
            (text(5 << 20), 4 << 20),
        ];
        for ((raw, piece), codec) in files.iter().flat_map(|file| Codec::ALL.map(|codec| (file, codec))) {
            let packed = pack(codec, raw, *piece);
            let file = open(&packed).unwrap();
            for at_once in [1 << 20, 100_000, 3 << 20] {
                let what = || format!("{codec:?}, {} bytes, {at_once} at once", raw.len());
                assert!(read_all(&file, at_once).unwrap() == *raw, "{}", what());
            }
            // The libraries' own readers of frames, behind the header that the tools pass over.
            let mut frame = Vec::new();
            let skipped = frame_at(raw.len() as u64, file.table().unwrap().unit) as usize;
            match codec {
                Codec::Lz4 => lz4_flex::frame::FrameDecoder::new(&packed[skipped..]).read_to_end(&mut frame),
                Codec::Zstd => zstd::Decoder::new(packed.as_slice()).unwrap().read_to_end(&mut frame),
            }
            .unwrap();
            assert!(frame == *raw);
            assert_eq!(u32_at(&packed, 4) as usize + 8, skipped);
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_an_error_or_harmless() {
        let raw = text(200_000);
        for codec in Codec::ALL {
            let packed = pack(codec, &raw, 4096);
            for at in (0..packed.len()).step_by(97).chain(0..HEADER) {
                let mut hurt = packed.clone();
                hurt[at] ^= 4;
                if let Ok(bytes) = open(&hurt).and_then(|file| read_all(&file, 1 << 20)) {
                    assert!(bytes == raw, "{codec:?}: byte {at} of {}", packed.len());
                }
            }
            for len in [0, 10, 63, 64, 100, packed.len() / 2, packed.len() - 5] {
                assert!(open(&packed[..len]).and_then(|file| read_all(&file, 1 << 20)).is_err(), "{codec:?}: {len}");
            }
        }
    }

    /// Corrects the checksum of a copy of one unit.
    fn seal(mut packed: Vec<u8>) -> Vec<u8> {
        let table = packed[HEADER..HEADER + ENTRY].to_vec();
        let check = check_of(&packed[..HEADER], &table);
        packed[48..56].copy_from_slice(&check.to_le_bytes());
        packed
    }

    #[test]
    fn a_copy_with_zstd_is_none_to_a_version_that_knows_lz4_only() {
        let (lz4, zstd) = (pack(Codec::Lz4, &text(1000), 0), pack(Codec::Zstd, &text(1000), 0));
        // Older versions compare these eight bytes, and write zeros behind the unit.
        assert_eq!((&lz4[8..16], u32_at(&lz4, 20)), (&b"MONPACK1"[..], 0));
        assert_eq!((&zstd[8..16], u32_at(&zstd, 20)), (&b"MONPACK2"[..], 2));
        for (packed, codec) in [(&lz4, 2), (&zstd, 0), (&zstd, 1), (&zstd, 3)] {
            let mut other = packed.clone();
            other[20] = codec;
            assert_eq!(open(&seal(other)).expect_err("no such codec").to_string(), "it is no packed copy");
        }
    }

    #[test]
    fn a_block_that_is_longer_than_a_unit_can_get_is_refused_before_room_is_made() {
        for codec in Codec::ALL {
            let mut packed = pack(codec, &text(1000), 1000);
            // The file is long enough for it.
            packed.resize(1 << 20, 0);
            let most = codec.max_packed_bytes(1000) as u32;
            for (len, why) in [(most, "a unit of it cannot be decoded"), (most + 1, "its table is damaged")] {
                packed[HEADER..HEADER + 4].copy_from_slice(&len.to_le_bytes());
                let got = open(&seal(packed.clone())).and_then(|file| read_all(&file, 1 << 20));
                assert_eq!(got.expect_err("it is damaged").to_string(), why, "{codec:?}");
            }
        }
        let mut stored = pack(Codec::Zstd, &text(1000), 1000);
        stored[HEADER + 3] |= 0x80;
        assert_eq!(open(&seal(stored)).expect_err("zstd stores none").to_string(), "its table is damaged");
    }

    /// Up to 2 GiB were made room for before the first byte was read.
    #[test]
    fn a_table_that_speaks_of_more_than_the_file_holds_is_refused_before_room_is_made() {
        for codec in Codec::ALL {
            let packed = pack(codec, &text(1000), 0);
            assert!(open(&seal(packed.clone())).is_ok());
            let mut long_unit = packed.clone();
            long_unit[HEADER..HEADER + 4].copy_from_slice(&(!STORED).to_le_bytes());
            let mut many_units = packed;
            many_units[24..32].copy_from_slice(&(MAX_UNITS * MAX_UNIT_BYTES).to_le_bytes());
            for hurt in [long_unit, many_units] {
                let why = open(&seal(hurt)).expect_err("it is too short").to_string();
                assert_eq!(why, "the packed copy is too short");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn any_part_is_what_it_was(
            zstd: bool, len in 0usize..300_000, piece in 1u64..60, parts in proptest::collection::vec((any::<u32>(), 1usize..70_000), 1..20)
        ) {
            let raw = text(len);
            let file = open(&pack(Codec::ALL[usize::from(zstd)], &raw, piece * 4096)).unwrap();
            for (at, n) in parts {
                let at = at as usize % (len + 1);
                let mut buf = vec![0; n];
                let got = file.read_at(&mut buf, at as u64).unwrap();
                prop_assert_eq!(got == 0, at == len);
                prop_assert_eq!(&buf[..got], &raw[at..at + got]);
            }
        }
    }
}
