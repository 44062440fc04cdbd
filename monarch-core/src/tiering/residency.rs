//! The copies that exist: lists of them, evicting them, moving them between tiers, checking them.

pub(crate) mod catalog;
pub(crate) mod decode_rounds;
pub(crate) mod eviction;
pub(crate) mod mover;
pub(crate) mod orphans;
pub(crate) mod promotions;
pub(crate) mod scrubber;
pub(crate) mod transient_cache;
pub(crate) mod transient_copies;

use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use catalog::Catalog;
use decode_rounds::DecodeRounds;
use eviction::Eviction;
use mover::Mover;
use orphans::Orphans;
use promotions::Promotions;
use scrubber::Scrubber;
use std::sync::{Arc, Mutex};
use transient_cache::TransientCache;
use transient_copies::TransientCopies;

/// The components of the room.
pub(crate) struct Residency {
    pub(crate) orphans: Arc<Mutex<Orphans>>,
    pub(crate) catalog: Arc<Mutex<Catalog>>,
    pub(crate) rounds: Arc<DecodeRounds>,
    pub(crate) promotions: Arc<Promotions>,
    pub(crate) transient: Arc<TransientCopies>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) scrubber: Arc<Scrubber>,
    pub(crate) mover: Arc<Mover>,
}

impl Residency {
    /// Makes the components without copies.
    pub(crate) fn new(shared: &Shared, policy: &Arc<PolicyHandle>, queue: &Queue) -> Self {
        let (tiers, options) = (&shared.cx.tiers, &shared.cx.options);
        let orphans = Arc::new(Mutex::new(Orphans::new(tiers.iter().map(|t| t.options.stays))));
        let caches = if tiers.iter().any(|t| t.options.for_decoded > 0) {
            tiers.iter().map(|t| TransientCache::new(t.options.for_decoded, options.elastic)).collect()
        } else {
            Vec::new()
        };
        let catalog = Arc::new(Mutex::new(Catalog::default()));
        let rounds = Arc::new(DecodeRounds::new(&shared.cx));
        let promotions = Arc::new(Promotions::default());
        let transient = Arc::new(TransientCopies::new(shared, &rounds, &promotions, caches));
        let eviction = Arc::new(Eviction::new(shared, policy, queue, &orphans, &catalog));
        let scrubber = Arc::new(Scrubber::new(shared, policy, queue, &orphans, &catalog, &eviction));
        let mover = Arc::new(Mover::new(shared, policy, &orphans, &eviction));
        Self { orphans, catalog, rounds, promotions, transient, eviction, scrubber, mover }
    }
}
