//! What a restart remembers while it takes in an old journal.

use super::claims::ClaimKey;
use super::place::Place;
use std::collections::{BTreeMap, BTreeSet};

/// The state of a restart.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// Whether an old journal is being taken in.
    pub(super) is_running: bool,
    /// Claims of steps that were logged: they count until the old journal is read.
    pub(super) done: Vec<(Vec<u8>, ClaimKey)>,
    /// Claims of steps and files that were logged. (The agent that did these steps had forgotten
    /// most of them when it decided about later records.)
    pub(super) logged: BTreeSet<ClaimKey>,
    /// Places of removals that files leave which are lost, and the files. An earlier agent may have
    /// found such a file closed, and kept it: then it has removed nothing before it published it.
    pub(super) left_by: BTreeMap<Place, u64>,
}
