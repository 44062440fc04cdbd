//! Copies that readers opened in a tier that is not the fastest.

use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Copies that are waiting to be moved up; what does not fit is marked again by the next open.
const WAITING: usize = 1 << 16;

/// Copies that were opened where they could be faster.
#[derive(Debug, Default)]
pub(crate) struct Promotions(Mutex<VecDeque<u64>>);

impl Promotions {
    /// Notes a copy that was opened and could move up.
    pub(crate) fn mark_hot(&self, key: u64) {
        let mut hot = lock(&self.0);
        if hot.len() < WAITING {
            hot.push_back(key);
        }
    }

    /// Whether no copy waits to be moved up.
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
