//! [`CopyErrors`]: the last error of each file that could not be copied, for `monarch stage`.
//! Bounded by [`MAX_FILES`].

use crate::engine::CopyError;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Files whose last error is remembered.
const MAX_FILES: usize = 1000;

/// The last error of each file that could not be copied, by the file's key.
#[derive(Debug, Default)]
pub(crate) struct CopyErrors(Mutex<BTreeMap<u64, String>>);

impl CopyErrors {
    /// Notes the error of a file. A further file is left out once the bound is reached.
    pub(crate) fn note(&self, key: u64, e: &CopyError) {
        let mut files = crate::sync::lock(&self.0);
        if files.len() < MAX_FILES || files.contains_key(&key) {
            files.insert(key, e.to_string());
        }
    }

    /// Forgets the error of a file that was copied.
    pub(crate) fn forget(&self, key: u64) {
        crate::sync::lock(&self.0).remove(&key);
    }

    /// The last error of a file.
    pub(crate) fn of(&self, key: u64) -> Option<String> {
        crate::sync::lock(&self.0).get(&key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_bounded_number_of_files_are_remembered() {
        let errors = CopyErrors::default();
        (0..=MAX_FILES as u64).for_each(|key| errors.note(key, &CopyError::Changed));
        assert_eq!(errors.of(MAX_FILES as u64), None);
        errors.note(0, &CopyError::Stopped);
        assert_eq!(errors.of(0), Some(CopyError::Stopped.to_string()), "the last error of a known file");
        errors.forget(0);
        errors.note(MAX_FILES as u64, &CopyError::Changed);
        assert!(errors.of(0).is_none() && errors.of(MAX_FILES as u64).is_some());
    }
}
