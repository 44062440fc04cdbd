//! Reads the log of a tier: the copies that it knows, and which of them are safe to use.

use super::checksum::Sum;
use super::log_record::{BUFFER_BYTES, Kind, LOG, MAGIC, RECORD, parse};
use super::names::ByName;
use crate::held_dir::HeldDir;
use monarch_abi::hash::CopyName;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::collections::{HashSet, VecDeque};
use std::io;

/// A copy, as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its checksum.
    pub sum: Sum,
    /// Its bytes; of a packed copy those of the file.
    pub size: u64,
    /// Whether it is a packed copy.
    pub packed: bool,
    /// The copy that existed at this time, in seconds, has reached the disk; 0: none has.
    pub synced: u64,
    /// Whether it was written in this boot of the machine.
    pub this_boot: bool,
    /// Whether the copy was found.
    pub(super) is_there: bool,
    /// The number of its record.
    at: u64,
}

impl Logged {
    /// Whether a copy with the right size and stamp that got its name at the time `changed`, in
    /// seconds, has the right bytes.
    #[must_use]
    pub const fn is_safe(&self, changed: u64) -> bool {
        self.this_boot || changed < self.synced
    }

    /// Notes that the copy was found, for a new log; whether it is safe.
    pub(super) const fn found(&mut self, changed: u64) -> bool {
        self.is_there = true;
        let safe = self.is_safe(changed);
        if changed >= self.synced {
            self.synced = 0;
        }
        safe
    }
}

/// The contents of a log.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The copies, by name. A copy that has a record need not exist.
    pub(super) copies: ByName<Logged>,
    /// Records that were read.
    pub(super) records: u64,
    /// Those of them that are damaged.
    pub(super) broken: u64,
    /// The boot that the last `Boot` record names.
    pub(super) boot: Option<[u8; 16]>,
}

/// The version of the log in `dir`; `None` if there is no file that begins like a log.
pub(super) fn version(dir: &HeldDir) -> Option<u8> {
    let file = dir.read_file(LOG).ok()?;
    let mut first = [0; RECORD];
    let got = rustix::io::pread(&file, &mut first, 0).ok()?;
    // All versions begin with these 24 bytes.
    (got >= 24 && first[0] == Kind::Begin as u8 && first[8..24] == MAGIC).then_some(first[1])
}

/// Reads the log of the tier in the directory `dir`, in the given boot of the machine.
///
/// # Errors
/// What the kernel said.
pub(super) fn read(dir: &HeldDir, boot: Option<[u8; 16]>) -> io::Result<Read> {
    read_of(dir, boot, None)
}

/// Reads the records of these copies only.
///
/// # Errors
/// What the kernel said.
pub(super) fn read_of(dir: &HeldDir, boot: Option<[u8; 16]>, only: Option<&HashSet<CopyName>>) -> io::Result<Read> {
    match dir.read_file(LOG) {
        // (A link, or what is no regular file, knows no copies; a new log replaces it.)
        Err(Errno::NOENT | Errno::INVAL | Errno::LOOP | Errno::ISDIR) => Ok(Read::default()),
        other => read_file(&other?, boot, only, u64::MAX),
    }
}

/// Reads an open log as an agent does that starts in the given boot of the machine: the copies, and
/// the number of damaged records.
///
/// # Errors
/// What the kernel said.
pub fn read_log(file: &OwnedFd, boot: Option<[u8; 16]>) -> io::Result<(ByName<Logged>, u64)> {
    read_file(file, boot, None, u64::MAX).map(|read| (read.copies, read.broken))
}

/// Reads the first `records` records of an open log.
///
/// # Errors
/// What the kernel said.
pub(super) fn read_first(file: &OwnedFd, boot: Option<[u8; 16]>, records: u64) -> io::Result<Read> {
    read_file(file, boot, None, records)
}

fn read_file(file: &OwnedFd, boot: Option<[u8; 16]>, only: Option<&HashSet<CopyName>>, most: u64) -> io::Result<Read> {
    let (mut read, mut unsynced) = (Read::default(), VecDeque::new());
    each_record(file, 0, most, |r| {
        read.take(r, boot, only, &mut unsynced);
        Ok(())
    })?;
    Ok(read)
}

/// Calls `each` with the records of a log from number `from` up to `to`, or to its end.
///
/// # Errors
/// What the kernel, or `each`, said.
pub(super) fn each_record(
    file: &OwnedFd,
    from: u64,
    to: u64,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let most = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX).saturating_mul(RECORD);
    let mut buf = vec![0; BUFFER_BYTES.min(most)];
    let (mut off, end) = (from * RECORD as u64, to.saturating_mul(RECORD as u64));
    loop {
        let want = buf.len().min(usize::try_from(end.saturating_sub(off)).unwrap_or(usize::MAX));
        let mut got = 0;
        // Whole records, however the kernel splits the reads.
        while got < want {
            match rustix::io::pread(file, &mut buf[got..want], off + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        buf[..got].chunks_exact(RECORD).try_for_each(&mut each)?;
        off += got as u64;
        if got < buf.len() || off >= end {
            return Ok(());
        }
    }
}

impl Read {
    fn take(
        &mut self,
        r: &[u8],
        boot: Option<[u8; 16]>,
        only: Option<&HashSet<CopyName>>,
        unsynced: &mut VecDeque<(u64, CopyName)>,
    ) {
        let at = self.records;
        self.records += 1;
        let Some((kind, name, sum, size)) = parse(r) else {
            self.broken += 1;
            return;
        };
        match kind {
            Kind::Begin => {}
            Kind::Boot => self.boot = Some(name),
            Kind::Synced => {
                while let Some((at, name)) = unsynced.pop_front_if(|(at, _)| *at < size) {
                    if let Some(logged) = self.copies.get_mut(name).filter(|l| l.at == at) {
                        logged.synced = sum.value;
                    }
                }
            }
            Kind::Copy | Kind::Packed => {
                let name = CopyName(u128::from_le_bytes(name));
                if only.is_some_and(|only| !only.contains(&name)) {
                    return;
                }
                let this_boot = boot.is_some() && self.boot == boot;
                self.copies.insert(
                    name,
                    Logged { sum, size, packed: kind == Kind::Packed, synced: 0, this_boot, is_there: false, at },
                );
                unsynced.push_back((at, name));
            }
        }
    }
}
