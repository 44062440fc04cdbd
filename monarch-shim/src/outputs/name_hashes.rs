//! [`NameHashes`]: a set of names, kept as hashes.

use super::answer::Result;

/// A set of hashes of names: a table with open addressing, at most half full; 0 is free.
pub struct NameHashes {
    base: *mut u64,
    len: usize,
    room: usize,
}

impl NameHashes {
    /// An empty set.
    pub const fn new() -> Self {
        Self { base: core::ptr::null_mut(), len: 0, room: 0 }
    }

    /// FNV-1a, never 0.
    fn hash(name: &[u8]) -> u64 {
        name.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &c| (hash ^ u64::from(c)).wrapping_mul(0x0100_0000_01b3)) | 1
    }

    /// Where a hash is, or would be.
    fn slot(&self, hash: u64) -> usize {
        let mut at = (hash >> 20) as usize & (self.room - 1);
        // SAFETY: inside of the table, which has free places.
        while !matches!(unsafe { self.base.add(at).read() }, free if free == 0 || free == hash) {
            at = (at + 1) & (self.room - 1);
        }
        at
    }

    /// Adds a name.
    pub fn add(&mut self, name: &[u8]) -> Result<()> {
        if (self.len + 1) * 2 > self.room {
            self.grow()?;
        }
        let hash = Self::hash(name);
        let at = self.slot(hash);
        // SAFETY: inside of the table.
        unsafe { self.base.add(at).write(hash) };
        self.len += 1;
        Ok(())
    }

    fn grow(&mut self) -> Result<()> {
        let room = (self.room * 2).max(64);
        // SAFETY: a fresh table of zeros.
        let base = unsafe { libc::malloc(room * 8) }.cast::<u64>();
        if base.is_null() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: as many bytes were allocated.
        unsafe { base.write_bytes(0, room) };
        let old = core::mem::replace(self, Self { base, len: self.len, room });
        for at in 0..old.room {
            // SAFETY: inside of the old table.
            let hash = unsafe { old.base.add(at).read() };
            if hash != 0 {
                let to = self.slot(hash);
                // SAFETY: inside of the new table.
                unsafe { self.base.add(to).write(hash) };
            }
        }
        Ok(())
    }

    /// Whether a name is in the set, or one with the same hash.
    pub fn has(&self, name: &[u8]) -> bool {
        let hash = Self::hash(name);
        // SAFETY: inside of the table.
        self.room != 0 && unsafe { self.base.add(self.slot(hash)).read() } == hash
    }
}

impl Drop for NameHashes {
    fn drop(&mut self) {
        // SAFETY: from malloc, and not used afterwards.
        unsafe { libc::free(self.base.cast()) };
    }
}
