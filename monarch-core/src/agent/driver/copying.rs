//! A claimed file while the engine copies it: into which tier, and what comes of it.

use super::fetch::{Fetched, File};
use super::lanes::Lane;
use super::mark::Mark;
use super::packs::Below;
use super::peers::ELSEWHERE;
use super::replace::CHOICES;

use super::trial::Kind;
use super::{Driver, Job};
use crate::engine::{Copied, CopyError, Marks, Sink, Source, SourceFile, Task};
use crate::metrics::{CopyOf, Origin};
use crate::tier::{CopyFile, Sum, TierDir};
use monarch_abi::word::Refusal;
use monarch_policies::{Event, FileKey, RequestSource, Why};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Pause after a lack of space that may pass.
const RETRY: Duration = Duration::from_secs(5);

/// How often others make way for a copy: who has theirs open keeps it a while.
const SHARES: u32 = 3;

/// Whether there is room for a copy that is to be packed.
enum ToPack {
    Placed,
    /// It is to be kept as it is.
    AsItIs,
    /// Others take the room.
    Crowded,
}

/// See the module. Dropped, it frees the place of its job.
pub(super) struct Copying<'a> {
    driver: &'a Driver,
    file: File,
    mark: Mark,
    /// Tiers that were tried, and the one being written.
    tried: Vec<bool>,
    at: usize,
    copy: Option<CopyFile<'a>>,
    /// How often others made way.
    shares: u32,
    /// How often a tier was chosen.
    turns: u32,
    /// Whether a tier had no room, or failed, though it should have had.
    in_doubt: bool,
    /// What was copied comes to.
    sum: Sum,
    /// Whether a copy took more blocks than there was room for.
    too_large: bool,
    job: Job<'a>,
}

impl<'a> Copying<'a> {
    /// A copy in the first tier that takes it; `None` when none does, which is then the file's end.
    pub(super) fn new(driver: &'a Driver, file: File, mark: Mark, job: Job<'a>) -> Option<Self> {
        let tried = vec![false; driver.tiers.len()];
        let mut new = Self {
            driver,
            file,
            mark,
            tried,
            at: 0,
            copy: None,
            in_doubt: false,
            shares: 0,
            turns: 0,
            sum: Sum::whole(0),
            too_large: false,
            job,
        };
        match new.place() {
            Some(end) => {
                new.conclude(end);
                None
            }
            None => Some(new),
        }
    }

    /// It was given out to a lane, which it might not have been: what somebody waits for always goes to copiers.
    pub(super) fn given(&mut self, lane: Lane) {
        if self.file.origin() == Origin::Pfs && self.file.source == RequestSource::Prefetch {
            self.job.fetches_ahead = true;
            self.driver.given(&self.file.live, Kind::Files, lane, self.file.want.size);
        }
    }

    /// Finds room in a tier that was not tried yet; how the fetch ended when there is none.
    fn place(&mut self) -> Option<Fetched> {
        let driver = self.driver;
        if let Some((_, below)) = &self.file.packed {
            return if self.too_large { Some(Fetched::Packed(*below)) } else { self.place_above(*below) };
        }
        if self.file.passes() {
            return if self.too_large {
                Some(Fetched::Failed(self.file.start.elapsed()))
            } else {
                self.place_passing()
            };
        }
        loop {
            let at = match driver.place(&self.file, &self.tried) {
                Ok(at) => at,
                Err(Why::Unwanted) if !self.too_large => return Some(Fetched::Refused(Refusal::NoRoom, None)),
                Err(_) => {
                    if self.too_large {
                        return Some(Fetched::Failed(self.file.start.elapsed()));
                    }
                    if self.shares < SHARES && driver.make_fair_room(&self.file) {
                        self.shares += 1;
                        self.tried.fill(false);
                        continue;
                    }
                    // Room was promised to copies that will need less of it.
                    let passes = driver.packs_under_way();
                    if passes && self.file.source == RequestSource::Prefetch {
                        driver.put_off(self.file.key);
                        return Some(Fetched::Stopped);
                    }
                    if let Some(more) = driver.seldom.full.now() {
                        let file = crate::shown::bytes(&self.file.rel);
                        tracing::info!(%file, size = self.file.want.size, more, "no tier has room for it");
                    }
                    let transient =
                        passes || self.in_doubt || self.shares > 0 || driver.tiers.iter().any(TierDir::resting);
                    let why = if transient { Refusal::TierFailed } else { Refusal::NoRoom };
                    // The node that it belongs to may be back by then.
                    let elsewhere = self.file.peer.is_some().then_some(ELSEWHERE);
                    return Some(Fetched::Refused(why, transient.then_some(RETRY).or(elsewhere)));
                }
            };
            let Some(tier) = driver.tiers.get(at) else { return Some(Fetched::Refused(Refusal::NoRoom, None)) };
            self.turns += 1;
            self.tried[at] = true;
            if driver.packs(at) {
                match self.place_to_pack(at) {
                    ToPack::Placed => return None,
                    ToPack::Crowded if self.file.source == RequestSource::Prefetch => {
                        driver.put_off(self.file.key);
                        return Some(Fetched::Stopped);
                    }
                    ToPack::Crowded | ToPack::AsItIs => {}
                }
            }
            match driver.room(at, tier, self.file.want.size) {
                Ok(Some(copy)) => {
                    (self.at, self.copy) = (at, Some(copy));
                    return None;
                }
                // (Of a tier that packs it is known beforehand only about how much a copy needs.)
                Ok(None) => {
                    self.in_doubt |= !driver.packs(at);
                    // Somebody else was quicker, or what made way is still open: others may.
                    self.tried[at] = self.turns > CHOICES;
                }
                Err(e) => {
                    self.in_doubt = true;
                    driver.tier_failed(tier, &e);
                }
            }
        }
    }

    /// Finds room for the copy of a file that another node owns.
    fn place_passing(&mut self) -> Option<Fetched> {
        match self.driver.passing_room(&self.file) {
            Ok((at, copy, share)) => {
                (self.at, self.copy, self.file.share) = (at, Some(copy), Some(Arc::new(share)));
                None
            }
            Err(end) => Some(end),
        }
    }

    /// Finds room for the copy of a file that lies packed in the tier `below`.
    fn place_above(&mut self, below: usize) -> Option<Fetched> {
        let (driver, size) = (self.driver, self.file.want.size);
        let asked = self.file.source == RequestSource::Demand;
        if let Some((at, copy, share)) = driver.in_time(asked, || driver.file_above(below, size, asked)) {
            (self.at, self.copy, self.file.share) = (at, Some(copy), Some(Arc::new(share)));
            return None;
        }
        if !asked {
            driver.rest_decoding(self.file.key);
        } else if let Some(more) = driver.seldom.crowded.now() {
            let file = crate::shown::bytes(&self.file.rel);
            tracing::info!(%file, size, more, "no room to decode it: all of it is in use");
        }
        Some(Fetched::Packed(below))
    }

    /// Finds room for a copy that is to be packed in this tier: here, and in front.
    fn place_to_pack(&mut self, below: usize) -> ToPack {
        let (driver, size) = (self.driver, self.file.want.size);
        let Some(room) = driver.room_to_pack(below, &self.file.rel, size) else { return ToPack::AsItIs };
        let asked = self.file.source == RequestSource::Demand;
        let above = driver.in_time(asked, || driver.file_above(below, size, true));
        let Some((at, copy, share)) = above else { return ToPack::Crowded };
        (self.at, self.copy, self.file.share) = (at, Some(copy), Some(Arc::new(share)));
        self.file.below = Some(Arc::new(Below { tier: below, room: Mutex::new(Some(room)) }));
        ToPack::Placed
    }

    /// Publishes what was copied; `false` when it took more blocks than there was room for.
    fn publish(&mut self, copied: Copied) -> Result<bool, CopyError> {
        let f = &self.file;
        if copied.identity.is_none_or(|id| !f.live.is_same(&id, &f.want)) {
            return Err(CopyError::Changed);
        }
        let Some(copy) = self.copy.take() else { return Ok(false) };
        self.sum = Sum::whole(copied.checksum);
        f.note_sum_with(self.driver, self.sum);
        let passing = f.packed.is_some() || f.below.is_some() || f.passes();
        let done = match passing {
            true => copy.publish_passing(f.name, f.stamp()),
            false => copy.publish(f.name, f.stamp(), self.sum),
        };
        let done = done.map_err(CopyError::Sink)?;
        if done.is_some() {
            self.driver.latencies.copied(f.origin(), CopyOf::File, f.start.elapsed());
        }
        if done.is_some() && f.packed.is_none() {
            self.driver.gate.worked();
            self.driver.figures.bytes.fetch_add(copied.bytes, Ordering::Relaxed);
            let took = f.start.elapsed();
            if f.peer.is_none() {
                self.driver.note_width(copied.bytes, took);
                self.driver.tell(&Event::Fetched { file: FileKey(f.key), size: copied.bytes, took });
                self.driver.manners.was_read(f.key, f.entry.record);
            }
        }
        Ok(done.is_some())
    }

    /// What the end of a copy means for the file; `None` when it is to be copied into another tier.
    fn settle(&mut self, end: Result<Copied, CopyError>) -> Option<Fetched> {
        // (What fails goes out of the ledger at once.)
        self.file.share.iter().for_each(|share| share.hand_over());
        let end = end.and_then(|copied| self.publish(copied));
        if let Ok(true) = end {
            self.file.share.iter().for_each(|share| share.charge());
        }
        self.copy = None;
        match end {
            Ok(true) if self.file.packed.is_some() || self.file.below.is_some() || self.file.passes() => {
                return Some(Fetched::Decoded(self.at));
            }
            Ok(true) => return Some(Fetched::Resident(self.at)),
            Ok(false) => self.too_large = true,
            Err(CopyError::Sink(e)) => {
                self.in_doubt = true;
                if let Some(tier) = self.driver.tiers.get(self.at) {
                    self.driver.tier_failed(tier, &e);
                }
            }
            Err(CopyError::Source(e)) if self.file.packed.is_some() => {
                // From the PFS then.
                if let Some((_, below)) = self.file.packed.take() {
                    self.driver.packed_is_damaged(&self.file, below, &e);
                }
            }
            Err(e) => match self.driver.after_failure(&e, &self.file) {
                Some(end) => return Some(end),
                None => self.tried.fill(false),
            },
        }
        (self.file.below, self.file.share) = (None, None);
        self.place()
    }

    fn conclude(&mut self, end: Fetched) {
        self.driver.conclude(&self.file, end);
        if matches!(end, Fetched::Decoded(_)) && self.file.below.is_some() {
            self.driver.to_be_packed(&self.file, self.sum);
        }
    }
}

impl Task for Copying<'_> {
    fn source(&self) -> &dyn Source {
        &*self.file.live.source
    }
    fn rel(&self) -> &[u8] {
        &self.file.rel
    }
    fn file(&self) -> Option<Arc<dyn SourceFile>> {
        let packed = self.file.packed.as_ref().map(|(file, _)| file.clone() as Arc<dyn SourceFile>);
        packed.or_else(|| self.file.peer.clone().map(|peer| peer as Arc<dyn SourceFile>))
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
