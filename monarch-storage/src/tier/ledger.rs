//! The byte ledger of a tier: used and reserved bytes never exceed the capacity.
//!
//! Space is reserved before anything is written, and settled with the blocks that the file system
//! allocated. A reservation that is dropped gives its bytes back. Every file is also charged
//! [`NAME_COST`] bytes towards the growth of directories.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes charged per file for its name in a directory: an ext4 entry with a 32-byte name is 40
/// bytes, half-full blocks double it.
pub(super) const NAME_COST: u64 = 96;

/// Bytes of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Most bytes that may be allocated.
    pub capacity: u64,
    /// Bytes allocated by copies, directories and files in the trash.
    pub used: u64,
    /// Bytes reserved for copies being written.
    pub reserved: u64,
    /// Copies.
    pub files: u64,
}

/// The bytes of a tier, and reservations of them.
#[derive(Debug)]
pub struct Ledger {
    usage: Arc<Mutex<Usage>>,
    block: u64,
}

fn lock(usage: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// An empty ledger; `block` is the allocation unit of the file system, in bytes.
    #[must_use]
    pub fn new(capacity: u64, block: u64) -> Self {
        Self { usage: Arc::new(Mutex::new(Usage { capacity, ..Usage::default() })), block: block.max(512) }
    }

    /// The allocation unit, in bytes.
    pub(super) const fn block(&self) -> u64 {
        self.block
    }

    fn lock(&self) -> MutexGuard<'_, Usage> {
        lock(&self.usage)
    }

    /// Bytes that a file of `size` bytes is charged.
    #[must_use]
    pub fn cost(&self, size: u64) -> u64 {
        size.checked_next_multiple_of(self.block).unwrap_or(u64::MAX).saturating_add(NAME_COST)
    }

    /// Reserves space for a file of `size` bytes; `None` when it does not fit.
    #[must_use]
    pub fn reserve(&self, size: u64) -> Option<Reservation> {
        self.reserve_bytes(self.cost(size))
    }

    /// Reserves exactly `bytes` bytes; `None` when they do not fit.
    #[must_use]
    pub fn reserve_bytes(&self, bytes: u64) -> Option<Reservation> {
        let mut u = self.lock();
        if u.used.saturating_add(u.reserved).saturating_add(bytes) > u.capacity {
            return None;
        }
        u.reserved += bytes;
        Some(Reservation { usage: self.usage.clone(), bytes })
    }

    /// Whether a file of `size` bytes could fit into the empty tier.
    #[must_use]
    pub fn could_ever_fit(&self, size: u64) -> bool {
        self.cost(size) <= self.lock().capacity
    }

    /// Charges what is already on disk, without a reservation: `bytes` bytes, `files` copies.
    pub fn charge(&self, bytes: u64, files: u64) {
        let mut u = self.lock();
        u.used += bytes;
        u.files += files;
    }

    /// Releases the charge of removed files: `bytes` bytes, `files` copies.
    pub fn release(&self, bytes: u64, files: u64) {
        let mut u = self.lock();
        u.used = u.used.saturating_sub(bytes);
        u.files = u.files.saturating_sub(files);
    }

    /// The usage now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        *self.lock()
    }
}

/// Reserved bytes; dropped, it gives them back.
#[derive(Debug)]
pub struct Reservation {
    usage: Arc<Mutex<Usage>>,
    bytes: u64,
}

impl Reservation {
    /// Bytes reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Turns the reservation into the charge of a copy for which the file system allocated
    /// `allocated` bytes; the bytes charged.
    ///
    /// # Errors
    /// The reservation, if that exceeds the capacity: the file has to be removed.
    pub fn settle(mut self, allocated: u64) -> Result<u64, Self> {
        let charge = allocated.saturating_add(NAME_COST);
        let mut u = lock(&self.usage);
        let others = u.used + u.reserved - self.bytes;
        if others + charge > u.capacity {
            drop(u);
            return Err(self);
        }
        u.reserved -= self.bytes;
        u.used += charge;
        u.files += 1;
        self.bytes = 0;
        Ok(charge)
    }

    /// Adds another reservation of the same ledger.
    pub fn absorb(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes at most `bytes` bytes out, as a reservation of their own.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { usage: self.usage.clone(), bytes }
    }

    /// Turns the reservation into a charge for something that is not a copy; the bytes charged.
    #[must_use]
    pub fn into_charge(mut self) -> u64 {
        let bytes = std::mem::take(&mut self.bytes);
        let mut u = lock(&self.usage);
        u.reserved = u.reserved.saturating_sub(bytes);
        u.used += bytes;
        bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut u = lock(&self.usage);
            u.reserved = u.reserved.saturating_sub(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Reserve(u64),
        Settle(usize, u64),
        Drop(usize),
        Split(usize, u64),
        Release(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0u64..100_000).prop_map(Op::Reserve),
            (any::<usize>(), 0u64..120_000).prop_map(|(i, b)| Op::Settle(i, b)),
            any::<usize>().prop_map(Op::Drop),
            (any::<usize>(), 0u64..120_000).prop_map(|(i, b)| Op::Split(i, b)),
            any::<usize>().prop_map(Op::Release),
        ]
    }

    #[test]
    fn no_size_costs_less_than_its_bytes() {
        let ledger = Ledger::new(1_000_000, 4096);
        for size in [u64::MAX, u64::MAX - 4095, i64::MAX as u64] {
            assert!(ledger.cost(size) >= size && ledger.reserve(size).is_none(), "{size}");
        }
    }

    proptest! {
        /// Against a plain sum: never above capacity, and exact.
        #[test]
        fn never_exceeds_capacity_and_is_exact(ops in proptest::collection::vec(op(), 1..200)) {
            let ledger = Ledger::new(1_000_000, 4096);
            let mut promised: Vec<Reservation> = Vec::new();
            let mut charged: Vec<u64> = Vec::new();
            for o in ops {
                match o {
                    Op::Reserve(n) => {
                        let fits = charged.iter().sum::<u64>() + promised.iter().map(Reservation::bytes).sum::<u64>()
                            + ledger.cost(n) <= 1_000_000;
                        let r = ledger.reserve(n);
                        prop_assert_eq!(r.is_some(), fits);
                        promised.extend(r);
                    }
                    Op::Settle(i, b) if !promised.is_empty() => {
                        let r = promised.swap_remove(i % promised.len());
                        if let Ok(c) = r.settle(b) { charged.push(c); }
                    }
                    Op::Drop(i) if !promised.is_empty() => { let _ = promised.swap_remove(i % promised.len()); }
                    Op::Split(i, b) if !promised.is_empty() => {
                        let at = i % promised.len();
                        let part = promised[at].split(b);
                        prop_assert!(part.bytes() <= b);
                        promised.push(part);
                    }
                    Op::Release(i) if !charged.is_empty() => {
                        let c = charged.swap_remove(i % charged.len());
                        ledger.release(c, 1);
                    }
                    _ => {}
                }
                let u = ledger.usage();
                prop_assert!(u.used + u.reserved <= u.capacity);
                prop_assert_eq!(u.used, charged.iter().sum::<u64>());
                prop_assert_eq!(u.reserved, promised.iter().map(Reservation::bytes).sum::<u64>());
                prop_assert_eq!(u.files, charged.len() as u64);
            }
        }
    }
}
