//! A claimed file while the engine copies it: into which tier, and what comes of it.

use super::fetch::{Fetched, File};
use super::lanes::Lane;
use super::mark::Mark;
use super::trial::Kind;
use super::{Driver, Job};
use crate::engine::{Copied, CopyError, Marks, Sink, Source, SourceFile, Task};
use crate::tier::{CopyFile, Sum, TierDir};
use monarch_abi::word::Refusal;
use monarch_policies::{Decision, RequestSource};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause after a lack of space that may pass.
const RETRY: Duration = Duration::from_secs(5);

/// See the module. Dropped, it frees the place of its job.
pub(super) struct Copying<'a> {
    driver: &'a Driver,
    file: File,
    mark: Mark,
    /// Tiers that were tried, and the one being written.
    tried: Vec<bool>,
    at: usize,
    copy: Option<CopyFile<'a>>,
    /// Whether a copy took more blocks than there was room for.
    too_large: bool,
    _job: Job<'a>,
}

impl<'a> Copying<'a> {
    /// A copy in the first tier that takes it; `None` when none does, which is then the file's end.
    pub(super) fn new(driver: &'a Driver, file: File, mark: Mark, job: Job<'a>) -> Option<Self> {
        let tried = vec![false; driver.tiers.len()];
        let mut new = Self { driver, file, mark, tried, at: 0, copy: None, too_large: false, _job: job };
        match new.place() {
            Some(end) => {
                new.conclude(end);
                None
            }
            None => Some(new),
        }
    }

    /// It was given out to a lane, which it might not have been: what somebody waits for always goes to copiers.
    pub(super) fn given(&self, lane: Lane) {
        if self.file.source == RequestSource::Prefetch {
            self.driver.given(&self.file.live, Kind::Files, lane, self.file.want.size);
        }
    }

    /// Finds room in a tier that was not tried yet; how the fetch ended when there is none.
    fn place(&mut self) -> Option<Fetched> {
        let driver = self.driver;
        loop {
            let Decision::Admit(at) = driver.decide(&self.file, &self.tried) else {
                if self.too_large {
                    return Some(Fetched::Failed(self.file.start.elapsed()));
                }
                if let Some(more) = driver.seldom.full.now() {
                    let file = String::from_utf8_lossy(&self.file.rel);
                    tracing::info!(%file, size = self.file.want.size, more, "no tier has room for it");
                }
                let transient = self.tried.iter().any(|&t| t) || driver.tiers.iter().any(TierDir::resting);
                let why = if transient { Refusal::TierFailed } else { Refusal::NoRoom };
                return Some(Fetched::Refused(why, transient.then_some(RETRY)));
            };
            let Some(tier) = driver.tiers.get(at) else { return Some(Fetched::Refused(Refusal::NoRoom, None)) };
            self.tried[at] = true;
            match driver.room(at, tier, self.file.want.size) {
                Ok(Some(copy)) => {
                    (self.at, self.copy) = (at, Some(copy));
                    return None;
                }
                Ok(None) => {}
                Err(e) => driver.tier_failed(tier, &e),
            }
        }
    }

    /// Publishes what was copied; `false` when it took more blocks than there was room for.
    fn publish(&mut self, copied: Copied) -> Result<bool, CopyError> {
        let f = &self.file;
        if copied.identity != Some(f.want) {
            return Err(CopyError::Changed);
        }
        let Some(copy) = self.copy.take() else { return Ok(false) };
        let sum = Sum::whole(copied.checksum);
        f.note_sum(sum);
        let done = copy.publish(f.name, f.stamp(), sum).map_err(CopyError::Sink)?;
        if done.is_some() {
            self.driver.gate.worked();
            self.driver.figures.bytes.fetch_add(copied.bytes, Ordering::Relaxed);
            self.driver.manners.was_read(f.key, f.entry.record);
        }
        Ok(done.is_some())
    }

    /// What the end of a copy means for the file; `None` when it is to be copied into another tier.
    fn settle(&mut self, end: Result<Copied, CopyError>) -> Option<Fetched> {
        let end = end.and_then(|copied| self.publish(copied));
        self.copy = None;
        match end {
            Ok(true) => return Some(Fetched::Resident(self.at)),
            Ok(false) => self.too_large = true,
            Err(CopyError::Sink(e)) => {
                if let Some(tier) = self.driver.tiers.get(self.at) {
                    self.driver.tier_failed(tier, &e);
                }
            }
            Err(e) => return Some(self.driver.failed(&e, &self.file)),
        }
        self.place()
    }

    fn conclude(&self, end: Fetched) {
        self.driver.conclude(&self.file, end);
    }
}

impl Task for Copying<'_> {
    fn source(&self) -> &dyn Source {
        &*self.file.live.source
    }
    fn rel(&self) -> &[u8] {
        &self.file.rel
    }
    fn range(&self) -> Range<u64> {
        0..self.file.want.size
    }
    fn sink(&self) -> &dyn Sink {
        &self.copy
    }
    fn marks(&self) -> &dyn Marks {
        &self.mark
    }
    fn opened(&self, _file: &Arc<dyn SourceFile>, took: Duration) {
        self.driver.note_open(&self.file, took);
    }
    fn done(&mut self, end: Result<Copied, CopyError>) -> bool {
        let end = self.settle(end);
        if let Some(end) = end {
            self.conclude(end);
        }
        end.is_none()
    }
}
