//! [`Tables`]: the state that several components of a node share, and the components made of it.

use super::announcements::Announcements;
use super::announcer::Announcer;
use super::checksum_table::ChecksumTable;
use super::corruption_reports::CorruptionReports;
use super::fetch_tracker::FetchTracker;
use super::fetcher::Fetcher;
use super::file_directory::FileDirectory;
use super::file_requests::FileRequests;
use super::holdings::Holdings;
use super::listener::Listener;
use super::local_copy::LocalCopies;
use super::log_limit::LogLimit;
use super::missing_indexes::MissingIndexes;
use super::news::News;
use super::owner_balance::OwnerBalance;
use super::peer_pool::PeerPool;
use super::receipts::Receipts;
use super::relays::Relays;
use super::send_slots::SendSlots;
use super::startup::Startup;
use super::store::Store;
use super::traffic_stats::TrafficStats;
use super::wait_graph::WaitGraph;
use crate::election::Election;
use crate::tag::TagKey;
use std::sync::Arc;
use std::time::Instant;

/// State that several components share; each table owns its lock. Fields: 15, one for each table.
pub(super) struct Tables {
    pub(super) pool: Arc<PeerPool>,
    pub(super) traffic: Arc<TrafficStats>,
    pub(super) store: Arc<Store>,
    pub(super) sums: Arc<ChecksumTable>,
    pub(super) tracker: Arc<FetchTracker>,
    pub(super) news: Arc<News>,
    pub(super) reports: Arc<CorruptionReports>,
    pub(super) directory: Arc<FileDirectory>,
    pub(super) waits: Arc<WaitGraph>,
    pub(super) election: Arc<Election>,
    pub(super) startup: Arc<Startup>,
    pub(super) holdings: Arc<Holdings>,
    pub(super) owners: Arc<OwnerBalance>,
    pub(super) relays: Arc<Relays>,
    pub(super) receipts: Arc<Receipts>,
}

impl Tables {
    /// Makes empty tables of a node that starts now.
    pub(super) fn new(pool: Arc<PeerPool>, traffic: Arc<TrafficStats>) -> Self {
        let (store, tracker) = (Arc::<Store>::default(), Arc::<FetchTracker>::default());
        let directory = Arc::<FileDirectory>::default();
        let election = Arc::<Election>::default();
        Self {
            owners: Arc::new(OwnerBalance::new(pool.clone(), store.clone())),
            relays: Arc::new(Relays::new(pool.clone())),
            pool,
            traffic,
            sums: Arc::default(),
            receipts: Arc::default(),
            news: Arc::default(),
            reports: Arc::default(),
            waits: Arc::new(WaitGraph::new(directory.clone())),
            startup: Arc::new(Startup::new(Instant::now(), election.clone())),
            holdings: Arc::new(Holdings::new(store.clone(), tracker.clone())),
            store,
            tracker,
            directory,
            election,
        }
    }

    /// Makes what answers and sends announcements.
    pub(super) fn announcements(&self) -> Announcements {
        Announcements {
            pool: self.pool.clone(),
            directory: self.directory.clone(),
            sums: self.sums.clone(),
            tracker: self.tracker.clone(),
            holdings: self.holdings.clone(),
            news: self.news.clone(),
            store: self.store.clone(),
            election: self.election.clone(),
            startup: self.startup.clone(),
            relays: self.relays.clone(),
        }
    }

    /// Makes what answers requests for the bytes of files, from `copies`.
    pub(super) fn file_requests(&self, copies: &Arc<LocalCopies>) -> FileRequests {
        FileRequests {
            pool: self.pool.clone(),
            directory: self.directory.clone(),
            waits: self.waits.clone(),
            tracker: self.tracker.clone(),
            copies: copies.clone(),
            traffic: self.traffic.clone(),
            relays: self.relays.clone(),
            answering: Arc::default(),
            slots: Arc::default(),
            batch_slots: Arc::new(SendSlots::for_batches()),
        }
    }

    /// Makes what informs other nodes.
    pub(super) fn announcer(&self, listener: &Arc<Listener>) -> Announcer {
        Announcer {
            pool: self.pool.clone(),
            directory: self.directory.clone(),
            holdings: self.holdings.clone(),
            news: self.news.clone(),
            store: self.store.clone(),
            election: self.election.clone(),
            listener: listener.clone(),
            traffic: self.traffic.clone(),
            owners: self.owners.clone(),
        }
    }

    /// Makes what requests files from other nodes.
    pub(super) fn fetcher(&self, tags: TagKey) -> Fetcher {
        Fetcher {
            pool: self.pool.clone(),
            directory: self.directory.clone(),
            waits: self.waits.clone(),
            tracker: self.tracker.clone(),
            missing: MissingIndexes::default(),
            reports: self.reports.clone(),
            store: self.store.clone(),
            traffic: self.traffic.clone(),
            failures: LogLimit::default(),
            tags,
            receipts: self.receipts.clone(),
        }
    }
}
