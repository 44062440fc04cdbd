//! Tells announcements of a new epoch from those of other ranks for the same one.

/// Files that have to be read between two announcements that nothing else tells apart.
const MIN_FILES_BETWEEN: u64 = 64;

/// What is known from accesses when an announcement comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    /// Of the epoch that runs.
    pub(super) number: u32,
    /// Its files so far, and those of the one before.
    pub(super) seen: u64,
    pub(super) before: Option<u64>,
    /// Whether no epoch has ended yet.
    pub(super) fresh: bool,
}

/// What was announced so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Announced {
    /// Ranks that are in an epoch.
    open: u32,
    /// The most ranks that were in one epoch at the same time.
    ranks: u32,
    /// Announcements of this epoch.
    begins: u32,
    /// Whether ends are announced, too.
    ends: bool,
}

impl Announced {
    /// The number of the epoch that begins, if it is another one.
    pub(super) fn begin(&mut self, number: Option<u32>, first: bool, at: At) -> Option<u32> {
        self.begins = self.begins.saturating_add(1);
        self.open = self.open.saturating_add(1);
        self.ranks = self.ranks.max(self.open);
        let next = match number {
            Some(n) if !first && (n == at.number || is_late(n, at)) => None,
            Some(n) => Some(n),
            None if first && at.fresh => Some(at.number),
            None if first || self.is_next(at) => Some(at.number.saturating_add(1)),
            None => None,
        };
        if next.is_some() {
            self.begins = 1;
            if !self.ends {
                (self.open, self.ranks) = (1, 1);
            }
        }
        next
    }

    pub(super) fn end(&mut self) {
        self.ends = true;
        self.open = self.open.saturating_sub(1);
    }

    /// Whether an announcement without a number is of the next epoch.
    fn is_next(&self, at: At) -> bool {
        if self.ends {
            self.begins > self.ranks
        } else {
            at.seen >= at.before.map_or(MIN_FILES_BETWEEN, |b| (b / 4).max(1))
        }
    }
}

/// Whether it is the last epoch, announced by a rank that is behind.
fn is_late(number: u32, at: At) -> bool {
    number.checked_add(1) == Some(at.number) && at.before.is_some_and(|before| at.seen < before / 2)
}
