//! The middleware library of Monarch: configuration, namespace index, tiers, copy engine, tiering
//! engine, agent.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | one YAML file, environment, flags; checked against the machine |
//! | [`index`] | scanning a root, the immutable index, saved index files |
//! | [`tier`] | directories for copies with a hard quota |
//! | [`engine`] | moving bytes from the PFS into a tier |
//! | [`tiering`] | takes demands, prefetches, places, copies, publishes |
//! | [`agent`] | the process per node that ties these together |
//! | [`metrics`] | what the agent tells monitoring systems |
//! | [`cluster`] | nodes that share copies and the index |
//! | [`session`] | a job that links this crate: opens, prefetches, asks |
//! | [`reader`] | reading through an agent's shared memory; why a path is served or not |
//! | [`trace`] | what a job opened, when and from where: written, read, counted |
//! | [`held_dir`], [`trusted`] | directories held by a descriptor; paths that no other user can lead elsewhere |
//! | [`snapshot`] | plain accounts of an agent at one moment |
//! | [`shown`] | names from the PFS in text for people |
//! | [`sharing`] | what the tiering engine and the cluster ask of each other |
//! | [`token_bucket`] | limits of a rate: calls or bytes a second |
//! | [`shm`] | the shared-memory files that the shim maps |
// Shared-memory fields are 32 and 64 bits wide by layout; narrowing happens where the layout bounds
// the value.
#![allow(clippy::cast_possible_truncation)]

pub mod agent;
pub mod cluster;
pub mod config;
pub mod engine;
pub mod held_dir;
pub mod index;
pub mod metrics;
pub mod private_dir;
pub mod reader;
pub mod session;
pub mod sharing;
pub mod shm;
pub mod shown;
pub mod snapshot;
mod sync;
pub mod sys;
pub mod tier;
pub mod tiering;
pub mod token_bucket;
pub mod trace;
pub mod trusted;
