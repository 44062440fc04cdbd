//! [`Packer`]: compresses one copy into a slower tier, and reserves the space for it.

use crate::sync::lock;
use crate::tier::{Codec, PackedWriter, PackingOptions, Reservation, Sum, Summing, TierDir};
use crate::tiering::compression::codec_choice::{CodecChoice, Trial, Tried};
use crate::tiering::compression::ratio_estimator::{RatioEstimator, suffix};
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
/// Bytes in the middle of a file that both codecs are tried on.
const TRIAL_BYTES: u64 = 256 << 10;

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

/// Tries both codecs on a unit of a file.
fn trial(copy: &rustix::fd::OwnedFd, size: u64) -> io::Result<Trial> {
    let bytes = TRIAL_BYTES.min(size);
    let mut raw = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let got = fill(copy, &mut raw, (size - bytes) / 2)?;
    raw.truncate(got);
    Ok(Trial { bytes: got as u64, by_codec: Codec::ALL.map(|codec| tried(&raw, codec)) })
}

/// Tries a codec.
fn tried(raw: &[u8], codec: Codec) -> Tried {
    let (mut packed, mut out) = (vec![0; codec.max_packed_bytes(raw.len())], vec![0; raw.len()]);
    let Some(len) = codec.compress(raw, &mut packed).filter(|len| *len < raw.len()) else {
        return Tried { stored: raw.len() as u64, decompress_ns: 0 };
    };
    // The first time a thread makes its context, and the memory is new.
    let took = [(); 2].map(|()| {
        let start = thread_cpu_ns();
        let _ = codec.decompress(&packed[..len], &mut out);
        thread_cpu_ns().saturating_sub(start)
    });
    Tried { stored: len as u64, decompress_ns: took[0].min(took[1]) }
}

/// Processor time of this thread, in nanoseconds: other threads do not count.
fn thread_cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Compresses single copies.
pub(crate) struct Packer {
    cx: Arc<Context>,
    orphans: Arc<Mutex<Orphans>>,
    ratios: Mutex<RatioEstimator>,
    /// Of tiers with `compression: auto`.
    choices: Mutex<CodecChoice>,
}

impl Packer {
    pub(crate) fn new(shared: &Shared, residency: &Residency) -> Self {
        Self {
            cx: shared.cx.clone(),
            orphans: residency.orphans.clone(),
            ratios: Mutex::default(),
            choices: Mutex::default(),
        }
    }

    /// Locks the estimates of compressed sizes.
    pub(crate) fn ratios(&self) -> MutexGuard<'_, RatioEstimator> {
        lock(&self.ratios)
    }

    /// The codec for a file; `None` if it does not shrink enough, by samples of it unless its
    /// suffix is known.
    fn codec_for(
        &self,
        copy: &rustix::fd::OwnedFd,
        rel: &[u8],
        size: u64,
        PackingOptions { codec, min_ratio }: PackingOptions,
    ) -> io::Result<Option<Codec>> {
        let suffix = suffix(rel);
        let known = codec.or_else(|| lock(&self.choices).known(suffix, min_ratio));
        if let Some(codec) = known {
            let is_worth = lock(&self.ratios).is_worth(rel);
            return Ok((is_worth || sample_is_worth(copy, size, codec, min_ratio)?).then_some(codec));
        }
        let trial = trial(copy, size)?;
        let mut choices = lock(&self.choices);
        let codec = choices.learn(suffix, &trial, min_ratio);
        if let Some(sum) = choices.just_known(suffix) {
            let ratio = |codec| format!("{:.2}", sum.ratio(codec));
            let chosen = sum.choice(min_ratio).map_or("none", |codec| codec.suffix().trim_start_matches('.'));
            let suffix = String::from_utf8_lossy(suffix.split(|b| *b == 0).next().unwrap_or_default());
            tracing::info!(%suffix, chosen, lz4 = ratio(Codec::Lz4), zstd = ratio(Codec::Zstd), "the compression of files with this suffix is chosen");
        }
        Ok(codec)
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
        let Some(options) = tier.options.packing else { return Ok(Packed::NotWorth) };
        let copy = match from.copies.open(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Packed::Damaged),
            other => other?,
        };
        let Some(codec) = self.codec_for(&copy, rel, size, options)? else { return Ok(Packed::NotWorth) };
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
        if tier.space.ledger.cost(stored) as f64 * options.min_ratio > tier.space.ledger.cost(size) as f64 {
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
