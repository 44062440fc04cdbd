//! What the shim asks the agent about directories that the index does not hold.
//!
//! The agent listens on a stream socket in the runtime directory. Each connection carries one
//! question, about a path relative to the root of a segment, and its answer:
//!
//! ```text
//! question   subject u8, 0, length of the path u16, number of the segment u32, path
//! answer     KERNEL
//!            ENTRY, Attributes (80 bytes)
//!            LISTING, inode of the directory u64, inode of its ".." u64, bytes of the names u32,
//!            for each name: inode u64, d_type u8, length u8, name
//! ```
//! Numbers are little endian.

use crate::index::Record;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The socket, in the runtime directory.
pub const SOCKET: &str = "names";
/// Bytes of a question before its path.
pub const HEAD_LEN: usize = 8;
/// Answer: the kernel is to be asked.
pub const KERNEL: u8 = 0;
/// Answer: the attributes follow.
pub const ENTRY: u8 = 1;
/// Answer: the listing follows.
pub const LISTING: u8 = 2;
/// Bytes of a listing before its names, behind the first byte.
pub const LISTING_HEAD_LEN: usize = 20;
/// Most bytes of the names of a listing.
pub const MAX_NAMES_BYTES: usize = 64 << 20;
/// Bytes of a name's item before the name.
pub const ITEM_HEAD_LEN: usize = 10;

/// What is asked about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The attributes of what has it; links are not followed.
    Entry,
    /// The names in the directory that has it.
    Listing,
}

/// A question without its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What is asked.
    pub subject: Subject,
    /// Number of the segment whose root the path is relative to.
    pub segment: u32,
    /// Bytes of the path.
    pub len: usize,
}

impl Head {
    /// As bytes; `None` if the path is too long.
    #[must_use]
    pub const fn to_bytes(self) -> Option<[u8; HEAD_LEN]> {
        if self.len >= crate::PATH_MAX {
            return None;
        }
        let [low, high, ..] = self.len.to_le_bytes();
        let [a, b, c, d] = self.segment.to_le_bytes();
        let subject = match self.subject {
            Subject::Entry => b'e',
            Subject::Listing => b'l',
        };
        Some([subject, 0, low, high, a, b, c, d])
    }

    /// From bytes; `None` if they are no question.
    #[must_use]
    pub const fn of(bytes: [u8; HEAD_LEN]) -> Option<Self> {
        let [subject, _, low, high, a, b, c, d] = bytes;
        let len = u16::from_le_bytes([low, high]) as usize;
        let subject = match subject {
            b'e' => Subject::Entry,
            b'l' => Subject::Listing,
            _ => return None,
        };
        if len >= crate::PATH_MAX {
            return None;
        }
        Some(Self { subject, segment: u32::from_le_bytes([a, b, c, d]), len })
    }
}

/// What `stat` returns about an entry, 80 bytes.
#[derive(Clone, Copy, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attributes {
    /// The record, as of an index; its owner means nothing.
    pub record: Record,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Birth time in ns; `i64::MIN` for none.
    pub btime_ns: i64,
}
/// Bytes of [`Attributes`].
pub const ATTRIBUTES_LEN: usize = 80;
const _: () = assert!(size_of::<Attributes>() == ATTRIBUTES_LEN);

impl Attributes {
    /// From the bytes of an answer.
    #[must_use]
    pub const fn of(bytes: [u8; ATTRIBUTES_LEN]) -> Self {
        zerocopy::transmute!(bytes)
    }
}

/// A name of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// Its inode number.
    pub ino: u64,
    /// Its `d_type`.
    pub kind: u8,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
}

/// The name at an offset of the names of a listing, and the offset behind it.
#[must_use]
pub fn item(names: &[u8], at: usize) -> Option<(Item<'_>, usize)> {
    let rest = names.get(at..)?;
    let (ino, tail) = rest.split_first_chunk::<8>()?;
    let ([kind, len], tail) = tail.split_first_chunk::<2>()?;
    let name = tail.get(..usize::from(*len)).filter(|name| !name.is_empty())?;
    let end = at.checked_add(ITEM_HEAD_LEN)?.checked_add(name.len())?;
    Some((Item { ino: u64::from_le_bytes(*ino), kind: *kind, name }, end))
}

/// The head of a listing: inode of the directory, inode of its `..`, bytes of the names.
#[must_use]
pub fn listing_head(bytes: &[u8; LISTING_HEAD_LEN]) -> Option<(u64, u64, usize)> {
    let (ino, rest) = bytes.split_first_chunk::<8>()?;
    let (parent, rest) = rest.split_first_chunk::<8>()?;
    let len = u32::from_le_bytes(*rest.first_chunk()?) as usize;
    (len <= MAX_NAMES_BYTES).then_some((u64::from_le_bytes(*ino), u64::from_le_bytes(*parent), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_understood_and_nothing_else() {
        for subject in [Subject::Entry, Subject::Listing] {
            for len in [0, 1, 255, 256, crate::PATH_MAX - 1] {
                let head = Head { subject, segment: 7, len };
                assert_eq!(Head::of(head.to_bytes().unwrap()), Some(head));
            }
            assert_eq!(Head { subject, segment: 7, len: crate::PATH_MAX }.to_bytes(), None);
        }
        assert_eq!(Head::of([b'x', 0, 1, 0, 0, 0, 0, 0]), None);
        assert_eq!(Head::of([b'e', 0, 0xff, 0xff, 0, 0, 0, 0]), None);
    }

    #[test]
    fn names_are_read_within_their_bytes() {
        let mut names = [0; 2 * ITEM_HEAD_LEN + 3];
        names[8..11].copy_from_slice(&[4, 2, b'a']);
        names[11] = b'b';
        names[12 + 9] = 1;
        names[12 + 10] = b'c';
        let (first, next) = item(&names, 0).unwrap();
        assert_eq!((first, next), (Item { ino: 0, kind: 4, name: b"ab" }, 12));
        assert_eq!(item(&names, next).map(|(i, end)| (i.name, end)), Some((&b"c"[..], names.len())));
        for at in [1, 13, names.len(), usize::MAX] {
            assert!(item(&names, at).is_none_or(|(_, end)| end <= names.len()));
        }
        assert_eq!(item(&names[..5], 0), None);
    }
}
