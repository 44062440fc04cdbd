//! What is pending below output roots, for the commands about it and for the end of a job.
//!
//! | module | what it does |
//! |---|---|
//! | [`found`] | asks the agents, and reads the staging directories that no agent drains |
//! | [`lines`] | tables and sentences |
//! | [`named`] | the directories and files that a command names |
//! | [`waiting`] | when a wait for the drain is over; its progress |
//! | [`recovery`] | publishes what an earlier job has left |

pub(crate) mod found;
pub(crate) mod lines;
pub(crate) mod named;
pub(crate) mod recovery;
pub(crate) mod waiting;
