//! How a process of another user, which cannot open the control block, tells the agent what it
//! changes below a root.
//!
//! The agent listens on a stream socket whose path only the job's processes know ([`VARIABLE`]).
//! Each connection carries one message and its reply. A message says what changes by device, inode
//! and name, so that it means the same in every mount namespace. The reply says on which devices
//! roots lie: changes on other devices are not reported.

use crate::control::MAX_ROOTS;

/// The variable of the environment that holds the path of the socket.
pub const VARIABLE: &str = "MONARCH_CHANGES";
/// Bytes of the longest path of a socket.
pub const PATH_MAX: usize = 104;

/// The process asks on which devices roots lie.
pub const HELLO: u8 = b'h';
/// Content or attributes of the file change.
pub const FILE: u8 = b'f';
/// The same, and some users cannot reach what lies below it any more.
pub const TREE: u8 = b't';
/// The name in the directory appears, disappears or is replaced.
pub const NAME: u8 = b'n';
/// The name moves, with all that may lie below it.
pub const MOVED: u8 = b'm';

/// What changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Head {
    /// One of the kinds above.
    pub kind: u8,
    /// Whether the file is a directory. Not set for names.
    pub is_dir: bool,
    /// Device and inode of the file; 0 for names.
    pub file: [u64; 2],
    /// Names of the file; 0 for names.
    pub links: u64,
    /// Device and inode of the directory that holds the name; 0 where that is not known.
    pub parent: [u64; 2],
}

/// Bytes of a message before its name.
pub const HEAD_LEN: usize = 8 + 5 * 8;
/// Bytes of the longest name.
pub const NAME_MAX: usize = 255;
/// Bytes of the longest message.
pub const MESSAGE_MAX: usize = HEAD_LEN + NAME_MAX;
/// Bytes of the longest reply.
pub const REPLY_MAX: usize = 1 + 8 * MAX_ROOTS;

impl Head {
    /// The message before a name of `name_len` bytes.
    #[must_use]
    pub fn to_bytes(&self, name_len: u8) -> [u8; HEAD_LEN] {
        let mut out = [0; HEAD_LEN];
        let (small, numbers) = out.split_at_mut(8);
        for (to, from) in small.iter_mut().zip([self.kind, u8::from(self.is_dir), name_len]) {
            *to = from;
        }
        let values = [self.file[0], self.file[1], self.links, self.parent[0], self.parent[1]];
        for (to, from) in numbers.as_chunks_mut::<8>().0.iter_mut().zip(values) {
            *to = from.to_le_bytes();
        }
        out
    }

    /// What [`Head::to_bytes`] wrote, and how many bytes the name has that follows.
    #[must_use]
    pub fn of(bytes: &[u8; HEAD_LEN]) -> (Self, usize) {
        let (small, numbers) = bytes.split_at(8);
        let mut values = [0; 5];
        for (to, from) in values.iter_mut().zip(numbers.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*from);
        }
        let [kind, is_dir, len, ..] = small else { return (Self::default(), 0) };
        let [dev, ino, links, parent_dev, parent_ino] = values;
        let (file, parent) = ([dev, ino], [parent_dev, parent_ino]);
        (Self { kind: *kind, is_dir: *is_dir != 0, file, links, parent }, usize::from(*len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let head = Head { kind: MOVED, is_dir: true, file: [1, u64::MAX], links: 3, parent: [4, 5] };
        assert_eq!(Head::of(&head.to_bytes(255)), (head, 255));
        assert_eq!(Head::of(&[0; HEAD_LEN]), (Head::default(), 0));
    }
}
