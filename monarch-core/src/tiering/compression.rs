//! Compressing resident copies into a slower tier: the queue, the compression itself, estimates of
//! its result.

pub(crate) mod codec_choice;
pub(crate) mod compressor;
pub(crate) mod packer;
pub(crate) mod ratio_estimator;

use crate::tiering::core::shared::Shared;
use crate::tiering::policy::policy_handle::PolicyHandle;
use crate::tiering::queue::Queue;
use crate::tiering::residency::Residency;
use compressor::Compressor;
use packer::Packer;
use std::sync::Arc;

/// The components of the room.
pub(crate) struct Compression {
    pub(crate) packer: Arc<Packer>,
    pub(crate) compressor: Arc<Compressor>,
}

impl Compression {
    /// Makes the components with an empty queue.
    pub(crate) fn new(shared: &Shared, policy: &Arc<PolicyHandle>, queue: &Queue, residency: &Residency) -> Self {
        let packer = Arc::new(Packer::new(shared, residency));
        let compressor = Arc::new(Compressor::new(shared, policy, queue, residency, &packer));
        Self { packer, compressor }
    }
}
