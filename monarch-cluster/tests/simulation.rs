//! Simulated nodes of a job under faults: the residency code itself, a network that loses, delays,
//! doubles and cuts, nodes that crash and come back, one seed a run.

#[path = "simulation/events.rs"]
mod events;
#[path = "simulation/node.rs"]
mod node;
#[path = "simulation/runs.rs"]
mod runs;
#[path = "simulation/serve.rs"]
mod serve;
#[path = "simulation/steps.rs"]
mod steps;
#[path = "simulation/world.rs"]
mod world;
