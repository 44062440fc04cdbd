//! What the shim and the agent share about outputs: files that a job writes below a declared output
//! root, which are kept in a tier of the node until the agent has published them on the PFS.
//!
//! Each output root has a *staging directory* in a tier:
//!
//! ```text
//! <tier>/outputs/<16 hex>/
//!     state        counters, futexes, names that are not staged: mapped by the shim ([`state`])
//!     journal      what the job has done, in order ([`record`]); whoever appends holds its flock
//!     published    what the agent has published of it
//!     plan-<hex>   what was not published when the journal was cut, if anything
//!     keys         places of entries in the order of the nodes, where there are others
//!     data/        staged files; their names say which part file on the PFS each has ([`names`])
//!     tree/        the overlay: below the relative path of an entry a symbolic link ([`names`])
//!     ask          where there are other nodes: the agent's socket ([`question`])
//! ```
//!
//! The shim appends to the journal and changes the tree under the lock of the journal. The agent
//! drains the journal, and takes entries out of the tree under the same lock.

pub mod found;
pub mod making;
pub mod names;
pub mod plain_calls;
pub mod question;
pub mod record;
pub mod state;
pub mod through;

/// Directory of a tier that holds the staging directories.
pub const OUTPUTS: &str = "outputs";
/// The mapped file of a staging directory.
pub const STATE: &str = "state";
/// What the job has done.
pub const JOURNAL: &str = "journal";
/// What the agent has published.
pub const PUBLISHED: &str = "published";
/// Places of entries in the order of the nodes.
pub const KEYS: &str = "keys";
/// Staged files.
pub const DATA: &str = "data";
/// The overlay.
pub const TREE: &str = "tree";
/// Name, in a directory of the tree, of the link that says that the job has removed the directory.
/// The directory on the PFS is removed when its turn comes.
pub const REMOVED_DIR: &str = ".monarch-removed";
/// Begin of the names of part files on the PFS: files that are not published yet.
pub const PART_PREFIX: &[u8] = b".monarch-part-";
/// Begin of the names of the files that tell, in an output root, that something is pending.
pub const PENDING_PREFIX: &[u8] = b".monarch-pending-";
/// The mode bit by which `fstat` tells a staged file: of no effect on regular files, and not
/// cleared by writes. The shim takes it out of what the application sees.
pub const STAGED_MODE: u32 = 0o1000;
/// Bytes that a file is charged when it is created.
pub const FIRST_RESERVATION: u64 = 256 << 10;

/// Whether a name of a directory on the PFS is Monarch's own, and hidden from the job.
#[must_use]
pub fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(PART_PREFIX) || name.starts_with(PENDING_PREFIX)
}
