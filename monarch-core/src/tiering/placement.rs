//! The tier of a copy, and which copies are dropped, moved or replaced to have space for it.

pub(crate) mod demotion;
pub(crate) mod fair_share;
pub(crate) mod guest_copies;
pub(crate) mod placer;
pub(crate) mod reclaim;
