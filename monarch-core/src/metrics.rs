//! Metrics of the agent, for monitoring systems.
//!
//! | module | what it does |
//! |---|---|
//! | [`defs`] | declares every metric: name, kind, unit, labels, meaning |
//! | [`declare`] | what a declaration is |
//! | [`page`] | an answer to Prometheus: declared metrics with their values, as text |
//! | [`gather`] | reads the values of the agent |
//! | [`latencies`] | histograms of copies and opens, the only values kept for metrics alone |
//! | [`merge`] | one page of the pages of several agents |
//! | [`http`] | serves the page |
//! | [`textfile`] | writes the page for the textfile collector of node_exporter |
//!
//! * Readers record nothing for metrics: their counters are in shared memory in any case.
//! * A request reads all counters once, into a recorder that lives as long as the answer: roots and
//!   peers that are gone leave no series.
//! * Only durations have a lasting recorder. Copiers note them, beside calls to the PFS that take a
//!   thousand times as long, and not at all while metrics are off.
//! * The recorder is the agent's own, never the global recorder of the process: the program that
//!   hosts an agent may have metrics itself.
//! * A page takes declarations and not names, with as many label values as were declared: only
//!   declared metrics can be recorded.

pub mod declare;
pub mod defs;
mod gather;
mod http;
mod latencies;
mod merge;
mod page;
mod textfile;

#[cfg(test)]
mod dashboard_tests;
#[cfg(test)]
mod document_tests;

pub(crate) use gather::{Seen, text};
pub(crate) use http::{FindSharer, Listening, serve};
pub use latencies::{CopyOf, Latencies, Origin};
pub(crate) use merge::{labelled, merged};
pub(crate) use textfile::Textfile;
