//! Whether a connection has authenticated, and what is asked of it until then.

use crate::http::auth::{Credentials, Exchange, Key, Nonce, Side};
use crate::http::refusal::Refusal;
use crate::http::session::Session;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a challenge is good for.
const NONCE_LIFE: Duration = Duration::from_secs(10);
/// Requests that a connection may send before it is closed unauthenticated.
const MAX_UNPROVEN_REQUESTS: u8 = 3;

/// Where a connection stands.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    open: Option<(Nonce, Instant)>,
    requests: u8,
    known: Option<(Arc<str>, Session)>,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is answered.
    Known,
    /// It is answered, and the first one of a node that has proven itself.
    Proven,
    /// It has to come again with an answer to this.
    Challenged(Nonce),
    /// It is turned down.
    Refused(Refusal),
}

impl Handshake {
    /// Name of the node at the other end, once that is proven.
    pub(super) fn peer(&self) -> Option<&Arc<str>> {
        self.known.as_ref().map(|(peer, _)| peer)
    }

    /// What keeps the connection authentic, from the proof on.
    pub(super) fn session(&mut self) -> Option<&mut Session> {
        self.known.as_mut().map(|(_, session)| session)
    }

    /// Whether a challenge was sent that nothing came of.
    pub(super) fn was_challenged(&self) -> bool {
        self.known.is_none() && self.requests > 0
    }

    /// Judges a request by its head and the value of its `Authorization`; `name` is this server's.
    ///
    /// # Errors
    /// The kernel gave no random bytes.
    pub(super) fn check(
        &mut self,
        (key, name): (&Key, &str),
        head: &[u8],
        value: Option<&str>,
        now: Instant,
    ) -> io::Result<Verdict> {
        if let Some(session) = self.session() {
            let is_next = session.incoming.open(head);
            return Ok(if is_next { Verdict::Known } else { Verdict::Refused(Refusal::Forged) });
        }
        self.requests += 1;
        if let Some(value) = value {
            return Ok(self.prove((key, name), head, value, now));
        }
        if self.requests >= MAX_UNPROVEN_REQUESTS {
            return Ok(Verdict::Refused(Refusal::Unauthenticated));
        }
        let nonce = Nonce::random()?;
        self.open = Some((nonce, now));
        Ok(Verdict::Challenged(nonce))
    }

    fn prove(&mut self, (key, name): (&Key, &str), head: &[u8], value: &str, now: Instant) -> Verdict {
        let Some(given) = Credentials::parse(value) else { return Verdict::Refused(Refusal::Malformed) };
        // Taken whatever comes of it: one challenge, one try.
        let (nonce, issued) = match self.open.take() {
            Some(open) if open.0 == given.nonce => open,
            _ => return Verdict::Refused(Refusal::Replayed),
        };
        if now.saturating_duration_since(issued) >= NONCE_LIFE {
            return Verdict::Refused(Refusal::Expired);
        }
        let exchange = Exchange { nonce, cnonce: given.cnonce, client: &given.node, server: name };
        if !exchange.proves(key, &given.mac) {
            return Verdict::Refused(Refusal::BadProof);
        }
        let mut session = Session::new(&exchange, key, Side::Server);
        if !session.incoming.open(head) {
            return Verdict::Refused(Refusal::Forged);
        }
        self.known = Some((given.node.as_str().into(), session));
        Verdict::Proven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "GET /a HTTP/1.1\r\n";

    fn key() -> Key {
        Key::new([5; 32])
    }

    fn check(handshake: &mut Handshake, head: &[u8], value: Option<&str>, now: Instant) -> Verdict {
        handshake.check((&key(), "o"), head, value, now).unwrap()
    }

    fn challenged(handshake: &mut Handshake, now: Instant) -> Nonce {
        match check(handshake, b"", None, now) {
            Verdict::Challenged(nonce) => nonce,
            other => panic!("{other:?}"),
        }
    }

    /// The value of `Authorization`, a head, and the client's session after it.
    fn credentials(nonce: Nonce, key: &Key, server: &str) -> (String, Vec<u8>, Session) {
        let cnonce = Nonce::random().unwrap();
        let exchange = Exchange { nonce, cnonce, client: "z", server };
        let mut session = Session::new(&exchange, key, Side::Client);
        let mut head = LINES.as_bytes().to_vec();
        session.outgoing.seal(&mut head);
        (Credentials { node: "z".into(), nonce, cnonce, mac: exchange.proof(key) }.to_string(), head, session)
    }

    #[test]
    fn a_good_answer_is_taken_once_and_lasts() {
        let (mut handshake, now) = (Handshake::default(), Instant::now());
        let nonce = challenged(&mut handshake, now);
        let (value, head, mut session) = credentials(nonce, &key(), "o");
        assert_eq!(check(&mut handshake, &head, Some(&value), now), Verdict::Proven);
        assert_eq!(handshake.peer().map(|peer| &**peer), Some("z"));
        let mut next = LINES.as_bytes().to_vec();
        session.outgoing.seal(&mut next);
        assert_eq!(check(&mut handshake, &next, None, now + NONCE_LIFE * 9), Verdict::Known);
        assert_eq!(check(&mut handshake, &next, None, now), Verdict::Refused(Refusal::Forged));
    }

    #[test]
    fn a_first_request_that_was_changed_is_refused() {
        let (mut handshake, now) = (Handshake::default(), Instant::now());
        let nonce = challenged(&mut handshake, now);
        let (value, mut head, _) = credentials(nonce, &key(), "o");
        head[5] = b'b';
        assert_eq!(check(&mut handshake, &head, Some(&value), now), Verdict::Refused(Refusal::Forged));
        assert_eq!(handshake.peer(), None);
    }

    #[test]
    fn wrong_answers_have_their_refusals() {
        let now = Instant::now();
        let late = now + NONCE_LIFE;
        let try_one = |key_used: &Key, server: &str, at: Instant| {
            let mut handshake = Handshake::default();
            let nonce = challenged(&mut handshake, now);
            let (value, head, _) = credentials(nonce, key_used, server);
            (check(&mut handshake, &head, Some(&value), at), check(&mut handshake, &head, Some(&value), at))
        };
        let replayed = Verdict::Refused(Refusal::Replayed);
        let refused = |refusal| (Verdict::Refused(refusal), Verdict::Refused(Refusal::Replayed));
        assert_eq!(try_one(&Key::new([6; 32]), "o", now), refused(Refusal::BadProof));
        assert_eq!(try_one(&key(), "p", now), refused(Refusal::BadProof));
        assert_eq!(try_one(&key(), "o", late), refused(Refusal::Expired));
        let (value, head, _) = credentials(challenged(&mut Handshake::default(), now), &key(), "o");
        let mut other = Handshake::default();
        assert_eq!(check(&mut other, &head, Some(&value), now), replayed);
        challenged(&mut other, now);
        assert_eq!(check(&mut other, &head, Some(&value), now), replayed);
    }

    #[test]
    fn a_new_challenge_ends_the_one_before_and_there_are_not_many() {
        let (mut handshake, now) = (Handshake::default(), Instant::now());
        let first = challenged(&mut handshake, now);
        assert_ne!(challenged(&mut handshake, now), first);
        assert_eq!(check(&mut handshake, b"", None, now), Verdict::Refused(Refusal::Unauthenticated));
    }
}
