//! [`Fetching`]: the part of the room that needs no placement: chunks of large files, publication.
//!
//! It is made before [`placement`](crate::tiering::placement), to which it is handed as what drops
//! partial copies.

use crate::tiering::compression::Compression;
use crate::tiering::copy::accounting::CopyAccounting;
use crate::tiering::copy::chunked_fetches::ChunkedFetches;
use crate::tiering::copy::fetch_lines::FetchLines;
use crate::tiering::copy::publisher::Publisher;
use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use std::sync::{Arc, Mutex};

/// The chunked fetches and what publishes and counts copies.
pub(crate) struct Fetching {
    pub(crate) fetch_lines: Arc<Mutex<FetchLines>>,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) accounting: Arc<CopyAccounting>,
    pub(crate) fetches: Arc<ChunkedFetches>,
}

impl Fetching {
    /// Makes the components without fetches.
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        compression: &Compression,
    ) -> Self {
        let fetch_lines = Arc::new(Mutex::new(FetchLines::default()));
        let publisher = Arc::new(Publisher::new(shared, policy, queue, residency, &fetch_lines));
        let accounting = Arc::new(CopyAccounting::new(shared, queue));
        let fetches =
            Arc::new(ChunkedFetches::new(shared, queue, residency, compression, &fetch_lines, &publisher, &accounting));
        Self { fetch_lines, publisher, accounting, fetches }
    }
}
