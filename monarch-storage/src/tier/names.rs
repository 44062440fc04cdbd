//! A map by the names of copies, for a million of them. Names are hashes already. Copies are listed
//! directory by directory, by the first byte of their names: the map has a part for each, which
//! fits into a processor's cache.

use monarch_abi::hash::CopyName;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A name is its own hash.
#[derive(Clone, Copy, Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = self.0.rotate_left(8) ^ u64::from(*b));
    }
    #[expect(clippy::cast_possible_truncation, reason = "the lower half of a hash")]
    fn write_u128(&mut self, n: u128) {
        self.0 = n as u64;
    }
}

type Part<T> = HashMap<CopyName, T, BuildHasherDefault<AsItIs>>;

/// A map by the names of copies.
#[derive(Clone, Debug)]
pub struct ByName<T> {
    parts: Vec<Part<T>>,
    len: usize,
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self { parts: (0..256).map(|_| Part::default()).collect(), len: 0 }
    }
}

const fn part(name: CopyName) -> usize {
    (name.0 >> 120) as usize
}

impl<T> ByName<T> {
    /// The number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a name.
    #[must_use]
    pub fn get(&self, name: CopyName) -> Option<&T> {
        self.parts[part(name)].get(&name)
    }

    /// The value of a name, to be changed.
    pub fn get_mut(&mut self, name: CopyName) -> Option<&mut T> {
        self.parts[part(name)].get_mut(&name)
    }

    /// Adds a value, or replaces that of the name.
    pub fn insert(&mut self, name: CopyName, value: T) {
        self.len += usize::from(self.parts[part(name)].insert(name, value).is_none());
    }

    /// Takes the value of a name out.
    pub fn remove(&mut self, name: CopyName) -> Option<T> {
        let here = &mut self.parts[part(name)];
        let found = here.remove(&name);
        if here.is_empty() {
            // Mostly all entries are taken out: the memory is given back.
            *here = Part::default();
        }
        self.len -= usize::from(found.is_some());
        found
    }

    /// Takes any entry out.
    pub fn pop(&mut self) -> Option<(CopyName, T)> {
        let name = self.parts.iter().find_map(|p| p.keys().next().copied())?;
        Some((name, self.remove(name)?))
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (CopyName, &T)> {
        self.parts.iter().flatten().map(|(name, value)| (*name, value))
    }

    /// Keeps the entries for which `wanted` returns `true`.
    pub fn retain_named(&mut self, mut wanted: impl FnMut(CopyName, &mut T) -> bool) {
        self.parts.iter_mut().for_each(|p| p.retain(|name, value| wanted(*name, value)));
        self.len = self.parts.iter().map(HashMap::len).sum();
    }

    /// Keeps the entries for whose values `wanted` returns `true`.
    pub fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        self.parts.iter_mut().for_each(|p| p.retain(|_, value| wanted(value)));
        self.len = self.parts.iter().map(HashMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn as_a_plain_map(ops in proptest::collection::vec((0u8..4, 0u128..40, any::<u32>()), 1..200)) {
            let (mut ours, mut plain) = (ByName::default(), BTreeMap::new());
            for (op, n, v) in ops {
                let name = CopyName((n << 120) | (n * 7));
                match op {
                    0 | 1 => {
                        ours.insert(name, v);
                        plain.insert(name, v);
                    }
                    2 => prop_assert_eq!(ours.remove(name), plain.remove(&name)),
                    _ => {
                        let popped = ours.pop();
                        prop_assert_eq!(popped.is_some(), !plain.is_empty());
                        if let Some((name, v)) = popped {
                            prop_assert_eq!(plain.remove(&name), Some(v));
                        }
                    }
                }
                prop_assert_eq!((ours.len(), ours.is_empty()), (plain.len(), plain.is_empty()));
                prop_assert_eq!(ours.get(name), plain.get(&name));
                prop_assert_eq!(ours.iter().map(|(n, v)| (n, *v)).collect::<BTreeMap<_, _>>(), plain.clone());
            }
            ours.retain(|v| v % 2 == 0);
            plain.retain(|_, v| *v % 2 == 0);
            prop_assert_eq!(ours.len(), plain.len());
        }
    }
}
