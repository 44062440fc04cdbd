//! What is simulated.

use super::model::Model;

/// What is simulated, beside the workload.
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
    /// For what the policy leaves to chance; the workload has its own.
    pub seed: u64,
}

/// There is no policy of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);
