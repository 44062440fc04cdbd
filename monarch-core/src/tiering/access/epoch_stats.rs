//! [`Passes`]: epochs of a root, and the figures of each.
//!
//! [`monarch_policies::epochs`] detects the begin of an epoch a little late: from the access on
//! that may have been the first, figures are kept apart until it is known which epoch they belong
//! to.

use crate::snapshot::{Epoch, Why};
use monarch_abi::accesses::Served;
use monarch_policies::{Access, EpochEvent, Epochs, OrderPredictor};
use std::time::Duration;

/// Epochs whose figures are kept one by one.
const MAX_EPOCHS: usize = 1000;

/// Totals over all epochs; an epoch's figures are their difference.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Time that readers spent waiting for copies, microseconds.
    pub(crate) waited_us: u64,
    /// Files copied from the PFS.
    pub(crate) copied: u64,
    /// Bytes copied from the PFS.
    pub(crate) bytes_copied: u64,
    /// Opens that went to the PFS.
    pub(crate) why: Why,
}

/// An epoch that has not ended.
#[derive(Debug)]
struct Current {
    /// Time of its begin, by the clock of the opens.
    began: Duration,
    /// Time of the last open.
    last: Duration,
    before: Totals,
    figures: Epoch,
}

impl Current {
    fn new(number: u32, at: Duration, before: Totals) -> Self {
        Self { began: at, last: at, before, figures: Epoch { number, ..Epoch::default() } }
    }

    fn add(&mut self, size: u64, at: Duration, served: Served) {
        let f = &mut self.figures;
        f.opens += 1;
        f.bytes = f.bytes.saturating_add(size);
        match served {
            Served::Tier => f.local += 1,
            Served::Waited => f.waited += 1,
            Served::Chunks => f.chunked += 1,
            Served::Pfs => {
                f.pfs += 1;
                f.pfs_bytes = f.pfs_bytes.saturating_add(size);
            }
        }
        self.last = self.last.max(at);
    }

    /// Its figures, given the totals `now`.
    fn so_far(&self, now: Totals) -> Epoch {
        Epoch {
            seconds: self.last.saturating_sub(self.began).as_secs_f64(),
            wait_s: now.waited_us.saturating_sub(self.before.waited_us) as f64 / 1e6,
            copied: now.copied.saturating_sub(self.before.copied),
            bytes_copied: now.bytes_copied.saturating_sub(self.before.bytes_copied),
            why: now.why.since(&self.before.why),
            ..self.figures
        }
    }
}

/// The epochs of a root.
#[derive(Debug, Default)]
pub(crate) struct Passes {
    detector: Epochs,
    pub(crate) learner: OrderPredictor,
    /// Epochs before the files were renumbered.
    before: u32,
    done: Vec<Epoch>,
    current: Option<Current>,
    /// Opens that may belong to the next epoch.
    perhaps: Option<Current>,
}

impl Passes {
    /// Counts an open. Returns the number of the epoch that has begun, if one has.
    pub(crate) fn access(&mut self, open: &Access, served: Served, now: Totals) -> Option<u32> {
        let turn = self.detector.access(open.file);
        let began = self.turn(turn, open.at, now);
        self.learner.access(open.file);
        let number = self.number();
        let to = match &mut self.perhaps {
            Some(perhaps) => perhaps,
            None => self.current.get_or_insert_with(|| Current::new(number, open.at, now)),
        };
        to.add(open.size, open.at, served);
        began
    }

    /// Notes that the job announced the begin of an epoch.
    pub(crate) fn begin(&mut self, number: Option<u32>, at: Duration, now: Totals) -> Option<u32> {
        let turn = self.detector.begin(number);
        if matches!(turn, EpochEvent::Begun(_)) {
            // It begins now, whatever was detected before.
            self.not_yet();
        }
        self.turn(turn, at, now)
    }

    /// Notes that the job announced the end of the epoch.
    pub(crate) fn end(&mut self) {
        self.detector.end();
    }

    /// Adds the figures that were kept apart to the old epoch.
    fn not_yet(&mut self) {
        if let (Some(perhaps), Some(current)) = (self.perhaps.take(), &mut self.current) {
            current.figures.add(&perhaps.figures);
            current.last = perhaps.last;
        }
    }

    fn turn(&mut self, turn: EpochEvent, at: Duration, now: Totals) -> Option<u32> {
        self.learner.turn(turn);
        match turn {
            EpochEvent::Same => None,
            EpochEvent::Perhaps => {
                self.not_yet();
                self.perhaps = Some(Current::new(0, at, now));
                None
            }
            EpochEvent::Not => {
                self.not_yet();
                None
            }
            EpochEvent::Begun(_) => {
                let number = self.number();
                let next = self.perhaps.take().unwrap_or_else(|| Current::new(number, at, now));
                if let Some(mut ended) = self.current.take() {
                    ended.last = next.began;
                    let mut figures = ended.so_far(next.before);
                    figures.complete = true;
                    if self.done.len() == MAX_EPOCHS {
                        self.done.remove(0);
                    }
                    self.done.push(figures);
                }
                self.current = Some(Current { figures: Epoch { number, ..next.figures }, ..next });
                Some(number)
            }
        }
    }

    /// Number of the current epoch: as the job counts, or from 1.
    fn number(&self) -> u32 {
        let number = self.detector.number();
        if self.detector.announced() { number } else { number.max(1) + self.before }
    }

    /// Notes that files have new numbers: the root was scanned again.
    pub(crate) fn renumber(&mut self) {
        self.before = self.number().saturating_sub(1);
        (self.detector, self.learner) = (Epochs::default(), OrderPredictor::default());
    }

    /// The figures of all epochs; of the last one so far.
    pub(crate) fn all(&self, now: Totals) -> Vec<Epoch> {
        let mut all = self.done.clone();
        if let Some(current) = &self.current {
            let mut figures = current.so_far(now);
            if let Some(perhaps) = &self.perhaps {
                figures.add(&perhaps.figures);
            }
            all.push(figures);
        }
        // (Announced, but no file of this root was opened.)
        all.retain(|e| e.opens > 0);
        all
    }

    /// Opens so far.
    pub(crate) fn opens(&self) -> u64 {
        let of = |c: &Option<Current>| c.as_ref().map_or(0, |c| c.figures.opens);
        self.done.iter().map(|e| e.opens).sum::<u64>() + of(&self.current) + of(&self.perhaps)
    }
}
