//! What may be the beginning of an epoch, and whether it is.

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
const LONG: u64 = 1024;
/// Repeats that are enough.
const REPEATS: u64 = 32;
/// Fresh files for a repeat, at most.
const SPARSE: u64 = 64;
/// Below so many files the first candidate has to be a whole pass.
const SMALL: u64 = 64;
/// Mean distances of repeats after which no more of them are expected: at random one in e^8 is
/// further away.
const PATIENCE: u64 = 8;

/// Passes' worth of accesses in a row to files that were read just now after which a candidate is
/// given up, and so many more for small sets.
const IDLE: u64 = 4;
const IDLE_MORE: u64 = 64;

/// How much denser than before repeats are when an epoch begins.
const STEP: u64 = 3;
/// Repeats before a candidate that may be chance.
const CHANCE: u64 = 2;
/// How much sparser than usual repeats may be.
const UNUSUAL: u64 = 4;

/// How much denser repeats become when an epoch begins after a candidate that is something else.
const DENSER: u64 = 8;

/// See the module.
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
    /// Repeats among accesses when the last epoch began; `None` for the first one.
    usual: Option<(u64, u64)>,
    repeats: u64,
    fresh: Vec<FileKey>,
    /// Fresh files since the last repeat.
    gap: u64,
    /// Accesses in a row to files that were read just now.
    idle: u64,
    /// Accesses to files that are not fresh.
    old: u64,
    /// Repeats among accesses before.
    before: Option<(u64, u64)>,
}

impl Candidate {
    /// Begins with a repeat, in an epoch with `seen` files.
    pub(super) fn new(start: u32, seen: u64, pass: u64, usual: Option<(u64, u64)>, before: Option<(u64, u64)>) -> Self {
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
        if self.idle > IDLE * self.pass + IDLE_MORE {
            return Found::Nothing;
        }
        // The very first files of a job may be opened twice or more for all kinds of reasons.
        if self.usual.is_none() && self.seen < SMALL {
            return match () {
                () if 4 * fresh > repeats + 4 => Found::Nothing,
                () if repeats > 1 && self.old > self.seen && 4 * fresh <= repeats => Found::Epoch,
                () => Found::Open,
            };
        }
        if self.gap > self.patience() || fresh > SPARSE * (repeats + 1) {
            return Found::Nothing;
        }
        let few = (self.pass / 16).clamp(2, 4);
        if repeats + fresh < (self.pass / 4).clamp(2, LONG) || repeats < (self.pass / 128).clamp(few, REPEATS) {
            return Found::Open;
        }
        if fresh <= SPARSE * repeats && self.is_step() && self.is_as_usual() { Found::Epoch } else { Found::Nothing }
    }

    /// Fresh files in a row after which no more repeats are expected: from their distances so far,
    /// or when the last epoch began.
    fn patience(&self) -> u64 {
        let (repeats, now) = self.density();
        // At least so many would be found in another sample like this, most of the time.
        let sure = (repeats - repeats.isqrt()).max(1);
        let usual = self.usual.map_or(0, |(repeats, of)| PATIENCE * of / repeats.max(1));
        (PATIENCE * (now - self.gap + PATIENCE) / sure).max(usual)
    }

    /// Whether repeats have become so dense that the epoch begins now, and not with the few before.
    pub(super) fn is_late(&self, recent: Recent) -> bool {
        let (repeats, now) = self.density();
        let (dense, of) = recent.dense();
        let (before, rest) = (repeats.saturating_sub(dense), now.saturating_sub(of));
        2 * dense >= of && rest >= of / 2 && dense * rest >= DENSER * before * of
    }

    /// Repeats, among so many accesses.
    pub(super) fn density(&self) -> (u64, u64) {
        (self.repeats, self.repeats + self.fresh.len() as u64)
    }

    /// Whether repeats are at least three times as dense as before, give or take a few.
    fn is_step(&self) -> bool {
        let (repeats, now) = self.density();
        self.before.is_none_or(|(before, of)| repeats * of >= STEP * (before + CHANCE) * now)
    }

    /// Whether repeats are not much sparser than when the last epoch began.
    fn is_as_usual(&self) -> bool {
        let (repeats, now) = self.density();
        self.usual.is_none_or(|(usual, of)| repeats * of * UNUSUAL >= usual * now)
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

    /// Repeats, among so many accesses.
    fn dense(self) -> (u64, u64) {
        (self.0.count_ones().into(), u16::BITS.into())
    }
}
