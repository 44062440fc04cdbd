//! What went wrong with which file, for those who ask (`stage`): the last error of each, for a
//! bounded number of files.

use crate::engine::CopyError;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Most files that are remembered.
const MOST: usize = 1000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CopyErrors(Mutex<BTreeMap<u64, String>>);

impl CopyErrors {
    pub(crate) fn note(&self, key: u64, e: &CopyError) {
        let mut files = crate::sync::lock(&self.0);
        if files.len() < MOST || files.contains_key(&key) {
            files.insert(key, e.to_string());
        }
    }

    /// It worked after all.
    pub(crate) fn over(&self, key: u64) {
        crate::sync::lock(&self.0).remove(&key);
    }

    /// What is known about a file.
    pub(crate) fn of(&self, key: u64) -> Option<String> {
        crate::sync::lock(&self.0).get(&key).cloned()
    }
}
