//! What keeps a connection authentic after the proof: no byte of it can be changed, repeated, left
//! out or moved without the other side noticing.
//!
//! Both sides derive a key for each direction from the job's key and from what they proved to each
//! other ([`auth`](super::auth)), so that no two connections have the same keys. Every head that is
//! sent from the proof on ends with one more line, the last one:
//!
//! ```text
//! Monarch-Mac: <32 hex digits>
//! ```
//!
//! the first 16 bytes of HMAC-SHA256 under the key of its direction, over the number of heads that
//! were sent in this direction before it (8 bytes, little-endian) and all lines of the head before
//! this one. A head counts whether or not it has a body, and so does each `102`.
//!
//! A body is covered by the line `Monarch-Tag` of its head: a [`Tag`] under another key of its
//! direction, with the number of the head. The bytes of files have a tag of the file instead
//! ([`TagKey::of_file`]), which the node that asked for them compares.
//!
//! An authentic head says nothing of the time: whoever sits on the path can hold it up, or cut the
//! connection. That is a silent peer, as any other.

use super::auth::{Exchange, Key, Side};
use crate::hex;
use crate::tag::{Tag, TagKey};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Bytes of a code.
const MAC_BYTES: usize = 16;
/// Begins the last line of a head.
const LINE: &[u8] = b"Monarch-Mac: ";
/// What follows the code: the end of its line, and of the head.
const END: &[u8] = b"\r\n\r\n";
/// Length of all that.
const SEAL_BYTES: usize = LINE.len() + 2 * MAC_BYTES + END.len();

/// One direction of a connection.
#[derive(Debug)]
pub struct Direction {
    heads: Hmac<Sha256>,
    bodies: TagKey,
    /// Heads that were sealed or opened.
    count: u64,
}

impl Direction {
    fn new(exchange: &Exchange<'_>, key: &Key, side: Side) -> Self {
        let [heads, bodies] = ["heads", "bodies"].map(|purpose| exchange.session_key(key, side, purpose));
        let mut padded = [0; 64];
        padded[..heads.len()].copy_from_slice(&heads);
        Self { heads: Hmac::new(&padded.into()), bodies: TagKey::new(bodies), count: 0 }
    }

    fn code(&self, head: &[u8]) -> [u8; MAC_BYTES] {
        let mut mac = self.heads.clone();
        mac.update(&self.count.to_le_bytes());
        mac.update(head);
        let full: [u8; 32] = mac.finalize().into_bytes().into();
        let mut code = [0; MAC_BYTES];
        code.copy_from_slice(&full[..MAC_BYTES]);
        code
    }

    /// Ends a head, which has all its lines and not yet the empty one.
    pub fn seal(&mut self, head: &mut Vec<u8>) {
        let code = hex::encode(&self.code(head));
        head.extend_from_slice(LINE);
        head.extend_from_slice(code.as_bytes());
        head.extend_from_slice(END);
        self.count += 1;
    }

    /// Whether a whole head is the next one of the other side. If not, the connection is of no use
    /// any more.
    #[must_use]
    pub fn open(&mut self, head: &[u8]) -> bool {
        let Some((lines, seal)) = head.len().checked_sub(SEAL_BYTES).and_then(|at| head.split_at_checked(at)) else {
            return false;
        };
        let code = seal.strip_prefix(LINE).and_then(|rest| rest.strip_suffix(END));
        let code = code.and_then(|code| std::str::from_utf8(code).ok()).and_then(hex::decode::<MAC_BYTES>);
        let is_next = code.is_some_and(|code| bool::from(code.ct_eq(&self.code(lines))));
        self.count += u64::from(is_next);
        is_next
    }

    /// The tag of the body of the head that is sealed next.
    #[must_use]
    pub fn tag(&self, body: &[u8]) -> Tag {
        self.bodies.of_body(self.count, body)
    }

    /// Whether a body is that of the head that was opened last.
    #[must_use]
    pub fn is_body(&self, tag: Tag, body: &[u8]) -> bool {
        tag == self.bodies.of_body(self.count.saturating_sub(1), body)
    }
}

/// Both directions, as one side sees them.
#[derive(Debug)]
pub struct Session {
    /// What this side sends.
    pub outgoing: Direction,
    /// What it receives.
    pub incoming: Direction,
}

impl Session {
    /// The session of a proof, for that side.
    #[must_use]
    pub fn new(exchange: &Exchange<'_>, key: &Key, me: Side) -> Self {
        let it = match me {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        };
        Self { outgoing: Direction::new(exchange, key, me), incoming: Direction::new(exchange, key, it) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::auth::Nonce;

    fn both() -> (Session, Session) {
        let (nonce, cnonce) = (Nonce::random().unwrap(), Nonce::random().unwrap());
        let exchange = Exchange { nonce, cnonce, client: "z", server: "o" };
        let key = Key::new([7; 32]);
        (Session::new(&exchange, &key, Side::Client), Session::new(&exchange, &key, Side::Server))
    }

    fn sealed(direction: &mut Direction, lines: &str) -> Vec<u8> {
        let mut head = lines.as_bytes().to_vec();
        direction.seal(&mut head);
        head
    }

    #[test]
    fn heads_are_taken_in_their_order_once() {
        let (mut client, mut server) = both();
        let first = sealed(&mut client.outgoing, "GET /a HTTP/1.1\r\n");
        let second = sealed(&mut client.outgoing, "GET /a HTTP/1.1\r\n");
        assert_ne!(first, second);
        assert!(!server.incoming.open(&second), "the second one first");
        assert!(server.incoming.open(&first));
        assert!(!server.incoming.open(&first), "twice");
        assert!(server.incoming.open(&second));
        let answer = sealed(&mut server.outgoing, "HTTP/1.1 200 OK\r\n");
        assert!(!server.incoming.open(&answer), "sent back");
        assert!(client.incoming.open(&answer));
    }

    #[test]
    fn no_bit_of_a_head_can_be_changed() {
        let (mut client, mut server) = both();
        let head = sealed(&mut client.outgoing, "GET /a HTTP/1.1\r\nHost: x\r\n");
        for at in 0..head.len() * 8 {
            let mut other = head.clone();
            other[at / 8] ^= 1 << (at % 8);
            // (The case of a hex digit means nothing.)
            if !other.eq_ignore_ascii_case(&head) || at / 8 < head.len() - END.len() - 2 * MAC_BYTES {
                assert!(!server.incoming.open(&other), "bit {at}");
            }
        }
        for end in 0..head.len() {
            assert!(!server.incoming.open(&head[..end]), "cut at {end}");
        }
        assert!(!server.incoming.open(&[&head[..], b"x"].concat()));
        assert!(server.incoming.open(&head));
    }

    #[test]
    fn a_body_belongs_to_its_head() {
        let (mut client, mut server) = both();
        let one = client.outgoing.tag(b"body");
        let first = sealed(&mut client.outgoing, "POST /a HTTP/1.1\r\n");
        let two = client.outgoing.tag(b"body");
        let second = sealed(&mut client.outgoing, "POST /a HTTP/1.1\r\n");
        assert!(server.incoming.open(&first));
        assert!(server.incoming.is_body(one, b"body") && !server.incoming.is_body(one, b"bodx"));
        assert!(!server.incoming.is_body(two, b"body"));
        assert!(server.incoming.open(&second) && server.incoming.is_body(two, b"body"));
    }

    #[test]
    fn no_two_connections_have_the_same_keys() {
        let ((mut client, _), (_, mut server)) = (both(), both());
        assert!(!server.incoming.open(&sealed(&mut client.outgoing, "GET /a HTTP/1.1\r\n")));
    }
}
