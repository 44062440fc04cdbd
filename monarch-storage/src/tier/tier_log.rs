//! The log of a tier that is in use: appends to it within the quota of the tier.

use super::checksum::Sum;
use super::ledger::{Reservation, Usage};
use super::log::Log;
use super::log_charge::LogCharge;
use super::log_reader::{self, Logged};
use super::log_record::NEW;
use super::log_rewrite::NewLog;
use super::names::ByName;
use super::space::Space;
use monarch_abi::hash::CopyName;
use rustix::fd::OwnedFd;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// Records for which the charged blocks have space when the next block is reserved: as many copies
/// may be under way.
const RESERVE_AHEAD_RECORDS: u64 = 40;
/// Records of copies that are gone which a log may always have.
pub(super) const MAX_DEAD_RECORDS: u64 = 4096;
/// Bytes of a record.
const RECORD: u64 = super::log_record::RECORD as u64;

/// The log of a tier with what is charged for it.
#[derive(Debug)]
pub struct TierLog {
    space: Arc<Space>,
    log: Log,
    /// Held while a record is appended.
    charge: Mutex<LogCharge>,
    /// Space reserved for the next block of the log.
    room: Mutex<Option<Reservation>>,
    /// Whether there is none, and the log will soon need it.
    wants: AtomicBool,
    /// Read-locked from when a copy is logged until it has its name.
    naming: RwLock<()>,
}

impl TierLog {
    pub(super) fn new(space: Arc<Space>) -> Self {
        Self {
            space,
            log: Log::default(),
            charge: Mutex::default(),
            room: Mutex::default(),
            wants: AtomicBool::new(false),
            naming: RwLock::default(),
        }
    }

    /// Records of the log.
    pub(super) fn records(&self) -> u64 {
        self.log.records()
    }

    /// Puts another log in place of this one; whether the old file has a name still.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn change_to(&self, new: NewLog) -> io::Result<bool> {
        self.log.change_to(&self.space.fs, new)
    }

    /// A lock that is held from when a copy is logged until it has its name.
    pub(super) fn naming(&self) -> RwLockReadGuard<'_, ()> {
        self.naming.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The charge of the log, locked: held while a record is appended.
    pub(super) fn charge(&self) -> MutexGuard<'_, LogCharge> {
        self.charge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Space that is reserved for the next block of the log.
    fn room_at_hand(&self) -> MutexGuard<'_, Option<Reservation>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The usage of the tier, for reports. Space reserved for the log counts as used: it is no copy
    /// that is being written, and stays taken.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let at_hand = self.room_at_hand();
        let mut usage = self.space.ledger.usage();
        let kept = at_hand.as_ref().map_or(0, Reservation::bytes);
        usage.reserved -= kept;
        usage.used += kept;
        usage
    }

    /// Charges the log of an earlier agent, or a new one, that takes `blocks` bytes on disk.
    pub(super) fn charge_blocks(&self, blocks: u64) {
        let mut charge = self.charge();
        *charge = LogCharge::of(self.log.len().unwrap_or(0), blocks, self.space.ledger.block());
        self.space.ledger.charge(charge.charged, 0);
        self.note_wants(&charge);
    }

    /// Logs a copy that is complete and about to get its name.
    ///
    /// # Errors
    /// What the kernel said; `StorageFull` when the quota has no room for one more block of the
    /// log.
    pub(super) fn append(&self, name: CopyName, sum: Sum, size: u64, packed: bool) -> io::Result<()> {
        let mut charge = self.charge();
        let room = self.room_to_grow(&charge, 1)?;
        let appended = self.log.append(name, sum, size, packed);
        match room {
            Some(room) if appended.is_ok() => charge_block(&mut charge, room),
            // A reservation that is dropped gives its bytes back.
            _ => {}
        }
        self.note_wants(&charge);
        appended
    }

    /// Charges records that were appended without a reservation: those that are not of copies.
    pub(super) fn charge_what_was_appended(&self) {
        let mut charge = self.charge();
        // Without space now, the next copy has to reserve it.
        if let Ok(Some(room)) = self.room_to_grow(&charge, 0) {
            charge_block(&mut charge, room);
        }
        self.note_wants(&charge);
    }

    /// Reserves one more block if this number of further records needs one.
    ///
    /// # Errors
    /// `StorageFull` when the quota has no space.
    fn room_to_grow(&self, charge: &LogCharge, records: u64) -> io::Result<Option<Reservation>> {
        if self.log.len().is_none_or(|len| len + records * RECORD <= charge.covered) {
            return Ok(None);
        }
        let at_hand = self.room_at_hand().take();
        let room = at_hand.or_else(|| self.space.ledger.reserve_bytes(self.space.ledger.block()));
        Ok(Some(room.ok_or(io::ErrorKind::StorageFull)?))
    }

    /// Notes whether the log will soon need a block: the placer asks often, and must not wait.
    pub(super) fn note_wants(&self, charge: &LogCharge) {
        let left = self.log.len().map_or(u64::MAX, |len| charge.covered.saturating_sub(len) / RECORD);
        let at_hand = self.room_at_hand();
        self.wants.store(at_hand.is_none() && left <= RESERVE_AHEAD_RECORDS, Ordering::Relaxed);
    }

    /// Bytes that the log will soon need. A copy that does not leave them free may not be logged
    /// when it is complete.
    #[must_use]
    pub fn wants(&self) -> u64 {
        if self.wants.load(Ordering::Relaxed) { self.space.ledger.block() } else { 0 }
    }

    /// Reserves the next block of the log, if it will soon need one and the quota has space.
    pub fn keep_room(&self) {
        if self.wants() > 0
            && let Some(room) = self.space.ledger.reserve_bytes(self.space.ledger.block())
        {
            let mut at_hand = self.room_at_hand();
            at_hand.get_or_insert(room);
            self.wants.store(false, Ordering::Relaxed);
        }
    }

    /// Logs a copy that was read in full and is sound: it need not be read again in this boot.
    pub fn verified(&self, name: CopyName, sum: Sum, size: u64) {
        if let Err(e) = self.append(name, sum, size, false) {
            tracing::debug!(tier = self.space.name, error = %e, "a verified copy could not be logged");
        }
    }

    /// Syncs the file system and logs that; `false` if nothing was left to sync.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn sync_disk(&self) -> io::Result<bool> {
        self.log.sync(&self.space.fs)
    }

    /// Syncs the copies to the disk, so that they need not be verified after a power loss. Does
    /// nothing on a tier in memory.
    pub fn sync(&self) {
        if self.space.is_in_memory() || self.space.is_given_up() {
            return;
        }
        match self.sync_disk() {
            Ok(said) if said => self.charge_what_was_appended(),
            Ok(_) => {}
            Err(e) => {
                tracing::warn!(tier = self.space.name, error = %e, "the copies could not be synced; after a power loss they are verified");
            }
        }
    }

    /// Appends to the log from now on, or to a new one if many of its records are of no use.
    pub(super) fn resume(&self, boot: Option<[u8; 16]>, mut read: log_reader::Read, kept: u64) {
        let anew = read.records == 0 || read.broken > 0 || read.records > kept + kept / 4 + MAX_DEAD_RECORDS;
        let went_on = if anew {
            read.copies.retain(|l| l.is_there);
            self.log.begin(&self.space.fs, boot, &read.copies)
        } else {
            self.log.resume(&self.space.fs, boot, &read)
        };
        match went_on {
            Ok(blocks) => self.charge_blocks(blocks),
            Err(e) => {
                self.space.unlink(NEW);
                tracing::warn!(tier = self.space.name, error = %e, "the copies cannot be logged; the next agent will drop them");
            }
        }
    }

    /// The log's records of these copies, with their checksums.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn sums(&self, names: &HashSet<CopyName>) -> io::Result<ByName<Logged>> {
        Ok(log_reader::read_of(&self.space.fs, None, Some(names))?.copies)
    }

    /// The log, and a number of records: each copy of those has got its name by now, or never gets
    /// it.
    pub(super) fn of_named(&self) -> Option<(Arc<OwnedFd>, u64)> {
        let _none_under_way = self.naming.write().unwrap_or_else(PoisonError::into_inner);
        self.log.in_use()
    }
}

fn charge_block(charge: &mut LogCharge, room: Reservation) {
    let bytes = room.into_charge();
    charge.charged += bytes;
    charge.covered += bytes;
}
