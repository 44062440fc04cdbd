//! Simulated nodes of a job under faults: the residency code itself, a network that loses, delays,
//! doubles and cuts, nodes that crash and come back, one seed a run.

#[path = "cluster/events.rs"]
mod events;
#[path = "cluster/node.rs"]
mod node;
#[path = "cluster/runs.rs"]
mod runs;
#[path = "cluster/serve.rs"]
mod serve;
#[path = "cluster/steps.rs"]
mod steps;
#[path = "cluster/world.rs"]
mod world;
