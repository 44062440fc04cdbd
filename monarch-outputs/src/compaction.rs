//! Begins journal and log again, so that they stay short however long a file is open.
//!
//! * Nothing pending and nothing open: the log says that all records are done with.
//! * Else what is not published is kept as a *checkpoint* of the plan ([`PlanFile`]). A restart
//!   goes on from there.
//! * A step is one rename, that of the log. Before it, the old log and the whole journal count;
//!   after it, the checkpoint and the records behind it. Records before it that are still there are
//!   passed over by their numbers. So an agent may be killed anywhere, and a node may lose power.
//! * The journal is cut under its lock, when no record is behind the checkpoint. Where processes
//!   append all the time, the checkpoint is made under the lock, too, from [`Compaction::CUT_NOW`]
//!   on.

use crate::ahead::with_reserve;
use crate::copy::Failure;
use crate::plan::Dropped;
use crate::plan_file::{self, PlanFile};
use crate::published::{LogBegin, PublishedLog};
use crate::shared_plan::{PlanState, SharedPlan};
use crate::staging::{JournalLock, StagingDir};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// When and how the journal of a staging directory is cut.
#[derive(Debug, Default)]
pub struct Compaction {
    /// Bytes of the last checkpoint.
    plan_bytes: u64,
    /// Bytes of the journal when it could not be cut the last time.
    tried_at: u64,
}

fn fail(what: &'static str) -> impl FnOnce(Errno) -> Failure {
    Failure::of_tier(what, b"")
}

impl Compaction {
    /// Bytes of a journal from which on it is cut; twice the last checkpoint, if that is more.
    pub const CUT: u64 = 2 << 20;
    /// Bytes from which on processes wait for that; four times the last checkpoint, if that is
    /// more.
    pub const CUT_NOW: u64 = 4 << 20;
    /// Bytes that are appended between two tries.
    const TRY_EVERY: u64 = 256 << 10;

    /// Begins journal and log again if nothing is pending or open: whether that was done. No step
    /// is being done.
    ///
    /// # Errors
    /// Trouble of the tier.
    pub fn begin_again(
        &mut self,
        staging: &StagingDir,
        log: &mut PublishedLog,
        plan: &SharedPlan,
    ) -> Result<bool, Failure> {
        let lock = lock(staging)?;
        let mut plan = plan.lock();
        plan.read(staging)?;
        if !plan.planner.is_idle() {
            return Ok(false);
        }
        write_log(staging, log, &begin_of(staging, &plan))?;
        self.cut(staging, &lock, &mut plan)?;
        Ok(true)
    }

    /// Cuts the journal if it is long: whether that was done. No step is being done. `leftovers`:
    /// files that were dropped, and whose part files are still there.
    ///
    /// # Errors
    /// Trouble of the tier.
    pub fn shorten(
        &mut self,
        staging: &StagingDir,
        log: &mut PublishedLog,
        plan: &SharedPlan,
        leftovers: &[Dropped],
    ) -> Result<bool, Failure> {
        let tail = staging.state().tail.load(Ordering::Acquire);
        let is_urgent = tail >= Self::CUT_NOW.max(4 * self.plan_bytes);
        let is_due = tail >= Self::CUT.max(2 * self.plan_bytes) && tail >= self.tried_at + Self::TRY_EVERY;
        if !is_due && !is_urgent {
            return Ok(false);
        }
        self.tried_at = tail;
        self.cut_now(staging, log, plan, (leftovers, is_urgent))
    }

    /// Cuts the journal: whether that was done. With the files that were dropped; `is_urgent`:
    /// processes wait meanwhile.
    ///
    /// # Errors
    /// Trouble of the tier.
    pub fn cut_now(
        &mut self,
        staging: &StagingDir,
        log: &mut PublishedLog,
        plan: &SharedPlan,
        (leftovers, is_urgent): (&[Dropped], bool),
    ) -> Result<bool, Failure> {
        let early = if is_urgent { Some(lock(staging)?) } else { None };
        let (checkpoint, begin) = {
            let mut plan = plan.lock();
            plan.read(staging)?;
            let Some(checkpoint) = plan.planner.checkpoint(leftovers) else { return Ok(false) };
            (checkpoint, begin_of(staging, &plan))
        };
        let file = with_reserve(staging.dir(), || PlanFile::write(staging.dir(), &checkpoint));
        let file = file.map_err(fail("write the plan of the outputs"))?;
        let begin = LogBegin { plan: Some(file), ..begin };
        write_log(staging, log, &begin)?;
        self.plan_bytes = file.bytes;
        let lock = early.map_or_else(|| lock(staging), Ok)?;
        let mut plan = plan.lock();
        plan.read(staging)?;
        if plan.planner.last_seq() != begin.seq {
            return Ok(false);
        }
        self.cut(staging, &lock, &mut plan)?;
        Ok(true)
    }

    /// All records are in the log's begin.
    fn cut(&mut self, staging: &StagingDir, lock: &JournalLock, plan: &mut PlanState) -> Result<(), Failure> {
        staging.truncate_journal(lock).map_err(|_| fail("truncate the journal")(Errno::IO))?;
        plan.journal_was_cut();
        self.tried_at = 0;
        Ok(())
    }
}

fn lock(staging: &StagingDir) -> Result<JournalLock, Failure> {
    staging.lock_journal().map_err(|_| fail("lock the journal")(Errno::IO))
}

/// A log that begins after all records that were read.
fn begin_of(staging: &StagingDir, plan: &PlanState) -> LogBegin {
    LogBegin { seq: plan.planner.last_seq(), next_id: staging.state().next_id.load(Ordering::Acquire), plan: None }
}

fn write_log(staging: &StagingDir, log: &mut PublishedLog, begin: &LogBegin) -> Result<(), Failure> {
    with_reserve(staging.dir(), || log.begin_again(staging.dir(), begin)).map_err(fail("write the agent's log"))?;
    plan_file::remove_others(staging.dir(), begin.plan);
    Ok(())
}
