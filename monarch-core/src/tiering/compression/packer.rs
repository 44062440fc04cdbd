//! [`Packer`]: compresses one copy into a slower tier, and reserves the space for it.

use crate::sync::lock;
use crate::tier::{Codec, PackedWriter, PackingOptions, Reservation, Sum, Summing, TierDir};
use crate::tiering::compression::ratio_estimator::RatioEstimator;
use crate::tiering::core::context::Context;
use crate::tiering::core::reservations::CompressionTarget;
use crate::tiering::core::segments::EvictionCandidate;
use crate::tiering::core::shared::Shared;
use crate::tiering::residency::Residency;
use crate::tiering::residency::orphans::Orphans;
use monarch_abi::hash::PathHash;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of a sample, and the number of samples of a file of more than four times that size.
const SAMPLE_BYTES: usize = 64 << 10;
const SAMPLE_COUNT: u64 = 3;

/// How compressing a copy ended.
pub(crate) enum Packed {
    /// It is compressed, in this many bytes.
    Yes(u64),
    /// It does not shrink enough.
    NotWorth,
    NoRoom,
    Damaged,
    Stopped,
}

/// Fills the buffer from the file, or up to its end. Returns the bytes read.
fn fill(copy: &rustix::fd::OwnedFd, buf: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match rustix::io::retry_on_intr(|| rustix::io::pread(copy, &mut buf[got..], at + got as u64))? {
            0 => break,
            n => got += n,
        }
    }
    Ok(got)
}

/// Whether samples of a file shrink by the factor `least`. A small file is tried as a whole anyway.
fn sample_is_worth(copy: &rustix::fd::OwnedFd, size: u64, codec: Codec, least: f64) -> io::Result<bool> {
    if size <= SAMPLE_BYTES as u64 * (SAMPLE_COUNT + 1) {
        return Ok(true);
    }
    let (mut raw, mut stored) = (0, 0);
    let mut buf = vec![0; SAMPLE_BYTES];
    let mut out = vec![0; codec.max_packed_bytes(SAMPLE_BYTES)];
    for n in 1..=SAMPLE_COUNT {
        let got = fill(copy, &mut buf, size / (SAMPLE_COUNT + 1) * n)?;
        raw += got;
        stored += codec.compress(&buf[..got], &mut out).unwrap_or(got).min(got);
    }
    // A sample alone shrinks a little less than the file that it is part of.
    Ok(stored as f64 * least <= raw as f64 * 1.05)
}

/// Compresses single copies.
pub(crate) struct Packer {
    cx: Arc<Context>,
    orphans: Arc<Mutex<Orphans>>,
    ratios: Mutex<RatioEstimator>,
}

impl Packer {
    pub(crate) fn new(shared: &Shared, residency: &Residency) -> Self {
        Self { cx: shared.cx.clone(), orphans: residency.orphans.clone(), ratios: Mutex::default() }
    }

    /// Locks the estimates of compressed sizes.
    pub(crate) fn ratios(&self) -> MutexGuard<'_, RatioEstimator> {
        lock(&self.ratios)
    }

    /// Compresses a resident copy, which stays.
    pub(crate) fn pack_copy(
        &self,
        candidate: &EvictionCandidate,
        rel: &[u8],
        sum: Sum,
        CompressionTarget { tier: to, room }: CompressionTarget,
        may: impl Fn() -> bool,
    ) -> io::Result<Packed> {
        let (name, size) = (candidate.name(), candidate.entry.record.size);
        let (Some(from), Some(tier)) = (self.cx.tiers.get(candidate.word.tier()), self.cx.tiers.get(to)) else {
            return Ok(Packed::NoRoom);
        };
        // Only tiers with compression are asked.
        let Some(PackingOptions { codec, min_ratio: least }) = tier.options.packing else {
            return Ok(Packed::NotWorth);
        };
        let copy = match from.copies.open(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Packed::Damaged),
            other => other?,
        };
        if !lock(&self.ratios).is_worth(rel) && !sample_is_worth(&copy, size, codec, least)? {
            return Ok(Packed::NotWorth);
        }
        let room = match room {
            Some(room) => Some(room),
            None => self.reserve(to, tier, size),
        };
        let Some(room) = room else { return Ok(Packed::NoRoom) };
        let Some(mut writer) = PackedWriter::begin(&tier.copies, codec, room, size, sum.piece)? else {
            return Ok(Packed::NoRoom);
        };
        let mut summing = Summing::new(sum.piece);
        let mut buf = vec![0; writer.unit().min(usize::try_from(size).unwrap_or(usize::MAX)).max(1)];
        while summing.bytes < size {
            if !may() {
                return Ok(Packed::Stopped);
            }
            let got = fill(&copy, &mut buf, summing.bytes)?;
            if got == 0 {
                break;
            }
            summing.update(&buf[..got]);
            if !writer.add(&buf[..got])? {
                return Ok(Packed::NoRoom);
            }
        }
        if summing.bytes != size || summing.end() != sum {
            return Ok(Packed::Damaged);
        }
        let stored = writer.bytes();
        // The charge counts: a file of one block stays a file of one block.
        if tier.space.ledger.cost(stored) as f64 * least > tier.space.ledger.cost(size) as f64 {
            return Ok(Packed::NotWorth);
        }
        let stamp = name.stamp(PathHash { fp: candidate.entry.master.fp, check: candidate.entry.record.check });
        Ok(writer.publish(name, stamp, sum)?.map_or(Packed::NoRoom, |_| Packed::Yes(stored)))
    }

    /// Reserves space for the compressed copy of a file; `None` if it should not have one, or there
    /// is no space.
    pub(crate) fn reserve_estimate(&self, at: usize, rel: &[u8], size: u64) -> Option<Reservation> {
        let tier = self
            .cx
            .tiers
            .get(at)
            .filter(|t| self.cx.could_be_decoded(at, size) && t.space.ledger.cost(size) > t.space.ledger.cost(1))?;
        let estimate = lock(&self.ratios).estimate(rel, size)?;
        self.reserve(at, tier, estimate)
    }

    /// Reserves `bytes` for a compressed copy, and evicts orphans until they are free.
    pub(crate) fn reserve(&self, at: usize, tier: &TierDir, bytes: u64) -> Option<Reservation> {
        loop {
            if let Some(room) = tier.packed.reserve(bytes).ok()? {
                return Some(room);
            }
            if !lock(&self.orphans).make_way(at, &self.cx.tiers) {
                return None;
            }
        }
    }
}
