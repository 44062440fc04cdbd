//! Where a copy goes, and which copies make room for it.

pub(crate) mod demotion;
pub(crate) mod fair_share;
pub(crate) mod guest_copies;
pub(crate) mod placer;
pub(crate) mod reclaim;
