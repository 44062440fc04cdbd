//! Records of the journal: what the job has done below an output root, in order.
//!
//! A record is a header of 80 bytes, then two texts, then zeros up to a multiple of eight bytes.
//! Its checksum covers all of it. Records of the first version, whose headers have 64 bytes, are
//! read, too. A process appends a record at [`State::tail`] while it holds the
//! lock of the journal, and moves the tail when all of the record is written. A process that is
//! killed in between leaves bytes behind the tail, which the next one overwrites.
//!
//! [`State::tail`]: super::state::State::tail

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of a record.
pub const MAGIC: u32 = u32::from_le_bytes(*b"MOUT");
/// Bytes of the header.
pub const HEADER: usize = 80;
/// Bytes of the header of the first version: the same up to there.
const FIRST_HEADER: usize = 64;
/// The version of the records that are written: the upper byte of [`Header::op`].
const VERSION: u16 = 1;
/// Fewest bytes of a record that says nothing.
pub const MIN_FILLER: usize = FIRST_HEADER;
/// Most bytes of a record: as many as a block of scratch memory has.
pub const MAX_BYTES: usize = crate::scratch::BLOCK_BYTES;

/// What the job did. Paths are relative to the output root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Op {
    /// Opened a staged file for writing: `a` is its path, `b` its name in `data/`. With
    /// [`flag::NEW`] it was created, otherwise it was opened again.
    Open = 1,
    /// Closed descriptor of a staged file. The file may still be open elsewhere: the kernel tells.
    Close = 2,
    /// Renamed the staged file `id` from `a` to `b`.
    Rename = 3,
    /// Removed the name `a`. `id` is the staged file that it was, or 0. With [`flag::PUBLISHED`]
    /// the PFS has (or had) a file of that name, which is to be removed.
    Unlink = 4,
    /// Removed the directory `a`.
    Rmdir = 5,
    /// Made the symbolic link `a` with the target `b`.
    Symlink = 6,
    /// Changed mode, owner or times of the staged file `id`, whose path is `a`.
    Attributes = 7,
    /// A call waits until everything before it is published. Files that were closed without a
    /// record are found before this record counts as published.
    Barrier = 8,
    /// Renamed the symbolic link `a`: `b` is the new name, a zero byte, and the target. Both names
    /// change in one record, so that no process is killed between them. Always with
    /// [`flag::PUBLISHED`].
    RenameLink = 9,
}

/// Bits of [`Header::flags`].
pub mod flag {
    /// The staged file was created by this open.
    pub const NEW: u16 = 1;
    /// The PFS had a file of that name when the call was made; a symbolic link replaces what has
    /// the name.
    pub const PUBLISHED: u16 = 2;
    /// The open has truncated the staged file.
    pub const TRUNCATED: u16 = 4;
    /// The agent appended the record, not a process of the job.
    pub const BY_AGENT: u16 = 8;
    /// [`Op::Attributes`](super::Op::Attributes): owner or group were changed, not only mode or
    /// times.
    pub const OWNER: u16 = 16;
    /// A directory above the file was renamed: its part file has moved along. Of file 0: this
    /// directory was renamed, and part files in it have moved along whose files lie elsewhere.
    pub const PARENT: u16 = 32;
    /// [`Op::Attributes`](super::Op::Attributes): extended attributes were changed.
    pub const EXTENDED: u16 = 64;
    /// [`Op::Open`](super::Op::Open): no record will tell of the close.
    pub const UNWATCHED: u16 = 128;
    /// [`Op::Close`](super::Op::Close): a plain call has given the name of the file to something
    /// else, and the staged file is about to be removed.
    pub const TAKEN: u16 = 256;
    /// [`Op::Rename`](super::Op::Rename) of file 0, with [`PARENT`]: the two names were exchanged.
    /// All that lay below one of them lies below the other, also files that are open.
    pub const EXCHANGE: u16 = 512;
}

/// The header of a record. Fields: 16, because this is its byte map.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// Bytes of the record, a multiple of eight.
    pub len: u32,
    /// XXH3-64 of the record with zero in this field.
    pub sum: u64,
    /// Number of the record in its staging directory, from 1, without gaps.
    pub seq: u64,
    /// The staged file, or 0.
    pub id: u64,
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// An [`Op`], and the version of the record in the upper byte.
    pub op: u16,
    /// Bits of [`flag`].
    pub flags: u16,
    /// The process.
    pub pid: u32,
    /// Bytes of the first text.
    pub a_len: u16,
    /// Bytes of the second text.
    pub b_len: u16,
    /// [`State::node_news`](super::state::State::node_news) when the record was written: where it
    /// differs, other nodes may have written something between two records.
    pub node_news: u32,
    /// When the process began, in ticks of the kernel's clock since the node was started; 0: not
    /// known. Number, boot and this together are of one process only.
    pub began_ticks: u64,
    /// What the PFS had at the name that the call has made or removed: [`super::found`].
    pub found: u64,
    /// The boot in which the process ran, [`State::boot`](super::state::State::boot); 0: not known.
    pub boot: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<Header>() == HEADER);

impl Header {
    /// What was done; `None` when a newer version has written the record.
    const fn known_op(&self) -> Option<Op> {
        if self.op >> 8 > VERSION { None } else { Op::from_number(self.op & 0xff) }
    }

    /// Where the texts begin.
    const fn texts_at(&self) -> usize {
        if self.op >> 8 == VERSION { HEADER } else { FIRST_HEADER }
    }
}

impl Op {
    const fn from_number(n: u16) -> Option<Self> {
        Some(match n {
            1 => Self::Open,
            2 => Self::Close,
            3 => Self::Rename,
            4 => Self::Unlink,
            5 => Self::Rmdir,
            6 => Self::Symlink,
            7 => Self::Attributes,
            8 => Self::Barrier,
            9 => Self::RenameLink,
            _ => return None,
        })
    }
}

/// A record that was read.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its header.
    pub header: Header,
    /// What was done.
    pub op: Op,
    /// The first text.
    pub a: &'a [u8],
    /// The second text.
    pub b: &'a [u8],
}

impl<'a> Record<'a> {
    /// The new name and the target of a symbolic link that was renamed.
    #[must_use]
    pub fn renamed_link(&self) -> Option<(&'a [u8], &'a [u8])> {
        let end = self.b.iter().position(|&c| c == 0)?;
        Some((self.b.get(..end)?, self.b.get(end + 1..)?))
    }
}

/// Bytes of a record with texts of these lengths; `None` when they are too long.
#[must_use]
pub fn len(a: usize, b: usize) -> Option<usize> {
    let len = HEADER.checked_add(a)?.checked_add(b)?.checked_next_multiple_of(8)?;
    (len <= MAX_BYTES).then_some(len)
}

/// Writes a record into `out`; its bytes. The fields `magic`, `len`, `sum`, `op`, `a_len` and
/// `b_len` of the header are filled in. `None` when it does not fit.
#[must_use]
pub fn write<'o>(out: &'o mut [u8], header: Header, op: Op, a: &[u8], b: &[u8]) -> Option<&'o [u8]> {
    let len = len(a.len(), b.len())?;
    let out = out.get_mut(..len)?;
    out.iter_mut().for_each(|byte| *byte = 0);
    let (head, texts) = out.split_at_mut_checked(HEADER)?;
    let header = Header {
        magic: MAGIC,
        len: len as u32,
        sum: 0,
        op: VERSION << 8 | op as u16,
        a_len: a.len() as u16,
        b_len: b.len() as u16,
        ..header
    };
    put(head, header.as_bytes());
    put(texts, a);
    put(texts.get_mut(a.len()..)?, b);
    let sum = checksum(out);
    put(out.get_mut(8..)?, &sum.to_le_bytes());
    Some(out)
}

/// Writes a record that says nothing, of at least [`MIN_FILLER`] bytes and a multiple of eight;
/// its bytes.
#[must_use]
pub fn write_filler(out: &mut [u8], len: usize) -> Option<&[u8]> {
    let out = out.get_mut(..len).filter(|_| len >= MIN_FILLER && len.is_multiple_of(8) && len <= MAX_BYTES)?;
    out.iter_mut().for_each(|byte| *byte = 0);
    let header = Header { magic: MAGIC, len: len as u32, op: Op::Barrier as u16, ..Header::default() };
    put(out, header.as_bytes().get(..FIRST_HEADER)?);
    let sum = checksum(out);
    put(out.get_mut(8..)?, &sum.to_le_bytes());
    Some(out)
}

fn put(to: &mut [u8], from: &[u8]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

fn checksum(record: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(record)
}

/// Reads the record at the begin of `bytes`; `None` when there is no whole one, or its [`Op`] is
/// not known here.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Record<'_>> {
    let header = whole(bytes)?;
    let record = bytes.get(..header.len as usize)?;
    let texts = record.get(header.texts_at()..)?;
    let a = texts.get(..usize::from(header.a_len))?;
    let b = texts.get(a.len()..)?.get(..usize::from(header.b_len))?;
    Some(Record { op: header.known_op()?, header, a, b })
}

/// The header of the record at the begin of `bytes`, if it is whole, whatever its operation is.
#[must_use]
pub fn whole(bytes: &[u8]) -> Option<Header> {
    let mut head = [0; HEADER];
    put(&mut head, bytes.get(..FIRST_HEADER)?);
    let mut header = Header::read_from_bytes(&head).ok()?;
    if header.texts_at() == HEADER {
        put(&mut head, bytes.get(..HEADER)?);
        header = Header::read_from_bytes(&head).ok()?;
    }
    let len = header.len as usize;
    let texts = usize::from(header.a_len) + usize::from(header.b_len);
    if header.magic != MAGIC || !len.is_multiple_of(8) || len > MAX_BYTES || header.texts_at() + texts > len {
        return None;
    }
    let record = bytes.get(..len)?;
    let mut copy = [0; MAX_BYTES];
    let copy = copy.get_mut(..len)?;
    put(copy, record);
    put(copy.get_mut(8..)?, &[0; 8]);
    (checksum(copy) == header.sum).then_some(header)
}

/// Whether the record at the begin of `bytes` is whole, with an operation of a newer version.
#[must_use]
pub fn is_of_newer_version(bytes: &[u8]) -> bool {
    whole(bytes).is_some_and(|header| header.known_op().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut out = [0; MAX_BYTES];
        let about = Header { began_ticks: 1 << 40, found: u64::MAX, boot: 8, ..Header::default() };
        let header = Header { seq: 3, id: 9, time_ns: 77, flags: flag::NEW, pid: 5, ..about };
        let bytes = write(&mut out, header, Op::Rename, b"a/b.tmp", b"a/b").unwrap();
        assert_eq!(bytes.len(), 96);
        let record = read(bytes).unwrap();
        assert_eq!((record.op, record.a, record.b), (Op::Rename, &b"a/b.tmp"[..], &b"a/b"[..]));
        assert_eq!((record.header.seq, record.header.id, record.header.pid), (3, 9, 5));
        assert_eq!((record.header.began_ticks, record.header.found, record.header.boot), (1 << 40, u64::MAX, 8));
    }

    /// A record with a text of nine bytes, as the first version wrote it.
    fn of_first_version(op: Op, a: &[u8; 9]) -> [u8; 80] {
        let about = Header { magic: MAGIC, len: 80, seq: 4, id: 9, ..Header::default() };
        let header = Header { op: op as u16, a_len: 9, ..about };
        let mut bytes = [0; 80];
        put(&mut bytes, &header.as_bytes()[..FIRST_HEADER]);
        put(&mut bytes[FIRST_HEADER..], a);
        let sum = checksum(&bytes);
        put(&mut bytes[8..], &sum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_record_of_the_first_version_is_read_and_knows_no_process() {
        let bytes = of_first_version(Op::Unlink, b"some/name");
        let record = read(&bytes).unwrap();
        assert_eq!((record.op, record.a, record.b), (Op::Unlink, &b"some/name"[..], &b""[..]));
        assert_eq!((record.header.seq, record.header.id), (4, 9));
        assert_eq!((record.header.began_ticks, record.header.found, record.header.boot), (0, 0, 0));
        // A record of this version has an operation that the first one does not know.
        let mut out = [0; MAX_BYTES];
        let bytes = write(&mut out, Header::default(), Op::Unlink, b"a", b"").unwrap();
        assert!(Op::from_number(u16::from_le_bytes([bytes[40], bytes[41]])).is_none());
    }

    #[test]
    fn a_record_that_says_nothing_is_a_barrier_of_any_length() {
        let mut out = [0xff; MAX_BYTES];
        for len in [MIN_FILLER, 72, 80, MAX_BYTES] {
            let record = read(write_filler(&mut out, len).unwrap()).unwrap();
            assert_eq!((record.op, record.header.seq, record.header.len as usize), (Op::Barrier, 0, len));
        }
        assert!([0, 56, 65, MAX_BYTES + 8].into_iter().all(|len| write_filler(&mut out, len).is_none()));
    }

    #[test]
    fn a_renamed_link_has_both_names_and_its_target() {
        let mut out = [0; MAX_BYTES];
        let record = read(write(&mut out, Header::default(), Op::RenameLink, b"a", b"to/b\0../t").unwrap()).unwrap();
        assert_eq!((record.op, record.a), (Op::RenameLink, &b"a"[..]));
        assert_eq!(record.renamed_link(), Some((&b"to/b"[..], &b"../t"[..])));
        assert_eq!(Record { b: b"to", ..record }.renamed_link(), None);
    }

    #[test]
    fn a_record_that_is_not_whole_is_none() {
        let mut out = [0; MAX_BYTES];
        let bytes = write(&mut out, Header::default(), Op::Unlink, b"some/name", b"").unwrap();
        for cut in 0..bytes.len() {
            assert!(read(&bytes[..cut]).is_none(), "{cut}");
        }
        for at in 0..bytes.len() {
            let mut bytes: [u8; 96] = bytes.try_into().unwrap();
            bytes[at] ^= 1;
            assert!(read(&bytes).is_none(), "byte {at}");
        }
    }

    #[test]
    fn a_record_of_a_newer_version_is_whole_and_is_not_read() {
        let mut out = [0; MAX_BYTES];
        let len = write(&mut out, Header { seq: 7, ..Header::default() }, Op::Unlink, b"a", b"").unwrap().len();
        assert!(!is_of_newer_version(&out[..len]));
        for op in [77, VERSION << 8 | 77, (VERSION + 1) << 8 | Op::Unlink as u16] {
            out[40..42].copy_from_slice(&op.to_le_bytes());
            assert!(!is_of_newer_version(&out[..len]), "its checksum is wrong");
            out[8..16].fill(0);
            let sum = checksum(&out[..len]);
            out[8..16].copy_from_slice(&sum.to_le_bytes());
            assert!(is_of_newer_version(&out[..len]) && read(&out[..len]).is_none());
            assert_eq!(whole(&out[..len]).unwrap().seq, 7);
        }
    }

    #[test]
    fn texts_that_are_too_long_are_refused() {
        let mut out = [0; MAX_BYTES];
        assert!(write(&mut out, Header::default(), Op::Rename, &[b'a'; 4090], &[b'b'; 4090]).is_none());
        assert!(write(&mut out, Header::default(), Op::Rename, &[b'a'; 4000], &[b'b'; 4000]).is_some());
    }
}
