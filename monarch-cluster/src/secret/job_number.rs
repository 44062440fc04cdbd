//! What tells a job from all others: the number that its batch system gave it. All of its nodes
//! know it, and it is no secret.

use super::error::SecretError;

/// Variables in which launchers number jobs, each with those that tell jobs of one number apart:
/// elements of an array, other clusters, and jobs after the numbers began again. `MONARCH_JOB_ID`,
/// which a user sets, goes first.
const VARIABLES: [(&str, &[&str]); 9] = [
    ("MONARCH_JOB_ID", &[]),
    ("SLURM_JOB_ID", &["SLURM_CLUSTER_NAME", "SLURM_JOB_START_TIME"]),
    ("PBS_JOBID", &[]),
    ("LSB_JOBID", &["LSB_JOBINDEX"]),
    ("OAR_JOB_ID", &[]),
    ("COBALT_JOBID", &[]),
    ("PJM_JOBID", &[]),
    ("FLUX_JOB_ID", &[]),
    ("JOB_ID", &["SGE_TASK_ID"]),
];

/// Returns the number of the job, with the names of its variables: `SLURM_JOB_ID=7
/// SLURM_CLUSTER_NAME=alps SLURM_JOB_START_TIME=1767225600`.
pub(super) fn of(env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let said = |name: &str| {
        let value = env(name)?.trim().to_owned();
        (!value.is_empty()).then(|| format!("{name}={value}"))
    };
    VARIABLES.iter().find_map(|(number, others)| {
        let parts: Vec<String> =
            [said(number)?].into_iter().chain(others.iter().filter_map(|name| said(name))).collect();
        Some(parts.join(" "))
    })
}

/// Returns the error of a job without a number.
pub(super) fn none() -> SecretError {
    SecretError::NoJob { variables: VARIABLES.map(|(name, _)| name).join(", ") }
}
