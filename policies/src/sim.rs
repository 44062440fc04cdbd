//! The simulator: runs a policy for a job of many nodes, without the nodes.
//!
//! One heap of events drives loader processes, ranks, agents and the PFS ([`Model`]); the policies
//! are those of the agent, called with the same events and questions. Everything random follows
//! from a seed, nothing is measured, and two simulations share nothing, so that many can run side
//! by side. [`belady`], [`belady_later`] and [`static_share`] bound the outcome.
//!
//! The PFS is two queues, a node is a set of tiers, and nodes do not give copies to each other.
//! `docs/POLICIES.md` lists what this leaves out.

mod bound;
mod clock;
mod loader;
mod model;
mod node;
mod outcome;
mod pace;
mod prefetcher;
mod recorded;
mod residency;
mod rng;
mod run;
mod setup;
mod transfer;
mod workload;

#[cfg(test)]
mod tests;

pub use bound::{belady, belady_later, static_share};
pub use model::{Calls, Model, TierModel};
pub use outcome::{EpochFigures, Outcome};
pub use recorded::{MAX_GAP, recorded_workload};
pub use setup::{Setup, UnknownPolicy};
pub use workload::{Mix, Shuffle, Synthetic, Workload};

/// Simulates a job. `watch` is called now and then with the number of files opened since its last
/// call.
///
/// # Errors When there is no such policy.
pub fn simulate(work: &Workload, setup: &Setup<'_>, watch: &mut dyn FnMut(u64)) -> Result<Outcome, UnknownPolicy> {
    Ok(run::Run::new(work, setup)?.run(watch))
}
