//! Compressing resident copies into a slower tier.

pub(crate) mod compressor;
pub(crate) mod packer;
pub(crate) mod ratio_estimator;
