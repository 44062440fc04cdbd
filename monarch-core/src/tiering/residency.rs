//! The copies that exist: lists of them, evicting them, moving them between tiers, checking them.

pub(crate) mod catalog;
pub(crate) mod decode_rounds;
pub(crate) mod eviction;
pub(crate) mod mover;
pub(crate) mod orphans;
pub(crate) mod promotions;
pub(crate) mod scrubber;
pub(crate) mod transient_cache;
pub(crate) mod transient_copies;
