//! The log of keys: the places of entries in the order of the nodes.
//!
//! Lines of 32 bytes: record, place after it, key, checksum (XXH3-64 of what precedes). A key is
//! for all entries after the line before up to that record.

use crate::plan::Place;
use monarch_abi::outputs::KEYS;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use xxhash_rust::xxh3::xxh3_64;

/// The file under which a log is begun again.
const NEW: &str = "keys.new";
const LINE_BYTES: usize = 32;
const SUM_AT: usize = 24;

/// A key, and the last entry that it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoggedKey {
    /// The last entry.
    pub up_to: Place,
    /// The key.
    pub key: u64,
}

impl LoggedKey {
    fn encode(&self) -> [u8; LINE_BYTES] {
        let mut line = [0; LINE_BYTES];
        line[..8].copy_from_slice(&self.up_to.seq.to_le_bytes());
        line[8..12].copy_from_slice(&self.up_to.sub.to_le_bytes());
        line[16..SUM_AT].copy_from_slice(&self.key.to_le_bytes());
        let sum = xxh3_64(&line[..SUM_AT]);
        line[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        line
    }

    fn decode(line: &[u8; LINE_BYTES]) -> Option<Self> {
        let number = |at: usize| line[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let sub = u32::from_le_bytes(line[8..12].try_into().ok()?);
        let (seq, key, sum) = (number(0)?, number(16)?, number(SUM_AT)?);
        (sum == xxh3_64(&line[..SUM_AT])).then_some(Self { up_to: Place { seq, sub }, key })
    }
}

/// The log of a staging directory.
#[derive(Debug)]
pub struct KeyLog {
    dir: OwnedFd,
    file: File,
}

impl KeyLog {
    /// Opens the log in a staging directory, and reads what is whole of it.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(dir: &OwnedFd) -> io::Result<(Self, Vec<LoggedKey>)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(rustix::fs::openat(dir, KEYS, flags, Mode::RUSR | Mode::WUSR)?);
        let mut this = Self { dir: dir.try_clone()?, file };
        let keys = this.read()?;
        let end = (keys.len() * LINE_BYTES) as u64;
        this.file.set_len(end)?;
        this.file.seek(SeekFrom::Start(end))?;
        Ok((this, keys))
    }

    /// What is whole of it.
    fn read(&mut self) -> io::Result<Vec<LoggedKey>> {
        let mut bytes = Vec::new();
        self.file.rewind()?;
        self.file.read_to_end(&mut bytes)?;
        let lines = bytes.chunks_exact(LINE_BYTES).filter_map(|line| line.try_into().ok());
        Ok(lines.map_while(LoggedKey::decode).collect())
    }

    /// Adds a key.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn append(&mut self, key: &LoggedKey) -> io::Result<()> {
        self.file.write_all(&key.encode())
    }

    /// Forgets the keys of entries before a place; `last` is kept if there are no others. An agent
    /// that is killed meanwhile leaves the old log or the new one.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn keep_from(&mut self, first: Place, last: &LoggedKey) -> io::Result<()> {
        let mut keys = self.read()?;
        keys.retain(|key| key.up_to >= first);
        if keys.is_empty() {
            keys.push(*last);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut file = File::from(rustix::fs::openat(&self.dir, NEW, flags, Mode::RUSR | Mode::WUSR)?);
        let bytes: Vec<u8> = keys.iter().flat_map(LoggedKey::encode).collect();
        file.write_all(&bytes)?;
        rustix::fs::renameat(&self.dir, NEW, &self.dir, KEYS)?;
        self.file = file;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_whole_is_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(File::open(dir.path()).unwrap());
        let key = |seq| LoggedKey { up_to: Place { seq, sub: 1 << 16 }, key: seq * 10 };
        let (mut log, keys) = KeyLog::open(&fd).unwrap();
        assert_eq!(keys, []);
        (1..=3).for_each(|seq| log.append(&key(seq)).unwrap());
        assert_eq!(KeyLog::open(&fd).unwrap().1, [key(1), key(2), key(3)]);
        log.file.write_all_at(b"x", 2 * LINE_BYTES as u64).unwrap();
        let (mut log, keys) = KeyLog::open(&fd).unwrap();
        assert_eq!(keys, [key(1), key(2)]);
        log.append(&key(4)).unwrap();
        assert_eq!(KeyLog::open(&fd).unwrap().1, [key(1), key(2), key(4)]);
        log.keep_from(key(2).up_to, &key(9)).unwrap();
        assert_eq!(KeyLog::open(&fd).unwrap().1, [key(2), key(4)]);
        log.append(&key(5)).unwrap();
        log.keep_from(Place { seq: 3, sub: 0 }, &key(9)).unwrap();
        assert_eq!(KeyLog::open(&fd).unwrap().1, [key(4), key(5)]);
        log.keep_from(Place { seq: 6, sub: 0 }, &key(9)).unwrap();
        assert_eq!(KeyLog::open(&fd).unwrap().1, [key(9)]);
        log.append(&key(10)).unwrap();
        assert_eq!(KeyLog::open(&fd).unwrap().1, [key(9), key(10)]);
    }
}
