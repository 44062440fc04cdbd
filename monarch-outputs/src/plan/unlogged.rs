//! What an agent may have put at each name without having logged it: it was killed first, or the
//! step has failed.

use super::claims::ClaimKey;
use super::place::Guard;
use std::collections::{BTreeMap, HashMap};

/// The files and links that have had each name and may be there, by claim.
#[derive(Debug, Default)]
pub(super) struct Unlogged(HashMap<Vec<u8>, BTreeMap<ClaimKey, Guard>>);

impl Unlogged {
    /// A file or a link got a name.
    pub(super) fn add(&mut self, name: &[u8], key: ClaimKey, thing: Guard) {
        self.0.entry(name.to_vec()).or_default().insert(key, thing);
    }

    /// What may be there.
    pub(super) fn of(&self, name: &[u8]) -> Vec<Guard> {
        self.0.get(name).map(|things| things.values().cloned().collect()).unwrap_or_default()
    }

    /// The turn of a claim was logged. What was at the name before is gone. `is_known`: the plan
    /// expects what the step has put there, so that it need not be remembered here.
    pub(super) fn logged(&mut self, name: &[u8], key: ClaimKey, is_known: bool) {
        let Some(things) = self.0.get_mut(name) else { return };
        things.retain(|of, _| *of > key || *of == key && !is_known);
        if things.is_empty() {
            self.0.remove(name);
        }
    }

    /// One thing is not at a name.
    pub(super) fn forget_thing(&mut self, name: &[u8], thing: &Guard) {
        if let Some(things) = self.0.get_mut(name) {
            things.retain(|_, of| of != thing);
        }
    }

    /// Forgets what may be at a name.
    pub(super) fn forget(&mut self, name: &[u8]) {
        self.0.remove(name);
    }

    /// All names, with each thing that may be there.
    pub(super) fn all(&self) -> impl Iterator<Item = (&[u8], ClaimKey, &Guard)> {
        self.0.iter().flat_map(|(name, things)| things.iter().map(|(key, thing)| (name.as_slice(), *key, thing)))
    }

    /// Forgets what may be at names that do not matter.
    pub(super) fn retain(&mut self, matters: impl Fn(&[u8]) -> bool) {
        self.0.retain(|name, _| matters(name));
    }

    /// Directories were renamed or exchanged, on the PFS too. `moved`: where a path lies now, if it
    /// lies elsewhere.
    pub(super) fn move_names(&mut self, moved: impl Fn(&[u8]) -> Option<Vec<u8>>) {
        let there: Vec<_> = self.0.keys().filter_map(|old| Some((old.clone(), moved(old)?))).collect();
        let taken: Vec<_> = there.into_iter().map(|(old, new)| (new, self.0.remove(&old))).collect();
        for (new, things) in taken {
            self.0.entry(new).or_default().extend(things.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::{exchanged_path, moved_path};
    use super::*;

    fn link(text: &[u8]) -> Guard {
        Guard::Symlink(text.to_vec())
    }

    fn three() -> Unlogged {
        let mut unlogged = Unlogged::default();
        for (at, name) in [b"dir/a".as_slice(), b"dir2/a", b"dir"].into_iter().enumerate() {
            unlogged.add(name, (at as u64, 0), link(name));
        }
        unlogged
    }

    #[test]
    fn what_lies_below_a_renamed_directory_moves_with_it() {
        let mut unlogged = three();
        unlogged.add(b"new/a", (7, 0), link(b"was there"));
        unlogged.move_names(|path| moved_path(path, b"dir", b"new"));
        assert_eq!(unlogged.of(b"new/a"), [link(b"dir/a"), link(b"was there")]);
        assert_eq!((unlogged.of(b"new"), unlogged.of(b"dir2/a")), (vec![link(b"dir")], vec![link(b"dir2/a")]));
        assert!(unlogged.of(b"dir/a").is_empty() && unlogged.of(b"dir").is_empty());
    }

    #[test]
    fn what_lies_below_exchanged_directories_changes_places() {
        let mut unlogged = three();
        unlogged.move_names(|path| exchanged_path(path, b"dir", b"dir2"));
        assert_eq!((unlogged.of(b"dir2/a"), unlogged.of(b"dir/a")), (vec![link(b"dir/a")], vec![link(b"dir2/a")]));
        assert_eq!((unlogged.of(b"dir2"), unlogged.of(b"dir")), (vec![link(b"dir")], Vec::new()));
    }

    #[test]
    fn a_logged_step_leaves_what_it_put_there_only_if_that_is_not_known() {
        for is_known in [false, true] {
            let mut unlogged = Unlogged::default();
            for at in 1..4 {
                unlogged.add(b"a", (at, 0), link(&[at as u8]));
            }
            unlogged.logged(b"a", (2, 0), is_known);
            let rest = if is_known { vec![link(&[3])] } else { vec![link(&[2]), link(&[3])] };
            assert_eq!(unlogged.of(b"a"), rest);
            unlogged.logged(b"a", (3, 0), true);
            assert_eq!(unlogged.all().count(), 0);
        }
    }
}
