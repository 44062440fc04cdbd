//! Looking for room: what all policies ask of the tiers in the same way.

use crate::hints::Priority;
use crate::{Candidate, Decision, FileKey, Hints, RequestSource, TierRoom, Why};

/// More tiers than any node has: copies in tiers beyond are not counted.
pub(crate) const MAX_TIERS: usize = 64;

/// The fastest tier that has room as it is.
pub(crate) fn fastest_with_room(tiers: &[TierRoom]) -> Option<usize> {
    tiers.iter().position(|t| t.usable && t.free >= t.cost)
}

/// The slowest tier that takes files: the baselines replace there, since faster tiers were filled
/// first and are to stay.
pub(crate) fn slowest_usable(tiers: &[TierRoom]) -> Option<usize> {
    tiers.iter().rposition(|t| t.usable)
}

/// Bytes that must be freed for the candidate to fit.
pub(crate) fn lacking(room: TierRoom) -> u64 {
    room.cost.saturating_sub(room.free)
}

/// Whether users want a file never copied.
pub(crate) fn barred(file: FileKey, hints: &Hints) -> bool {
    hints.priority(file) == Priority::Never
}

/// Whether users want a file copied before others. Such a resident is no victim.
pub(crate) fn favoured(file: FileKey, hints: &Hints) -> bool {
    hints.priority(file) == Priority::High
}

/// How the baselines place: in the fastest tier with room, else in the slowest usable one, where
/// `victims` finds residents to drop for a number of bytes in a tier.
pub(crate) fn place_or_replace(
    candidate: &Candidate,
    tiers: &[TierRoom],
    hints: &Hints,
    victims: impl FnOnce(usize, u64) -> Result<Vec<FileKey>, Why>,
) -> Decision {
    if barred(candidate.file, hints) {
        return Decision::Refuse(Why::Unwanted);
    }
    if let Some(tier) = fastest_with_room(tiers) {
        return Decision::Admit(tier);
    }
    // A file fetched ahead in the order of listings is no better than the residents.
    let replaces = candidate.source == RequestSource::Demand || favoured(candidate.file, hints);
    let Some(tier) = slowest_usable(tiers).filter(|_| replaces) else { return Decision::Refuse(Why::NoRoom) };
    match victims(tier, lacking(tiers[tier])) {
        Ok(victims) => Decision::Replace { tier, victims },
        Err(why) => Decision::Refuse(why),
    }
}
