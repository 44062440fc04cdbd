//! What a file or variable with a user's secret holds: the secret, and behind a rotation the
//! former one.
//!
//! The secret comes first, and may be anything, several lines too. A line that begins with
//! `former: ` holds the secret that the user had before, as text; `former-hex: ` holds it as
//! hexadecimal digits, where it is no text of one line. Of several such lines the last one counts:
//! that of the secret by which copies were named first.

use super::error::SecretError;
use super::{Secret, file};
use std::io;

const FORMER: &[u8] = b"former: ";
const FORMER_HEX: &[u8] = b"former-hex: ";

/// A secret, and the one that names copies.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub(super) current: Secret,
    /// The former secret; `None`: there was no rotation.
    pub(super) former: Option<Secret>,
}

impl Lines {
    /// Takes apart what `place` holds.
    ///
    /// # Errors
    /// A secret is too short, or its digits are none.
    pub(super) fn parse(bytes: &[u8], place: &str) -> Result<Self, SecretError> {
        let mut former = None;
        let mut end = bytes.len();
        let mut at = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = trimmed(line);
            let secret = match (text.strip_prefix(FORMER), text.strip_prefix(FORMER_HEX)) {
                (Some(secret), _) => Some(secret.to_vec()),
                (None, Some(digits)) => Some(from_hex(digits, place)?),
                (None, None) => None,
            };
            if let Some(secret) = secret {
                end = end.min(at);
                former = Some(Secret::new(&secret, &format!("`former` in {place}"))?);
            }
            at += line.len();
        }
        let first = bytes.get(..end).unwrap_or_default();
        let current = Secret::new(if former.is_some() { trimmed(first) } else { first }, place)?;
        Ok(Self { current, former })
    }

    /// The secret from which the names of copies and the owners of files are derived.
    pub(super) fn naming(&self) -> &Secret {
        self.former.as_ref().unwrap_or(&self.current)
    }

    /// Returns a new secret, with the line of the one that names copies.
    ///
    /// # Errors
    /// There are no random bytes.
    pub(super) fn rotated(&self) -> io::Result<Vec<u8>> {
        let naming = &self.naming().0;
        let mut new = file::random_line()?.into_bytes();
        if naming.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            new.extend_from_slice(FORMER);
            new.extend_from_slice(naming);
        } else {
            new.extend_from_slice(FORMER_HEX);
            new.extend(data_encoding::HEXLOWER.encode(naming).into_bytes());
        }
        new.push(b'\n');
        Ok(new)
    }
}

/// Without the end of the line that an editor leaves.
fn trimmed(mut bytes: &[u8]) -> &[u8] {
    while let [rest @ .., b'\n' | b'\r'] = bytes {
        bytes = rest;
    }
    bytes
}

fn from_hex(digits: &[u8], place: &str) -> Result<Vec<u8>, SecretError> {
    data_encoding::HEXLOWER_PERMISSIVE.decode(digits).map_err(|_| SecretError::NoHex { place: place.to_owned() })
}
