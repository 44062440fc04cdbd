//! The 32-bit state word of a file.
//!
//! ```text
//!   31  30         8 7    4 3     0
//! +----+------------+------+-------+
//! |mark| generation | tier | state |
//! +----+------------+------+-------+
//! ```
//! The generation goes up by one whenever a copy is dropped or the file is bypassed, so that a
//! copier that was slow cannot publish over a decision taken meanwhile: publication is a
//! compare-and-swap of the whole word. The tier is that of a copy, complete (Resident) or partial
//! (Partial). A Refused word has the reason in its place, an Absent one the tier of a packed copy,
//! counted from 1: a copy that the agent has to decode before a reader can open it. The mark is on
//! copies, complete or partial, that were decoded: a reader that opens one says so, because it may
//! go then.

/// What is known about a file's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// No copy, and no demand.
    Absent = 0,
    /// Asked for by a reader, not yet picked up by the agent.
    Requested = 1,
    /// The agent is copying it.
    Fetching = 2,
    /// A complete, verified copy lies in the tier named by the word.
    Resident = 3,
    /// The policy or the quota said no: read it from the PFS.
    Refused = 4,
    /// Changed by the job, or not to be trusted: the kernel answers everything. Sticky.
    Bypass = 5,
    /// A further name of a hard-linked inode: the word of the record's `aux` slot counts.
    Link = 6,
    /// A directory, symbolic link or special file: metadata only.
    NonFile = 7,
    /// A large file of which some chunks are in the tier named by the word, and more to come.
    Partial = 8,
}

/// Why a file is Refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// No tier has room for it.
    NoRoom = 0,
    /// The same, but a sequential reader may request chunks.
    Streamable = 1,
    /// It was changed a moment ago.
    RecentlyModified = 2,
    /// The PFS failed.
    PfsFailed = 3,
    /// A tier failed, or takes no copies at present.
    TierFailed = 4,
    /// Its copy had to go, or is being dropped; or its root has another segment.
    Dropped = 5,
    /// A reader has found its copy damaged; the agent is to drop it.
    Damaged = 6,
    /// Its copy made way for another one that the policy wants more.
    Replaced = 7,
}

/// Mark of a Bypass word that is not a job's doing.
const LEFT: u32 = 0x10;

/// Mark of a Bypass word whose file has lost its last name.
const GONE: u32 = 0x20;

/// Mark of copies that were decoded.
const MARK: u32 = 1 << 31;
/// All but state and tier, without the mark.
const REST: u32 = !0xff & !MARK;

/// A state word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u32);

impl Word {
    /// A word in `state` with generation 0 and tier 0.
    #[must_use]
    pub const fn new(state: State) -> Self {
        Self(state as u32)
    }

    /// Its state; `Bypass` for a pattern that means nothing to this version.
    #[must_use]
    #[inline]
    pub const fn state(self) -> State {
        match self.0 & 0xf {
            0 => State::Absent,
            1 => State::Requested,
            2 => State::Fetching,
            3 => State::Resident,
            4 => State::Refused,
            6 => State::Link,
            7 => State::NonFile,
            8 => State::Partial,
            _ => State::Bypass,
        }
    }

    /// The tier of a copy, complete or partial.
    #[must_use]
    #[inline]
    pub const fn tier(self) -> usize {
        (self.0 >> 4 & 0xf) as usize
    }

    /// How often copies of this file were dropped.
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 & REST) >> 8
    }

    /// The same generation in another state.
    #[must_use]
    pub const fn with(self, state: State) -> Self {
        Self(self.0 & REST | state as u32)
    }

    /// Resident in `tier`, same generation.
    #[must_use]
    pub const fn resident(self, tier: usize) -> Self {
        Self(self.0 & REST | (tier as u32 & 0xf) << 4 | State::Resident as u32)
    }

    /// Partial in `tier`, same generation.
    #[must_use]
    pub const fn partial(self, tier: usize) -> Self {
        Self(self.0 & REST | (tier as u32 & 0xf) << 4 | State::Partial as u32)
    }

    /// What a Partial word turns to when the copy is complete.
    #[must_use]
    pub const fn completed(self) -> Self {
        Self(self.0 & !0xf | State::Resident as u32)
    }

    /// The same, marked as a copy that was decoded, or is to be packed.
    #[must_use]
    pub const fn marked(self) -> Self {
        Self(self.0 | MARK)
    }

    /// Whether it is marked so.
    #[must_use]
    pub const fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    /// Of a resident copy: whether the agent wants to know that it was opened. It could move up, or
    /// make way now.
    #[must_use]
    #[inline]
    pub const fn is_watched(self) -> bool {
        self.0 & (MARK | 0xf0) != 0
    }

    /// Absent, next generation, with a packed copy in `tier`, one of the first 15.
    #[must_use]
    pub const fn packed(self, tier: usize) -> Self {
        Self(self.next(State::Absent).0 | ((tier as u32 + 1) & 0xf) << 4)
    }

    /// The tier of its packed copy, where that is all there is.
    #[must_use]
    pub const fn packed_in(self) -> Option<usize> {
        match (self.state(), self.tier()) {
            (State::Absent, 0) => None,
            (State::Absent, n) => Some(n - 1),
            _ => None,
        }
    }

    /// Refused, next generation.
    #[must_use]
    pub const fn refused(self, why: Refusal) -> Self {
        Self(self.next(State::Refused).0 | (why as u32) << 4)
    }

    /// Why it is Refused, if it is.
    #[must_use]
    pub const fn refusal(self) -> Option<Refusal> {
        match (self.state(), self.tier()) {
            (State::Refused, 0) => Some(Refusal::NoRoom),
            (State::Refused, 1) => Some(Refusal::Streamable),
            (State::Refused, 2) => Some(Refusal::RecentlyModified),
            (State::Refused, 3) => Some(Refusal::PfsFailed),
            (State::Refused, 4) => Some(Refusal::TierFailed),
            (State::Refused, 6) => Some(Refusal::Damaged),
            (State::Refused, 7) => Some(Refusal::Replaced),
            (State::Refused, _) => Some(Refusal::Dropped),
            _ => None,
        }
    }

    /// Whether a sequential reader may request chunks of it.
    #[must_use]
    #[inline]
    pub const fn is_streamable(self) -> bool {
        self.0 & 0xff == State::Refused as u32 | (Refusal::Streamable as u32) << 4
    }

    /// Bypass, next generation, because the agent has found that it cannot be served: no job has
    /// changed it.
    #[must_use]
    pub const fn left(self) -> Self {
        Self(self.next(State::Bypass).0 | LEFT)
    }

    /// Whether it is Bypass because a job changes it, or may have.
    #[must_use]
    pub const fn is_changed(self) -> bool {
        matches!(self.state(), State::Bypass) && self.0 & 0xf0 != LEFT
    }

    /// The same Bypass word of a file that a job has removed.
    #[must_use]
    pub const fn gone(self) -> Self {
        Self(self.0 & !0xf0 | GONE)
    }

    /// Whether it is Bypass because a job has removed the file: it has no name any more.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        matches!(self.state(), State::Bypass) && self.0 & 0xf0 == GONE
    }

    /// Another state, next generation.
    #[must_use]
    pub const fn next(self, state: State) -> Self {
        Self((self.0 & REST).wrapping_add(0x100) & REST | state as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_word_says_beside_its_state_goes_with_that() {
        let w = Word::new(State::Fetching).resident(3).marked();
        assert_eq!((w.state(), w.tier(), w.is_marked(), w.is_watched()), (State::Resident, 3, true, true));
        assert!(!Word::new(State::Fetching).resident(0).is_watched());
        let packed = w.packed(2);
        assert_eq!((packed.state(), packed.packed_in(), packed.is_marked()), (State::Absent, Some(2), false));
        assert_eq!(packed.generation(), w.generation() + 1);
        assert_eq!(packed.with(State::Requested), Word::new(State::Requested).next(State::Requested));
        assert_eq!(Word::new(State::Absent).packed_in(), None);
        assert_eq!(w.with(State::Partial).partial(1).marked().completed(), w.resident(1).marked());
        assert_eq!(w.packed_in(), None);
    }

    #[test]
    fn a_file_that_a_job_has_removed_is_changed_and_gone() {
        let w = Word::new(State::Resident).resident(2).next(State::Bypass);
        assert!(w.is_changed() && !w.is_gone());
        assert!(w.gone().is_changed() && w.gone().is_gone() && w.gone().generation() == w.generation());
        assert!(!w.left().is_gone() && !Word::new(State::Resident).resident(2).is_gone());
    }

    #[test]
    fn the_generation_does_not_run_into_the_mark() {
        let last = Word(REST | State::Resident as u32);
        assert_eq!(last.next(State::Absent), Word::new(State::Absent));
        assert!(!last.marked().next(State::Refused).is_marked());
    }
}
