//! Why there is no secret.

use std::path::PathBuf;

pub use monarch_config::{JOB_SECRET_VARIABLE as JOB_VARIABLE, SECRET_VARIABLE as VARIABLE};

/// Variables that hold secrets: programs that are not Monarch's do not get them.
pub const VARIABLES: [&str; 2] = [VARIABLE, JOB_VARIABLE];

/// Bytes that a secret has at least.
pub const LEAST: usize = 16;

/// Whose secret it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The user's.
    User,
    /// The job's.
    Job,
}

impl Holder {
    /// Returns the setting with the file.
    const fn setting(self) -> &'static str {
        match self {
            Self::User => "cluster.secret_file",
            Self::Job => "cluster.job_secret_file",
        }
    }

    /// Returns the variable that goes before the file.
    pub(super) const fn variable(self) -> &'static str {
        match self {
            Self::User => VARIABLE,
            Self::Job => JOB_VARIABLE,
        }
    }
}

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Too little to be hard to guess.
    #[error(
        "{place} holds a secret of {length} bytes, and at least {LEAST} are needed: `openssl rand -hex 32` makes a good one"
    )]
    Short {
        /// The variable or the file.
        place: String,
        /// Bytes that it holds.
        length: usize,
    },
    /// There is no home directory for the default file.
    #[error(
        "no place for the secret of the cluster: neither XDG_CONFIG_HOME nor HOME is an absolute path; set cluster.secret_file or {VARIABLE}"
    )]
    NoPlace,
    /// Digits that are none.
    #[error(
        "{place} has a line `former-hex` with something else than hexadecimal digits: write the former secret behind `former: `"
    )]
    NoHex {
        /// The variable or the file.
        place: String,
    },
    /// There is nothing to rotate.
    #[error("there is no secret at {} yet: the first job with several nodes makes it", .0.display())]
    NoneYet(PathBuf),
    /// A secret that only the user can change.
    #[error(
        "the secret is in {VARIABLE}, which no command can change: set it to a new one, with a second line `former: ` and the secret of now"
    )]
    InVariable,
    /// The batch system has given the job no number.
    #[error(
        "cluster.job_secret is derived, and the environment has no number of the job: none of {variables}; set MONARCH_JOB_ID to the same text on all nodes, another one for each job, or set cluster.job_secret to none or file"
    )]
    NoJob {
        /// The variables that were looked for.
        variables: String,
    },
    /// The configuration has no file for the job's secret.
    #[error("cluster.job_secret is file, and cluster.job_secret_file names none")]
    NoJobFile,
    /// A file that others may have read or written.
    #[error("{} {why}, so the secret in it is none: {remedy}", path.display())]
    Unsafe {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// It cannot be read or made.
    #[error(
        "cannot {doing} the secret {}: {error}; set {} to a file that all nodes share, or {}",
        path.display(), holder.setting(), holder.variable()
    )]
    Io {
        /// Read, make, or replace.
        doing: &'static str,
        /// Whose secret it is.
        holder: Holder,
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
}
