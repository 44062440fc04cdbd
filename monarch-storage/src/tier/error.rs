//! Why a tier cannot be used.

use std::io;
use std::path::PathBuf;

/// Why a tier cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The directory cannot be made or opened.
    #[error("tier {name} ({path}): cannot {what}: {source}")]
    Io {
        /// Name of the tier.
        name: String,
        /// Its path.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A directory above it is missing.
    #[error("tier {name} ({path}): {missing} does not exist; create it, or correct the path of the tier")]
    NoParent {
        /// Name of the tier.
        name: String,
        /// The configured path.
        path: PathBuf,
        /// The first directory that is missing.
        missing: PathBuf,
    },
    /// Another agent holds it.
    #[error(
        "tier {name} ({path}) is in use by another Monarch agent ({holder}); stop it with `monarch stop` or use another directory"
    )]
    Locked {
        /// Name of the tier.
        name: String,
        /// Its path.
        path: PathBuf,
        /// What the other agent wrote into the lock.
        holder: String,
        /// Whether it is about to end.
        ending: bool,
    },
    /// Other users have all candidate names.
    #[error("tier {name}: {path}/monarch-{uid} and its alternatives belong to another user or are not private")]
    Squatted {
        /// Name of the tier.
        name: String,
        /// The configured path.
        path: PathBuf,
        /// Our user id.
        uid: u32,
    },
    /// Another user can put another directory in its place.
    #[error("tier {name} ({path}): {source}; {}", source.remedy())]
    Exposed {
        /// Name of the tier.
        name: String,
        /// The configured path.
        path: PathBuf,
        /// By which directory.
        source: monarch_config::trusted::Exposed,
    },
    /// Its copies were made by another version.
    #[error(
        "tier {name} ({path}): its copies are of format {found}, this program knows {}; use another directory, or remove them with `monarch stop --purge`",
        super::log_record::VERSION
    )]
    Format {
        /// Name of the tier.
        name: String,
        /// Its path.
        path: PathBuf,
        /// The format that was found.
        found: u8,
    },
    /// The file system cannot hold the stamps that copies carry.
    #[error("tier {name} ({path}): its file system keeps no nanosecond timestamps; use tmpfs, ext4, xfs or btrfs")]
    Timestamps {
        /// Name of the tier.
        name: String,
        /// Its path.
        path: PathBuf,
    },
}
