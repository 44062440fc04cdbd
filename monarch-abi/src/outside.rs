//! How a process that cannot open the control block tells the agent what it changes below a root: a
//! process of another user, or one in another root directory.
//!
//! The agent listens on a stream socket in the abstract namespace, whose name follows from the path
//! of the control block. Each connection carries one message and its reply.
//!
//! A message is the kind of change, the length of a name and the name; with it comes an `O_PATH`
//! descriptor of the file, or of the directory that holds the name. So the kernel has made sure that
//! the process may reach what it speaks of, and nobody has to resolve its paths again. The reply is a
//! byte, the number of devices, and the devices on which roots lie (8 bytes each): what lies on
//! others does not have to be told.

use crate::control::MAX_ROOTS;
use crate::hash::{hex16, path_hash};

/// The process asks which devices matter.
pub const HELLO: u8 = b'h';
/// Content or attributes of the file change.
pub const FILE: u8 = b'f';
/// The name in the directory appears, disappears or is replaced.
pub const NAME: u8 = b'n';
/// The name moves, with all that may lie below it.
pub const MOVED: u8 = b'm';

/// Bytes of the longest name.
pub const NAME_MAX: usize = 255;
/// Bytes of the longest message.
pub const MESSAGE_MAX: usize = 2 + NAME_MAX;
/// Bytes of the longest reply.
pub const REPLY_MAX: usize = 1 + 8 * MAX_ROOTS;
/// Milliseconds that the process waits for the reply, and the agent for the message.
pub const PATIENCE_MS: u64 = 2_000;

const PREFIX: &[u8; 16] = b"monarch-changes-";
/// Bytes of [`socket_name`].
pub const SOCKET_NAME_LEN: usize = PREFIX.len() + 16;

/// The name of the agent's socket, without the NUL byte that stands before abstract names.
#[must_use]
pub fn socket_name(control: &[u8]) -> [u8; SOCKET_NAME_LEN] {
    let mut out = [0; SOCKET_NAME_LEN];
    let (prefix, number) = out.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(PREFIX);
    number.copy_from_slice(&hex16(path_hash(0, control).fp));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_control_block_has_a_name_of_its_own() {
        let name = socket_name(b"/dev/shm/monarch-0-a/b/control");
        assert!(name.starts_with(b"monarch-changes-") && name.iter().all(u8::is_ascii_graphic));
        assert_ne!(name, socket_name(b"/dev/shm/monarch-0-a/c/control"));
    }
}
