//! What an earlier agent may have put at each name without having logged it: it was killed first.

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

    /// What the PFS has of a name after the turn of a claim is known.
    pub(super) fn known_after(&mut self, name: &[u8], key: ClaimKey) {
        let Some(things) = self.0.get_mut(name) else { return };
        things.retain(|of, _| *of > key);
        if things.is_empty() {
            self.0.remove(name);
        }
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
