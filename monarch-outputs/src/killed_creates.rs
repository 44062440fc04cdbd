//! Processes that were killed while they made a part file, or in a plain call.

use crate::plan::Opener;
use crate::processes::Openers;
use monarch_abi::outputs::making::{Left, MAKING_SLOTS};
use monarch_abi::outputs::plain_calls::PlainCalls;
use monarch_abi::outputs::state::State;
use std::time::{Duration, Instant};

/// How long a create may still be under way on the PFS after its process was killed.
const CREATE_TIMEOUT: Duration = Duration::from_millis(500);

/// The slots of [`State::making`].
#[derive(Debug, Default)]
pub struct KilledCreates {
    /// Since when the process that has a slot is known to be killed.
    since: [Option<Instant>; MAKING_SLOTS],
    makers: Openers,
}

impl KilledCreates {
    /// Frees the slots of killed processes, after their part files were removed by `remove`, which
    /// says whether nothing is left to be done.
    pub fn clean_up(&mut self, state: &State, mut remove: impl FnMut(&Left) -> bool) {
        let Self { since, makers } = self;
        let mut is_alive = |left: &Left| is_alive(makers, (left.pid, left.began_ticks));
        for (slot, since) in state.making.iter().zip(since) {
            let Some(left) = slot.left().filter(|left| !is_alive(left)) else {
                *since = None;
                continue;
            };
            let is_over = since.get_or_insert_with(Instant::now).elapsed() >= CREATE_TIMEOUT;
            if !left.may_be_part() || remove(&left) || is_over {
                *since = None;
                slot.free();
            }
        }
    }

    /// Frees the slots of plain calls of killed processes.
    pub fn free_plain_calls(&mut self, calls: &PlainCalls) {
        for slot in calls.slots() {
            if slot.process().is_some_and(|process| !is_alive(&mut self.makers, process)) {
                slot.free();
            }
        }
    }

    /// Whether a part file may still appear.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.since.iter().any(Option::is_some)
    }
}

fn is_alive(makers: &mut Openers, (pid, began_ticks): (u32, u64)) -> bool {
    makers.is_alive(&Opener { pid, boot: makers.boot(), began_ticks }, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::began_ticks;
    use monarch_abi::outputs::plain_calls::Caller;
    use zerocopy::FromZeros;

    #[test]
    fn a_part_file_that_appears_after_its_process_was_killed_is_removed() {
        let state = State::new_zeroed();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        assert!(state.making[3].claim(child.id(), 0, b"dir"));
        state.making[3].begin(7);
        child.wait().unwrap();
        let mut killed = KilledCreates::default();
        // It is not there yet.
        killed.clean_up(&state, |_| false);
        assert!(killed.is_waiting() && state.making[3].is_taken());
        killed.clean_up(&state, |left| left.id == 7 && left.dir() == b"dir");
        assert!(!killed.is_waiting() && !state.making[3].is_taken());
    }

    #[test]
    fn a_part_file_that_never_appears_is_waited_for_half_a_second() {
        let state = State::new_zeroed();
        assert!(state.making[0].claim(u32::MAX, 0, b""));
        state.making[0].begin(7);
        let mut killed = KilledCreates::default();
        let began = Instant::now();
        killed.clean_up(&state, |_| false);
        while killed.is_waiting() {
            std::thread::sleep(Duration::from_millis(5));
            killed.clean_up(&state, |_| false);
        }
        assert!(began.elapsed() >= CREATE_TIMEOUT && !state.making[0].is_taken());
    }

    #[test]
    fn a_plain_call_of_a_killed_process_is_over() {
        let calls = PlainCalls::new_zeroed();
        let of = |pid, began_ticks| Caller { pid, began_ticks, is_helper: false };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let of_child = calls.begin(of(child.id(), 0), b"dir", b"name").unwrap();
        let own = std::process::id();
        let own = calls.begin(of(own, began_ticks(own).unwrap()), b"dir", b"own").unwrap();
        child.wait().unwrap();
        KilledCreates::default().free_plain_calls(&calls);
        assert!(of_child.process().is_none() && own.process().is_some());
    }
}
