//! [`Promotions`]: copies that readers opened in a tier that is not the fastest.

use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Copies that may wait to be promoted; one that does not fit is marked again by its next open.
const WAITING: usize = 1 << 16;

/// Keys of copies to promote, in the order in which they were opened.
#[derive(Debug, Default)]
pub(crate) struct Promotions(Mutex<VecDeque<u64>>);

impl Promotions {
    /// Notes a copy that was opened and may be promoted.
    pub(crate) fn mark_hot(&self, key: u64) {
        let mut hot = lock(&self.0);
        if hot.len() < WAITING {
            hot.push_back(key);
        }
    }

    /// Whether no copy waits to be promoted.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Takes the first `most` copies.
    pub(crate) fn take(&self, most: usize) -> Vec<u64> {
        let mut hot = lock(&self.0);
        let n = hot.len().min(most);
        hot.drain(..n).collect()
    }
}
