//! The possible beginning of an epoch, and the decision whether it is one.

use crate::FileKey;

/// What an access is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of a file that was not read in this epoch.
    Fresh,
    /// Of a file that was read just now.
    Recent,
    /// Of a file that was read earlier in this epoch, and not in the candidate.
    Repeat,
    /// Of a file that was read in the candidate, some time ago.
    Again,
}

/// Whether a candidate is an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Open,
    Epoch,
    Nothing,
}

/// Files that are read in a candidate before it is decided, at most.
const MAX_FILES_UNDECIDED: u64 = 1024;
/// Repeats that are enough, whatever the length of an epoch.
const ENOUGH_REPEATS: u64 = 32;
/// Fresh files for each repeat, at most.
const MAX_FRESH_PER_REPEAT: u64 = 64;
/// Below this number of files the first candidate has to be a whole pass.
const SMALL_SET_FILES: u64 = 64;
/// Mean distances of repeats after which no more of them are expected: at random one in e^8 is
/// further away.
const MAX_MEAN_DISTANCES: u64 = 8;

/// Passes' worth of accesses in a row to files that were read just now after which a candidate is
/// given up, and the accesses added to those for small sets.
const MAX_IDLE_PASSES: u64 = 4;
const EXTRA_IDLE_ACCESSES: u64 = 64;

/// How much denser than before repeats are when an epoch begins.
const STEP_FACTOR: u64 = 3;
/// Repeats before a candidate that may be chance.
const MAX_CHANCE_REPEATS: u64 = 2;
/// How much sparser than usual repeats may be.
const MAX_SPARSER_FACTOR: u64 = 4;

/// How much denser repeats become when an epoch begins after a candidate that is something else.
const LATE_START_FACTOR: u64 = 8;

/// How dense repeats are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Density {
    pub(super) repeats: u64,
    /// The accesses among which they were counted.
    pub(super) accesses: u64,
}

/// The possible beginning of an epoch.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// The access that it began with.
    pub(super) start: u32,
    /// Distinct files of the epoch until then.
    pub(super) seen: u64,
    /// Distinct files of the candidate, and all its accesses but those of files that were read just
    /// now.
    pub(super) files: u64,
    pub(super) counted: u64,
    /// Files of an epoch, as far as is known.
    pass: u64,
    /// When the last epoch began; `None` for the first one.
    usual: Option<Density>,
    repeats: u64,
    fresh: Vec<FileKey>,
    /// Fresh files since the last repeat.
    gap: u64,
    /// Accesses in a row to files that were read just now.
    idle: u64,
    /// Accesses to files that are not fresh.
    old: u64,
    /// In the epoch before the candidate.
    before: Option<Density>,
}

impl Candidate {
    /// Begins with a repeat, in an epoch with `seen` files.
    pub(super) fn new(start: u32, seen: u64, pass: u64, usual: Option<Density>, before: Option<Density>) -> Self {
        let (files, counted, repeats, old) = (1, 1, 1, 1);
        Self { start, seen, files, counted, pass, usual, repeats, fresh: Vec::new(), gap: 0, idle: 0, old, before }
    }

    /// The next access, of a file that was read `last` before.
    pub(super) fn add(&mut self, file: FileKey, kind: Kind, last: u32) {
        self.files += u64::from(last < self.start);
        self.counted += u64::from(kind != Kind::Recent);
        self.idle = if kind == Kind::Recent { self.idle + 1 } else { 0 };
        match kind {
            Kind::Fresh => {
                self.fresh.push(file);
                self.gap += 1;
                return;
            }
            Kind::Repeat => {
                self.repeats += 1;
                self.gap = 0;
            }
            Kind::Recent | Kind::Again => {}
        }
        self.old += 1;
    }

    pub(super) fn found(&self) -> Found {
        let (repeats, fresh) = (self.repeats, self.fresh.len() as u64);
        // Nothing would ever decide it.
        if self.idle > MAX_IDLE_PASSES * self.pass + EXTRA_IDLE_ACCESSES {
            return Found::Nothing;
        }
        // The very first files of a job may be opened twice or more for all kinds of reasons.
        if self.usual.is_none() && self.seen < SMALL_SET_FILES {
            return match () {
                () if 4 * fresh > repeats + 4 => Found::Nothing,
                () if repeats > 1 && self.old > self.seen && 4 * fresh <= repeats => Found::Epoch,
                () => Found::Open,
            };
        }
        if self.gap > self.max_gap() || fresh > MAX_FRESH_PER_REPEAT * (repeats + 1) {
            return Found::Nothing;
        }
        let few = (self.pass / 16).clamp(2, 4);
        if repeats + fresh < (self.pass / 4).clamp(2, MAX_FILES_UNDECIDED)
            || repeats < (self.pass / 128).clamp(few, ENOUGH_REPEATS)
        {
            return Found::Open;
        }
        if fresh <= MAX_FRESH_PER_REPEAT * repeats && self.is_step() && self.is_as_usual() {
            Found::Epoch
        } else {
            Found::Nothing
        }
    }

    /// Fresh files in a row after which no more repeats are expected: from their distances so far,
    /// or when the last epoch began.
    fn max_gap(&self) -> u64 {
        let Density { repeats, accesses: now } = self.density();
        // At least this many would be found in another sample like this, most of the time.
        let sure = (repeats - repeats.isqrt()).max(1);
        let usual = self.usual.map_or(0, |usual| MAX_MEAN_DISTANCES * usual.accesses / usual.repeats.max(1));
        (MAX_MEAN_DISTANCES * (now - self.gap + MAX_MEAN_DISTANCES) / sure).max(usual)
    }

    /// Whether repeats have become so dense that the epoch begins now, and not with the few before.
    pub(super) fn is_late(&self, recent: Recent) -> bool {
        let Density { repeats, accesses: now } = self.density();
        let Density { repeats: dense, accesses: of } = recent.density();
        let (before, rest) = (repeats.saturating_sub(dense), now.saturating_sub(of));
        2 * dense >= of && rest >= of / 2 && dense * rest >= LATE_START_FACTOR * before * of
    }

    /// How dense repeats are in it.
    pub(super) fn density(&self) -> Density {
        Density { repeats: self.repeats, accesses: self.repeats + self.fresh.len() as u64 }
    }

    /// Whether repeats are at least three times as dense as before, give or take a few.
    fn is_step(&self) -> bool {
        let Density { repeats, accesses: now } = self.density();
        self.before
            .is_none_or(|before| repeats * before.accesses >= STEP_FACTOR * (before.repeats + MAX_CHANCE_REPEATS) * now)
    }

    /// Whether repeats are not much sparser than when the last epoch began.
    fn is_as_usual(&self) -> bool {
        let Density { repeats, accesses: now } = self.density();
        self.usual.is_none_or(|usual| repeats * usual.accesses * MAX_SPARSER_FACTOR >= usual.repeats * now)
    }

    /// Files that came late, and belong to the old epoch: where most of what is read was read
    /// before, the rest are its last ones.
    pub(super) fn late(&self) -> Option<&[FileKey]> {
        (4 * self.fresh.len() as u64 <= self.repeats).then_some(&self.fresh)
    }
}

/// Which of the last few accesses of the epoch were repeats, the latest lowest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent(u16);

impl Recent {
    pub(super) fn push(&mut self, repeat: bool) {
        self.0 = self.0 << 1 | u16::from(repeat);
    }

    /// How dense repeats are among them.
    fn density(self) -> Density {
        Density { repeats: self.0.count_ones().into(), accesses: u16::BITS.into() }
    }
}
