//! The log of a tier: the checksum of every copy, and which of them a power loss cannot have hurt.
//!
//! * A copy's record (`log_record.rs`) is appended before the copy gets its name. A file without a
//!   record is not used.
//! * Copies are not synced one by one. A copy of another boot that was not synced may hold any
//!   bytes, so it is read in full before it is used.
//! * A `Synced` record covers the copies that existed at its time. A copy made again since may have
//!   lost its own record with the power.
//!
//! A database such as `redb` does not fit: a commit is either synced to the disk or not written
//! before the name, and its file grows by steps of its own, where the quota counts blocks.

use super::checksum::Sum;
use super::log_reader::{Logged, Read};
use super::log_record::{Kind, LOG, NEW, RECORD, copy_record, record};
use super::log_rewrite::{NewLog, now};
use super::names::ByName;
use crate::held_dir::HeldDir;
use monarch_abi::hash::CopyName;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

impl From<NewLog> for Open {
    fn from(new: NewLog) -> Self {
        Self { file: new.file, records: new.records, synced: new.synced }
    }
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
                // A part of a record would make the records behind it unreadable.
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

    /// Writes a new log in `dir` with these copies, and appends to that from now on; the bytes that
    /// it takes on disk.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn begin(&self, dir: &HeldDir, boot: Option<[u8; 16]>, copies: &ByName<Logged>) -> io::Result<u64> {
        let new = NewLog::write(dir, boot, copies, now())?;
        new.sync()?;
        dir.rename(NEW, LOG)?;
        let blocks = new.blocks()?;
        *self.lock() = Some(new.into());
        Ok(blocks)
    }

    /// Appends to the log that was read, in this boot; the bytes that it takes on disk.
    ///
    /// # Errors
    /// What the kernel said.
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

    /// The number of its records.
    pub(super) fn records(&self) -> u64 {
        self.lock().as_ref().map_or(0, |log| log.records)
    }

    /// Its length in bytes, if there is a log.
    pub(super) fn len(&self) -> Option<u64> {
        self.lock().as_ref().map(|log| log.records * RECORD as u64)
    }

    /// The file that is appended to, and the number of its records.
    pub(super) fn in_use(&self) -> Option<(Arc<OwnedFd>, u64)> {
        self.lock().as_ref().map(|log| (log.file.clone(), log.records))
    }

    /// Appends to `new` from now on, and gives it the name of the log. `true` if the old log has
    /// the name [`NEW`] now, `false` if it has no name.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn change_to(&self, dir: &HeldDir, new: NewLog) -> io::Result<bool> {
        let mut log = self.lock();
        let exchanged = dir.rename_with(NEW, LOG, RenameFlags::EXCHANGE).is_ok();
        if !exchanged {
            // Not every file system exchanges names.
            dir.rename(NEW, LOG)?;
        }
        *log = Some(new.into());
        Ok(exchanged)
    }

    /// Appends the record of a copy that is complete and about to get its name.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn append(&self, name: CopyName, sum: Sum, size: u64, packed: bool) -> io::Result<()> {
        self.lock().as_mut().map_or(Ok(()), |log| log.append(&copy_record(name, sum, size, packed)))
    }

    /// Syncs all logged copies to the disk, and appends that to the log; `false` when none was
    /// logged since the last sync.
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
        // (A log that replaced this one meanwhile counts its records differently.)
        if let Some(log) = self.lock().as_mut().filter(|log| Arc::ptr_eq(&log.file, &file)) {
            log.append(&record(Kind::Synced, 0, [0; 16], began, records))?;
            // Copies that were logged meanwhile need another sync: one sync too many does no harm.
            log.synced = if log.records == records + 1 { log.records } else { records };
        }
        // Outside of the lock: no copier that publishes waits for that.
        rustix::fs::fdatasync(&file)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::log_reader::{read, version};
    use super::super::log_record::VERSION;
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
        // A boot that is not known counts as another one.
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
        assert!(!super::super::log_reader::read(&fd, BOOTS[1]).unwrap().copies.get(name(1)).unwrap().is_safe(1));
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
        // Another boot: the second has to be verified, also in a new log, and is safe
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
