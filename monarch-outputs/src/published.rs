//! The agent's log of what was published: it outlives agents, so that a restart knows what it has
//! to do, and does nothing twice.

use crate::ahead::{LOG_BYTES, keep_ahead};
use crate::plan::Place;
use crate::plan_file::PlanFile;
use monarch_abi::outputs::{PUBLISHED, found};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Result;
use std::fs::File;
use std::os::unix::fs::FileExt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First bytes of an entry.
const MAGIC: u32 = u32::from_le_bytes(*b"MPUB");
/// The file under which a log is begun again.
const NEW: &str = "published.new";

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// The log begins: all records up to `seq` are done with; `id` is the next number of a file.
    Begin = 1,
    /// The staged file `id` was published.
    File = 2,
    /// The staged file `id` was left out: the next entry has replaced it. Or (`id` 0) a link, as
    /// others have put something else there.
    Skip = 3,
    /// Something that is no file was published.
    Other = 4,
    /// The log begins: all records up to `seq` are done with, but for what a plan holds, whose file
    /// has `size` bytes with the checksum `ino`; `id` is the next number of a file.
    Checkpoint = 5,
}

/// What the first entry of a log says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogBegin {
    /// All records up to this one are done with.
    pub seq: u64,
    /// The next number of a staged file.
    pub next_id: u64,
    /// What is not published of them.
    pub plan: Option<PlanFile>,
}

/// An entry of the log. Fields: 13, because this is its byte map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogEntry {
    /// First bytes.
    pub magic: u32,
    /// A [`Kind`].
    pub kind: u32,
    /// XXH3-64 of the entry with zero in this field.
    pub sum: u64,
    /// The last record that was read when the step was begun.
    pub read: u64,
    /// Place in the order: its record.
    pub seq: u64,
    /// Place in the order: among entries of one record.
    pub sub: u32,
    /// Zero.
    pub reserved: u32,
    /// The staged file, or 0.
    pub id: u64,
    /// Device of the published file.
    pub dev: u64,
    /// Its inode number.
    pub ino: u64,
    /// Its bytes.
    pub size: u64,
    /// Its modification time, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Its change time, nanoseconds since 1970.
    pub ctime_ns: i64,
}

/// Bytes of an entry.
const LEN: usize = size_of::<LogEntry>();

impl LogEntry {
    /// Seals an entry.
    #[must_use]
    pub fn new(kind: Kind, fields: Self) -> Self {
        let mut entry = Self { magic: MAGIC, kind: kind as u32, sum: 0, ..fields };
        entry.sum = xxhash_rust::xxh3::xxh3_64(entry.as_bytes());
        entry
    }

    /// What it says; `None` when it is not whole.
    #[must_use]
    pub fn checked_kind(&self) -> Option<Kind> {
        if !self.is_whole() {
            return None;
        }
        [Kind::Begin, Kind::File, Kind::Skip, Kind::Other, Kind::Checkpoint]
            .into_iter()
            .find(|kind| *kind as u32 == self.kind)
    }

    /// What it says if the log begins with it.
    #[must_use]
    pub fn begin(&self) -> Option<LogBegin> {
        let plan = match self.checked_kind()? {
            Kind::Begin => None,
            Kind::Checkpoint => Some(PlanFile { sum: self.ino, bytes: self.size }),
            Kind::File | Kind::Skip | Kind::Other => return None,
        };
        Some(LogBegin { seq: self.seq, next_id: self.id, plan })
    }

    /// Whether its checksum is right.
    fn is_whole(&self) -> bool {
        let plain = Self { sum: 0, ..*self };
        self.magic == MAGIC && xxhash_rust::xxh3::xxh3_64(plain.as_bytes()) == self.sum
    }

    /// What the published file is on the PFS: [`monarch_abi::outputs::found`].
    #[must_use]
    pub fn found(&self) -> u64 {
        if self.ino == 0 { found::UNKNOWN } else { found::thing(self.ino, self.size, self.mtime_ns) }
    }

    /// Its place in the order.
    #[must_use]
    pub const fn place(&self) -> Place {
        Place { seq: self.seq, sub: self.sub }
    }
}

/// The log, open for appending.
#[derive(Debug)]
pub struct PublishedLog {
    file: File,
    len: u64,
}

/// A log that was read.
#[derive(Debug)]
pub struct OpenedLog {
    /// The log.
    pub log: PublishedLog,
    /// Its entries, up to what cannot be read.
    pub entries: Vec<LogEntry>,
    /// Why it cannot be relied on: nothing was changed then.
    pub flaw: Option<Flaw>,
}

/// Why a log cannot be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// An entry is damaged that has entries behind it.
    Damaged,
    /// An entry is of a newer version.
    Newer,
}

impl PublishedLog {
    /// Opens the log of a staging directory, and reads it. What is torn at its end is cut, unless
    /// whole entries are behind it: without the damaged one, steps that were done would be done
    /// again over later ones.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(dir: &OwnedFd) -> Result<OpenedLog> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(rustix::fs::openat(dir, PUBLISHED, flags, Mode::RUSR | Mode::WUSR)?);
        let len = rustix::fs::fstat(&file)?.st_size as u64;
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0).map_err(errno)?;
        let all = bytes.chunks_exact(LEN).map(|chunk| LogEntry::read_from_bytes(chunk).unwrap_or_default());
        let all: Vec<LogEntry> = all.collect();
        let known = all.iter().take_while(|entry| entry.checked_kind().is_some()).count();
        let flaw = match all.get(known..).unwrap_or_default() {
            [next, ..] if next.is_whole() => Some(Flaw::Newer),
            [_, behind @ ..] if behind.iter().any(LogEntry::is_whole) => Some(Flaw::Damaged),
            _ => None,
        };
        let (entries, len) = (all[..known].to_vec(), (known * LEN) as u64);
        if flaw.is_none() {
            file.set_len(len).map_err(errno)?;
            keep_ahead(&file, len, LOG_BYTES);
        }
        Ok(OpenedLog { log: Self { file, len }, entries, flaw })
    }

    /// Appends entries and makes them durable.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn append(&mut self, entries: &[LogEntry]) -> Result<()> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
        self.file.write_all_at(&bytes, self.len).map_err(errno)?;
        rustix::fs::fdatasync(&self.file)?;
        self.len += bytes.len() as u64;
        keep_ahead(&self.file, self.len, LOG_BYTES);
        Ok(())
    }

    /// Begins the log again.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn begin_again(&mut self, dir: &OwnedFd, begin: &LogBegin) -> Result<()> {
        let _ = rustix::fs::unlinkat(dir, NEW, AtFlags::empty());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(dir, NEW, flags, Mode::RUSR | Mode::WUSR)?);
        let fields = LogEntry { seq: begin.seq, id: begin.next_id, ..LogEntry::default() };
        let entry = match begin.plan {
            None => LogEntry::new(Kind::Begin, fields),
            Some(PlanFile { sum, bytes }) => {
                LogEntry::new(Kind::Checkpoint, LogEntry { ino: sum, size: bytes, ..fields })
            }
        };
        file.write_all_at(entry.as_bytes(), 0).map_err(errno)?;
        rustix::fs::fdatasync(&file)?;
        rustix::fs::renameat(dir, NEW, dir, PUBLISHED)?;
        rustix::fs::fsync(dir)?;
        (self.file, self.len) = (file, LEN as u64);
        keep_ahead(&self.file, self.len, LOG_BYTES);
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn errno(e: std::io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &std::path::Path) -> OwnedFd {
        rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn entries_are_read_again_and_a_torn_end_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(dir.path());
        let read = || PublishedLog::open(&fd).map(|opened| (opened.log, opened.entries)).unwrap();
        let (mut log, entries) = read();
        assert!(entries.is_empty());
        let entry = |id| LogEntry::new(Kind::File, LogEntry { id, seq: id + 10, ..LogEntry::default() });
        log.append(&[entry(1), entry(2)]).unwrap();
        log.append(&[entry(3)]).unwrap();
        let path = dir.path().join(PUBLISHED);
        let len = std::fs::metadata(&path).unwrap().len();
        File::options().write(true).open(&path).unwrap().set_len(len - 1).unwrap();
        let (mut log, entries) = read();
        assert_eq!(entries, [entry(1), entry(2)]);
        log.append(&[entry(4)]).unwrap();
        let (mut log, entries) = read();
        assert_eq!(entries, [entry(1), entry(2), entry(4)]);
        let begin = LogBegin { seq: 77, next_id: 5, plan: None };
        log.begin_again(&fd, &begin).unwrap();
        let (_, entries) = read();
        assert_eq!((entries.len(), entries[0].begin()), (1, Some(begin)));
        let begin = LogBegin { plan: Some(PlanFile { sum: 8, bytes: 9 }), ..begin };
        log.begin_again(&fd, &begin).unwrap();
        let (_, entries) = read();
        assert_eq!((entries.len(), entries[0].begin()), (1, Some(begin)));
        assert_eq!(entry(1).begin(), None);
    }

    #[test]
    fn a_log_that_is_damaged_before_its_end_or_of_a_newer_version_is_not_cut() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(dir.path());
        let entry = |id| LogEntry::new(Kind::File, LogEntry { id, seq: id + 10, ..LogEntry::default() });
        let path = dir.path().join(PUBLISHED);
        let flaw_of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let opened = PublishedLog::open(&fd).unwrap();
            (opened.flaw, opened.entries.len(), std::fs::metadata(&path).unwrap().len() as usize)
        };
        let good: Vec<u8> = [entry(1), entry(2), entry(3)].iter().flat_map(|e| e.as_bytes().to_vec()).collect();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 4;
            let (flaw, read, len) = flaw_of(&bytes);
            let of = at / LEN;
            let want = if of < 2 { (Some(Flaw::Damaged), of, good.len()) } else { (None, 2, 2 * LEN) };
            assert_eq!((flaw, read, len), want, "byte {at}");
        }
        let mut newer = LogEntry { kind: 9, sum: 0, ..entry(3) };
        newer.sum = xxhash_rust::xxh3::xxh3_64(newer.as_bytes());
        let bytes = [&good[..2 * LEN], newer.as_bytes()].concat();
        assert_eq!(flaw_of(&bytes), (Some(Flaw::Newer), 2, 3 * LEN));
        let zeros = [&good[..2 * LEN], &[0; 5 * LEN + 3]].concat();
        assert_eq!(flaw_of(&zeros), (None, 2, 2 * LEN));
    }
}
