//! Files that are older than what the PFS has at their names.

use crate::copy::Failure;
use crate::kept;
use crate::plan::FileStep;
use crate::shared_plan::SharedPlan;
use crate::staging::StagingDir;
use rustix::io::Errno;

/// Keeps the staged file of a step apart, and takes it out of the plan. What is to be reported.
pub(super) fn keep_older(staging: &StagingDir, plan: &SharedPlan, file: &FileStep) -> Result<String, Failure> {
    let fail = || Failure::of_tier("keep the staged file of", &file.target);
    let _lock = staging.lock_journal().map_err(|_| fail()(Errno::IO))?;
    let kept = kept::keep_older(staging, &file.staged, &file.target).map_err(fail())?;
    let mut plan = plan.lock();
    plan.read(staging)?;
    plan.planner.kept_apart(file.staged.id);
    plan.follow();
    Ok(format!("{}: {}", kept.shown(), kept.why()))
}
