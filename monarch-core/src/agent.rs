//! The agent: one per user and set of tier directories.
//!
//! | module | what it does |
//! |---|---|
//! | [`maintenance`] | periodic work: quotas under outside pressure, evicted files, second tries, pulse |
//! | [`local_store`] | the tiering engine as the cluster sees it |
//! | [`roots`] | adding roots: control block, scan, segments, adoption after a restart |
//! | [`start`] | locks, tiers, shared memory, state of an earlier agent |
//! | [`server`] | the control socket, life cycle |
//! | [`metrics_service`] | its metrics: the page that is served, the file that is written |
//! | [`outputs`] | the output roots of its jobs: their state, requests to publish |
//! | [`other_agents`] | which other agent of the user on this node has an output root |
//! | [`report`] | the agent's account of itself |
//! | [`socket`] | the lines of a connection, and descriptors beside them |
//! | [`names`] | directories that the index does not hold |
//! | [`counter_groups`] | where in the control block each job counts |
//! | [`credentials`] | what the agent knows a process of another namespace by |
//! | [`peer`] | whether the client of a connection sees what the agent sees |
//! | [`foreign_changes`] | changes by processes of other users |
//! | [`protocol`] | messages of the control socket |
//! | [`wording`] | sentences about snapshots |
//! | [`writable`] | files that a job can write from its start |
//! | [`client`] | the other end of the socket, used by the command line |
//! | [`runtime_dir`] | where the runtime directory of an agent is |

pub mod client;
mod conflict;
mod counter_groups;
mod credentials;
mod ending;
mod exit_status;
pub mod foreign_changes;
mod jobs_file;
mod local_store;
pub mod maintenance;
mod memory_pressure;
mod metrics_service;
mod mounts;
mod names;
mod other_agents;
pub mod outputs;
mod parts;
mod peer;
mod pre_index_changes;
pub mod protocol;
pub mod report;
pub mod roots;
pub mod runtime_dir;
pub mod server;
mod socket;
pub mod start;
mod stop;
mod wording;
mod writable;
