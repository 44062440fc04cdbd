//! Copying a file, or the chunks of a large one, from the claim in its state word to its outcome.

pub(crate) mod accounting;
pub(crate) mod adoption;
pub(crate) mod chunk_copy_task;
pub(crate) mod chunk_progress;
pub(crate) mod chunked_fetch;
pub(crate) mod chunked_fetches;
pub(crate) mod fetch_lines;
pub(crate) mod fetch_starter;
pub(crate) mod fetching;
pub(crate) mod file_copies;
pub(crate) mod file_copy_context;
pub(crate) mod file_copy_task;
pub(crate) mod page_follower;
pub(crate) mod page_window;
pub(crate) mod paged_fetches;
pub(crate) mod publisher;
pub(crate) mod shards;
pub(crate) mod stream_window;
pub(crate) mod streaming;
pub(crate) mod taken_chunk;
pub(crate) mod window_slots;

use crate::tiering::compression::Compression;
use crate::tiering::core::shared::Shared;
use crate::tiering::placement::Placement;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use adoption::Adoption;
use fetch_starter::FetchStarter;
use fetching::Fetching;
use file_copies::FileCopies;
use file_copy_context::FileCopyContext;
use std::sync::Arc;
use streaming::Streaming;

/// The components of the room that need placement and that other rooms use.
pub(crate) struct Copying {
    pub(crate) streaming: Arc<Streaming>,
    pub(crate) copies: Arc<FileCopies>,
}

impl Copying {
    /// Makes the components without copies.
    pub(crate) fn new(
        shared: &Shared,
        policy: &Arc<PolicyHandle>,
        queue: &Queue,
        residency: &Residency,
        compression: &Compression,
        placement: &Placement,
        fetching: &Fetching,
    ) -> Self {
        let streaming = Arc::new(Streaming::new(shared, placement, fetching));
        let starter =
            Arc::new(FetchStarter::new(shared, queue, residency, compression, placement, fetching, &streaming));
        let adoption = Arc::new(Adoption::new(shared, policy, queue, residency, fetching));
        let tasks = Arc::new(FileCopyContext::new(shared, policy, queue, residency, compression, placement, fetching));
        let copies = Arc::new(FileCopies::new(shared, queue, residency, fetching, &starter, &adoption, &tasks));
        Self { streaming, copies }
    }
}
