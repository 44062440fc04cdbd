//! Compacts the log of a tier while copies are made and dropped.
//!
//! The records of copies that exist are written to a new log, while the old one is still appended
//! to. What was logged meanwhile is added, and the two logs exchange names, under the lock of the
//! log: copiers that publish wait for a few records at most. Until then the old log is in use.
//! After a power loss one of the two is there as a whole; copies that it does not know are dropped.

use super::codec::Codec;
use super::ledger::Reservation;
use super::log_charge::LogCharge;
use super::log_reader::{self, Logged};
use super::log_record::{NEW, RECORD};
use super::log_rewrite::{NewLog, now};
use super::names::ByName;
use super::packed_copies;
use super::recover::boot_id;
use super::space::{Allocating, Space};
use super::tier_log::{MAX_DEAD_RECORDS, TierLog};
use super::trash::Trash;
use monarch_abi::hash::CopyName;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Records that may be added while the log is compacted.
const HEADROOM_RECORDS: u64 = 2048;
/// Records of a log that are not of copies, at most.
const OTHER_RECORDS: u64 = 8;
/// Time after an error until the log is compacted again.
const RETRY_PAUSE: Duration = Duration::from_secs(600);

/// How a compaction ended.
enum Compaction {
    /// The log has this number of records now.
    Done(u64),
    /// The quota lacks this number of bytes.
    Short(u64),
    /// Not now: the agent ends, or the disk is full.
    Stopped,
}

/// Compacts the log of a tier.
#[derive(Debug)]
pub struct LogCompactor {
    space: Arc<Space>,
    trash: Arc<Trash>,
    log: Arc<TierLog>,
    /// Held while the log is compacted; when that failed last.
    compacting: Mutex<Option<Instant>>,
}

impl LogCompactor {
    pub(super) fn new(space: Arc<Space>, trash: Arc<Trash>, log: Arc<TierLog>) -> Self {
        Self { space, trash, log, compacting: Mutex::default() }
    }

    /// Waits for the end of a compaction that is under way.
    pub(super) fn wait(&self) {
        drop(self.compacting.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Compacts the log if most of its records are of copies that are gone. Returns the bytes that
    /// the quota lacks for that, 0 if none. Takes long, as it looks at every copy, and stops once
    /// `may` returns `false`.
    #[must_use]
    pub fn compact_if_due(&self, may: impl Fn() -> bool) -> u64 {
        // Another thread does so.
        let Ok(mut failed) = self.compacting.try_lock() else { return 0 };
        let may = || may() && !self.space.is_given_up();
        let files = self.space.ledger.usage().files;
        if self.log.records() <= 2 * files + MAX_DEAD_RECORDS
            || failed.is_some_and(|t| t.elapsed() < RETRY_PAUSE)
            || !may()
        {
            return 0;
        }
        let bytes = self.log_bytes(files + HEADROOM_RECORDS);
        let Some(room) = self.space.ledger.reserve_bytes(bytes) else { return bytes };
        let end = self.compact(room, may);
        if !matches!(end, Ok(Compaction::Done(_))) {
            self.space.unlink(NEW);
        }
        match end {
            Ok(Compaction::Done(copies)) => {
                tracing::info!(tier = self.space.name, copies, "the log was written anew");
                0
            }
            Ok(Compaction::Short(bytes)) => bytes,
            Ok(Compaction::Stopped) => 0,
            Err(e) => {
                tracing::warn!(tier = self.space.name, error = %e, "the log cannot be written anew; it grows");
                *failed = Some(Instant::now());
                0
            }
        }
    }

    /// Bytes that a log of this number of copies takes.
    fn log_bytes(&self, copies: u64) -> u64 {
        ((copies + OTHER_RECORDS) * RECORD as u64).next_multiple_of(self.space.ledger.block())
    }

    fn compact(&self, mut room: Reservation, may: impl Fn() -> bool) -> io::Result<Compaction> {
        let _allocating = Allocating::new(&self.space.allocating, room.bytes());
        if !self.space.disk_has_room()? {
            return Ok(Compaction::Stopped);
        }
        let Some((old, records)) = self.log.of_named() else { return Ok(Compaction::Stopped) };
        let (boot, looked) = (boot_id(), now());
        let mut known = log_reader::read_first(&old, boot, records)?.copies;
        if !self.keep_what_is_there(&mut known, &may)? {
            return Ok(Compaction::Stopped);
        }
        let copies = known.len() as u64;
        let missing = self.widen(&mut room, copies + HEADROOM_RECORDS);
        if missing > 0 {
            return Ok(Compaction::Short(missing));
        }
        let mut new = NewLog::write(&self.space.fs, boot, &known, looked)?;
        drop(known);
        // Most of what was logged meanwhile, so that little is left to do under the lock.
        let until = self.log.records();
        let missing = self.widen(&mut room, new.records() + (until - records) + HEADROOM_RECORDS);
        if missing > 0 {
            return Ok(Compaction::Short(missing));
        }
        new.take_over(&old, records, until)?;
        new.sync()?;
        if !may() {
            return Ok(Compaction::Stopped);
        }
        self.change_logs(new, old, until, room)
    }

    /// Drops the copies that are gone; `false` when `may` ended the search before its end.
    fn keep_what_is_there(&self, known: &mut ByName<Logged>, may: impl Fn() -> bool) -> io::Result<bool> {
        let mut end = Ok(true);
        known.retain_named(|name, logged| {
            if !matches!(end, Ok(true)) {
                return true;
            }
            if !may() {
                end = Ok(false);
                return true;
            }
            match self.changed(name, logged.packed) {
                Ok(Some(changed)) => {
                    // A copy that was synced, removed, and made again without a record is not taken
                    // for the one that was synced.
                    let _ = logged.found(changed);
                    true
                }
                Ok(None) => false,
                Err(e) => {
                    end = Err(e.into());
                    true
                }
            }
        });
        end
    }

    /// When a copy got its name, in seconds; `None` if it does not exist.
    fn changed(&self, name: CopyName, packed: bool) -> rustix::io::Result<Option<u64>> {
        let packed_as = |codec| self.space.fs.stat(packed_copies::path_of(name, codec));
        let st = match packed {
            true => packed_as(Codec::Lz4).or_else(|e| if e == Errno::NOENT { packed_as(Codec::Zstd) } else { Err(e) }),
            false => self.space.fs.stat(name.rel_path().as_slice()),
        };
        match st {
            Ok(st) => Ok(Some(st.st_ctime.unsigned_abs())),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Widens a reservation to a log of `copies`; the bytes that the quota lacks for that.
    fn widen(&self, room: &mut Reservation, copies: u64) -> u64 {
        let missing = self.log_bytes(copies).saturating_sub(room.bytes());
        if missing == 0 {
            return 0;
        }
        self.space.ledger.reserve_bytes(missing).map_or(missing, |more| {
            room.absorb(more);
            0
        })
    }

    /// Adds what was logged from record `since` on to the new log, and puts it in place of the old
    /// one.
    fn change_logs(
        &self,
        mut new: NewLog,
        old: Arc<OwnedFd>,
        since: u64,
        mut room: Reservation,
    ) -> io::Result<Compaction> {
        let mut charge = self.log.charge();
        let until = self.log.records();
        let missing = self.widen(&mut room, new.records() + (until - since));
        if missing > 0 {
            return Ok(Compaction::Short(missing));
        }
        new.take_over(&old, since, until)?;
        let (file, records, blocks) = (new.file(), new.records(), new.blocks()?);
        // An open file keeps its blocks.
        drop(old);
        let old_has_name = self.log.change_to(new)?;
        let charged = LogCharge::of(records * RECORD as u64, blocks, self.space.ledger.block());
        // Charged first, so that no other thread takes the room.
        let promised = room.into_charge();
        self.space.ledger.charge(charged.charged.saturating_sub(promised), 0);
        self.space.ledger.release(promised.saturating_sub(charged.charged), 0);
        let before = std::mem::replace(&mut *charge, charged);
        self.log.note_wants(&charge);
        drop(charge);
        match old_has_name {
            true => self.trash.put(NEW, before.charged),
            false => self.space.ledger.release(before.charged, 0),
        }
        rustix::fs::fdatasync(&file)?;
        Ok(Compaction::Done(records))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Usage;
    use super::super::{Copy, Sum, TierDir};
    use super::*;
    use monarch_abi::hash::PathHash;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use xxhash_rust::xxh3::xxh3_64;

    const CAPACITY: u64 = 64 << 20;
    /// Records of copies that are gone with which a log is compacted.
    const GONE: u64 = MAX_DEAD_RECORDS + 1000;

    fn open(dir: &Path) -> (TierDir, Vec<Copy>) {
        let tier = TierDir::open("t", dir, CAPACITY, 0).unwrap();
        let mut found = Vec::new();
        tier.recover(|copy| found.push(copy)).unwrap();
        (tier, found)
    }

    fn name(n: u64) -> CopyName {
        CopyName(u128::from(n % 256) << 120 | u128::from(n) << 32 | 7)
    }

    fn contents(n: u64) -> Vec<u8> {
        n.to_le_bytes().repeat(1 + n as usize % 40)
    }

    fn publish(tier: &TierDir, n: u64, passing: bool) {
        let bytes = contents(n);
        let file = tier.copies.create(bytes.len() as u64).unwrap().unwrap();
        super::super::write_all_at(file.fd(), &bytes, 0).unwrap();
        let stamp = name(n).stamp(PathHash { fp: 1 << 40, check: 5 });
        match passing {
            true => file.publish_passing(name(n), stamp),
            false => file.publish(name(n), stamp, Sum::whole(xxh3_64(&bytes))),
        }
        .unwrap()
        .unwrap();
    }

    fn evict(tier: &TierDir, n: u64) {
        tier.trash.evict_resident(name(n), contents(n).len() as u64);
    }

    /// Logs copies that are not there.
    fn log_gone(tier: &TierDir) {
        (0..GONE).for_each(|n| tier.log.append(name((1 << 40) + n), Sum::whole(n), n, false).unwrap());
    }

    /// Blocks of all files and directories, in bytes.
    fn on_disk(dir: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let below = |e: std::fs::DirEntry| match e.metadata().unwrap() {
            m if m.is_dir() => on_disk(&e.path()),
            m => m.blocks() * 512,
        };
        let inner: u64 = std::fs::read_dir(dir).unwrap().map(|e| below(e.unwrap())).sum();
        inner + dir.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn what_is_published_while_the_log_is_written_anew_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let (tier, _) = open(dir.path());
        let done = AtomicBool::new(false);
        let published: BTreeSet<u64> = std::thread::scope(|s| {
            let publishing = |from: u64| {
                let (tier, done) = (&tier, &done);
                s.spawn(move || {
                    let mut there = BTreeSet::new();
                    for n in (from..).step_by(4) {
                        publish(tier, n, false);
                        there.insert(n);
                        if n % 3 == 0 {
                            evict(tier, n);
                            there.remove(&n);
                        }
                        if n > 6000 || done.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    there
                })
            };
            let threads: Vec<_> = (0..4).map(publishing).collect();
            for _ in 0..3 {
                log_gone(&tier);
                while tier.log.records() > 2 * tier.space.ledger.usage().files + MAX_DEAD_RECORDS {
                    assert_eq!(tier.compactor.compact_if_due(|| true), 0);
                }
            }
            done.store(true, Ordering::Relaxed);
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        let path = tier.path.clone();
        assert!(!path.join(NEW).exists());
        drop(tier);
        let (tier, found) = open(dir.path());
        assert_eq!(found.iter().map(|c| c.name).collect::<BTreeSet<_>>(), published.iter().map(|n| name(*n)).collect());
        let sums = tier.log.sums(&found.iter().map(|c| c.name).collect()).unwrap();
        for n in published {
            let logged = sums.get(name(n)).unwrap();
            assert!(tier.copies.verify(name(n), contents(n).len() as u64, logged.sum), "{n}");
        }
    }

    #[test]
    fn the_ledger_is_right_after_any_number_of_times() {
        for base in [std::env::temp_dir(), "/dev/shm".into()] {
            let dir = tempfile::tempdir_in(base).unwrap();
            let (tier, _) = open(dir.path());
            (0..50).for_each(|n| publish(&tier, n, false));
            let above = |tier: &TierDir| tier.space.ledger.usage().used - on_disk(&tier.path);
            let at_first = above(&tier);
            for turn in 0..6 {
                log_gone(&tier);
                tier.log.sync_disk().unwrap();
                tier.log.charge_what_was_appended();
                assert_eq!(tier.compactor.compact_if_due(|| true), 0);
                assert!(tier.log.records() < 2 * HEADROOM_RECORDS + 60, "turn {turn}");
                tier.trash.sweep();
                assert_eq!(above(&tier), at_first, "turn {turn}");
                assert_eq!(tier.usage().reserved, 0, "turn {turn}");
            }
            // Another agent finds the same.
            let used = tier.space.ledger.usage().used;
            drop(tier);
            assert!(open(dir.path()).0.space.ledger.usage().used <= used);
        }
    }

    #[test]
    fn the_next_block_of_the_log_is_not_told_as_a_copy_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let (tier, _) = open(dir.path());
        let wants = (0..500).find(|&n| {
            publish(&tier, n, false);
            tier.log.wants() > 0
        });
        assert!(wants.is_some());
        let (before, block) = (tier.usage(), tier.space.ledger.block());
        tier.log.keep_room();
        assert_eq!(tier.space.ledger.usage().reserved, block);
        assert_eq!(tier.usage(), Usage { used: before.used + block, ..before });
    }

    #[test]
    fn an_old_log_that_somebody_reads_stays_charged() {
        let dir = tempfile::tempdir().unwrap();
        let (tier, _) = open(dir.path());
        log_gone(&tier);
        let reader = std::fs::File::open(tier.path.join(super::super::log_record::LOG)).unwrap();
        let before = tier.space.ledger.usage().used;
        assert_eq!(tier.compactor.compact_if_due(|| true), 0);
        assert!(tier.space.ledger.usage().used > before && tier.trash.sweep() == 1);
        drop(reader);
        assert!(tier.trash.sweep() == 0 && tier.space.ledger.usage().used < before);
    }

    #[test]
    fn a_copy_that_was_synced_and_made_again_without_a_record_is_not_called_safe() {
        let dir = tempfile::tempdir().unwrap();
        let (tier, _) = open(dir.path());
        (0..3).for_each(|n| publish(&tier, n, false));
        std::thread::sleep(Duration::from_millis(1100));
        tier.log.sync_disk().unwrap();
        evict(&tier, 1);
        publish(&tier, 1, true);
        // When the log is compacted, in a later second, this copy is an old one.
        std::thread::sleep(Duration::from_millis(1100));
        log_gone(&tier);
        assert_eq!(tier.compactor.compact_if_due(|| true), 0);
        evict(&tier, 2);
        publish(&tier, 2, true);
        let read = log_reader::read(&tier.space.fs, Some([9; 16])).unwrap();
        let safe = |n| {
            let changed = tier.compactor.changed(name(n), false).unwrap().unwrap();
            read.copies.get(name(n)).unwrap().is_safe(changed)
        };
        assert_eq!([0, 1, 2].map(safe), [true, false, false]);
        // The next sync speaks of what was not synced, once its second has passed.
        std::thread::sleep(Duration::from_millis(1100));
        assert!(tier.log.sync_disk().unwrap());
        let read = log_reader::read(&tier.space.fs, Some([9; 16])).unwrap();
        let changed = |n| tier.compactor.changed(name(n), false).unwrap().unwrap();
        assert_eq!([0, 1, 2].map(|n| read.copies.get(name(n)).unwrap().is_safe(changed(n))), [true, true, false]);
    }

    #[test]
    fn a_log_that_cannot_be_written_anew_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (tier, _) = open(dir.path());
        publish(&tier, 1, false);
        log_gone(&tier);
        let (log, new) = (tier.path.join(super::super::log_record::LOG), tier.path.join(NEW));
        let (bytes, usage) = (std::fs::read(&log).unwrap(), tier.space.ledger.usage());
        let same = || std::fs::read(&log).unwrap() == bytes && !new.is_file();
        let all = tier.space.ledger.reserve_bytes(usage.capacity - usage.used - usage.reserved).unwrap();
        assert!(tier.compactor.compact_if_due(|| true) > 0 && same());
        drop(all);
        // There is no time.
        let mut left = 3;
        let few = move || {
            left -= 1;
            left >= 0
        };
        let few = std::cell::RefCell::new(few);
        assert!(tier.compactor.compact_if_due(|| (*few.borrow_mut())()) == 0 && same());
        // Something has the name: it is not tried again soon.
        std::fs::create_dir(&new).unwrap();
        assert!(tier.compactor.compact_if_due(|| true) == 0 && same());
        std::fs::remove_dir(&new).unwrap();
        assert!(tier.compactor.compact_if_due(|| true) == 0 && same());
        assert_eq!(tier.space.ledger.usage(), usage);
        publish(&tier, 2, false);
        *tier.compactor.compacting.lock().unwrap() = None;
        assert!(tier.compactor.compact_if_due(|| true) == 0 && !same());
        drop(tier);
        assert_eq!(open(dir.path()).1.len(), 2);
    }
}
