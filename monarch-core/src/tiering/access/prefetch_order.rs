//! [`PrefetchOrder`]: the next file of the order that the job announced or that was learned.

use crate::tiering::core::context::{Context, free};
use crate::tiering::core::segments::{Segments, parts};
use crate::tiering::core::shared::Shared;
use crate::tiering::core::source_facts::SourceFacts;
use crate::tiering::policy::policy_handle::PolicyHandle;
use monarch_abi::word::{Refusal, State};
use monarch_policies::FileKey;
use monarch_policies::hints::Purpose;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Files of the known order that one call may skip.
const MAX_SKIPPED_FILES: usize = 512;
/// How often one call asks a policy that skips many files.
const MAX_POLICY_TURNS: usize = 16;

/// Takes files from the known order.
pub(crate) struct PrefetchOrder {
    cx: Arc<Context>,
    segments: Arc<Segments>,
    policy: Arc<PolicyHandle>,
    source_facts: Arc<SourceFacts>,
}

impl PrefetchOrder {
    pub(crate) fn new(shared: &Shared, policy: &Arc<PolicyHandle>) -> Self {
        Self {
            cx: shared.cx.clone(),
            segments: shared.segments.clone(),
            policy: policy.clone(),
            source_facts: shared.source_facts.clone(),
        }
    }

    /// The next file to prefetch: one that the policy wants, or the next one in the known order
    /// while there is space. `None` while another thread has the policy: it is asked again soon.
    pub(crate) fn next_in_order(&self) -> Option<u64> {
        let (mut policy, mut hints) = self.policy.try_lock()?;
        if !hints.has_order() {
            return None;
        }
        let room = self.room();
        let mut next = None;
        for _ in 0..MAX_POLICY_TURNS {
            next = policy.next(room, &hints);
            if next.is_some() || !policy.unfinished() {
                break;
            }
        }
        if let Some(FileKey(key)) = next {
            drop((policy, hints));
            // A file on tape is fetched only on request.
            if self.source_facts.is_released(key) {
                return None;
            }
            self.consider_again(key);
            return Some(key);
        }
        if room < self.policy.mean_size() {
            return None;
        }
        for _ in 0..MAX_SKIPPED_FILES {
            let FileKey(key) = hints.upcoming(Purpose::Fetch)?;
            let is_absent =
                |key| self.segments.entry(key).is_some_and(|(_, entry)| entry.word().state() == State::Absent);
            if is_absent(key) && !self.source_facts.is_released(key) {
                return Some(key);
            }
        }
        None
    }

    /// Space in the tiers that take copies, in bytes.
    pub(crate) fn room(&self) -> u64 {
        self.cx.tiers.iter().filter(|t| !t.space.suspended()).map(free).sum()
    }

    /// Lets a file that was refused for lack of space, or replaced, be fetched again.
    pub(crate) fn consider_again(&self, key: u64) {
        let Some((_, entry)) = self.segments.entry(key) else { return };
        let w = entry.word();
        // (A file with a pause becomes Absent by itself; a file of an old index stays as it is.)
        let for_room = matches!(w.refusal(), Some(Refusal::NoRoom | Refusal::Streamable | Refusal::Replaced));
        if for_room && parts(key).is_some_and(|(number, _)| self.cx.is_live(number)) {
            let word = &entry.master.word;
            let _ = word.compare_exchange(w.0, w.next(State::Absent).0, Ordering::AcqRel, Ordering::Acquire);
        }
    }
}
