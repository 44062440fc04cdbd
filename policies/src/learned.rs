//! Recognises a job that reads the files of each epoch in the same order, so that the order of the
//! next epoch is known.

use crate::keys::KeyHash;
use crate::pages::PerFile;
use crate::{EpochEvent, FileKey};
use hashlink::LinkedHashSet;

/// Files that make an order, at least.
const MIN_ORDER_FILES: u32 = 16;
/// How far apart workers may be, in files: at most, and at least where that is no more than an
/// eighth of all files. A worker that the system holds up is some batches behind.
const MAX_FILES_APART: u32 = 512;
const MIN_FILES_APART: u32 = 32;
/// Files of the next epoch that are given near the end of this one, at least and at most; between
/// these, a 32nd of the epoch. The room that they take passes from one file to the next once the
/// epoch begins. Without them all residents at its start may be wanted late, and none could be a
/// victim.
const NEXT_EPOCH_FILES: (u32, u32) = (64, 1024);
/// Points of an order that is trusted; each file that was not expected costs two.
const TRUSTED_POINTS: u32 = 32;
/// Unexpected files in a row after which the position in the order is searched again.
const MAX_UNEXPECTED_IN_A_ROW: u32 = 8;

/// Predicts the order of an epoch from the order of the last one.
///
/// For each file its place in the last epoch and in this one are kept (8 bytes a file; besides,
/// each file that was read since an epoch perhaps began, until that is decided). The position of
/// the job in the last epoch's order follows from the places of the files that it opens. A file is
/// *expected* when its place is at most a 32nd of the epoch's files, and at most 512, away from
/// that position: several workers are not quite in order, and this is how far they may be apart. An
/// expected file earns a point, another file costs three; an order is recognised with 16 to 256
/// points, an eighth of the epoch. In a shuffled order one file in 16 is expected by chance, in a
/// small set fewer (below 32 files the order has to be exactly the same): it is never taken for a
/// repeating one. A recognised order is dropped after 16 unexpected files in a row, or when more
/// than a third of the files are unexpected for some time.
///
/// Orders of fewer than 16 files are not learned. A file that is read several times in an epoch
/// counts where it is read first. After an epoch that ended early only the files that were read in
/// it have a place.
#[derive(Clone, Debug, Default)]
pub struct OrderPredictor {
    /// Place of each file in the last epoch and in this one, counted from 1.
    last: PerFile,
    this: PerFile,
    /// Number of files that have a place.
    last_len: u32,
    this_len: u32,
    /// The place that is expected next.
    at: u32,
    lost: u32,
    points: u32,
    repeats: bool,
    /// Whether [`OrderPredictor::order`] has an order to give.
    order_is_due: bool,
    /// Files that may be the first ones of the next epoch, each where it was read first.
    perhaps: Option<LinkedHashSet<FileKey, KeyHash>>,
}

impl OrderPredictor {
    /// Notes an access, after the epoch event that it caused ([`OrderPredictor::turn`]).
    pub fn access(&mut self, file: FileKey) {
        match &mut self.perhaps {
            // (`insert` would move it to the end.)
            Some(kept) if kept.contains(&file) => {}
            Some(kept) => {
                kept.insert(file);
            }
            None => self.read(file),
        }
    }

    /// Notes the epoch event of an access or an announcement ([`crate::Epochs`]), before
    /// [`OrderPredictor::access`].
    pub fn turn(&mut self, turn: EpochEvent) {
        match turn {
            EpochEvent::Same => {}
            EpochEvent::Perhaps => {
                self.resume_epoch();
                self.perhaps = Some(LinkedHashSet::default());
            }
            EpochEvent::Begun(_) => self.epoch_began(),
            EpochEvent::Not => self.resume_epoch(),
        }
    }

    /// A new epoch has begun, with the access that perhaps began one if there was such.
    pub fn epoch_began(&mut self) {
        let first = self.perhaps.take().unwrap_or_default();
        std::mem::swap(&mut self.last, &mut self.this);
        self.this.clear();
        (self.last_len, self.this_len) = (self.this_len, 0);
        (self.at, self.lost) = (1, 0);
        self.repeats &= self.last_len >= MIN_ORDER_FILES;
        self.order_is_due = self.repeats;
        if !self.repeats {
            self.points = 0;
        }
        first.into_iter().for_each(|file| self.read(file));
    }

    /// Whether the order repeats, as far as is known now. When it does not, what
    /// [`OrderPredictor::order`] gave does not hold any more.
    #[must_use]
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// The rest of the order of this epoch: once when it is recognised, and once in each later
    /// epoch while it repeats. Once more near its end, with the first files of the next one
    /// behind it.
    pub fn order(&mut self) -> Option<Vec<FileKey>> {
        if !std::mem::take(&mut self.order_is_due) {
            return None;
        }
        let from = self.at.saturating_sub(self.apart());
        // What was read already is read again at the start of the next epoch, which is known only
        // some way into it.
        let head =
            if self.is_near_end() { (self.last_len / 32).clamp(NEXT_EPOCH_FILES.0, NEXT_EPOCH_FILES.1) } else { 0 };
        let places = self.last.iter().map(|(file, place)| (self.this.get(file) != 0, place, file));
        let order = places.filter(|(read, place, _)| if *read { *place <= head } else { *place >= from });
        let mut order: Vec<(bool, u32, FileKey)> = order.collect();
        order.sort_unstable();
        Some(order.into_iter().map(|(.., file)| file).collect())
    }

    /// No new epoch had begun.
    fn resume_epoch(&mut self) {
        self.perhaps.take().unwrap_or_default().into_iter().for_each(|file| self.read(file));
    }

    /// Whether three quarters of the epoch have been read.
    fn is_near_end(&self) -> bool {
        self.this_len > self.last_len - self.last_len / 4
    }

    fn apart(&self) -> u32 {
        (self.last_len / 32).clamp((self.last_len / 8).min(MIN_FILES_APART), MAX_FILES_APART)
    }

    fn read(&mut self, file: FileKey) {
        if self.this.get(file) != 0 || self.this_len == u32::MAX {
            return;
        }
        let before = self.is_near_end();
        self.this_len += 1;
        self.this.replace(file, self.this_len);
        self.order_is_due |= self.repeats && !before && self.is_near_end();
        if self.last_len >= MIN_ORDER_FILES {
            let place = self.last.get(file);
            self.judge(place);
        }
    }

    fn judge(&mut self, place: u32) {
        let expected = place != 0 && place.abs_diff(self.at) <= self.apart();
        if expected {
            self.lost = 0;
            self.at =
                if place > self.at { self.at + (place - self.at) / 8 } else { self.at - (self.at - place) / 8 } + 1;
        } else {
            self.lost += 1;
            if place != 0 && self.lost >= MAX_UNEXPECTED_IN_A_ROW {
                (self.at, self.lost) = (place, 0);
            }
            self.at = self.at.saturating_add(1);
        }
        self.score(expected);
    }

    fn score(&mut self, expected: bool) {
        if self.repeats {
            self.points = if expected { (self.points + 1).min(TRUSTED_POINTS) } else { self.points.saturating_sub(2) };
            if self.points == 0 {
                (self.repeats, self.order_is_due) = (false, false);
            }
            return;
        }
        self.points = if expected { self.points + 1 } else { self.points.saturating_sub(3) };
        if self.points >= (self.last_len / 8).clamp(MIN_ORDER_FILES, 256) {
            (self.repeats, self.order_is_due, self.points) = (true, true, TRUSTED_POINTS);
        }
    }
}

#[cfg(test)]
mod tests;
