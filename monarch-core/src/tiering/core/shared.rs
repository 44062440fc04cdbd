//! [`Shared`]: the parts of the tiering engine that every room uses.

use crate::tiering::core::context::Context;
use crate::tiering::core::copy_errors::CopyErrors;
use crate::tiering::core::peer_link::PeerLink;
use crate::tiering::core::segments::Segments;
use crate::tiering::core::source_facts::SourceFacts;
use std::sync::Arc;
use std::time::Duration;

/// The parts of the room [`core`](crate::tiering): each room is handed them.
pub(crate) struct Shared {
    pub(crate) cx: Arc<Context>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) source_facts: Arc<SourceFacts>,
    pub(crate) peers: Arc<PeerLink>,
    pub(crate) copy_errors: Arc<CopyErrors>,
}

impl Shared {
    /// Makes the parts without segments and without peers. `purge_age` is the age at which the site
    /// removes files.
    pub(crate) fn new(cx: Context, purge_age: Option<Duration>) -> Self {
        let segments = Arc::new(Segments::new());
        Self {
            cx: Arc::new(cx),
            source_facts: Arc::new(SourceFacts::new(&segments, purge_age)),
            peers: Arc::new(PeerLink::new(&segments)),
            copy_errors: Arc::default(),
            segments,
        }
    }
}
