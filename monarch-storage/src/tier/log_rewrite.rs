//! A new log of a tier, to replace the one in use: written beside it, then completed with what was
//! logged meanwhile.

use super::log_reader::{Logged, each_record};
use super::log_record::{BUFFER_BYTES, Kind, MAGIC, NEW, RECORD, array, copy_record, parse, record};
use super::names::ByName;
use crate::held_dir::HeldDir;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// A log that is to replace another one, complete except for what has been logged since.
#[derive(Debug)]
pub(super) struct NewLog {
    pub(super) file: Arc<OwnedFd>,
    pub(super) records: u64,
    /// Those of them whose copies have reached the disk.
    pub(super) synced: u64,
}

impl NewLog {
    /// Writes these copies into a new log in `dir`. The log dates those that have reached the disk
    /// by the time `looked`, in seconds, which is before they were looked at: a copy that is made
    /// again unseen is then not taken for the one that was synced.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn write(
        dir: &HeldDir,
        boot: Option<[u8; 16]>,
        copies: &ByName<Logged>,
        looked: u64,
    ) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND;
        let file = dir.open_file(NEW, flags, Mode::RUSR | Mode::WUSR)?;
        let mut out = Out { file: &file, buf: Vec::with_capacity(BUFFER_BYTES), records: 0 };
        out.put(&record(Kind::Begin, 0, MAGIC, 0, 0))?;
        let put = |out: &mut Out<'_>, which: fn(&Logged) -> bool| {
            let of = copies.iter().filter(|(_, l)| which(l));
            of.map(|(name, l)| copy_record(name, l.sum, l.size, l.packed)).try_for_each(|r| out.put(&r))
        };
        put(&mut out, |l| l.synced > 0)?;
        let synced = out.records;
        out.put(&record(Kind::Synced, 0, [0; 16], looked, synced))?;
        // Of no boot that exists: an agent that finds these copies verifies them.
        out.put(&record(Kind::Boot, 0, [0; 16], 0, 0))?;
        put(&mut out, |l| l.synced == 0 && !l.this_boot)?;
        out.put(&record(Kind::Boot, 0, boot.unwrap_or_default(), 0, 0))?;
        put(&mut out, |l| l.this_boot && l.synced == 0)?;
        let records = out.end()?;
        Ok(Self { file: Arc::new(file), records, synced })
    }

    /// Adds the records of copies that another log has from number `since` up to `until`. `Synced`
    /// records are left out, since they count the records of that log: one more sync does no harm.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn take_over(&mut self, from: &OwnedFd, since: u64, until: u64) -> io::Result<()> {
        let mut out = Out { file: &self.file, buf: Vec::new(), records: self.records };
        each_record(from, since, until, |r| {
            let of_copy = parse(r).is_some_and(|(kind, ..)| matches!(kind, Kind::Copy | Kind::Packed));
            if of_copy { out.put(&array(r, 0)) } else { Ok(()) }
        })?;
        self.records = out.end()?;
        Ok(())
    }

    /// The number of its records.
    pub(super) const fn records(&self) -> u64 {
        self.records
    }

    /// Bytes that it takes on disk.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn blocks(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Syncs it to the disk.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.file)?)
    }

    /// The file, which stays open with the log.
    pub(super) fn file(&self) -> Arc<OwnedFd> {
        self.file.clone()
    }
}

/// Seconds of the clock that file systems use.
pub(super) fn now() -> u64 {
    rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec.unsigned_abs()
}

/// Collects records, and writes them in large blocks.
struct Out<'a> {
    file: &'a OwnedFd,
    buf: Vec<u8>,
    records: u64,
}

impl Out<'_> {
    fn put(&mut self, r: &[u8; RECORD]) -> io::Result<()> {
        self.buf.extend_from_slice(r);
        self.records += 1;
        if self.buf.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        write_all(self.file, &self.buf)?;
        self.buf.clear();
        Ok(())
    }

    fn end(mut self) -> io::Result<u64> {
        self.flush()?;
        Ok(self.records)
    }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
