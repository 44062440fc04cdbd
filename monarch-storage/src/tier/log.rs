//! The log of a tier: the checksum of every copy, and which of them a power loss cannot have hurt.
//!
//! ```text
//! offset  0    1       2        4      8        24     32     40     48
//!        +----+-------+--------+------+--------+------+------+------+
//!        |kind|version| 0      |piece | name   | sum  | size |check |   little endian, one record of 48 bytes
//!        +----+-------+--------+------+--------+------+------+------+
//! ```
//! `check` is the XXH3-64 of the 40 bytes before it. `piece` is 0 where `sum` is the XXH3-64 of the
//! whole copy; otherwise `sum` is that of the XXH3-64s of its pieces, so many pages of 4 KiB each.
//! The first record is `Begin`; `Boot` names the boot of the machine in which what follows was
//! written; `Packed` is a `Copy` that lies packed, with size and sum of what it was before;
//! `Synced` says that the copies among the first `size` records have reached the disk, if they were
//! there by the time `sum`, in seconds: one that was made again since may have lost its record with
//! the power.
//!
//! A copy's record is appended before the copy gets its name. Copies are not synced one by one: of
//! another boot, and not synced, a copy of the right size may hold anything, and is read in full
//! before it is used. What has no record is not used at all.
//!
//! A database such as `redb` does not fit: a commit is either synced to the disk or not written
//! before the name, and its file grows by steps of its own, where the quota counts blocks.

use super::checksum::Sum;
use super::names::ByName;
use crate::held_dir::HeldDir;
use monarch_abi::hash::CopyName;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Its name in the tier's directory.
pub(super) const LOG: &str = "log";
/// The same while it is being written anew.
pub(super) const NEW: &str = "log.new";
/// Version of its records.
pub(super) const VERSION: u8 = 1;
/// Bytes of a record.
pub(super) const RECORD: usize = 48;
/// Name in the first record.
const MAGIC: [u8; 16] = *b"Monarch tier log";
const PAGE: u64 = 4096;
/// Bytes read at a time.
const READ: usize = RECORD << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Begin = 1,
    Boot = 2,
    Copy = 3,
    Synced = 4,
    Packed = 5,
}

/// A copy, as the log has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Its checksum.
    pub sum: Sum,
    /// Its bytes; of a packed one those of the file.
    pub size: u64,
    /// Whether it is a packed one.
    pub packed: bool,
    /// What was there at this time, in seconds, has reached the disk; 0: nothing has.
    pub synced: u64,
    /// Whether it was written in this boot of the machine.
    pub this_boot: bool,
    /// Whether it was found.
    pub(super) is_there: bool,
    /// Its record's number.
    at: u64,
}

impl Logged {
    /// Whether a copy that looks right, and was last changed (given its name) at this time, is
    /// right.
    #[must_use]
    pub const fn is_safe(&self, changed: u64) -> bool {
        self.this_boot || changed < self.synced
    }

    /// Of a copy that was found: whether it is safe, as it is to be written down.
    pub(super) const fn found(&mut self, changed: u64) -> bool {
        self.is_there = true;
        let safe = self.is_safe(changed);
        if changed >= self.synced {
            self.synced = 0;
        }
        safe
    }
}

fn record(kind: Kind, piece: u32, name: [u8; 16], sum: u64, size: u64) -> [u8; RECORD] {
    let mut r = [0u8; RECORD];
    r[0] = kind as u8;
    r[1] = VERSION;
    r[4..8].copy_from_slice(&piece.to_le_bytes());
    r[8..24].copy_from_slice(&name);
    r[24..32].copy_from_slice(&sum.to_le_bytes());
    r[32..40].copy_from_slice(&size.to_le_bytes());
    let check = xxh3_64(&r[..40]);
    r[40..48].copy_from_slice(&check.to_le_bytes());
    r
}

fn copy_record(name: CopyName, sum: Sum, size: u64, packed: bool) -> [u8; RECORD] {
    let kind = if packed { Kind::Packed } else { Kind::Copy };
    // Pieces are chunks: whole pages, 4 KiB to 64 MiB.
    record(kind, (sum.piece / PAGE) as u32, name.0.to_le_bytes(), sum.value, size)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(part) = bytes.get(at..at + N) {
        out.copy_from_slice(part);
    }
    out
}

/// What a record says, if it is one.
fn parse(r: &[u8]) -> Option<(Kind, [u8; 16], Sum, u64)> {
    if r.len() != RECORD || r[1] != VERSION || u64::from_le_bytes(array(r, 40)) != xxh3_64(&r[..40]) {
        return None;
    }
    let kind =
        [Kind::Begin, Kind::Boot, Kind::Copy, Kind::Synced, Kind::Packed].into_iter().find(|k| *k as u8 == r[0])?;
    let piece = u64::from(u32::from_le_bytes(array(r, 4))) * PAGE;
    let sum = Sum { value: u64::from_le_bytes(array(r, 24)), piece };
    Some((kind, array(r, 8), sum, u64::from_le_bytes(array(r, 32))))
}

/// What a log says.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The copies, by name. That a copy has a record does not mean that it is there.
    pub(super) copies: ByName<Logged>,
    /// Records that were read, and those that made no sense.
    pub(super) records: u64,
    /// See `records`.
    pub(super) broken: u64,
    /// The boot that is named last.
    boot: Option<[u8; 16]>,
}

/// The version of a log, if there is one that can be told from garbage.
pub(super) fn version(dir: &HeldDir) -> Option<u8> {
    let file = dir.read_file(LOG).ok()?;
    let mut first = [0; RECORD];
    let got = rustix::io::pread(&file, &mut first, 0).ok()?;
    // All versions begin alike; what is behind that may be anything.
    (got >= 24 && first[0] == Kind::Begin as u8 && first[8..24] == MAGIC).then_some(first[1])
}

/// Reads the log of the tier in the directory `dir`, in the given boot of the machine.
///
/// # Errors
/// What the kernel said.
pub(super) fn read(dir: &HeldDir, boot: Option<[u8; 16]>) -> io::Result<Read> {
    read_of(dir, boot, None)
}

/// The same of these copies only.
pub(super) fn read_of(dir: &HeldDir, boot: Option<[u8; 16]>, only: Option<&HashSet<CopyName>>) -> io::Result<Read> {
    match dir.read_file(LOG) {
        // (What is no regular file, or a link, says nothing of copies; it is replaced by a log.)
        Err(Errno::NOENT | Errno::INVAL | Errno::LOOP | Errno::ISDIR) => Ok(Read::default()),
        other => read_file(&other?, boot, only, u64::MAX),
    }
}

/// Reads an open log as an agent does that starts in the given boot of the machine: the copies, and
/// the number of records that made no sense.
///
/// # Errors
/// What the kernel said.
pub fn read_log(file: &OwnedFd, boot: Option<[u8; 16]>) -> io::Result<(ByName<Logged>, u64)> {
    read_file(file, boot, None, u64::MAX).map(|read| (read.copies, read.broken))
}

/// The same of the first so many records of an open log.
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

/// Gives the records of a log from one number to another, or to its end, one after the other.
fn each_record(file: &OwnedFd, from: u64, to: u64, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let most = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX).saturating_mul(RECORD);
    let mut buf = vec![0; READ.min(most)];
    let (mut off, end) = (from * RECORD as u64, to.saturating_mul(RECORD as u64));
    loop {
        let want = buf.len().min(usize::try_from(end.saturating_sub(off)).unwrap_or(usize::MAX));
        let mut got = 0;
        // Whole records, whatever the kernel gives at a time.
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

/// The log of a tier that is in use.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Option<Open>>);

#[derive(Debug)]
struct Open {
    file: Arc<OwnedFd>,
    records: u64,
    /// Records when the last sync began.
    synced: u64,
}

impl Open {
    fn append(&mut self, record: &[u8; RECORD]) -> io::Result<()> {
        match rustix::io::retry_on_intr(|| rustix::io::write(&self.file, record)) {
            Ok(RECORD) => {
                self.records += 1;
                Ok(())
            }
            Err(e) => Err(e.into()),
            Ok(_) => {
                // A part of one would make those behind it unreadable.
                rustix::fs::ftruncate(&self.file, self.records * RECORD as u64)?;
                Err(Errno::NOSPC.into())
            }
        }
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the log of `dir` anew with these copies, and goes on with it; the bytes that it takes
    /// on disk.
    pub(super) fn begin(&self, dir: &HeldDir, boot: Option<[u8; 16]>, copies: &ByName<Logged>) -> io::Result<u64> {
        let anew = Anew::write(dir, boot, copies, now())?;
        anew.sync()?;
        dir.rename(NEW, LOG)?;
        let blocks = anew.blocks()?;
        *self.lock() = Some(anew.into());
        Ok(blocks)
    }

    /// Goes on with the log that was read, in this boot.
    pub(super) fn resume(&self, dir: &HeldDir, boot: Option<[u8; 16]>, read: &Read) -> io::Result<u64> {
        let file = dir.open_file(LOG, OFlags::RDWR | OFlags::APPEND, Mode::empty())?;
        let mut log = Open { file: Arc::new(file), records: read.records, synced: 0 };
        rustix::fs::ftruncate(&log.file, log.records * RECORD as u64)?;
        if read.boot.is_none() || read.boot != boot {
            log.append(&record(Kind::Boot, 0, boot.unwrap_or_default(), 0, 0))?;
        }
        let blocks = rustix::fs::fstat(&log.file)?.st_blocks as u64 * 512;
        *self.lock() = Some(log);
        Ok(blocks)
    }

    /// Records so far.
    pub(super) fn records(&self) -> u64 {
        self.lock().as_ref().map_or(0, |log| log.records)
    }

    /// Its bytes so far, if there is one.
    pub(super) fn len(&self) -> Option<u64> {
        self.lock().as_ref().map(|log| log.records * RECORD as u64)
    }

    /// The file that is appended to, and its records so far.
    pub(super) fn in_use(&self) -> Option<(Arc<OwnedFd>, u64)> {
        self.lock().as_ref().map(|log| (log.file.clone(), log.records))
    }

    /// Goes on with one that was written anew, which takes the name; `true` if the old one has the
    /// name of a new one now, `false` if it has none.
    pub(super) fn change_to(&self, dir: &HeldDir, anew: Anew) -> io::Result<bool> {
        let mut log = self.lock();
        let exchanged = dir.rename_with(NEW, LOG, RenameFlags::EXCHANGE).is_ok();
        if !exchanged {
            // Not all file systems can do that.
            dir.rename(NEW, LOG)?;
        }
        *log = Some(anew.into());
        Ok(exchanged)
    }

    /// Takes note of a copy that is complete and about to get its name.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn append(&self, name: CopyName, sum: Sum, size: u64, packed: bool) -> io::Result<()> {
        self.lock().as_mut().map_or(Ok(()), |log| log.append(&copy_record(name, sum, size, packed)))
    }

    /// Has everything that was logged reach the disk, and says so in the log; `false` when there
    /// was nothing to do.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn sync(&self, dir: &HeldDir) -> io::Result<bool> {
        let (records, file) = match &*self.lock() {
            Some(log) if log.records > log.synced => (log.records, log.file.clone()),
            _ => return Ok(false),
        };
        let began = now();
        rustix::fs::syncfs(dir.fd())?;
        // (Written anew meanwhile, it counts its records differently.)
        if let Some(log) = self.lock().as_mut().filter(|log| Arc::ptr_eq(&log.file, &file)) {
            log.append(&record(Kind::Synced, 0, [0; 16], began, records))?;
            // Copies that were logged meanwhile are yet to be synced: one sync too many does no
            // harm.
            log.synced = if log.records == records + 1 { log.records } else { records };
        }
        // Nobody who publishes waits for that.
        rustix::fs::fdatasync(&file)?;
        Ok(true)
    }
}

/// A log on its way to take the place of another, complete but for what has been logged since.
#[derive(Debug)]
pub(super) struct Anew {
    file: Arc<OwnedFd>,
    records: u64,
    /// Those of them whose copies have reached the disk.
    synced: u64,
}

impl From<Anew> for Open {
    fn from(anew: Anew) -> Self {
        Self { file: anew.file, records: anew.records, synced: anew.synced }
    }
}

impl Anew {
    /// Writes these copies into a new log in `dir`. Those that have reached the disk are said to
    /// have been there by the time `looked`: they were looked at later than that, so that one
    /// that is made again unseen is not taken for the one that was there.
    pub(super) fn write(
        dir: &HeldDir,
        boot: Option<[u8; 16]>,
        copies: &ByName<Logged>,
        looked: u64,
    ) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND;
        let file = dir.open_file(NEW, flags, Mode::RUSR | Mode::WUSR)?;
        let mut out = Out { file: &file, buf: Vec::with_capacity(READ), records: 0 };
        out.put(&record(Kind::Begin, 0, MAGIC, 0, 0))?;
        let put = |out: &mut Out<'_>, which: fn(&Logged) -> bool| {
            let of = copies.iter().filter(|(_, l)| which(l));
            of.map(|(name, l)| copy_record(name, l.sum, l.size, l.packed)).try_for_each(|r| out.put(&r))
        };
        put(&mut out, |l| l.synced > 0)?;
        let synced = out.records;
        out.put(&record(Kind::Synced, 0, [0; 16], looked, synced))?;
        // Of no boot that there is: whoever finds them verifies them.
        out.put(&record(Kind::Boot, 0, [0; 16], 0, 0))?;
        put(&mut out, |l| l.synced == 0 && !l.this_boot)?;
        out.put(&record(Kind::Boot, 0, boot.unwrap_or_default(), 0, 0))?;
        put(&mut out, |l| l.this_boot && l.synced == 0)?;
        let records = out.end()?;
        Ok(Self { file: Arc::new(file), records, synced })
    }

    /// Adds what another log says of copies from one record to another. That some were synced is
    /// left out, as that speaks of records by their numbers: one more sync does no harm.
    pub(super) fn take_over(&mut self, from: &OwnedFd, since: u64, until: u64) -> io::Result<()> {
        let mut out = Out { file: &self.file, buf: Vec::new(), records: self.records };
        each_record(from, since, until, |r| {
            let of_copy = parse(r).is_some_and(|(kind, ..)| matches!(kind, Kind::Copy | Kind::Packed));
            if of_copy { out.put(&array(r, 0)) } else { Ok(()) }
        })?;
        self.records = out.end()?;
        Ok(())
    }

    /// Its records so far.
    pub(super) const fn records(&self) -> u64 {
        self.records
    }

    /// Bytes that it takes on disk.
    pub(super) fn blocks(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(&self.file)?.st_blocks as u64 * 512)
    }

    /// Has it reach the disk.
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

/// Records on their way into a new log.
struct Out<'a> {
    file: &'a OwnedFd,
    buf: Vec<u8>,
    records: u64,
}

impl Out<'_> {
    fn put(&mut self, r: &[u8; RECORD]) -> io::Result<()> {
        self.buf.extend_from_slice(r);
        self.records += 1;
        if self.buf.len() >= READ { self.flush() } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const BOOTS: [Option<[u8; 16]>; 2] = [Some([1; 16]), Some([2; 16])];

    fn open(dir: &tempfile::TempDir) -> HeldDir {
        HeldDir::at(dir.path()).unwrap()
    }

    fn name(n: u128) -> CopyName {
        CopyName(n)
    }

    fn all_there(read: Read) -> ByName<Logged> {
        read.copies
    }

    #[test]
    fn what_is_logged_is_read_and_safe_in_its_boot_or_once_synced() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(&dir);
        let log = Log::default();
        log.begin(&fd, BOOTS[0], &ByName::default()).unwrap();
        log.append(name(1), Sum::whole(11), 100, false).unwrap();
        log.append(name(2), Sum { value: 22, piece: 4 << 20 }, 200, false).unwrap();
        assert!(log.sync(&fd).unwrap() && !log.sync(&fd).unwrap(), "nothing to do the second time");
        log.append(name(3), Sum::whole(33), 300, false).unwrap();
        let (same, other) = (read(&fd, BOOTS[0]).unwrap(), read(&fd, BOOTS[1]).unwrap());
        let safe = |r: &Read| [1, 2, 3].map(|n| r.copies.get(name(n)).unwrap().is_safe(1));
        assert_eq!((safe(&same), safe(&other)), ([true; 3], [true, true, false]));
        let l = other.copies.get(name(2)).unwrap();
        assert_eq!((l.sum, l.size, other.broken), (Sum { value: 22, piece: 4 << 20 }, 200, 0));
        // Nobody knows which boot this is: then it is another one.
        assert_eq!(safe(&read(&fd, None).unwrap()), [true, true, false]);
    }

    #[test]
    fn a_copy_that_was_made_again_after_a_sync_began_is_not_taken_for_synced() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(&dir);
        let log = Log::default();
        log.begin(&fd, BOOTS[0], &ByName::default()).unwrap();
        log.append(name(1), Sum::whole(11), 100, false).unwrap();
        let records = log.lock().as_ref().unwrap().records;
        log.append(name(1), Sum::whole(12), 100, false).unwrap();
        log.lock().as_mut().unwrap().append(&record(Kind::Synced, 0, [0; 16], now(), records)).unwrap();
        let read = read(&fd, BOOTS[1]).unwrap();
        assert_eq!(
            (read.copies.get(name(1)).unwrap().sum.value, read.copies.get(name(1)).unwrap().is_safe(1)),
            (12, false)
        );
    }

    #[test]
    fn a_copy_that_was_made_again_and_lost_its_record_is_not_taken_for_the_synced_one() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(&dir);
        let log = Log::default();
        log.begin(&fd, BOOTS[0], &ByName::default()).unwrap();
        log.append(name(1), Sum::whole(1), 1, false).unwrap();
        let before = now();
        log.sync(&fd).unwrap();
        let mut read = read(&fd, BOOTS[1]).unwrap();
        let logged = read.copies.get_mut(name(1)).unwrap();
        assert!(logged.is_safe(before - 1) && !logged.is_safe(now()) && !logged.is_safe(now() + 5));
        // And is not written down as one.
        assert!(!logged.found(now()));
        Log::default().begin(&fd, BOOTS[1], &read.copies).unwrap();
        assert!(!super::read(&fd, BOOTS[1]).unwrap().copies.get(name(1)).unwrap().is_safe(1));
    }

    #[test]
    fn a_log_that_is_resumed_or_written_anew_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(&dir);
        let first = Log::default();
        first.begin(&fd, BOOTS[0], &ByName::default()).unwrap();
        first.append(name(1), Sum::whole(1), 1, false).unwrap();
        first.sync(&fd).unwrap();
        first.append(name(2), Sum::whole(2), 2, false).unwrap();
        // The same boot: the second is safe, and stays so for this boot only.
        for anew in [false, true, true] {
            let log = Log::default();
            let found = read(&fd, BOOTS[0]).unwrap();
            match anew {
                true => log.begin(&fd, BOOTS[0], &all_there(found)).unwrap(),
                false => log.resume(&fd, BOOTS[0], &found).unwrap(),
            };
            let safe = |boot| [1, 2].map(|n| read(&fd, boot).unwrap().copies.get(name(n)).unwrap().is_safe(1));
            assert_eq!((safe(BOOTS[0]), safe(BOOTS[1])), ([true, true], [true, false]));
        }
        // Another boot: the second has to be verified, also after it was written anew, and is safe
        // once that is done.
        for anew in [true, false] {
            let log = Log::default();
            let found = read(&fd, BOOTS[1]).unwrap();
            match anew {
                true => log.begin(&fd, BOOTS[1], &all_there(found)).unwrap(),
                false => log.resume(&fd, BOOTS[1], &found).unwrap(),
            };
            let safe = |n| read(&fd, BOOTS[1]).unwrap().copies.get(name(n)).unwrap().is_safe(1);
            assert!(safe(1) && !safe(2));
        }
        let log = Log::default();
        log.resume(&fd, BOOTS[1], &read(&fd, BOOTS[1]).unwrap()).unwrap();
        log.append(name(2), Sum::whole(2), 2, false).unwrap();
        assert!(read(&fd, BOOTS[1]).unwrap().copies.get(name(2)).unwrap().is_safe(1));
    }

    #[test]
    fn what_a_power_loss_leaves_of_a_log_is_never_misread() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(&dir);
        let log = Log::default();
        log.begin(&fd, BOOTS[0], &ByName::default()).unwrap();
        (1..=20).for_each(|n| log.append(name(n), Sum::whole(n as u64), 7, false).unwrap());
        let whole = std::fs::read(dir.path().join(LOG)).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(LOG)).unwrap();
        // Cut anywhere, or with zeros from anywhere on.
        for at in (0..=whole.len()).step_by(7) {
            file.write_all_at(&whole, 0).unwrap();
            file.set_len(at as u64).unwrap();
            let cut = read(&fd, BOOTS[0]).unwrap();
            let mut zeros = whole.clone();
            zeros[at..].fill(0);
            file.set_len(whole.len() as u64).unwrap();
            file.write_all_at(&zeros, 0).unwrap();
            let zeroed = read(&fd, BOOTS[0]).unwrap();
            for found in [&cut, &zeroed] {
                assert!(found.copies.iter().all(|(n, l)| u128::from(l.sum.value) == n.0 && l.size == 7));
            }
            assert_eq!(cut.copies.len(), zeroed.copies.len());
        }
    }

    #[test]
    fn another_format_is_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let fd = open(&dir);
        assert_eq!(version(&fd), None);
        let log = Log::default();
        log.begin(&fd, BOOTS[0], &ByName::default()).unwrap();
        assert_eq!(version(&fd), Some(VERSION));
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join(LOG)).unwrap();
        file.write_all_at(&[VERSION + 1], 1).unwrap();
        assert_eq!(version(&fd), Some(VERSION + 1));
        assert_eq!(read(&fd, BOOTS[0]).unwrap().broken, 1);
        file.write_all_at(&[0; RECORD], 0).unwrap();
        assert_eq!(version(&fd), None, "garbage is of no version: its copies go");
    }
}
