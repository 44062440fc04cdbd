//! Who answers for a file and who else holds it. Pure: no I/O, no clock, no chance, no locks; a
//! simulation drives this very code.
//!
//! A file is named by its index, which is the same on all nodes bit for bit, and its number there.
//! Rendezvous hashing (Thaler and Ravishankar 1998) puts the nodes of the job in an order for each
//! file. The first that counts as an *owner* is where the copy belongs; the first that is *up*
//! answers for the file: it is asked, and it reads the PFS once for everybody. The two differ only
//! while a node is expected and has not come up yet, does not answer, or has taken leave.
//!
//! Nothing here needs agreement. Views of who is up may differ between nodes and are wrong at
//! times; they steer where a reader asks and can cost reads of the PFS. What a reader gets is
//! decided by the file's identity, never by a view. See `docs/PROTOCOL.md`.
//!
//! | module | what it does |
//! |---|---|
//! | [`members`] | the nodes as this one sees them, and the order of a file |
//! | [`holders`] | two bytes a file: another node that holds it |
//! | [`search`] | what a node does that needs a file: whom it asks next, bounded |
//! | [`answer`] | what a node says that is asked for one |
//! | [`announcement_rules`] | what nodes tell each other when one comes or goes |
//! | [`fileset`] | how sets of files travel |

pub mod announcement_rules;
pub mod answer;
pub mod fileset;
pub mod holders;
pub mod members;
pub mod search;

pub use answer::{Answer, Asked, Local};
pub use holders::Residency;
pub use members::{Member, Members, NodeState};
pub use search::{Route, Search};

/// Names an index, the same on all nodes.
pub type Uuid = [u8; 16];

/// A request that was redirected this often is answered where it is, with a read of the PFS if need
/// be. One redirect leads to whoever answers for the file and one to the holder; two more are for
/// starts, when views lag behind each other. Each of those leads to a node that comes earlier in
/// the order of the file, so they do not go round.
pub const MAX_HOPS: u8 = 4;

/// A file, as all nodes know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct File {
    /// Its index.
    pub index: Uuid,
    /// Its number there.
    pub id: u32,
    /// Hash of its path: the same on all nodes and in later jobs, so that copies that were kept are
    /// where they are looked for.
    pub fp: u64,
}
