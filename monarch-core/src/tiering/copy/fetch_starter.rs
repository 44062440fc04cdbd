//! [`FetchStarter`]: finds space for a large file and starts to fetch its chunks: into its tier, in
//! front of a tier that compresses, or through the window.

use crate::sync::lock;
use crate::tier::PartCopy;
use crate::tiering::compression::Compression;
use crate::tiering::compression::compressor::Compressor;
use crate::tiering::compression::packer::Packer;
use crate::tiering::copy::chunked_fetch::PlacedPart;
use crate::tiering::copy::chunked_fetches::ChunkedFetches;
use crate::tiering::copy::fetch_lines::FetchLines;
use crate::tiering::copy::fetching::Fetching;
use crate::tiering::copy::publisher::{Publisher, no_transient_space};
use crate::tiering::copy::streaming::Streaming;
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::outcome::CopyOutcome;
use crate::tiering::core::reservations::CompressedReservation;
use crate::tiering::core::reservations::TransientReservation;
use crate::tiering::core::shared::Shared;
use crate::tiering::placement::Placement;
use crate::tiering::placement::fair_share::FairShare;
use crate::tiering::placement::placer::{MAX_CHOICES, Placer};
use crate::tiering::placement::reclaim::Reclaim;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use crate::tiering::residency::decode_rounds::DecodeRounds;
use crate::tiering::residency::transient_copies::TransientCopies;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_abi::chunks::LargeFile;
use monarch_abi::word::Refusal;
use monarch_policies::{RequestSource, Why};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Pause after a lack of space that may pass.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// How often the fair share frees space for one file.
const MAX_FAIR_SHARE_TRIES: u32 = 3;
/// Pause while as many files are being streamed as are allowed.
const STREAM_PLACE_PAUSE: Duration = Duration::from_millis(500);

/// Starts to fetch large files.
///
/// Fields: 13, one per component that finds space or takes the file.
pub(crate) struct FetchStarter {
    cx: Arc<Context>,
    throttle: Arc<PrefetchThrottle>,
    fetch_lines: Arc<Mutex<FetchLines>>,
    rounds: Arc<DecodeRounds>,
    transient: Arc<TransientCopies>,
    packer: Arc<Packer>,
    compressor: Arc<Compressor>,
    fair_share: Arc<FairShare>,
    placer: Arc<Placer>,
    reclaim: Arc<Reclaim>,
    publisher: Arc<Publisher>,
    fetches: Arc<ChunkedFetches>,
    streaming: Arc<Streaming>,
}

impl FetchStarter {
    pub(crate) fn new(
        shared: &Shared,
        queue: &Queue,
        residency: &Residency,
        compression: &Compression,
        placement: &Placement,
        fetching: &Fetching,
        streaming: &Arc<Streaming>,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            throttle: queue.throttle.clone(),
            fetch_lines: fetching.fetch_lines.clone(),
            rounds: residency.rounds.clone(),
            transient: residency.transient.clone(),
            packer: compression.packer.clone(),
            compressor: compression.compressor.clone(),
            fair_share: placement.fair_share.clone(),
            placer: placement.placer.clone(),
            reclaim: placement.reclaim.clone(),
            publisher: fetching.publisher.clone(),
            fetches: fetching.fetches.clone(),
            streaming: streaming.clone(),
        }
    }

    /// Starts to fetch the chunks of a claimed file.
    pub(crate) fn begin_fetch(&self, mut file: ClaimedFile, large: LargeFile<'static>) {
        if let Some((_, below)) = file.packed {
            return self.begin_decoding(file, large, below);
        }
        if file.passes() {
            return self.begin_from_peer(file, large);
        }
        let spares = |file: &ClaimedFile| file.source == RequestSource::Prefetch && self.cx.spares_memory();
        let (mut tried, mut shares, mut turns, mut unwanted) = (vec![false; self.cx.tiers.len()], 0, 0, false);
        loop {
            let Ok(at) = self.placer.place(&file, &tried).inspect_err(|why| unwanted |= *why == Why::Unwanted) else {
                if !unwanted && spares(&file) {
                    return self.leave_out(&file);
                }
                if !unwanted && shares < MAX_FAIR_SHARE_TRIES && self.fair_share.free_fair_share(&file) {
                    shares += 1;
                    tried.fill(false);
                    continue;
                }
                break;
            };
            let Some(tier) = self.cx.tiers.get(at) else { break };
            turns += 1;
            tried[at] = true;
            // A file that is not fetched to its end could not be compressed.
            if self.cx.packs(at)
                && self.cx.options.prefetch
                && let Some(room) = self.packer.reserve_estimate(at, &file.rel, file.want.size)
            {
                let asked = file.source == RequestSource::Demand;
                let above =
                    self.compressor.retry_until_room(asked, || self.reclaim.part_above(at, file.want.size, true));
                let Some((up, part, share)) = above else {
                    // It is retried; a reader that waits reads from the PFS.
                    self.compressor.defer(file.key);
                    return self.publisher.publish_outcome(&file, CopyOutcome::Stopped);
                };
                file.share = Some(Arc::new(share));
                file.below = Some(Arc::new(CompressedReservation { tier: at, room: Mutex::new(Some(room)) }));
                return self.fetches.start(file, large, PlacedPart { tier: up, part }, false);
            }
            match self.reclaim.room_for_part(at, tier, file.want.size) {
                Ok(Some(part)) => return self.fetches.start(file, large, PlacedPart { tier: at, part }, false),
                Ok(None) => tried[at] = turns > MAX_CHOICES,
                Err(e) => self.cx.tier_failed(tier, &e),
            }
        }
        let tried_some = shares > 0 || tried.contains(&true);
        self.refuse(&file, large, tried_some);
    }

    /// Leaves a file that is prefetched for later, when the job does not wait for memory.
    fn leave_out(&self, file: &ClaimedFile) {
        self.throttle.leave_out(file.key);
        self.publisher.publish_outcome(file, CopyOutcome::Stopped);
    }

    /// Streams a file that no tier takes, or refuses it. `tried_some`: a tier may take it later.
    fn refuse(&self, file: &ClaimedFile, large: LargeFile<'static>, tried_some: bool) {
        if self.transient.has_uncompressed() && file.source == RequestSource::Prefetch {
            self.compressor.defer(file.key);
            return self.publisher.publish_outcome(file, CopyOutcome::Stopped);
        }
        let transient =
            tried_some || self.transient.has_uncompressed() || self.cx.tiers.iter().any(|t| t.space.suspended());
        let why = if transient { Refusal::TierFailed } else { Refusal::NoRoom };
        let mut pause = transient.then_some(RETRY_PAUSE);
        if file.source == RequestSource::Demand && !transient {
            if self.streaming.stream(file, large) {
                return;
            }
            // Other files are being streamed: their readers may end.
            pause = lock(&self.fetch_lines).can_stream(file).then_some(STREAM_PLACE_PAUSE);
        }
        if let Some(more) = self.cx.log_limits.full.now() {
            let name = crate::shown::bytes(&file.rel);
            tracing::info!(file = %name, size = file.want.size, more, "no tier has room for it");
        }
        self.publisher.publish_outcome(file, CopyOutcome::Refused(why, pause));
    }

    /// Starts to fetch the chunks of a claimed file that a peer owns.
    fn begin_from_peer(&self, mut file: ClaimedFile, large: LargeFile<'static>) {
        if let Some((at, part, share)) = self.transient_part(&file) {
            file.share = Some(Arc::new(share));
            return self.fetches.start(file, large, PlacedPart { tier: at, part }, false);
        }
        if file.source != RequestSource::Demand || !self.streaming.stream(&file, large) {
            let end = no_transient_space(&file);
            self.publisher.publish_outcome(&file, end);
        }
    }

    /// Starts to decompress the chunks of a claimed file.
    fn begin_decoding(&self, mut file: ClaimedFile, large: LargeFile<'static>, below: usize) {
        let asked = file.source == RequestSource::Demand;
        match self.compressor.retry_until_room(asked, || self.reclaim.part_above(below, file.want.size, asked)) {
            Some((at, part, share)) => {
                file.share = Some(Arc::new(share));
                self.fetches.start(file, large, PlacedPart { tier: at, part }, false);
            }
            None => {
                if !asked {
                    self.rounds.suspend_decoding(file.key);
                }
                self.publisher.publish_outcome(&file, CopyOutcome::Packed(below));
            }
        }
    }

    /// Creates a transient partial copy for a peer's file.
    pub(crate) fn transient_part(&self, f: &ClaimedFile) -> Option<(usize, PartCopy, TransientReservation)> {
        let asked = f.source == RequestSource::Demand;
        self.compressor.retry_until_room(asked, || self.reclaim.part_above(self.cx.tiers.len(), f.want.size, asked))
    }
}
