//! What the tiering engine reports: gauges, the state of prefetch, how far copies are.

pub(crate) mod gauges;
pub(crate) mod prefetch_status;
pub(crate) mod residency_report;
