//! The state of each file on a node, one byte. One of hundreds of nodes sees a small part of the
//! data set: its first files are kept in a hash table, which becomes an array for all files once it
//! would take more room than that.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The state of a file on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No copy, and no reader has asked.
    Absent,
    /// No copy, and readers go to the PFS without asking.
    Refused,
    /// On its way to a tier.
    Fetching(usize),
    /// In a tier.
    Resident(usize),
}

impl State {
    fn byte(self) -> u8 {
        match self {
            Self::Absent => 0,
            Self::Refused => 1,
            Self::Fetching(tier) => 2 + 2 * tier as u8,
            Self::Resident(tier) => 3 + 2 * tier as u8,
        }
    }

    fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Absent,
            1 => Self::Refused,
            b if b % 2 == 0 => Self::Fetching(usize::from((b - 2) / 2)),
            b => Self::Resident(usize::from((b - 3) / 2)),
        }
    }
}

/// Hashes the number of a file by mixing it; simulations have no attackers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stir(u64);

impl Hasher for Stir {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// A table by number of file.
pub(super) type ByFile<T> = HashMap<u32, T, BuildHasherDefault<Stir>>;

/// The states of all files.
#[derive(Debug)]
pub(super) enum States {
    Few { files: u32, table: ByFile<u8> },
    All(Vec<u8>),
}

/// Bytes that an entry of the hash table takes, half full.
const ENTRY_BYTES: usize = 12;

impl States {
    pub(super) fn new(files: u32) -> Self {
        Self::Few { files, table: ByFile::default() }
    }

    pub(super) fn get(&self, file: u32) -> State {
        State::of(match self {
            Self::Few { table, .. } => table.get(&file).copied().unwrap_or(0),
            Self::All(bytes) => bytes[file as usize],
        })
    }

    pub(super) fn set(&mut self, file: u32, state: State) {
        match self {
            Self::Few { files, table } => {
                table.insert(file, state.byte());
                if table.len() > *files as usize / ENTRY_BYTES {
                    let mut bytes = vec![0; *files as usize];
                    table.iter().for_each(|(file, byte)| bytes[*file as usize] = *byte);
                    *self = Self::All(bytes);
                }
            }
            Self::All(bytes) => bytes[file as usize] = state.byte(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_stay_what_they_are_when_the_table_becomes_an_array() {
        let mut states = States::new(120);
        let state =
            |file: u32| [State::Refused, State::Fetching(0), State::Resident(1), State::Resident(3)][file as usize % 4];
        for file in 0..60 {
            states.set(file, state(file));
            assert_eq!(matches!(states, States::All(_)), file >= 10);
            assert!((0..=file).all(|f| states.get(f) == state(f)) && states.get(file + 1) == State::Absent);
        }
    }
}
