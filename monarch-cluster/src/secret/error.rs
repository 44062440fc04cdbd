//! Why there is no secret.

use std::path::PathBuf;

pub use monarch_config::SECRET_VARIABLE as VARIABLE;

/// Bytes that a secret has at least.
pub const LEAST: usize = 16;

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
    #[error("cannot {doing} the secret {}: {error}; set cluster.secret_file to a file that all nodes share, or {VARIABLE}", path.display())]
    Io {
        /// Read, or make.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
}
