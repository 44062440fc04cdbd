//! Compressing resident copies into a slower tier: the queue, the compression itself, estimates of
//! its result.

pub(crate) mod compressor;
pub(crate) mod packer;
pub(crate) mod ratio_estimator;
