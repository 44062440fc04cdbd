//! What the PFS had at a name when a call of the job changed it, in eight bytes: whether something
//! else has the name since, or other content, is found by comparing.

/// Not known: nothing can be told.
pub const UNKNOWN: u64 = 0;
/// Nothing had the name.
pub const NOTHING: u64 = 1;

/// A file, or anything else, with this inode number, size and modification time.
#[must_use]
pub fn thing(ino: u64, size: u64, mtime_ns: i64) -> u64 {
    let mut bytes = [0; 24];
    let numbers = [ino.to_le_bytes(), size.to_le_bytes(), mtime_ns.to_le_bytes()];
    bytes.iter_mut().zip(numbers.iter().flatten()).for_each(|(to, from)| *to = *from);
    xxhash_rust::xxh3::xxh3_64(&bytes).max(NOTHING + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_numbers_tells_a_thing_from_another() {
        let known = thing(7, 100, 5);
        assert_eq!(known, thing(7, 100, 5));
        let others = [thing(8, 100, 5), thing(7, 101, 5), thing(7, 100, 6), thing(100, 7, 5), NOTHING, UNKNOWN];
        assert!(others.iter().all(|other| *other != known));
    }
}
