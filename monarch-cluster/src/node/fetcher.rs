//! What reads of remote files have in common: the next node to ask, and notes of the answers.

use super::corruption_reports::CorruptionReports;
use super::fetch_tracker::{FetchId, FetchTracker};
use super::file_directory::FileDirectory;
use super::log_limit::LogLimit;
use super::missing_indexes::MissingIndexes;
use super::peer_pool::PeerPool;
use super::receipts::Receipts;
use super::request_paths::{Purpose, file_path};
use super::store::Store;
use super::traffic_stats::TrafficStats;
use super::wait_graph::{Coming, WaitGraph};
use crate::directory::Search;
use crate::tag::{Tag, TagKey};
use monarch_config::Spread;
use monarch_storage::sharing::FileRef;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The parts of the node that a read of a remote file works with.
pub(super) struct Fetcher {
    pub(super) pool: Arc<PeerPool>,
    pub(super) directory: Arc<FileDirectory>,
    pub(super) waits: Arc<WaitGraph>,
    pub(super) tracker: Arc<FetchTracker>,
    pub(super) missing: MissingIndexes,
    pub(super) reports: Arc<CorruptionReports>,
    pub(super) store: Arc<Store>,
    pub(super) traffic: Arc<TrafficStats>,
    pub(super) failures: LogLimit,
    pub(super) tags: TagKey,
    pub(super) receipts: Arc<Receipts>,
}

impl Fetcher {
    /// The node that is asked next for a file; `None`: the PFS.
    pub(super) fn next(&self, search: &mut Search, file: &FileRef) -> Option<(u16, Coming)> {
        self.waits.next(search, file, &self.pool.view())
    }

    /// Notes that a file is about to be read from the PFS.
    pub(super) fn begin(&self, file: &FileRef) -> FetchId {
        self.tracker.begin(file, self.pool.view().answerer_life(file.fp))
    }

    /// The tag that some bytes of a file have.
    pub(super) fn tag(&self, file: &FileRef, range: &Range<u64>, bytes: &[u8]) -> Tag {
        let mut tagger = self.tags.of_file(file.index, file.id, range);
        tagger.update(bytes);
        tagger.finish()
    }

    /// Path of a request for a file.
    pub(super) fn file_path(&self, file: &FileRef, purpose: Purpose) -> String {
        file_path(file, self.pool.options().placement != Spread::Sharded, purpose)
    }

    /// Whether a node did not serve the index of a file a moment ago.
    pub(super) fn is_missing_at(&self, node: u16, file: &FileRef) -> bool {
        self.missing.contains(node, file.index, Instant::now())
    }

    /// Logs, not too often, that a file did not come from where it should.
    pub(super) fn log_failure(&self, from: u16, rel: &[u8], why: &str) {
        let Some(more) = self.failures.admit(Instant::now()) else { return };
        let view = self.pool.view();
        let node = view.get(from).map_or("?", |m| &m.name);
        tracing::warn!(node, file = %monarch_storage::shown::bytes(rel), why, more, "a peer did not send a file; another one does, or the PFS");
    }
}
