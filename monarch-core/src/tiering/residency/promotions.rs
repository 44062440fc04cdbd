//! [`Promotions`]: copies that readers opened in a tier that is not the fastest.

use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::Mutex;

/// Copies that may wait to be promoted; one that does not fit is marked again by its next open.
const MAX_WAITING: usize = 1 << 16;

/// Keys of copies to promote, in the order in which they were opened.
#[derive(Debug, Default)]
pub(crate) struct Promotions(Mutex<VecDeque<u64>>);

impl Promotions {
    /// Notes a copy that was opened and may be promoted.
    pub(crate) fn mark_hot(&self, key: u64) {
        let mut hot = lock(&self.0);
        if hot.len() < MAX_WAITING {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_promoted_in_the_order_of_their_opens_and_few_enough_wait() {
        let promotions = Promotions::default();
        (0..=MAX_WAITING as u64).for_each(|key| promotions.mark_hot(key));
        assert_eq!(promotions.take(2), [0, 1]);
        let rest = promotions.take(usize::MAX);
        assert_eq!((rest.len(), rest.last()), (MAX_WAITING - 2, Some(&(MAX_WAITING as u64 - 1))));
        assert!(promotions.is_empty());
    }
}
