//! Finds the number of a member by its key: a hash table with linear probing.
//!
//! Keys are hashes already, and two bytes a slot keep the table in few cache lines: it is asked
//! once for each record of each datagram.

/// A slot without a number.
const EMPTY: u16 = u16::MAX;
/// Slots at first.
const MIN_SLOTS: usize = 16;

/// Numbers by key. The keys are with the members.
pub(super) struct KeyIndex {
    /// At most half of the slots are taken. Their number is a power of two.
    slots: Vec<u16>,
}

impl KeyIndex {
    pub(super) fn new() -> Self {
        Self { slots: vec![EMPTY; MIN_SLOTS] }
    }

    /// Returns the number whose key is `key`.
    pub(super) fn find(&self, key: u64, key_of: impl Fn(u16) -> u64) -> Option<u16> {
        let numbers = self.slots_of(key).map(|slot| self.slots[slot]);
        numbers.take_while(|number| *number != EMPTY).find(|number| key_of(*number) == key)
    }

    /// Adds the next number; those below it are in the index.
    pub(super) fn push(&mut self, number: u16, key_of: impl Fn(u16) -> u64) {
        if 2 * usize::from(number) >= self.slots.len() {
            self.slots = vec![EMPTY; 2 * self.slots.len()];
            (0..number).for_each(|earlier| self.fill(earlier, key_of(earlier)));
        }
        self.fill(number, key_of(number));
    }

    fn fill(&mut self, number: u16, key: u64) {
        if let Some(free) = self.slots_of(key).find(|slot| self.slots[*slot] == EMPTY) {
            self.slots[free] = number;
        }
    }

    /// The slots where a key may be, in order.
    fn slots_of(&self, key: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len() - 1;
        (0..=mask).map(move |n| (key as usize).wrapping_add(n) & mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_keys_also_where_keys_share_a_slot() {
        let key_of = |n: u16| {
            if n.is_multiple_of(2) { u64::from(n) << 32 } else { u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
        };
        let mut index = KeyIndex::new();
        for n in 0..2_000 {
            assert_eq!(index.find(key_of(n), key_of), None);
            index.push(n, key_of);
        }
        assert!((0..2_000).all(|n| index.find(key_of(n), key_of) == Some(n)));
        assert_eq!(index.find(77, key_of), None);
    }
}
