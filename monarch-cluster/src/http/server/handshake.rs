//! Whether a connection has authenticated, and what is asked of it until then.

use crate::http::auth::{Credentials, Exchange, Key, Nonce, Side};
use crate::http::refusal::Refusal;
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
    peer: Option<Arc<str>>,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is answered.
    Known,
    /// It is answered, with this proof.
    Proven([u8; 32]),
    /// It has to come again with an answer to this.
    Challenged(Nonce),
    /// It is turned down.
    Refused(Refusal),
}

impl Handshake {
    /// Name of the node at the other end, once that is proven.
    pub(super) fn peer(&self) -> Option<&Arc<str>> {
        self.peer.as_ref()
    }

    /// Whether a challenge was sent that nothing came of.
    pub(super) fn was_challenged(&self) -> bool {
        self.peer.is_none() && self.requests > 0
    }

    /// Judges a request by the value of its `Authorization`; `name` is this server's.
    ///
    /// # Errors
    /// The kernel gave no random bytes.
    pub(super) fn check(&mut self, key: &Key, name: &str, value: Option<&str>, now: Instant) -> io::Result<Verdict> {
        if self.peer.is_some() {
            return Ok(Verdict::Known);
        }
        self.requests += 1;
        if let Some(value) = value {
            return Ok(self.prove(key, name, value, now));
        }
        if self.requests >= MAX_UNPROVEN_REQUESTS {
            return Ok(Verdict::Refused(Refusal::Unauthenticated));
        }
        let nonce = Nonce::random()?;
        self.open = Some((nonce, now));
        Ok(Verdict::Challenged(nonce))
    }

    fn prove(&mut self, key: &Key, name: &str, value: &str, now: Instant) -> Verdict {
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
        if !exchange.proves(key, Side::Client, &given.mac) {
            return Verdict::Refused(Refusal::BadProof);
        }
        let proof = exchange.proof(key, Side::Server);
        self.peer = Some(given.node.as_str().into());
        Verdict::Proven(proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new([5; 32])
    }

    fn challenged(handshake: &mut Handshake, now: Instant) -> Nonce {
        match handshake.check(&key(), "o", None, now) {
            Ok(Verdict::Challenged(nonce)) => nonce,
            other => panic!("{other:?}"),
        }
    }

    fn credentials(nonce: Nonce, key: &Key, server: &str) -> String {
        let cnonce = Nonce::random().unwrap();
        let mac = Exchange { nonce, cnonce, client: "z", server }.proof(key, Side::Client);
        Credentials { node: "z".into(), nonce, cnonce, mac }.to_string()
    }

    #[test]
    fn a_good_answer_is_taken_once_and_lasts() {
        let (mut handshake, now) = (Handshake::default(), Instant::now());
        let nonce = challenged(&mut handshake, now);
        let value = credentials(nonce, &key(), "o");
        assert!(matches!(handshake.check(&key(), "o", Some(&value), now), Ok(Verdict::Proven(_))));
        assert_eq!(handshake.peer().map(|peer| &**peer), Some("z"));
        assert_eq!(handshake.check(&key(), "o", None, now + NONCE_LIFE * 9).unwrap(), Verdict::Known);
    }

    #[test]
    fn wrong_answers_have_their_refusals() {
        let now = Instant::now();
        let late = now + NONCE_LIFE;
        let try_one = |key_used: &Key, server: &str, at: Instant| {
            let mut handshake = Handshake::default();
            let nonce = challenged(&mut handshake, now);
            let value = credentials(nonce, key_used, server);
            let verdict = handshake.check(&key(), "o", Some(&value), at).unwrap();
            (verdict, handshake.check(&key(), "o", Some(&value), at).unwrap())
        };
        let replayed = Verdict::Refused(Refusal::Replayed);
        let refused = |refusal| (Verdict::Refused(refusal), Verdict::Refused(Refusal::Replayed));
        assert_eq!(try_one(&Key::new([6; 32]), "o", now), refused(Refusal::BadProof));
        assert_eq!(try_one(&key(), "p", now), refused(Refusal::BadProof));
        assert_eq!(try_one(&key(), "o", late), refused(Refusal::Expired));
        let value = credentials(challenged(&mut Handshake::default(), now), &key(), "o");
        let mut other = Handshake::default();
        assert_eq!(other.check(&key(), "o", Some(&value), now).unwrap(), replayed);
        challenged(&mut other, now);
        assert_eq!(other.check(&key(), "o", Some(&value), now).unwrap(), replayed);
    }

    #[test]
    fn a_new_challenge_ends_the_one_before_and_there_are_not_many() {
        let (mut handshake, now) = (Handshake::default(), Instant::now());
        let first = challenged(&mut handshake, now);
        assert_ne!(challenged(&mut handshake, now), first);
        assert_eq!(handshake.check(&key(), "o", None, now).unwrap(), Verdict::Refused(Refusal::Unauthenticated));
    }
}
