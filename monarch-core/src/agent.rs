//! The agent: one per user and set of tier directories.
//!
//! | module | what it does |
//! |---|---|
//! | [`driver`] | takes demands, prefetches, decides, copies, publishes |
//! | [`upkeep`] | periodic work: quotas under outside pressure, evicted files, second tries, pulse |
//! | [`roots`] | adding roots: control block, scan, segments, adoption after a restart |
//! | [`start`] | locks, tiers, shared memory, what an earlier agent left |
//! | [`access`] | whether this user may read a file, by its mode |
//! | [`server`] | the control socket, life cycle |
//! | [`metering`] | its metrics: what is asked for, and when |
//! | [`report`] | what the agent tells about itself |
//! | [`socket`] | the lines of a connection, and descriptors beside them |
//! | [`peer`] | whether who asks sees what the agent sees |
//! | [`outside`] | what processes of other users tell of their changes |
//! | [`writable`] | files that a job can write from its start |
//! | [`client`] | the other end of the socket, used by the command line |
//! | [`place`] | where the runtime directory of an agent is |

mod access;
pub mod client;
pub mod driver;
mod early;
mod exit_status;
mod jobs_file;
mod metering;
mod mounts;
pub mod outside;
mod parts;
mod peer;
pub mod place;
pub mod protocol;
pub mod report;
pub mod roots;
pub mod server;
mod socket;
pub mod start;
pub mod upkeep;
mod writable;
