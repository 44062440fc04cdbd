//! The secret of a user: what is derived from it outlives a job.
//!
//! It is the variable `MONARCH_CLUSTER_SECRET`, or a file that only its owner can read, normally in
//! the home directory that all nodes share; the first node that finds none makes it.

use std::path::{Path, PathBuf};

use super::error::{Holder, SecretError, VARIABLE};
use super::file::SecretFile;
use super::{Secret, first};

/// The secret of a user, the same for all jobs that share copies on disk.
#[derive(Clone, Debug)]
pub struct UserSecret(pub(super) Secret);

impl UserSecret {
    /// Loads the secret from the environment, or else from `file`, or else from
    /// `$XDG_CONFIG_HOME/monarch/cluster-secret`; makes a file that is missing.
    ///
    /// # Errors
    /// It is too short, another user could have read it, or the file cannot be read or made.
    pub fn load(file: Option<&Path>, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, SecretError> {
        if let Some(text) = env(VARIABLE).filter(|text| !text.is_empty()) {
            return Self::new(text.trim_end_matches('\n').as_bytes(), VARIABLE);
        }
        let holder = Holder::User;
        let bytes = match file {
            Some(path) => SecretFile { path, holder }.load()?,
            None => {
                let path = default_file(env).ok_or(SecretError::NoPlace)?;
                let file = SecretFile { path: &path, holder };
                file.make_directory()?;
                file.load()?
            }
        };
        Ok(Self(Secret(bytes)))
    }

    /// Takes a secret from `place`, which the message names.
    ///
    /// # Errors
    /// It has fewer than [`LEAST`](super::LEAST) bytes.
    pub fn new(bytes: &[u8], place: &str) -> Result<Self, SecretError> {
        Secret::new(bytes, place).map(Self)
    }

    /// Returns the seed of path hashes. It decides which node owns which file and what copies are
    /// called: the same on all nodes and for all jobs of the user, different for each secret.
    #[must_use]
    pub fn seed(&self) -> u64 {
        first(&self.0.derive("seed-of-ownership"))
    }
}

/// `$XDG_CONFIG_HOME/monarch/cluster-secret`, or below `~/.config`.
pub(super) fn default_file(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let directory = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")))?;
    Some(config.join("monarch/cluster-secret"))
}
