//! Metrics: what the agent tells monitoring systems.
//!
//! | module | what it does |
//! |---|---|
//! | [`defs`] | declares every metric: name, kind, unit, labels, meaning |
//! | [`declare`] | what a declaration is |
//! | [`page`] | one answer to Prometheus: declared metrics with their values, as text |
//! | [`gather`] | takes the values from where they are kept |
//! | [`latencies`] | durations of single copies and opens, the only values that are kept for the metrics alone |
//! | [`http`] | serves the page |
//! | [`textfile`] | writes it for the textfile collector of node_exporter |
//!
//! How it works. Nothing is recorded while readers are served: their counters lie in shared memory
//! in any case, the tiering engine's in atomics, the ledgers' with the tiers. When somebody asks,
//! all of them are read once and handed to a recorder that lives as long as the answer, so that
//! roots and peers that have gone leave no series behind. Only durations have a recorder that
//! stays; they are noted by copiers, next to calls of the PFS that take a thousand times as long,
//! and not at all while metrics are off.
//!
//! Why so. The recorder is the agent's own, never the process's global one: an agent may be hosted
//! by a program that has metrics itself. And what is not declared cannot be recorded: a page takes
//! declarations, not names, with exactly as many label values as were declared.

pub mod declare;
pub mod defs;
mod gather;
mod http;
mod latencies;
mod page;
mod textfile;

#[cfg(test)]
mod dashboard_tests;
#[cfg(test)]
mod document_tests;

pub(crate) use gather::{Seen, text};
pub(crate) use http::{Listening, serve};
pub use latencies::{CopyOf, Latencies, Origin};
pub(crate) use textfile::Textfile;
