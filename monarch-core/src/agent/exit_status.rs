//! How an agent that could not start says why.

/// Exit status when another agent holds a lock: perhaps one that has just been started, or one that
/// is about to notice that its runtime directory has gone.
pub(super) const TAKEN: u8 = 75;
/// Exit status when another agent holds a lock and is about to end.
pub(super) const ENDING: u8 = 76;
