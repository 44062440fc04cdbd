//! Periodic work of the agent: outside pressure on the disk, evicted files that were still open,
//! second tries, copies that another process damaged, the state of prefetching.

use super::stop::Stop;
use crate::config::{MemoryWatch, SiteSettings, SiteStamp};
use crate::tier::TierDir;
use crate::tiering::TieringEngine;
use monarch_abi::control::ControlMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Pause between two rounds: `keep_free` is to be restored within a second.
pub const PERIOD: Duration = Duration::from_millis(500);

/// Does one round.
pub fn round(tiering: &TieringEngine, watch: &mut MemoryWatch) {
    let mut memory = short_of_memory(tiering, watch);
    for (at, tier) in tiering.shared.cx.tiers.iter().enumerate() {
        tier.trash.sweep();
        let short = tier.space.shortage();
        if short > 0 {
            let dropped = tiering.placement.reclaim.shrink(at, short);
            if dropped > 0 {
                tracing::info!(tier = tier.name, dropped, bytes = short, "copies dropped to keep space free");
            }
        }
        if memory > 0 && tier.space.is_in_memory() {
            let before = held(tier);
            tiering.placement.reclaim.shrink(at, memory);
            let freed = before.saturating_sub(held(tier));
            if freed > 0 {
                tracing::warn!(
                    tier = tier.name,
                    short = memory,
                    freed,
                    "the job's memory is short; copies in memory make room"
                );
            }
            memory = memory.saturating_sub(freed);
        }
    }
    tiering.schedule.workers.maintain();
    tiering.fetching.fetches.maintain();
    tiering.queue.refetch.second_tries();
    tiering.residency.scrubber.audit();
    tiering.residency.eviction.tidy();
    tiering.queue.work.resume_prefetch();
    tiering.access.working_sets.save_grown(Instant::now());
    tiering.reports.prefetch.log_changes();
}

/// The part of the job's memory that is left to it is one in this number, at most
/// [`MAX_MEMORY_LEFT_BYTES`]: copies in memory are dropped before the kernel kills.
const MEMORY_SHARE_DIVISOR: u64 = 32;
/// Most bytes of memory that are left to the job.
const MAX_MEMORY_LEFT_BYTES: u64 = 512 << 20;

/// Bytes of a tier that copies and partial copies have.
fn held(tier: &TierDir) -> u64 {
    let u = tier.space.ledger.usage();
    u.used + u.reserved
}

/// Bytes of memory that copies have to give back; where there are any, none are made in memory
/// until there is twice as much left.
fn short_of_memory(tiering: &TieringEngine, watch: &mut MemoryWatch) -> u64 {
    // (Partial copies are no files of the ledger.)
    let has_some = |t: &TierDir| {
        let u = t.usage();
        t.space.is_in_memory() && (t.space.suspended() || u.files > 0 || u.reserved > 0)
    };
    if !tiering.shared.cx.tiers.iter().any(has_some) {
        return 0;
    }
    let (left, whole) = watch.left();
    let wanted = (whole / MEMORY_SHARE_DIVISOR).min(MAX_MEMORY_LEFT_BYTES);
    for tier in tiering.shared.cx.tiers.iter().filter(|t| t.space.is_in_memory()) {
        if left < wanted {
            tier.space.squeeze(true);
        } else if left >= 2 * wanted {
            tier.space.squeeze(false);
        }
    }
    wanted.saturating_sub(left)
}

/// How often copies are synced: younger ones have to be verified after a power loss.
const SYNC_PERIOD: Duration = Duration::from_secs(60);
/// How often the thread looks whether a log is to be compacted.
const LOG_CHECK_PERIOD: Duration = Duration::from_secs(5);

/// Syncs the logs of the tiers now and then, and compacts those that have become too long, until
/// `stop`. On a thread of its own: a sync takes as long as the disk takes, and for a new log all
/// copies are looked at.
pub fn logs(tiering: &Arc<TieringEngine>, stop: Stop) {
    let tiering = tiering.clone();
    let work = move || {
        let mut synced = Instant::now();
        while !stop.sleep(LOG_CHECK_PERIOD) {
            tiering.placement.reclaim.compact_logs();
            if synced.elapsed() >= SYNC_PERIOD {
                tiering.shared.cx.tiers.iter().for_each(|t| t.log.sync());
                synced = Instant::now();
            }
        }
    };
    let _ = std::thread::Builder::new().name("logs".to_owned()).stack_size(256 * 1024).spawn(work);
}

/// Moves copies to faster tiers until `stop`, on a thread of its own: a round takes as long as
/// there is something to move.
pub fn promote(tiering: &Arc<TieringEngine>, stop: Stop) {
    if tiering.shared.cx.tiers.len() < 2 {
        return;
    }
    let tiering = tiering.clone();
    let work = move || {
        while !stop.sleep(PERIOD) {
            tiering.schedule.promoter.promote();
        }
    };
    let _ = std::thread::Builder::new().name("promote".to_owned()).stack_size(256 * 1024).spawn(work);
}

/// How often decoded copies that were read are dropped for others.
const DECODE_PERIOD: Duration = Duration::from_millis(50);

/// Decodes ahead of readers until `stop`, where copies are packed.
pub fn decode(tiering: &Arc<TieringEngine>, stop: Stop) {
    if tiering.shared.cx.tiers.iter().all(|t| t.options.for_decoded == 0) {
        return;
    }
    let tiering = tiering.clone();
    let work = move || {
        while !stop.sleep(DECODE_PERIOD) {
            tiering.schedule.decompress_ahead.decode_ahead();
        }
    };
    let _ = std::thread::Builder::new().name("decode".to_owned()).stack_size(256 * 1024).spawn(work);
}

/// Takes the opens of readers, the hints of jobs, and what processes ask for, until `stop`.
pub fn readers(tiering: &Arc<TieringEngine>, stop: Stop) {
    let tiering = tiering.clone();
    let work = move || {
        while !stop.is_set() {
            let pause = tiering.access.tracker.drain_accesses();
            tiering.access.listing_checks.begin_asked();
            tiering.access.tracker.await_readers(pause);
        }
    };
    let _ = std::thread::Builder::new().name("readers".to_owned()).stack_size(256 * 1024).spawn(work);
}

/// Follows the switch of the site until `stop`, on a thread of its own: `/etc` may hang. The switch
/// reaches new programs within [`PERIOD`]; running ones continue.
pub fn watch_site(ctl: ControlMap<'static>, stop: Stop) {
    let follow = move || {
        let off = SiteSettings::load().off;
        let before = ctl.ctl.site_off.swap(u32::from(off.is_some()), Ordering::Relaxed);
        match off {
            Some(why) if before == 0 => tracing::warn!(why, "new programs read the PFS"),
            None if before != 0 => tracing::info!("new programs are served again: the site has switched Monarch on"),
            _ => {}
        }
    };
    let mut seen = SiteStamp::now();
    follow();
    let work = move || {
        while !stop.sleep(PERIOD) {
            let now = SiteStamp::now();
            if now != seen {
                seen = now;
                follow();
            }
        }
    };
    let _ = std::thread::Builder::new().name("site".to_owned()).stack_size(256 * 1024).spawn(work);
}

/// How often the agent stores a sign of life.
const PULSE_PERIOD: Duration = Duration::from_millis(250);

/// Stores signs of life of this process until `stop`, and how quickly the PFS answers. A lock is no
/// sign of life: its holder may be stopped.
pub fn pulse(ctl: ControlMap<'static>, tiering: &Arc<TieringEngine>, stop: Stop) {
    let tiering = Arc::downgrade(tiering);
    let beat = move || {
        let open_us = tiering.upgrade().map_or(0, |tiering| tiering.open_us());
        // (Before the first open, what the agent has measured when it made an index.)
        if open_us > 0 {
            ctl.ctl.pfs_latency_us.store(open_us, Ordering::Relaxed);
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let ms = now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000;
        ctl.ctl.pulse_ms.store(ms, Ordering::Relaxed);
    };
    beat();
    let work = move || {
        while !stop.sleep(PULSE_PERIOD) {
            beat();
        }
    };
    if std::thread::Builder::new().name("pulse".to_owned()).stack_size(64 * 1024).spawn(work).is_err() {
        ctl.ctl.pulse_ms.store(0, Ordering::Relaxed);
    }
}
