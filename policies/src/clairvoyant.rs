//! `clairvoyant`: prefetches and replaces by the known order of accesses.
//!
//! Orders come from [`Hints`], announced by users or learned. Without an order it is `first_epoch`.
//!
//! Source: NoPFS: Dryden, Böhringer, Ben-Nun, Hoefler, *Clairvoyant Prefetching for Distributed
//! Machine Learning I/O*, SC 2021; replacement after Belady, *A Study of Replacement Algorithms for
//! Virtual-Storage Computers*, 1966.

mod ahead;
mod residents;

use crate::rooms::{barred, fastest_with_room, favoured, lacking};
use crate::{Candidate, Decision, Event, FileKey, Hints, Policy, RequestSource, TierRoom, Why};
use ahead::Ahead;
use residents::Residents;

/// The policy `clairvoyant`.
///
/// **Victims.** Only residents whose next use is unknown: read already in this epoch, or never
/// announced; those read longest ago first, as their readers have closed them by then
/// ([`residents`]). Never a file with a known use to come. Belady would drop the most distant of
/// them, but here that gains nothing: each file is used once an epoch, so that it would trade one
/// PFS read for another (`static`'s bound holds for every policy) and a transfer on top. The last
/// [`residents::GUARDED_READS`] files that were read in a tier (at most a quarter of its residents)
/// stay too: some readers open a file twice for one sample.
///
/// **Admission.** Every file that finds room. For lack of room only a candidate with a known next
/// use replaces residents: a demand without one is being used now, and its next use is as unknown
/// as that of its victims. Files that users favour replace Normal residents in any case; of these,
/// files with a known use go last, the most distant first.
///
/// **Prefetch.** [`Policy::next`] merges the orders of all streams by distance: the file that is
/// needed soonest, as long as there is room or a victim ([`ahead`]). Each file that is read makes
/// room for one that is yet to be read: a just-in-time window as wide as the part of the tiers that
/// was consumed already.
///
/// **Bound.** Epochs shuffled independently, n files of one size, room for C: each later epoch
/// reads exactly n - C files from the PFS, as few as possible ([`crate::bounds::min_shuffled`]).
/// Readers wait only for those at its start, until `GUARDED_READS` files were hit: expected
/// `GUARDED_READS` (1 - c) / c of them, against n (1 - c) of `static`.
///
/// **Cost.** O(1) amortised for an event or decision. O(streams) for [`Policy::next`], which passes
/// over no more than 1,024 files in one call ([`Policy::unfinished`]). One pass over the residents
/// for an announcement after which victims are short. Memory: 17 bytes a resident file in a hash
/// table filled to between 7/16 and 7/8, and 8 to 16 more once it was read: 41 for 1.28 million
/// files; 11 to 22 for each file that was given to be fetched and is not there yet.
#[derive(Debug, Default)]
pub struct Clairvoyant {
    residents: Residents,
    ahead: Ahead,
}

impl Clairvoyant {
    /// Replaces in the fastest tier that has victims enough: the candidate is used next.
    fn replace(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Option<Decision> {
        let favoured = favoured(candidate.file, hints);
        if !favoured && hints.next_use(candidate.file).is_none() {
            return None;
        }
        let usable = tiers.iter().enumerate().filter(|(_, t)| t.usable);
        for (tier, room) in usable.clone() {
            if let Some(victims) = self.residents.take(tier, lacking(*room), candidate.file, hints) {
                return Some(Decision::Replace { tier, victims });
            }
        }
        for (tier, room) in usable.filter(|_| favoured) {
            if let Some(victims) = self.residents.take_any(tier, lacking(*room), candidate.file, hints) {
                return Some(Decision::Replace { tier, victims });
            }
        }
        None
    }
}

impl Policy for Clairvoyant {
    fn name(&self) -> &'static str {
        "clairvoyant"
    }

    fn event(&mut self, event: &Event, hints: &Hints) {
        match *event {
            Event::Placed { file, cost, tier, .. } => {
                self.ahead.placed(file);
                self.residents.placed(file, cost, tier, hints);
            }
            Event::Dropped { file } => {
                if self.residents.dropped(file) | self.ahead.dropped(file) {
                    self.ahead.retry(file, hints);
                }
            }
            // (Wherever it was served from: its copy may be under way, and will be placed as a file
            // that was read.)
            Event::Access(a) => self.residents.read(a.file),
            Event::IndexGone { index } => {
                self.residents.forget_index(index);
                self.ahead.forget_index(index);
            }
            Event::Fetched { .. } => return,
            // Orders and priorities are looked at when they are needed: the revisions of the hints
            // change with them.
            Event::Hinted | Event::Epoch { .. } | Event::Extent { .. } => {}
        }
        self.ahead.unblock();
    }

    fn place(&mut self, candidate: &Candidate, tiers: &[TierRoom], hints: &Hints) -> Decision {
        if barred(candidate.file, hints) {
            return Decision::Refuse(Why::Unwanted);
        }
        if let Some(tier) = fastest_with_room(tiers) {
            return Decision::Admit(tier);
        }
        if let Some(decision) = self.replace(candidate, tiers, hints) {
            return decision;
        }
        if candidate.source == RequestSource::Prefetch {
            self.ahead.refused(candidate.file, hints);
        }
        Decision::Refuse(Why::NoRoom)
    }

    fn next(&mut self, free: u64, hints: &Hints) -> Option<FileKey> {
        self.residents.revise(hints);
        let room = free > 0 || self.residents.any_to_give(hints);
        self.ahead.next(room, hints, |file| self.residents.holds(file))
    }

    fn unfinished(&self) -> bool {
        self.ahead.unfinished()
    }
}

#[cfg(test)]
mod tests;
