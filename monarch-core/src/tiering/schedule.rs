//! The threads of the tiering engine, and what each of them does next.

pub(crate) mod decompress_ahead;
pub(crate) mod dispatcher;
pub(crate) mod lower_rooms;
pub(crate) mod peer_batches;
pub(crate) mod promoter;
pub(crate) mod worker_pool;
pub(crate) mod workers;

use crate::tiering::copy::page_follower::PageFollower;
use decompress_ahead::DecompressAhead;
use dispatcher::Dispatcher;
use lower_rooms::LowerRooms;
use peer_batches::PeerBatches;
use promoter::Promoter;
use std::sync::Arc;
use workers::Workers;

/// The components of the room that the agent uses.
pub(crate) struct Schedule {
    pub(crate) promoter: Arc<Promoter>,
    pub(crate) decompress_ahead: Arc<DecompressAhead>,
    pub(crate) workers: Arc<Workers>,
}

impl Schedule {
    /// Makes the components; [`Workers::run`] starts the threads.
    pub(crate) fn new(of: &LowerRooms<'_>) -> Self {
        let promoter = Arc::new(Promoter::new(of.shared, of.residency, &of.reports.prefetch));
        let decompress_ahead = Arc::new(DecompressAhead::new(of.shared, of.policy, of.queue, of.residency));
        let dispatcher = Arc::new(Dispatcher::new(of, &decompress_ahead));
        let fetches = &of.fetching.fetches;
        let follower = PageFollower::new(&of.shared.cx, &fetches.paged, fetches);
        let copies = &of.copying.copies;
        let batches = PeerBatches::new(of.shared, of.queue, copies);
        let lanes = (of.queue, of.compression, copies, batches);
        let workers = Arc::new(Workers::new(of.shared, lanes, &dispatcher, follower));
        Self { promoter, decompress_ahead, workers }
    }
}
