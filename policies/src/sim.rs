//! The simulator: what a policy would do for a job of many nodes, without the nodes.
//!
//! One heap of events drives loader processes, ranks, agents and the PFS ([`Model`]); the policies
//! are those of the agent, called with the same events and questions. Nothing is random but what
//! follows from a seed, nothing is measured, and nothing is shared between two simulations, so that
//! many can run side by side. Beside the outcome stand bounds ([`belady`], [`belady_later`],
//! [`static_share`]).
//!
//! Simple on purpose: the PFS is two queues, a node is a set of tiers, and nodes do not give copies
//! to each other. What that leaves out is listed in `docs/POLICIES.md`.

mod ahead;
mod bound;
mod clock;
mod loader;
mod model;
mod node;
mod outcome;
mod pace;
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
pub use recorded::LONGEST_GAP;
pub use setup::{Setup, UnknownPolicy};
pub use workload::{Mix, Shuffle, Synthetic, Workload};

/// Simulates a job. `watch` is told now and then how many files were opened since it was told last.
///
/// # Errors
/// When there is no such policy.
pub fn simulate(work: &Workload, setup: &Setup<'_>, watch: &mut dyn FnMut(u64)) -> Result<Outcome, UnknownPolicy> {
    Ok(run::Run::new(work, setup)?.run(watch))
}
