//! The secret of a user: what is derived from it outlives a job.
//!
//! It is the variable `MONARCH_CLUSTER_SECRET`, or a file that only its owner can read, normally in
//! the home directory that all nodes share; the first node that finds none makes it.
//!
//! Copies of a node are those of the files that it owns, and owners depend on the seed. So a secret
//! with a seed of its own would find the copies of the former secret on the wrong nodes, whatever
//! they are called. Therefore a rotation keeps the seed: that of the secret which came first stays,
//! and everything else is derived from the new one.

use std::path::{Path, PathBuf};

use super::error::{Holder, SecretError, VARIABLE};
use super::file::SecretFile;
use super::lines::Lines;
use super::{Secret, first};

/// The secret of a user, the same for all jobs that share copies on disk.
#[derive(Clone, Debug)]
pub struct UserSecret(Lines);

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
        let path = place(file, env)?;
        let secret = SecretFile { path: &path, holder: Holder::User };
        if file.is_none() {
            secret.make_directory()?;
        }
        Self::new(&secret.load()?, &path.display().to_string())
    }

    /// Replaces the secret in `file`, or else in `$XDG_CONFIG_HOME/monarch/cluster-secret`, by a
    /// new one, and keeps the seed: jobs that start later have other keys and find the same copies.
    /// A reader sees the former file or the new one. Returns the path of the file.
    ///
    /// # Errors
    /// The secret is in the environment, there is none yet, it is not sound, or the file cannot be
    /// replaced.
    pub fn rotate(file: Option<&Path>, env: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf, SecretError> {
        if env(VARIABLE).is_some_and(|text| !text.is_empty()) {
            return Err(SecretError::InVariable);
        }
        let path = place(file, env)?;
        let secret = SecretFile { path: &path, holder: Holder::User };
        let former = secret.read()?.ok_or_else(|| SecretError::NoneYet(path.clone()))?;
        let former = Self::new(&former, &path.display().to_string())?;
        let new = former.0.rotated().map_err(|error| secret.failed("replace", error))?;
        secret.replace(&new)?;
        Ok(path)
    }

    /// Takes a secret from `place`, which the message names. Behind it, in lines that begin with
    /// `former: `, it may have those that it had before.
    ///
    /// # Errors
    /// One has fewer than [`LEAST`](super::LEAST) bytes, or digits that are none.
    pub fn new(bytes: &[u8], place: &str) -> Result<Self, SecretError> {
        Lines::parse(bytes, place).map(Self)
    }

    /// Returns the seed of path hashes. It decides which node owns which file and what copies are
    /// called: the same on all nodes and for all jobs of the user, before and after a rotation.
    #[must_use]
    pub fn seed(&self) -> u64 {
        first(&self.0.naming().derive("seed-of-ownership"))
    }

    /// The secret from which keys are derived.
    pub(super) const fn current(&self) -> &Secret {
        &self.0.current
    }
}

/// The path of the file.
fn place(file: Option<&Path>, env: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf, SecretError> {
    file.map(Path::to_owned).or_else(|| default_file(env)).ok_or(SecretError::NoPlace)
}

/// `$XDG_CONFIG_HOME/monarch/cluster-secret`, or below `~/.config`.
pub(super) fn default_file(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let directory = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")))?;
    Some(config.join("monarch/cluster-secret"))
}
