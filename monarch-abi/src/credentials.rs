//! What the agent says to a process about that process: its credentials as the agent's namespaces
//! number them.
//!
//! A process in another user namespace sees other numbers of users and groups, 65534 for all those
//! that it has none for, and one in another PID namespace has another number itself. So neither can
//! tell alone whether it has the agent's user and groups, or what the agent knows it by. The kernel
//! tells the agent (unix(7): `SO_PEERCRED`, `SO_PEERGROUPS`), as it was when the process connected,
//! and how the namespace numbers users and groups (user_namespaces(7): `uid_map`, `gid_map`).
//!
//! The agent listens on a stream socket in the runtime directory, and answers each connection with
//! the 200 bytes of [`Credentials`]. Nothing is asked. Numbers are little endian.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The socket, in the runtime directory.
pub const SOCKET: &str = "credentials";
/// Most ranges of users, and of groups, that an answer holds.
pub const MAX_RANGES: usize = 8;
/// [`Credentials::flags`]: user and groups are the agent's.
pub const SAME: u32 = 1;
/// [`Credentials::flags`]: the ranges are all that the namespace has.
pub const WHOLE: u32 = 2;
/// The number that stands for users and groups that a namespace has none for, unless its
/// administrator has set another one.
pub const OVERFLOW_ID: u32 = 65534;

/// Users or groups that follow each other in both numberings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdRange {
    /// The first one, as the process numbers it.
    pub inside: u32,
    /// The first one, as the agent numbers it.
    pub outside: u32,
    /// How many they are; 0: none.
    pub len: u32,
}

/// What the agent says of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Credentials {
    /// The number of the process in the agent's PID namespace; 0 if it has none there.
    pub pid: u32,
    /// [`SAME`], [`WHOLE`].
    pub flags: u32,
    /// How the process numbers users.
    pub users: [IdRange; MAX_RANGES],
    /// How it numbers groups.
    pub groups: [IdRange; MAX_RANGES],
}
/// Bytes of [`Credentials`].
pub const CREDENTIALS_LEN: usize = 200;
const _: () = assert!(size_of::<Credentials>() == CREDENTIALS_LEN);

impl Credentials {
    /// From the bytes of an answer.
    #[must_use]
    pub const fn of(bytes: [u8; CREDENTIALS_LEN]) -> Self {
        zerocopy::transmute!(bytes)
    }
}

/// What a process calls a user, or group, of the agent's: [`OVERFLOW_ID`] without a number for it.
#[must_use]
pub fn inside(ranges: impl IntoIterator<Item = IdRange>, outside: u32) -> u32 {
    let number = |r: IdRange| {
        let at = outside.checked_sub(r.outside).filter(|&at| at < r.len)?;
        r.inside.checked_add(at)
    };
    ranges.into_iter().find_map(number).unwrap_or(OVERFLOW_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_looked_for_in_all_ranges() {
        let range = |inside, outside, len| IdRange { inside, outside, len };
        // Rootless podman: the user is 0, and has 65,536 subordinate ones.
        let ranges = [range(0, 1500, 1), range(1, 100_000, 65_536), IdRange::default()];
        assert_eq!(inside(ranges, 1500), 0);
        assert_eq!(inside(ranges, 100_000), 1);
        assert_eq!(inside(ranges, 165_535), 65_536);
        for none in [0, 1499, 1501, 99_999, 165_536, u32::MAX] {
            assert_eq!(inside(ranges, none), OVERFLOW_ID, "{none}");
        }
        assert_eq!(inside([range(u32::MAX, 0, 2)], 1), OVERFLOW_ID, "no such number");
        assert_eq!(inside([], 0), OVERFLOW_ID);
    }

    #[test]
    fn an_answer_is_what_was_said() {
        let mut said = Credentials { pid: 7, flags: SAME | WHOLE, ..Credentials::default() };
        said.users[0] = IdRange { inside: 0, outside: 1500, len: 1 };
        said.groups[7] = IdRange { inside: 1, outside: 2, len: 3 };
        let mut bytes = [0; CREDENTIALS_LEN];
        bytes.copy_from_slice(said.as_bytes());
        assert_eq!(Credentials::of(bytes), said);
    }
}
