//! End-to-end tests: the built command, the built preload library, real processes, a slow file
//! system as the PFS.
//!
//! `cargo build --release --workspace` first, then `cargo nextest run --test e2e`. See
//! `e2e/harness.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, reason = "tests")]

#[path = "e2e/faults.rs"]
mod faults;
#[path = "e2e/harness.rs"]
mod harness;

#[path = "e2e/absent.rs"]
mod absent;
#[path = "e2e/changes.rs"]
mod changes;
#[path = "e2e/chunks.rs"]
mod chunks;
#[path = "e2e/commands.rs"]
mod commands;
#[path = "e2e/consistency.rs"]
mod consistency;
#[path = "e2e/corners.rs"]
mod corners;
#[path = "e2e/descriptor_names.rs"]
mod descriptor_names;
#[path = "e2e/engines.rs"]
mod engines;
#[path = "e2e/env.rs"]
mod env;
#[path = "e2e/environments.rs"]
mod environments;
#[path = "e2e/epochs.rs"]
mod epochs;
#[path = "e2e/failures_agent.rs"]
mod failures_agent;
#[path = "e2e/failures_pfs.rs"]
mod failures_pfs;
#[path = "e2e/failures_tier.rs"]
mod failures_tier;
#[path = "e2e/found.rs"]
mod found;
#[path = "e2e/frameworks.rs"]
mod frameworks;
#[path = "e2e/guest.rs"]
mod guest;
#[path = "e2e/headline.rs"]
mod headline;
#[path = "e2e/hierarchy.rs"]
mod hierarchy;
#[path = "e2e/kept.rs"]
mod kept;
#[path = "e2e/libraries.rs"]
mod libraries;
#[path = "e2e/links_out.rs"]
mod links_out;
#[path = "e2e/locks.rs"]
mod locks;
#[path = "e2e/manners.rs"]
mod manners;
#[path = "e2e/metrics.rs"]
mod metrics;
#[path = "e2e/never_slower.rs"]
mod never_slower;
#[path = "e2e/on_demand.rs"]
mod on_demand;
#[path = "e2e/outputs.rs"]
mod outputs;
#[path = "e2e/outputs_commands.rs"]
mod outputs_commands;
#[path = "e2e/packed.rs"]
mod packed;
#[path = "e2e/places.rs"]
mod places;
#[path = "e2e/pressure.rs"]
mod pressure;
#[path = "e2e/quickstart.rs"]
mod quickstart;
#[path = "e2e/readers.rs"]
mod readers;
#[path = "e2e/requests.rs"]
mod requests;
#[path = "e2e/run.rs"]
mod run;
#[path = "e2e/saved_index.rs"]
mod saved_index;
#[path = "e2e/semantics.rs"]
mod semantics;
#[path = "e2e/sharing.rs"]
mod sharing;
#[path = "e2e/site.rs"]
mod site;
#[path = "e2e/small_reads.rs"]
mod small_reads;
#[path = "e2e/software.rs"]
mod software;
#[path = "e2e/stack.rs"]
mod stack;
#[path = "e2e/stage.rs"]
mod stage;
#[path = "e2e/steps.rs"]
mod steps;
#[path = "e2e/streamed.rs"]
mod streamed;
#[path = "e2e/surroundings.rs"]
mod surroundings;
#[path = "e2e/tiers.rs"]
mod tiers;
#[path = "e2e/top.rs"]
mod top;
#[path = "e2e/traffic.rs"]
mod traffic;
#[path = "e2e/truth.rs"]
mod truth;
#[path = "e2e/user_namespaces.rs"]
mod user_namespaces;
#[path = "e2e/verify_on_open.rs"]
mod verify_on_open;
#[path = "e2e/views.rs"]
mod views;
#[path = "e2e/warm.rs"]
mod warm;
#[path = "e2e/weights.rs"]
mod weights;
#[path = "e2e/working_set.rs"]
mod working_set;
#[path = "e2e/writable.rs"]
mod writable;
