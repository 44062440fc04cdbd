//! Reuse distances: the number of distinct files opened between two accesses to a file.
//!
//! Exact, in O(log files) per access (Bennett and Kruskal, 1975). A Fenwick tree marks the place of
//! each file's last access; the marks behind the place of a file are its distance. When the tree is
//! full, the marks are moved together, so that it takes about 8 bytes a file for any length of
//! trace.

/// The last accesses of all files.
#[derive(Debug, Default)]
pub(super) struct Reuse {
    /// Place of the last access of each file, from 1; 0 for none.
    places: Vec<u32>,
    tree: Vec<u32>,
    next: u32,
    files: u64,
}

/// Length of the smallest tree.
const MIN_TREE_LEN: usize = 1024;

impl Reuse {
    /// Counts an access to a file. Returns the reuse distance, unless it is the first access.
    pub(super) fn access(&mut self, file: usize) -> Option<u64> {
        if self.next as usize + 1 >= self.tree.len() {
            self.pack();
        }
        if file >= self.places.len() {
            self.places.resize(file + 1, 0);
        }
        self.next += 1;
        let before = std::mem::replace(&mut self.places[file], self.next);
        let distance = (before != 0).then(|| self.files - self.marks(before));
        if before == 0 {
            self.files += 1;
        } else {
            self.add(before, u32::MAX);
        }
        self.add(self.next, 1);
        distance
    }

    /// Returns the number of marks up to a place.
    fn marks(&self, mut at: u32) -> u64 {
        let mut sum = 0u64;
        while at > 0 {
            sum += u64::from(self.tree[at as usize]);
            at &= at - 1;
        }
        sum
    }

    fn add(&mut self, mut at: u32, what: u32) {
        while let Some(sum) = self.tree.get_mut(at as usize) {
            *sum = sum.wrapping_add(what);
            at += at & at.wrapping_neg();
        }
    }

    /// Moves the marks together.
    fn pack(&mut self) {
        let mut order: Vec<usize> = (0..self.places.len()).filter(|f| self.places[*f] != 0).collect();
        order.sort_unstable_by_key(|f| self.places[*f]);
        self.tree = vec![0; (2 * order.len() + 2).max(MIN_TREE_LEN)];
        self.next = 0;
        for file in order {
            self.next += 1;
            self.places[file] = self.next;
            self.add(self.next, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_counted(files in proptest::collection::vec(0usize..700, 0..4000)) {
            let mut r = Reuse::default();
            // Files, the one that was accessed last first.
            let mut recent: Vec<usize> = Vec::new();
            for file in files {
                let between = recent.iter().position(|&f| f == file);
                between.map(|at| recent.remove(at));
                recent.insert(0, file);
                prop_assert_eq!(r.access(file), between.map(|n| n as u64));
            }
        }
    }
}
