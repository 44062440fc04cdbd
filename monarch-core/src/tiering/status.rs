//! What the tiering engine says about itself.

pub(crate) mod gauges;
pub(crate) mod prefetch_status;
pub(crate) mod residency_report;
