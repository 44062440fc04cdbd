//! Errors, and which failures of the PFS are retried or hold an output root.

use monarch_abi::outputs::{DATA, PUBLISHED};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a staging directory or an output root cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OutputsError {
    /// A file or directory cannot be made, opened, read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another user has the staging directory, or others may enter it.
    #[error(
        "the staging directory {} belongs to user {owner}, or is open to others (mode {mode:o}): remove it, or \
         configure another tier for outputs", path.display()
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
    /// The kernel gives no leases there, so that it cannot be known when a file is closed.
    #[error(
        "the file system of {} gives no leases (errno {errno}), by which the agent knows that a file is closed: \
         configure a tier on ext4, XFS or tmpfs for outputs", path.display()
    )]
    NoLeases {
        /// The staging directory.
        path: PathBuf,
        /// What the kernel said.
        errno: i32,
    },
    /// Another agent drains the staging directory.
    #[error("process {pid} drains {}: wait for it, or end it", path.display())]
    InUse {
        /// The staging directory.
        path: PathBuf,
        /// The process that holds it; 0 when it is not known.
        pid: u32,
    },
    /// A file of the staging directory is not what it should be.
    #[error("{} is damaged ({what}): see `monarch recover`, which publishes what can be read", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The log of what was published is damaged before its end.
    #[error(
        "{} is damaged: which staged files are published is not known, so none is published and none is removed; \
         `monarch outputs` names them, and their bytes are in {}: copy what the output root lacks, then remove {}",
        staging.join(PUBLISHED).display(), staging.join(DATA).display(), staging.display()
    )]
    LogDamaged {
        /// The staging directory.
        staging: PathBuf,
    },
    /// A file of the staging directory was written by a newer version.
    #[error(
        "{} was written by a newer version of Monarch: nothing is published or removed; use that version, or a \
         newer one, to publish it", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
    },
    /// The output root is no directory that can be used.
    #[error("the output root {} cannot be used: {source}", path.display())]
    Root {
        /// The root.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// What an earlier job has left of the root in another tier is not published yet.
    #[error(
        "what an earlier job has left of {} in tier {tier} is not published yet: wait for it (`monarch outputs`), or \
         publish it (`monarch recover`)", path.display()
    )]
    OtherTier {
        /// The root.
        path: PathBuf,
        /// The tier.
        tier: String,
    },
    /// What is pending before a snapshot is not published in time.
    #[error(
        "what was written before {} is not published yet, and comes first: see `monarch outputs`", path.display()
    )]
    NotYet {
        /// The file.
        path: PathBuf,
    },
    /// A file that is to be published is not staged.
    #[error("{} is not a staged file that is open or pending", path.display())]
    NotStaged {
        /// The file.
        path: PathBuf,
    },
}

impl OutputsError {
    /// An [`OutputsError::Io`] from what the kernel said.
    pub fn io<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source: source.into() }
    }
}

/// What to do about an error of the PFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Try again later; it may pass.
    Retry,
    /// Creates below the root give the error until it passes.
    Hold,
    /// It does not pass by itself, and calls below the root find it by themselves: a wait for the
    /// drain ends.
    Tell,
}

/// What to do about an error of the PFS.
#[must_use]
pub fn remedy(errno: Errno) -> Remedy {
    match errno {
        Errno::DQUOT | Errno::NOSPC | Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::FBIG => Remedy::Hold,
        Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::XDEV => Remedy::Tell,
        _ => Remedy::Retry,
    }
}

/// What a person can do about an error of the PFS.
#[must_use]
pub fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::DQUOT => "free space in your quota",
        Errno::NOSPC => "free space on the file system",
        Errno::ACCESS | Errno::PERM => "check the permissions of the directory",
        Errno::ROFS => "the file system is mounted read-only",
        Errno::FBIG => "the file system takes no file of this size",
        Errno::NOTDIR | Errno::LOOP | Errno::XDEV => "a directory was replaced by something else: make it again",
        Errno::ISDIR => "a directory has the name of the file: rename it",
        _ => "the agent tries again; see whether the file system answers",
    }
}

/// What to do about an error of a file in the staging directory: the job's calls never get it.
#[must_use]
pub fn remedy_in_tier(errno: Errno) -> Remedy {
    match remedy(errno) {
        Remedy::Hold => Remedy::Tell,
        other => other,
    }
}

/// What a person can do about an error of a file in the staging directory.
#[must_use]
pub fn advice_in_tier(errno: Errno) -> &'static str {
    match errno {
        Errno::DQUOT | Errno::NOSPC => "free space on the tier's disk",
        Errno::ROFS => "the tier's disk is mounted read-only",
        _ => "the agent tries again; see whether the tier's disk works",
    }
}

/// Longest pause between two attempts.
pub const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// First pause after a failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

/// Pauses between attempts: doubled up to [`MAX_BACKOFF`], without end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Notes a failure; the pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        pause.min(MAX_BACKOFF)
    }

    /// Notes a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..12).map(|_| backoff.pause().as_millis() as u64).collect();
        assert_eq!(pauses[..4], [250, 500, 1000, 2000]);
        assert_eq!(pauses[11], 60_000);
        backoff.reset();
        assert_eq!(backoff.pause(), FIRST_BACKOFF);
    }

    #[test]
    fn a_full_quota_holds_the_root_and_a_network_error_does_not() {
        assert_eq!(remedy(Errno::DQUOT), Remedy::Hold);
        assert_eq!(remedy(Errno::NOSPC), Remedy::Hold);
        assert_eq!(remedy(Errno::STALE), Remedy::Retry);
        assert_eq!(remedy(Errno::IO), Remedy::Retry);
        assert_eq!(remedy(Errno::NOENT), Remedy::Tell);
    }
}
