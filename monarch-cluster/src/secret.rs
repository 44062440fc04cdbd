//! The job's secret, and what is derived from it.
//!
//! It is the variable `MONARCH_CLUSTER_SECRET`, or a file that only its owner can read, normally in
//! the home directory that all nodes share; the first node that finds none makes it (module
//! `file`). The secret itself is never used: each purpose has a key of its own, HMAC-SHA256 of the
//! purpose (RFC 2104), so that a key that leaks reveals nothing about the others.
//!
//! A user who can read this user's files can read the data set anyway, so access to a file proves
//! as much as the data is worth; no service has to run and nothing has to be set up.

mod error;
mod file;
#[cfg(test)]
mod tests;

pub use error::{LEAST, SecretError, VARIABLE};
use std::fmt;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Ports that are derived: below those that the kernel gives to outgoing connections (from 32768 on
/// Linux).
const PORTS: std::ops::RangeInclusive<u16> = 20_000..=29_999;

/// Bytes that the nodes of a job share and no other process knows.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// The secret from the environment, or else from `file`, or else from
    /// `$XDG_CONFIG_HOME/monarch/cluster-secret`; a file that is missing is made.
    ///
    /// # Errors
    /// It is too short, another user could have read it, or the file cannot be read or made.
    pub fn load(file: Option<&Path>, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, SecretError> {
        if let Some(text) = env(VARIABLE).filter(|text| !text.is_empty()) {
            return Self::new(text.trim_end_matches('\n').as_bytes(), VARIABLE);
        }
        let bytes = match file {
            Some(path) => file::load(path)?,
            None => {
                let path = default_file(env).ok_or(SecretError::NoPlace)?;
                file::make_directory(&path)?;
                file::load(&path)?
            }
        };
        Ok(Self(bytes))
    }

    /// A secret from elsewhere; `place` is where, for the message.
    ///
    /// # Errors
    /// It has fewer than [`LEAST`] bytes.
    pub fn new(bytes: &[u8], place: &str) -> Result<Self, SecretError> {
        if bytes.len() < LEAST {
            return Err(SecretError::Short { place: place.to_owned(), length: bytes.len() });
        }
        Ok(Self(bytes.to_vec()))
    }

    /// A key for one purpose.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        self.code(&["monarch-cluster", purpose])
    }

    /// Seed that decides which node owns which file: the same on all nodes, different for each
    /// secret.
    #[must_use]
    pub fn seed(&self) -> u64 {
        first(&self.derive("seed-of-ownership"))
    }

    /// The port of a job with these members, so that jobs of one user on the same nodes seldom
    /// meet: 20000 to 29999. The order does not matter. The members are those that every node
    /// knows: [`Cluster::agreed`](monarch_config::Cluster::agreed).
    #[must_use]
    pub fn port(&self, members: &[String]) -> u16 {
        let mut parts: Vec<&str> = members.iter().map(String::as_str).collect();
        parts.sort_unstable();
        parts.insert(0, "monarch-cluster-port");
        let many = u64::from(PORTS.end() - PORTS.start()) + 1;
        PORTS.start() + u16::try_from(first(&self.code(&parts)) % many).unwrap_or_default()
    }

    /// HMAC-SHA256 of the parts, each behind its length: no two lists of parts give the same bytes.
    fn code(&self, parts: &[&str]) -> [u8; 32] {
        // A key of any length is right for HMAC; should that change, a key of zeros still keeps
        // nodes apart by what they say.
        let mut code = Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| Hmac::new(&Default::default()));
        for part in parts {
            code.update(&(part.len() as u64).to_le_bytes());
            code.update(part.as_bytes());
        }
        code.finalize().into_bytes().into()
    }
}

fn first(code: &[u8; 32]) -> u64 {
    code.iter().take(8).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// `$XDG_CONFIG_HOME/monarch/cluster-secret`, or below `~/.config`.
fn default_file(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let directory = |name: &str| env(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = directory("XDG_CONFIG_HOME").or_else(|| Some(directory("HOME")?.join(".config")))?;
    Some(config.join("monarch/cluster-secret"))
}
