//! Checks when files of a root are opened: as the strictest of its jobs wants them.
//!
//! The arrays for them are made with the segment, for the job that the root was scanned for. A job
//! that asks for less gets more than it asked for; one that asks for a check without an array
//! cannot share the root.

use crate::index::{decider_words, folds_case};
use crate::shm::Checks;
use crate::tier::CopyName;
use crate::tiering::TieringEngine;
use monarch_abi::absent::KERNEL;
use monarch_abi::segment::Segment;
use std::collections::HashSet;
use std::path::Path;

/// Whether `has` includes all checks that a job asks for.
pub(super) fn covers(has: Checks, asked: Checks) -> bool {
    (has.revalidate.is_some() || asked.revalidate.is_none()) && (has.verify || !asked.verify)
}

/// The stricter of both, as far as `has` has arrays for it.
pub(super) fn stricter(has: Checks, asked: Checks) -> Checks {
    let revalidate = has.revalidate.map(|a| asked.revalidate.map_or(a, |b| a.min(b)));
    Checks { revalidate, absent: has.absent.stricter(asked.absent), ..has }
}

/// Says which directories of a new segment decide about names that its index lacks. A file system
/// that takes `a` and `A` for one name lists only one of them: there the kernel decides.
pub(super) fn begin_absent(segment: &Segment<'_>, checks: Checks, root: &Path) {
    let words = decider_words(&segment.index, &checks.absent, checks.loaded);
    if folds_case(&segment.index, &words, root) {
        tracing::info!(root = %root.display(), "the PFS takes upper and lower case for the same: it is asked about names that are not there");
        return;
    }
    segment.state.deciders.begin(&words);
}

/// Takes over what a further job asks for about names that the index lacks.
pub(super) fn tighten_absent(segment: &Segment<'_>, checks: Checks) {
    let words = decider_words(&segment.index, &checks.absent, segment.state.guard.is_loaded());
    // (No words: the kernel decides everywhere.)
    segment.state.deciders.tighten(words.into_iter().chain(std::iter::repeat(KERNEL)));
    segment.state.deciders.set_interval_ms(checks.absent.interval_ms());
}

/// Checks in the words of the configuration.
pub(super) fn words(checks: Checks) -> String {
    let consistency = if checks.revalidate.is_some() { "close-to-open" } else { "immutable" };
    format!("consistency {consistency} and verify_on_open {}", checks.verify)
}

/// Notes the checksums of copies of an earlier run, before any of them is claimed.
pub(super) fn note_sums(tiering: &TieringEngine, segment: &Segment<'static>) {
    if !segment.state.guard.which().sums || tiering.orphans().is_empty() {
        return;
    }
    let names: HashSet<CopyName> = segment.files().map(|e| segment.copy_name(&e)).collect();
    for tier in tiering.shared.cx.tiers.iter().rev() {
        let Ok(logged) = tier.log.sums(&names) else { continue };
        for e in segment.files() {
            if let Some(l) = logged.get(segment.copy_name(&e)) {
                segment.state.guard.note_sum(e.id, l.sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_stricter_wins_where_there_is_room_for_it() {
        let open = |s| Checks { revalidate: Some(Duration::from_secs(s)), ..Checks::default() };
        let none = Checks::default();
        let verify = Checks { verify: true, ..none };
        assert!(covers(open(5), none) && covers(open(5), open(1)) && covers(verify, none));
        assert!(!covers(none, open(5)) && !covers(open(5), verify) && !covers(none, verify));
        assert_eq!((stricter(open(5), open(1)), stricter(open(1), open(5))), (open(1), open(1)));
        assert_eq!((stricter(open(5), none), stricter(verify, none)), (open(5), verify));
    }
}
