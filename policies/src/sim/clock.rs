//! The order of events: one heap for all nodes. Events at the same time happen in the order in
//! which they were set up, so that a simulation is the same each time.

use super::model::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An event of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happens {
    /// A call of this transfer is answered.
    Answered(u32),
    /// A loader process has read its file.
    Read(u32),
    /// A rank has computed.
    Computed(u32),
}

/// The heap of events to come.
#[derive(Debug, Default)]
pub(super) struct Clock {
    heap: BinaryHeap<Reverse<(Time, u64, Happens)>>,
    pub(super) set_up: u64,
}

impl Clock {
    pub(super) fn at(&mut self, time: Time, what: Happens) {
        self.heap.push(Reverse((time, self.set_up, what)));
        self.set_up += 1;
    }

    pub(super) fn next(&mut self) -> Option<(Time, Happens)> {
        self.heap.pop().map(|Reverse((time, _, what))| (time, what))
    }
}
