//! [`CopyErrors`]: the last error of each file that could not be copied, for `monarch stage`.
//! Bounded by [`MOST`].

use crate::engine::CopyError;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Files whose last error is remembered.
const MOST: usize = 1000;

/// The last error of each file that could not be copied, by the file's key.
#[derive(Debug, Default)]
pub(crate) struct CopyErrors(Mutex<BTreeMap<u64, String>>);

impl CopyErrors {
    /// Notes the error of a file. A further file is left out once the bound is reached.
    pub(crate) fn note(&self, key: u64, e: &CopyError) {
        let mut files = crate::sync::lock(&self.0);
        if files.len() < MOST || files.contains_key(&key) {
            files.insert(key, e.to_string());
        }
    }

    /// Forgets the error of a file that was copied.
    pub(crate) fn over(&self, key: u64) {
        crate::sync::lock(&self.0).remove(&key);
    }

    /// The last error of a file.
    pub(crate) fn of(&self, key: u64) -> Option<String> {
        crate::sync::lock(&self.0).get(&key).cloned()
    }
}
