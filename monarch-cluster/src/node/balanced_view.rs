//! The nodes as the membership sees them, with the owners by exception.

use crate::directory::{Exceptions, Members};
use std::sync::{Arc, PoisonError, RwLock};

/// Adds exceptions to each view of the membership, once for each: while both stay, readers get the
/// same view. Without exceptions that is the view of the membership itself.
#[derive(Default)]
pub(super) struct BalancedView(RwLock<Option<Balanced>>);

struct Balanced {
    exceptions: Arc<Exceptions>,
    /// The view of the membership, and the same with exceptions.
    plain: Arc<Members>,
    view: Arc<Members>,
}

impl Balanced {
    fn new(plain: Arc<Members>, exceptions: Arc<Exceptions>) -> Self {
        let view = Arc::new(plain.with_exceptions(exceptions.clone()));
        Self { exceptions, plain, view }
    }
}

impl BalancedView {
    /// The view with exceptions; `plain` returns that of the membership. Exceptions for owners that
    /// have changed since count until [`BalancedView::set`] replaces them: most of them stay.
    pub(super) fn get(&self, plain: impl Fn() -> Arc<Members>) -> Arc<Members> {
        let now = plain();
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            None => return now,
            Some(b) if Arc::ptr_eq(&b.plain, &now) => return b.view.clone(),
            Some(_) => {}
        }
        let mut balanced = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that a thread that was held up does not bring an earlier view back.
        let now = plain();
        let Some(b) = &mut *balanced else { return now };
        if !Arc::ptr_eq(&b.plain, &now) {
            *b = Balanced::new(now, b.exceptions.clone());
        }
        b.view.clone()
    }

    /// Replaces the exceptions.
    pub(super) fn set(&self, exceptions: Exceptions, plain: impl Fn() -> Arc<Members>) {
        let mut balanced = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if balanced.as_ref().map_or(exceptions.is_empty(), |b| *b.exceptions == exceptions) {
            return;
        }
        *balanced = (!exceptions.is_empty()).then(|| Balanced::new(plain(), Arc::new(exceptions)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::NodeState;

    #[test]
    fn the_view_stays_the_same_until_the_nodes_or_the_exceptions_change() {
        let (balanced, mut members) = (BalancedView::default(), Members::new("a"));
        let b = members.add("b", NodeState::Up).unwrap();
        let one = Arc::new(members.clone());
        let fp = (0..).find(|fp| one.owner(*fp) == 0).unwrap();
        let get = |plain: &Arc<Members>| balanced.get(|| plain.clone());
        let set = |of: &[(u64, u16)]| balanced.set(of.iter().copied().collect(), || one.clone());
        assert!(Arc::ptr_eq(&get(&one), &one), "no exceptions: the plain view");
        set(&[(fp, b)]);
        let first = get(&one);
        assert!(first.owner(fp) == b && Arc::ptr_eq(&first, &get(&one)));
        set(&[(fp, b)]);
        assert!(Arc::ptr_eq(&first, &get(&one)), "the same exceptions are no change");
        members.set(b, NodeState::Gone);
        let two = Arc::new(members);
        assert!(get(&two).owner(fp) == 0 && Arc::ptr_eq(&get(&two), &get(&two)));
        assert_eq!(get(&one).owner(fp), b);
        set(&[]);
        assert!(Arc::ptr_eq(&get(&two), &two));
    }
}
