//! Parameters of a simulation.

use super::model::Model;

/// Parameters of a simulation, beside the workload.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// Name of the policy ([`crate::NAMES`]).
    pub policy: &'a str,
    /// Nodes of the job, at least one.
    pub nodes: u32,
    /// Bytes of each node's tiers, fastest first; at least one.
    pub capacities: &'a [u64],
    /// What things cost.
    pub model: &'a Model,
    /// Whether agents fetch ahead.
    pub prefetch: bool,
    /// Whether ranks announce the order of each epoch when it begins.
    pub hints: bool,
    /// Seeds the policy's random choices; the workload has its own seed.
    pub seed: u64,
}

/// There is no policy of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);
