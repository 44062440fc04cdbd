//! Finds the ends of passes over a data set from the accesses alone, or takes them from what the
//! job announces.
//!
//! [`Epochs`] has the rules and their limits.

use crate::FileKey;
use crate::pages::PerFile;

mod announced;
mod candidate;

use announced::Announced;
use candidate::{Candidate, Density, Found, Kind, Recent};

/// Whether an access or announcement belongs to another pass over the data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochEvent {
    /// It belongs to the same pass.
    Same,
    /// A new epoch may have begun with this access. Another `Perhaps` replaces an earlier one.
    Perhaps,
    /// A new epoch has begun, and this is its number: with the access that gave
    /// [`EpochEvent::Perhaps`], or with this access where there was none. An epoch that was
    /// announced ([`Epochs::begin`]) begins now, and there was none at that access.
    Begun(u32),
    /// No epoch had begun: what was counted since [`EpochEvent::Perhaps`] belongs to the old one.
    Not,
}

/// Recent accesses, which are not taken for repeats.
const RECENT_ACCESSES: u32 = 256;
/// Accesses per file and epoch that are too many for any epoch.
const MAX_PASSES: u64 = 4;
/// Accesses added to those for small sets.
const EXTRA_ACCESSES: u64 = 64;

/// Accesses before a candidate that are too few to say how dense repeats are.
const MIN_ACCESSES: u64 = 64;

/// Detects epochs.
///
/// **From accesses.** Within an epoch each file is read once; so a new epoch shows in files that
/// were read in this one already. For each file the number of its last access is kept (4 bytes),
/// which says both whether it was read in this epoch and how long ago. An access is a *repeat* when
/// its file was read in this epoch, but not just now: samples that are opened twice, or by several
/// workers, and metadata files that are opened all the time are no repeats (the last 256 accesses,
/// half of the files in small sets). The first repeat starts a *candidate*. It is confirmed when
///
/// * it is long enough: a quarter of the files of an epoch, at most 1,024, were read in it; and
/// * enough of them are repeats: 2 to 32 (a 128th of the epoch), at a density of at least 1 in 64,
///   and a quarter of what it was when the last epoch began. Where N nodes share a global shuffle,
///   a node sees one in N of its files again, so that 32 nodes differ from noise; and
/// * they are a step: at least three times as dense as repeats were in the epoch before the
///   candidate. Sampling with replacement makes a ramp, not a step.
///
/// A candidate is given up when it has 8 times as many files in a row that were not read in this
/// epoch as the mean distance of its repeats: the repeats before them were something else (padding
/// of a sampler, the first batches of a validation set that were tried before training). It is also
/// given up after four passes' worth of accesses in a row to files that were read just now, which
/// say nothing: a loop over a few files. Where an epoch was missed, another one begins when two and
/// a half times as many files were read as in the one before, with as many repeats. A confirmed
/// epoch began with the first access of its candidate; repeats that become much denser begin the
/// candidate again.
///
/// **From announcements** ([`Epochs::begin`]). They rule from then on, until two passes' worth of
/// accesses came without one.
///
/// **Limits.**
///
/// * A set that is read twice within an epoch (validation after each half of it) looks like an
///   epoch of its own if it is a quarter of the files, or more than 1,024 of them. So do parts of
///   the data set that are drawn several times an epoch, if that is most of what is read.
/// * Epochs that share no files, such as two halves of a data set in turn, are one.
/// * Sampling with replacement has no epochs to be found. By chance an epoch is reported about
///   every 15th of what would be one.
/// * Shares of a shuffle that are small (32 nodes with 500 files each) show so few repeats that one
///   epoch in some thirty is missed. With 2,000 files each it is found (40 simulated jobs of 10
///   epochs); where it began was off by up to a third of an epoch.
/// * Sets of 1 file have no epochs. In sets of fewer than 64 the first epoch is reported late: when
///   the second pass has ended. Sets of a few files which several workers open out of step may be
///   counted wrongly; in sets of a few hundred an epoch too many is found now and then (one of 40
///   jobs of 10 epochs with 150 files) where samplers are padded.
/// * After a read-ahead past the end the last files of the old epoch are counted for the old one
///   only where most of the files are read again.
/// * An epoch shorter than a quarter of the one before is not seen as one, unless announced.
#[derive(Clone, Debug)]
pub struct Epochs {
    /// Per file the number of its last access, counted from 1.
    last: PerFile,
    now: u32,
    /// The access with which the epoch began.
    start: u32,
    number: u32,
    /// Distinct files of this epoch, and of the one before.
    seen: u64,
    before: Option<u64>,
    /// Accesses of this epoch, without those to files that were read just now.
    counted: u64,
    recent: Recent,
    /// How dense repeats were when the last epoch began.
    usual: Option<Density>,
    candidate: Option<Candidate>,
    announced: Option<Announced>,
}

impl Default for Epochs {
    fn default() -> Self {
        Self {
            last: PerFile::default(),
            now: 0,
            start: 1,
            number: 1,
            seen: 0,
            before: None,
            counted: 0,
            recent: Recent::default(),
            usual: None,
            candidate: None,
            announced: None,
        }
    }
}

impl Epochs {
    /// Counts an access.
    pub fn access(&mut self, file: FileKey) -> EpochEvent {
        self.tick();
        let last = self.last.replace(file, self.now);
        let kind = self.kind(last);
        let density =
            (self.counted >= MIN_ACCESSES).then(|| Density { repeats: self.repeats(), accesses: self.counted });
        self.seen += u64::from(kind == Kind::Fresh);
        self.counted += u64::from(kind != Kind::Recent);
        if self.announced.is_some() {
            return self.announcements_lapse();
        }
        if kind != Kind::Recent {
            self.recent.push(matches!(kind, Kind::Repeat | Kind::Again));
        }
        let turn = match self.candidate {
            Some(_) => self.continue_candidate(file, kind, last, density),
            None => self.start_candidate(kind, density),
        };
        if turn == EpochEvent::Same && self.was_missed() {
            return EpochEvent::Begun(self.turn(self.number.saturating_add(1), self.now));
        }
        turn
    }

    /// The job announces an epoch; `None` is the next one. From then on announcements rule until
    /// two passes' worth of accesses come without one.
    ///
    /// Several ranks may announce the same epoch. Ranks that give its number are recognised by it.
    /// Ranks that do not are recognised by [`Epochs::end`]: the most that were in the epoch at one
    /// time is the number of ranks. Where there is neither, an announcement is taken for a new
    /// epoch when a quarter of the files of the last one (64 at first) was read since.
    ///
    /// What was read before the first announcement of all is counted for epoch 1 if it comes
    /// without a number: the event is then `Begun(1)`.
    pub fn begin(&mut self, number: Option<u32>) -> EpochEvent {
        let first = self.announced.is_none();
        let a = self.announced.get_or_insert_with(Announced::default);
        let at = announced::At { number: self.number, seen: self.seen, before: self.before, fresh: self.start == 1 };
        let Some(next) = a.begin(number, first, at) else { return EpochEvent::Same };
        let same = next == self.number && self.counted == 0;
        self.turn(next, self.now.saturating_add(1));
        if same { EpochEvent::Same } else { EpochEvent::Begun(next) }
    }

    /// The job, or a rank of it, announces that its epoch has ended. What it reads until the next
    /// one begins is counted for the old one.
    pub fn end(&mut self) {
        if let Some(a) = &mut self.announced {
            a.end();
        }
    }

    /// The number of the epoch: counted from 1, or as announced.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether a file was read in this epoch.
    #[must_use]
    pub fn has_read(&self, file: FileKey) -> bool {
        self.last.get(file) >= self.start
    }

    /// Distinct files that were read in this epoch.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Distinct files of the epoch before, if there was one.
    #[must_use]
    pub fn seen_before(&self) -> Option<u64> {
        self.before
    }

    /// Whether the job announces its epochs.
    #[must_use]
    pub fn announced(&self) -> bool {
        self.announced.is_some()
    }

    /// Whether this cannot be one epoch any more.
    fn was_missed(&self) -> bool {
        let as_usual = |usual: Density| 2 * self.repeats() * usual.accesses >= usual.repeats * self.counted;
        let long = self.before.is_some_and(|before| 2 * self.counted >= 5 * before + EXTRA_ACCESSES);
        self.counted >= MAX_PASSES * self.seen + EXTRA_ACCESSES || long && self.usual.is_some_and(as_usual)
    }

    /// Accesses of this epoch to files that were read in it some time before.
    fn repeats(&self) -> u64 {
        self.counted.saturating_sub(self.seen)
    }

    /// Files of an epoch, as far as is known.
    fn pass(&self) -> u64 {
        self.seen.max(self.before.unwrap_or(0))
    }

    fn kind(&self, last: u32) -> Kind {
        let window = u32::try_from(self.pass() / 2).unwrap_or(RECENT_ACCESSES).clamp(1, RECENT_ACCESSES);
        match &self.candidate {
            _ if last < self.start => Kind::Fresh,
            _ if self.now - last <= window => Kind::Recent,
            Some(c) if last >= c.start => Kind::Again,
            _ => Kind::Repeat,
        }
    }

    fn start_candidate(&mut self, kind: Kind, density: Option<Density>) -> EpochEvent {
        if kind != Kind::Repeat || self.seen < self.before.unwrap_or(0) / 4 {
            return EpochEvent::Same;
        }
        self.candidate = Some(Candidate::new(self.now, self.seen, self.pass(), self.usual, density));
        self.decide(EpochEvent::Perhaps)
    }

    fn continue_candidate(&mut self, file: FileKey, kind: Kind, last: u32, density: Option<Density>) -> EpochEvent {
        let Some(c) = &mut self.candidate else { return EpochEvent::Same };
        c.add(file, kind, last);
        if kind == Kind::Repeat && c.is_late(self.recent) {
            return self.start_candidate(kind, density);
        }
        self.decide(EpochEvent::Same)
    }

    fn decide(&mut self, otherwise: EpochEvent) -> EpochEvent {
        match self.candidate.as_ref().map(Candidate::found) {
            Some(Found::Epoch) => EpochEvent::Begun(self.confirm()),
            Some(Found::Nothing) => {
                self.candidate = None;
                EpochEvent::Not
            }
            _ => otherwise,
        }
    }

    fn confirm(&mut self) -> u32 {
        let Some(c) = self.candidate.take() else { return self.number };
        let number = self.turn(self.number.saturating_add(1), c.start);
        self.before = Some(c.seen);
        self.usual = Some(c.density());
        (self.seen, self.counted) = (c.files, c.counted);
        if let Some(late) = c.late() {
            for file in late {
                self.last.replace(*file, self.start - 1);
            }
            self.seen -= late.len() as u64;
            self.counted -= late.len() as u64;
        }
        number
    }

    /// Begins a new epoch with an access.
    fn turn(&mut self, number: u32, start: u32) -> u32 {
        // (Begun twice in a row, there was no epoch between.)
        if self.seen > 0 {
            self.before = Some(self.seen);
        }
        let this = start == self.now;
        (self.number, self.start) = (number, start);
        (self.seen, self.counted) = (u64::from(this), u64::from(this));
        self.candidate = None;
        self.recent = Recent::default();
        number
    }

    fn announcements_lapse(&mut self) -> EpochEvent {
        if self.counted <= 2 * self.pass() + EXTRA_ACCESSES {
            return EpochEvent::Same;
        }
        self.announced = None;
        EpochEvent::Begun(self.turn(self.number.saturating_add(1), self.now))
    }

    /// Counts an access. After four thousand million of them the numbers start again from 1.
    fn tick(&mut self) {
        if self.now == u32::MAX {
            let base = if self.start > u32::MAX / 2 { self.start - 1 } else { u32::MAX };
            self.last.values_mut().for_each(|v| *v = v.saturating_sub(base));
            self.now -= base;
            self.start = self.start.saturating_sub(base).max(1);
            self.candidate = None;
        }
        self.now += 1;
    }
}

#[cfg(test)]
mod tests;
