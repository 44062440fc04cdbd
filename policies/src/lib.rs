//! Placement policies: which file goes to which tier, and what is fetched ahead.
//!
//! A policy is pure, deterministic and does no I/O: events in, decisions out. The agent drives exactly this code, and so
//! will the simulator.
#![forbid(unsafe_code)]

mod first_epoch;

pub use first_epoch::FirstEpoch;

/// A file, as far as a policy can tell it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey(pub u64);

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

/// What happens in the job.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A copy was completed in a tier.
    Placed {
        /// Which file.
        file: FileKey,
        /// Position of the tier.
        tier: usize,
    },
    /// A copy was dropped.
    Dropped {
        /// Which file.
        file: FileKey,
    },
}

/// What to do with a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Copy it to the tier at this position.
    Admit(usize),
    /// Leave it on the PFS.
    Refuse,
}

/// A placement policy.
pub trait Policy: Send {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;
    /// Takes note of an event.
    fn event(&mut self, event: &Event);
    /// Decides about a candidate.
    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom]) -> Decision;
}

/// The policy with this name, if there is one.
#[must_use]
pub fn by_name(name: &str) -> Option<Box<dyn Policy>> {
    match name {
        "first_epoch" => Some(Box::new(FirstEpoch)),
        _ => None,
    }
}

/// All names that [`by_name`] knows.
pub const NAMES: &[&str] = &["first_epoch"];
