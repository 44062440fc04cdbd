//! The secrets that nodes share, and what is derived from them.
//!
//! | module | what it does |
//! |---|---|
//! | `user` | [`UserSecret`]: what outlives a job, above all the names of copies |
//! | `job` | [`JobSecret`]: keys of connections, gossip and tags, the default port |
//! | `job_number` | what tells a job from all others, without being secret |
//! | `lines` | a user's secret and, after a rotation, the one that names copies |
//! | `file` | the file of a secret, read with care and made by one of many nodes |
//!
//! A secret itself is never used: each purpose has a key of its own, HMAC-SHA256 of the purpose
//! (RFC 2104), so that a key that leaks reveals nothing about the others.
//!
//! A user who can read this user's files can read the data set anyway, so access to a file proves
//! as much as the data is worth; no service has to run and nothing has to be set up.

mod error;
mod file;
mod job;
mod job_number;
mod lines;
#[cfg(test)]
mod tests;
mod user;

pub use error::{Holder, JOB_VARIABLE, LEAST, SecretError, VARIABLE, VARIABLES};
pub use job::{JobSecret, identify};
pub use user::UserSecret;

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes that nodes share and no other process knows.
#[derive(Clone)]
struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Takes a secret from `place`, which the message names.
    ///
    /// # Errors
    /// It has fewer than [`LEAST`] bytes.
    fn new(bytes: &[u8], place: &str) -> Result<Self, SecretError> {
        if bytes.len() < LEAST {
            return Err(SecretError::Short { place: place.to_owned(), length: bytes.len() });
        }
        Ok(Self(bytes.to_vec()))
    }

    /// Derives the key for one purpose.
    fn derive(&self, purpose: &str) -> [u8; 32] {
        self.code(&[b"monarch-cluster", purpose.as_bytes()])
    }

    /// HMAC-SHA256 of the parts, each behind its length: no two lists of parts give the same bytes.
    fn code(&self, parts: &[&[u8]]) -> [u8; 32] {
        // A key of any length is right for HMAC; should that change, a key of zeros still keeps
        // nodes apart by what they say.
        let mut code = Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| Hmac::new(&Default::default()));
        for part in parts {
            code.update(&(part.len() as u64).to_le_bytes());
            code.update(part);
        }
        code.finalize().into_bytes().into()
    }
}

/// The first eight bytes of a code, as a number.
fn first(code: &[u8; 32]) -> u64 {
    code.iter().take(8).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
