//! What the shim asks the agent about names that other nodes may have staged.
//!
//! The agent listens on a stream socket in the staging directory. Each connection carries one
//! question and its answer, a byte. The agent answers when the other nodes have none of it, when
//! they have published it, or when it cannot know.

/// The socket, in the staging directory.
pub const SOCKET: &str = "ask";
/// Bytes before the path.
pub const HEAD_LEN: usize = 3;
/// Bytes of the longest path.
pub const PATH_MAX: usize = crate::PATH_MAX;

/// Answer: no other node had it.
pub const NOT_THERE: u8 = 0;
/// Answer: another node had it, and has published it.
pub const PUBLISHED: u8 = 1;
/// Answer: a node did not answer, or did not publish it in time.
pub const UNKNOWN: u8 = 2;

/// What is asked about a path relative to the output root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The name, and links on the way to it.
    Name,
    /// All names of the directory.
    Names,
    /// The name, links on the way to it, and all that lies below it.
    Tree,
}

impl Subject {
    /// As a byte.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Name => b'n',
            Self::Names => b'd',
            Self::Tree => b't',
        }
    }

    /// From a byte; `None` if it is none.
    #[must_use]
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            b'n' => Some(Self::Name),
            b'd' => Some(Self::Names),
            b't' => Some(Self::Tree),
            _ => None,
        }
    }
}

/// The bytes before a path of `len` bytes; `None` if it is too long.
#[must_use]
pub const fn head(subject: Subject, len: usize) -> Option<[u8; HEAD_LEN]> {
    if len >= PATH_MAX {
        return None;
    }
    let [low, high, ..] = len.to_le_bytes();
    Some([subject.to_byte(), low, high])
}

/// What is asked, and how many bytes the path has; `None` if that is no question.
#[must_use]
pub const fn parse(head: [u8; HEAD_LEN]) -> Option<(Subject, usize)> {
    let [subject, low, high] = head;
    let len = u16::from_le_bytes([low, high]) as usize;
    match Subject::of(subject) {
        Some(subject) if len < PATH_MAX => Some((subject, len)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_understood_and_nothing_else() {
        for subject in [Subject::Name, Subject::Names, Subject::Tree] {
            for len in [0, 1, 255, 256, PATH_MAX - 1] {
                assert_eq!(parse(head(subject, len).unwrap()), Some((subject, len)));
            }
            assert_eq!(head(subject, PATH_MAX), None);
        }
        assert_eq!(parse([b'x', 1, 0]), None);
        assert_eq!(parse([b'n', 0xff, 0xff]), None);
    }
}
