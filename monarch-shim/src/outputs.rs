//! Outputs: what the job writes below a declared output root is staged in a tier of the node, and
//! published on the PFS by the agent, in the job's order.
//!
//! Purpose: a save costs what a local disk costs. The application has real descriptors of files in
//! the staging directory, so that all it does with them is the kernel's. The hooks ask the overlay,
//! a directory of symbolic links, what a name means on this node. Invariant: whatever changes the
//! overlay also appends to the journal, under one lock, before the call returns.
//!
//! | module | what it holds |
//! |---|---|
//! | [`calls`](mod@calls) | what hooks call: from the application's arguments to its result |
//! | [`roots`] | output roots as this process sees them |
//! | [`place`](mod@place) | from (dirfd, path) to a name below an output root |
//! | [`entry`](mod@entry), [`tree`](mod@tree) | what the overlay says of a name; changing it |
//! | [`walk`](mod@walk) | where a path leads with what is pending |
//! | [`crossing`](mod@crossing) | links that lead from one output root into another |
//! | [`lookup`](mod@lookup) | what a path means on this node |
//! | [`journal`](mod@journal), [`limited`] | the lock, and appending records; where files may not be so long |
//! | [`create`](mod@create), [`part`] | staging a new file, and its part file on the PFS |
//! | [`open`](mod@open), [`staged`](mod@staged) | opens; opening staged files |
//! | [`whereabouts`](mod@whereabouts) | where files and directories lie that others rename and remove |
//! | [`names`](mod@names) | making and linking names, removing directories |
//! | [`removal`](mod@removal), [`symlinks`](mod@symlinks) | removing names; making symbolic links |
//! | [`rename`](mod@rename) | renames |
//! | [`attributes`] | modes, owners, times, lengths by path |
//! | [`extended`] | extended attributes that a truncated file keeps |
//! | [`default_acl`] | access lists that directories give to new files |
//! | [`stat`](mod@stat) | what stat and its kin say |
//! | [`listing`](mod@listing), [`entries`], [`name_hashes`] | merged listings; reading directories |
//! | [`subtree`] | what the overlay has below a directory |
//! | [`data_roots`] | output roots at, below or above data roots |
//! | [`descriptors`] | descriptors of staged files; closing them |
//! | [`barrier`] | waiting for publications |
//! | [`beside`] | plain calls beside calls that take their turn |
//! | [`began`] | when this process began, for records |
//! | [`order`] | waiting for a place in the order of the nodes |
//! | [`name_watch`] | what others make of a name since the PFS was asked |
//! | [`peers`] | names that other nodes have written and not published |
//! | [`spare`](mod@spare) | descriptors of the shim where the process has none left |
//! | [`plainly`](mod@plainly) | calls that cannot append to the journal |
//! | [`others`] | processes whose rights are not the agent's any more |
//! | [`answer`](mod@answer) | results of calls |
//! | [`kernel`] | system calls about names |

pub mod answer;
mod as_agent;
pub mod attributes;
pub mod barrier;
pub mod began;
pub mod beside;
mod calls;
pub mod create;
pub mod crossing;
mod data_roots;
pub mod default_acl;
pub mod descriptors;
pub mod dir_times;
pub mod entries;
mod entry;
pub mod extended;
pub mod journal;
pub mod kernel;
mod limited;
pub mod listing;
pub mod lookup;
mod name_hashes;
mod name_watch;
pub mod names;
pub mod open;
pub mod order;
pub mod others;
mod part;
pub mod peers;
pub mod place;
mod plainly;
pub mod remembered;
mod removal;
pub mod rename;
pub mod roots;
mod spare;
mod staged;
pub mod stat;
pub mod subtree;
mod symlinks;
pub mod tree;
mod walk;
pub mod whereabouts;

pub use beside::{UnderWay, make_calls_for_others};
pub use calls::*;
pub use monarch_abi::outputs::STAGED_MODE;
