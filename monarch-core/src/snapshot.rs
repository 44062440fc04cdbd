//! Plain accounts of the state of an agent at one moment: what the tiering engine and the agent
//! hand to metrics, the control socket and the command line.
//!
//! | module | what it holds |
//! |---|---|
//! | [`work`] | the entries that a request names, and the files that it reached |
//! | [`residency`] | files by what has become of their copies |
//! | [`epochs`] | passes over the files of a root |
//! | [`mod@percent`] | shares in percent |
//! | [`prefetch`] | whether prefetching runs |
//! | [`load`] | queues, files in flight, calls to the PFS |
//! | [`savings`] | what a job read, and what the PFS sent for it |
//! | [`status`] | an agent, its roots, tiers and output roots |
//!
//! The types hold figures and names. Sentences about them are made by the agent.

mod epochs;
mod load;
mod percent;
mod prefetch;
mod residency;
mod savings;
mod status;
mod work;

pub use epochs::{Directory, Epoch, Why};
pub use load::Load;
pub use monarch_outputs::status::{OutputStatus, PendingEntry, PendingState};
pub use percent::percent;
pub use prefetch::Ahead;
pub use residency::{Census, Trouble};
pub use savings::{FromCopies, Savings, percent_less};
pub use status::{JobCounters, MetricsStatus, NamesStatus, NearPurge, Opens, RootStatus, Status, TierStatus};
pub use work::{Range, Tally, Traced};
