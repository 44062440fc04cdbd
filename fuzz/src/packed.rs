//! Packed copies: containers of LZ4 blocks or of zstd frames, as agents and `monarch verify` read
//! them.

use super::input::{Input, patch};
use monarch_core::engine::SourceFile;
use monarch_core::tier::{Codec, PackedFile};
use rustix::fs::MemfdFlags;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const HEADER: usize = 64;
const ENTRY: usize = 16;
const STORED: u32 = 1 << 31;

/// Reads a packed copy made of `bytes`, whole and in parts.
pub(crate) fn packed(bytes: &[u8]) {
    let mut input = Input(bytes);
    let flags = input.u8();
    let codec = if flags & 8 == 0 { Codec::Lz4 } else { Codec::Zstd };
    let mut file = if flags & 1 == 0 { made(&mut input, codec) } else { input.0.to_vec() };
    if flags & 2 != 0 {
        for _ in 0..input.u8() % 4 + 1 {
            if !file.is_empty() {
                patch(&mut input, &mut file);
            }
        }
    }
    if flags & 4 == 0 {
        seal(&mut file);
    }
    let fd = rustix::fs::memfd_create("packed", MemfdFlags::CLOEXEC).expect("memory");
    if !file.is_empty() {
        rustix::io::pwrite(&fd, &file, 0).expect("room");
    }
    let opened = PackedFile::new(fd, None);
    let Ok((size, _)) = opened.contents() else { return };
    let mut buf = vec![0; 1 << 18];
    for (at, len) in [(0, 1 << 18), (0, 10), (7, 1 << 18), (size / 2, 1000), (size.wrapping_sub(1), 2), (u64::MAX, 1)] {
        if let Ok(got) = opened.read_at(&mut buf[..len], at) {
            assert!(got <= len && (got == 0 || at + got as u64 <= size));
        }
    }
}

/// A container whose parts fit together.
fn made(input: &mut Input<'_>, codec: Codec) -> Vec<u8> {
    let unit = u32::from(input.u16()) + 1;
    let lz4 = codec == Codec::Lz4;
    let (mut table, mut frame, mut size) = (Vec::new(), Vec::new(), 0u64);
    if lz4 {
        frame.extend([0x04, 0x22, 0x4d, 0x18, 0x60, 0x70, 0x73]);
    }
    for _ in 0..input.u8() % 16 {
        let how = input.u8();
        let mut raw = input.part().to_vec();
        raw.resize(unit as usize, how);
        size += u64::from(unit);
        let (block, mark) = match how & 3 {
            0 => (raw.clone(), STORED),
            // A block made of the fuzzer's bytes.
            1 => (input.part().to_vec(), 0),
            _ => {
                let mut block = vec![0; codec.max_packed_bytes(raw.len())];
                let len = codec.compress(&raw, &mut block).expect("memory");
                block.truncate(len);
                (block, 0)
            }
        };
        table.extend((block.len() as u32 | mark).to_le_bytes());
        table.extend([0; 4]);
        table.extend(xxh3_64(&raw).to_le_bytes());
        if lz4 {
            frame.extend((block.len() as u32 | mark).to_le_bytes());
        }
        frame.extend(block);
    }
    let mut file = vec![0; HEADER];
    file[..4].copy_from_slice(&0x184d_2a50u32.to_le_bytes());
    file[4..8].copy_from_slice(&((HEADER - 8 + table.len()) as u32).to_le_bytes());
    file[8..16].copy_from_slice(if lz4 { b"MONPACK1" } else { b"MONPACK2" });
    file[16..20].copy_from_slice(&unit.to_le_bytes());
    file[20] = if lz4 { 0 } else { 2 };
    file[24..32].copy_from_slice(&size.to_le_bytes());
    file.extend(table);
    file.extend(frame);
    if lz4 {
        file.extend([0; 4]);
    }
    file
}

/// Corrects the checksum of the table, if the file is long enough to have one.
fn seal(file: &mut [u8]) {
    let Some(head) = file.first_chunk::<HEADER>() else { return };
    let unit = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
    let size = head[24..32].iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
    let units = size.div_ceil(u64::from(unit.max(1)));
    let table = usize::try_from(units).ok().and_then(|n| n.checked_mul(ENTRY)).and_then(|n| file[HEADER..].get(..n));
    let mut hash = Xxh3::new();
    hash.update(&head[8..48]);
    hash.update(table.unwrap_or_default());
    let sum = hash.digest();
    file[48..56].copy_from_slice(&sum.to_le_bytes());
}
