//! Directories that the index does not hold (`index.distributed`): where their entries come from,
//! and the answers to processes of the job.
//!
//! | module | what it holds |
//! |---|---|
//! | [`service`] | the directories of this node and of others, what is answered |
//! | [`store`] | directories in memory, within a bound |
//! | [`flights`] | fetches under way |
//! | [`socket`] | questions of processes |

mod flights;
mod service;
mod socket;
mod store;

pub(super) use service::Names;
pub(super) use socket::start;
