//! Which node answers for a file, and which other one holds it. Pure: no I/O, no clock, no chance,
//! no locks; a simulation drives this very code.
//!
//! Rendezvous hashing (Thaler and Ravishankar 1998) orders the nodes of the job for each file. The
//! first one that counts as an *owner* is where the copy belongs. The first one that is *up*
//! answers for the file: it is asked, and it reads the PFS once for all. The two differ only while
//! a node is expected and not up yet, does not answer, or has left. A few files have an owner *by
//! exception*, which comes first in their order, so that no node owns much more than the mean.
//!
//! Nothing here needs agreement. Views of the nodes may differ and be wrong: that can cost reads of
//! the PFS. What a reader gets is decided by the file's identity alone. See `docs/PROTOCOL.md`.
//!
//! | module | what it does |
//! |---|---|
//! | [`members`] | the nodes as this one sees them, and the order of a file |
//! | [`balance`] | files with an owner by exception |
//! | [`residency`] | another node that holds a file; where a file comes from, what is answered |
//! | [`search`] | which node is asked next for a file, bounded |
//! | [`answer`] | a request for a file, and the answer to it |
//! | [`announcement_rules`] | what nodes announce when one comes or goes |
//! | [`fileset`] | sets of files in messages |

pub mod announcement_rules;
pub mod answer;
pub mod balance;
pub mod fileset;
pub mod members;
pub mod residency;
pub mod search;

pub use answer::{Answer, Asked, Local};
pub use members::{Exceptions, Member, Members, NodeState};
pub use residency::{Residency, Route};
pub use search::Search;

pub use monarch_storage::sharing::FileRef as File;

/// Identifier of an index, the same on all nodes.
pub type Uuid = [u8; 16];

/// Most redirects of a request: then it is answered where it is, with a read of the PFS if need be.
/// One redirect leads to the node that answers for the file and one to the holder; two more are for
/// starts, when views lag behind each other. Each of those leads to a node that comes earlier in
/// the order of the file, so they do not go round.
pub const MAX_HOPS: u8 = 4;
