//! [`FileCopyContext`]: the components that a file copy task uses.

use crate::tier::CopyFile;
use crate::tiering::compression::Compression;
use crate::tiering::compression::compressor::Compressor;
use crate::tiering::compression::packer::Packer;
use crate::tiering::copy::accounting::CopyAccounting;
use crate::tiering::copy::fetching::Fetching;
use crate::tiering::copy::publisher::{Publisher, no_transient_space};
use crate::tiering::core::claimed_file::ClaimedFile;
use crate::tiering::core::context::Context;
use crate::tiering::core::outcome::CopyOutcome;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::reservations::TransientReservation;
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::placement::Placement;
use crate::tiering::placement::fair_share::FairShare;
use crate::tiering::placement::placer::Placer;
use crate::tiering::placement::reclaim::Reclaim;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::queue::engine_lane::EngineLanes;
use crate::tiering::residency::Residency;
use crate::tiering::residency::decode_rounds::DecodeRounds;
use crate::tiering::residency::transient_copies::TransientCopies;
use crate::tiering::throttle::PrefetchThrottle;
use monarch_policies::RequestSource;
use std::sync::Arc;

/// The components that a file copy task uses.
///
/// Fields: 15, one per component; the task of a file has a reference to them all.
pub(crate) struct FileCopyContext {
    pub(crate) cx: Arc<Context>,
    pub(crate) throttle: Arc<PrefetchThrottle>,
    pub(crate) policy: Arc<PolicyHandle>,
    pub(crate) source_facts: Arc<SourceFacts>,
    pub(crate) peers: Arc<PeerLink>,
    pub(crate) lanes: Arc<EngineLanes>,
    pub(crate) rounds: Arc<DecodeRounds>,
    pub(crate) transient: Arc<TransientCopies>,
    pub(crate) packer: Arc<Packer>,
    pub(crate) compressor: Arc<Compressor>,
    pub(crate) fair_share: Arc<FairShare>,
    pub(crate) placer: Arc<Placer>,
    pub(crate) reclaim: Arc<Reclaim>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) accounting: Arc<CopyAccounting>,
}

impl FileCopyContext {
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        compression: &Compression,
        placement: &Placement,
        fetching: &Fetching,
    ) -> Self {
        Self {
            cx: shared.cx.clone(),
            throttle: queue.throttle.clone(),
            policy: policy.clone(),
            source_facts: shared.source_facts.clone(),
            peers: shared.peers.clone(),
            lanes: queue.lanes.clone(),
            rounds: residency.rounds.clone(),
            transient: residency.transient.clone(),
            packer: compression.packer.clone(),
            compressor: compression.compressor.clone(),
            fair_share: placement.fair_share.clone(),
            placer: placement.placer.clone(),
            reclaim: placement.reclaim.clone(),
            publisher: fetching.publisher.clone(),
            accounting: fetching.accounting.clone(),
        }
    }

    /// Creates a transient copy for a peer's file.
    ///
    /// # Errors
    ///
    /// The outcome when there is no space.
    pub(crate) fn transient_file(
        &self,
        f: &ClaimedFile,
    ) -> Result<(usize, CopyFile<'_>, TransientReservation), CopyOutcome> {
        let asked = f.source == RequestSource::Demand;
        let room = self
            .compressor
            .retry_until_room(asked, || self.reclaim.file_above(self.cx.tiers.len(), f.want.size, asked));
        room.ok_or_else(|| no_transient_space(f))
    }
}
