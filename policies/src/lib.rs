//! Placement policies: which file goes to which tier, what is dropped for it, and what is fetched
//! ahead.
//!
//! A policy is pure, deterministic and does no I/O: events in, decisions out. The agent and the
//! simulator drive exactly this code. What users announce or earlier epochs show of the coming
//! order is kept beside the policies, in [`Hints`], and lent to them.
#![forbid(unsafe_code)]

pub mod bounds;
mod clairvoyant;
pub mod epochs;
mod first_epoch;
pub mod hints;
mod keys;
pub mod learned;
mod lfu;
mod lru;
mod ops_per_byte;
mod pages;
mod random;
mod residents;
mod rooms;
pub mod sim;
mod static_set;
#[cfg(test)]
mod streams;

pub use clairvoyant::Clairvoyant;
pub use epochs::{EpochEvent, Epochs};
pub use first_epoch::FirstEpoch;
pub use hints::Hints;
pub use learned::OrderPredictor;
pub use lfu::Lfu;
pub use lru::Lru;
pub use ops_per_byte::OpsPerByte;
pub use pages::PerFile;
pub use random::Random;
pub use static_set::StaticSet;

use std::time::Duration;

/// Identifies a file: the upper half is the number of its index, the lower half its number there,
/// dense and in the order of listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey(pub u64);

impl FileKey {
    /// Number of its index.
    #[must_use]
    pub fn index(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Why a file is considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestSource {
    /// A reader waits for it.
    Demand,
    /// It is fetched ahead.
    Prefetch,
}

/// A file that could be placed.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Which file.
    pub file: FileKey,
    /// Its size in bytes.
    pub size: u64,
    /// Why it is considered.
    pub source: RequestSource,
}

/// Room in a tier, fastest tier first.
#[derive(Clone, Copy, Debug)]
pub struct TierRoom {
    /// Bytes that the candidate would take there.
    pub cost: u64,
    /// Bytes that are free below the quota.
    pub free: u64,
    /// Whether the tier takes files at present (no recent I/O error).
    pub usable: bool,
}

/// What served an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A copy that was there.
    Tier,
    /// A copy that the reader waited for.
    Waited,
    /// The PFS.
    Pfs,
}

/// A reader opened a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Which file.
    pub file: FileKey,
    /// Its size in bytes.
    pub size: u64,
    /// When, since a fixed time in the past.
    pub at: Duration,
    /// Which process (folded to a small number; the order within one is exact).
    pub stream: u16,
    /// What served it.
    pub served: Served,
}

/// What happens in the job.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A copy was completed in a tier (or moved there from another one).
    Placed {
        /// Which file.
        file: FileKey,
        /// Its size in bytes.
        size: u64,
        /// Bytes that its copy takes.
        cost: u64,
        /// Position of the tier.
        tier: usize,
    },
    /// A copy was dropped, for any reason.
    Dropped {
        /// Which file.
        file: FileKey,
    },
    /// A reader opened a file.
    Access(Access),
    /// A pass over the data set begins, counted from 1.
    Epoch {
        /// Which one.
        number: u32,
    },
    /// The coming order, or priorities of files, have changed ([`Hints`]).
    Hinted,
    /// What a file cost at the PFS.
    Fetched {
        /// Which file.
        file: FileKey,
        /// Bytes read.
        size: u64,
        /// From before the open until the last byte was there.
        took: Duration,
    },
    /// The bytes to be read (all indexed files), and the room for them (all tiers); comes again
    /// when these change.
    Extent {
        /// Files.
        files: u64,
        /// Their bytes.
        bytes: u64,
        /// Bytes of all tiers.
        capacity: u64,
    },
    /// The files of an index (see [`FileKey::index`]) are not there any more, nor are their copies:
    /// policies forget all of them. The index's number may come again, for other files. Call
    /// [`Hints::forget_index`] first.
    IndexGone {
        /// Which one.
        index: u32,
    },
}

/// Why a candidate is left on the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It would be admitted if there were room, and there is none that the policy would make for
    /// it.
    NoRoom,
    /// It is not to be copied: users bar it, it is outside the set that the policy keeps, or it is
    /// worth less than its victims.
    Unwanted,
}

/// What to do with a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Copy it to the tier at this position, which has room.
    Admit(usize),
    /// Copy it to a tier once the victims are dropped from there. The policy takes them for
    /// dropped; if a victim stays, the policy receives [`Event::Placed`] for it.
    Replace {
        /// Position of the tier.
        tier: usize,
        /// Files to drop.
        victims: Vec<FileKey>,
    },
    /// Leave it on the PFS.
    Refuse(Why),
}

/// A placement policy.
pub trait Policy: Send {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;
    /// Notes an event.
    fn event(&mut self, event: &Event, hints: &Hints);
    /// Decides about a candidate.
    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Decision;
    /// A file to be fetched now, before a reader asks for it; `None` if there is none at present.
    /// What was given is not given again until it was placed and dropped, refused for lack of room,
    /// or the order has changed. (A file with a place in the known order and no copy is fetched
    /// anyway while there is room: this is for policies that drop other copies for it.)
    fn next(&mut self, _free: u64, _hints: &Hints) -> Option<FileKey> {
        None
    }
    /// Whether [`Policy::next`] gave `None` only because one call looks at no more files: the next
    /// call continues where it was. (Callers release their locks between.)
    fn unfinished(&self) -> bool {
        false
    }
    /// Whether a file that was refused or dropped is to be considered again each time it is opened.
    /// Otherwise its readers go to the PFS without asking.
    fn asks_again(&self) -> bool {
        false
    }
}

/// The policy with this name, if there is one. Its random choices follow from the seed.
#[must_use]
pub fn by_name(name: &str, seed: u64) -> Option<Box<dyn Policy>> {
    Some(match name {
        "first_epoch" => Box::new(FirstEpoch),
        "static" => Box::new(StaticSet::new(seed)),
        "ops_per_byte" => Box::<OpsPerByte>::default(),
        "clairvoyant" => Box::<Clairvoyant>::default(),
        "lru" => Box::<Lru>::default(),
        "lfu" => Box::new(Lfu::new(seed)),
        "random" => Box::new(Random::new(seed)),
        _ => return None,
    })
}

/// All names that [`by_name`] knows.
pub const NAMES: &[&str] = &["first_epoch", "static", "ops_per_byte", "clairvoyant", "lru", "lfu", "random"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name_returns_a_policy_of_that_name() {
        for name in NAMES {
            assert_eq!(by_name(name, 1).map(|p| p.name()), Some(*name));
        }
        assert!(by_name("first-epoch", 1).is_none());
    }
}
