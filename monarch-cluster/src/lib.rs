//! Nodes of a job that share copies and the index: each byte leaves the PFS once, whatever fails.
//!
//! | module | what it does |
//! |---|---|
//! | [`discovery`] | finds the nodes of the job, in the environment that it was started in |
//! | [`secret`] | the secrets that the nodes share |
//! | [`http`] | HTTP/1.1 between agents: server, client, authentication |
//! | [`tag`] | tags of bytes, which only those make who know the key |
//! | [`election`] | which node scans a root, and which one gets the index from which |
//! | [`index_image`] | an index in a message |
//! | [`membership`] | which nodes are up, by gossip and by what readers find |
//! | [`node`] | this node among the others: what it asks, what it answers |
//! | [`directory`] | which node owns a file, which other one holds it: pure, so that a simulation drives the very code |
// Messages and shared memory have fields of 32 and 64 bits; narrowing happens where a format bounds
// the value.
#![allow(clippy::cast_possible_truncation)]

pub mod directory;
pub mod discovery;
pub mod election;
mod hex;
pub mod http;
pub mod index_image;
pub mod membership;
pub mod node;
pub mod secret;
mod sync;
pub mod tag;
