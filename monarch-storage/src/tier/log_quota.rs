//! Logs the copies of a tier that is in use, within its quota.

use super::checksum::Sum;
use super::dir::TierDir;
use super::ledger::{Reservation, Usage};
use super::log_charge::LogCharge;
use monarch_abi::hash::CopyName;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// Records for which the charged blocks have space when the next block is reserved: as many copies
/// may be under way.
const RESERVE_AHEAD_RECORDS: u64 = 40;
/// Bytes of a record.
const RECORD: u64 = super::log_record::RECORD as u64;

impl TierDir {
    /// The charge of the log, locked: held while a record is appended.
    pub(super) fn logging(&self) -> MutexGuard<'_, LogCharge> {
        self.logging.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Space that is reserved for the next block of the log.
    fn room_at_hand(&self) -> MutexGuard<'_, Option<Reservation>> {
        self.log_room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The usage of the tier, for reports. Space reserved for the log counts as used: it is no copy
    /// that is being written, and stays taken.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let at_hand = self.room_at_hand();
        let mut usage = self.ledger.usage();
        let kept = at_hand.as_ref().map_or(0, Reservation::bytes);
        usage.reserved -= kept;
        usage.used += kept;
        usage
    }

    /// Charges the log of an earlier agent, or a new one, that takes `blocks` bytes on disk.
    pub(super) fn charge_log(&self, blocks: u64) {
        let mut charge = self.logging();
        *charge = LogCharge::of(self.log.len().unwrap_or(0), blocks, self.ledger.block());
        self.ledger.charge(charge.charged, 0);
        self.note_log_wants(&charge);
    }

    /// Logs a copy that is complete and about to get its name.
    ///
    /// # Errors
    /// What the kernel said; `StorageFull` when the quota has no room for one more block of the
    /// log.
    pub(super) fn log_copy(&self, name: CopyName, sum: Sum, size: u64, packed: bool) -> io::Result<()> {
        let mut charge = self.logging();
        let room = self.room_to_grow(&charge, 1)?;
        let appended = self.log.append(name, sum, size, packed);
        match room {
            Some(room) if appended.is_ok() => charge_block(&mut charge, room),
            // A reservation that is dropped gives its bytes back.
            _ => {}
        }
        self.note_log_wants(&charge);
        appended
    }

    /// Charges records that were appended without a reservation: those that are not of copies.
    pub(super) fn charge_what_was_appended(&self) {
        let mut charge = self.logging();
        // Without space now, the next copy has to reserve it.
        if let Ok(Some(room)) = self.room_to_grow(&charge, 0) {
            charge_block(&mut charge, room);
        }
        self.note_log_wants(&charge);
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
        let room = at_hand.or_else(|| self.ledger.reserve_bytes(self.ledger.block()));
        Ok(Some(room.ok_or(io::ErrorKind::StorageFull)?))
    }

    /// Notes whether the log will soon need a block: the placer asks often, and must not wait.
    pub(super) fn note_log_wants(&self, charge: &LogCharge) {
        let left = self.log.len().map_or(u64::MAX, |len| charge.covered.saturating_sub(len) / RECORD);
        let at_hand = self.room_at_hand();
        self.log_wants.store(at_hand.is_none() && left <= RESERVE_AHEAD_RECORDS, Ordering::Relaxed);
    }

    /// Bytes that the log will soon need. A copy that does not leave them free may not be logged
    /// when it is complete.
    #[must_use]
    pub fn log_wants(&self) -> u64 {
        if self.log_wants.load(Ordering::Relaxed) { self.ledger.block() } else { 0 }
    }

    /// Reserves the next block of the log, if it will soon need one and the quota has space.
    pub fn keep_log_room(&self) {
        if self.log_wants() > 0
            && let Some(room) = self.ledger.reserve_bytes(self.ledger.block())
        {
            let mut at_hand = self.room_at_hand();
            at_hand.get_or_insert(room);
            self.log_wants.store(false, Ordering::Relaxed);
        }
    }

    /// Logs a copy that was read in full and is sound: it need not be read again in this boot.
    pub fn verified(&self, name: CopyName, sum: Sum, size: u64) {
        if let Err(e) = self.log_copy(name, sum, size, false) {
            tracing::debug!(tier = self.name, error = %e, "a verified copy could not be logged");
        }
    }

    /// Syncs the copies to the disk, so that they need not be verified after a power loss. Does
    /// nothing on a tier in memory.
    pub fn sync(&self) {
        if self.in_memory || self.given_up.load(Ordering::Relaxed) {
            return;
        }
        match self.log.sync(&self.fs) {
            Ok(said) if said => self.charge_what_was_appended(),
            Ok(_) => {}
            Err(e) => {
                tracing::warn!(tier = self.name, error = %e, "the copies could not be synced; after a power loss they are verified");
            }
        }
    }
}

fn charge_block(charge: &mut LogCharge, room: Reservation) {
    let bytes = room.into_charge();
    charge.charged += bytes;
    charge.covered += bytes;
}
