//! Tests of several nodes on one machine: network namespaces, one slow file system as the PFS of
//! all, real processes.
//!
//! `cargo build --release --workspace` first, then `cargo nextest run --test cluster`, as root. See
//! `cluster/world.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests")]
#![allow(dead_code, reason = "a harness has what the next test needs")]

#[path = "e2e/harness.rs"]
mod harness;

#[path = "cluster/leftovers.rs"]
mod leftovers;
#[path = "cluster/net.rs"]
mod net;
#[path = "cluster/node.rs"]
mod node;
#[path = "cluster/plan.rs"]
mod plan;
#[path = "cluster/reads.rs"]
mod reads;
#[path = "cluster/site.rs"]
mod site;
#[path = "cluster/wait.rs"]
mod wait;
#[path = "cluster/world.rs"]
mod world;

#[path = "cluster/itself.rs"]
mod itself;

#[path = "cluster/nodes.rs"]
mod nodes;
