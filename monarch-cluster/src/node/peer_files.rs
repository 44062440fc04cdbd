//! The other nodes, as the tiering engine sees them.

use super::batch_fetch::BatchFetch;
use super::checksum_table::ChecksumTable;
use super::fetcher::Fetcher;
use super::news::News;
use super::remote_file::Remote;
use crate::directory::members::ME;
use crate::directory::{Route, announcement_rules};
use monarch_config::Spread;
use monarch_storage::sharing::{BatchFile, FetchRequest, FileRef, Peers, RemoteFile};
use monarch_storage::tier::Sum;
use std::sync::Arc;

/// Files of other nodes, and notes of this node's own.
pub(super) struct PeerFiles {
    pub(super) fetcher: Arc<Fetcher>,
    pub(super) sums: Arc<ChecksumTable>,
    pub(super) news: Arc<News>,
}

impl PeerFiles {
    /// Notes the checksum of a copy, unless it is one of chunks.
    pub(super) fn note_sum(&self, file: &FileRef, sum: Sum) {
        if sum.piece == 0 {
            self.sums.note(file, sum.value);
        }
    }
}

impl Peers for PeerFiles {
    fn file(&self, request: &FetchRequest<'_>) -> Option<Arc<dyn RemoteFile>> {
        let (fetcher, file) = (&self.fetcher, request.file);
        // Before it is decided by a view: a node that comes up meanwhile is informed of the fetch,
        // rather than of nothing.
        let began = fetcher.begin(&file);
        let view = fetcher.pool.view();
        let forced = fetcher.tracker.unforce(&file);
        let route = fetcher.directory.route(&file, &view);
        if forced || route == Route::Pfs {
            return None;
        }
        fetcher.tracker.end_this(&file, began);
        let own = view.answerer(file.fp) == ME;
        Some(Arc::new(Remote::new(fetcher.clone(), request, own)))
    }

    fn is_mine(&self, file: &FileRef) -> bool {
        self.fetcher.pool.view().owner(file.fp) == ME
    }

    fn source(&self, file: &FileRef) -> Option<u16> {
        let fetcher = &self.fetcher;
        match fetcher.directory.route(file, &fetcher.pool.view()) {
            Route::Ask(node) if !fetcher.tracker.is_forced(file) => Some(node),
            _ => None,
        }
    }

    fn batch_files(&self) -> usize {
        self.fetcher.pool.options().batch_files
    }

    fn fetch_batch(&self, from: u16, files: &[BatchFile], take: &mut dyn FnMut(usize, Arc<[u8]>) -> bool) {
        BatchFetch { fetcher: &self.fetcher, from, files }.run(take);
    }

    fn fetches_all(&self) -> bool {
        self.fetcher.pool.options().placement == Spread::Replicated
    }

    fn note_copied(&self, file: &FileRef, sum: Sum, kept: bool) {
        self.note_sum(file, sum);
        // The node that answers for the file may have to be informed.
        let Some(began) = self.fetcher.tracker.end(file).filter(|_| kept) else { return };
        if let Some(to) = announcement_rules::after_fetch(began, true, &self.fetcher.pool.view(), file.fp) {
            self.news.add_complete(to, *file);
        }
    }

    fn note_fetch_ended(&self, file: &FileRef) {
        let _ = self.fetcher.tracker.end(file);
    }

    fn note_chunk(&self, file: &FileRef, part: (u64, u64), sum: u64) {
        self.sums.note_part(file, part, sum);
        self.fetcher.receipts.published(file, part);
    }

    fn note_changed(&self, file: &FileRef) {
        self.news.add_changed([*file]);
    }
}
