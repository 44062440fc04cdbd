//! Authentication of datagrams: a keyed MAC over all of it, a time stamp, and a number that is used
//! once.
//!
//! ```text
//! 0 magic[4]  4 time[8]: ms since 1970  12 sender[8]  20 session[8]  28 number[8]  36 payload  .. mac[16]
//! ```
//! Little-endian; the MAC is HMAC-SHA256 cut to 16 bytes. A datagram whose clock is more than
//! [`MAX_SKEW_MS`] off is dropped: together with a window of 128 numbers a sender that leaves
//! nothing to replay. Whatever is dropped is counted, clocks that differ by how much.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::collections::HashMap;

const MAGIC: &[u8; 4] = b"MGS1";
/// Bytes before the payload.
const HEAD_BYTES: usize = 36;
/// Bytes of the MAC.
const MAC_BYTES: usize = 16;
/// Milliseconds by which the clocks of two nodes may differ.
pub const MAX_SKEW_MS: u64 = 30_000;
/// Senders that are kept apart. Beyond that, those that were silent for [`SENDER_LIFE_MS`] are
/// forgotten.
const MAX_SENDERS: usize = 2 * crate::directory::members::MAX_NODES;
/// Milliseconds of silence after which a sender may be forgotten.
const SENDER_LIFE_MS: u64 = 4 * MAX_SKEW_MS;

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It is of another protocol: too short or without the magic.
    Foreign,
    /// Its MAC is wrong: another job, or a sender without the secret.
    Forged,
    /// The sender's clock is this many milliseconds ahead of ours, or behind.
    Skewed(i64),
    /// It came before.
    Replayed,
    /// More senders than a job can have.
    Crowded,
    /// It is authentic and malformed: another version.
    Malformed,
}

/// Authenticates what this node sends.
pub(super) struct Sealer {
    mac: Hmac<Sha256>,
    sender: u64,
    session: u64,
    number: u64,
}

/// Checks what comes in.
pub(super) struct Opener {
    mac: Hmac<Sha256>,
    windows: HashMap<(u64, u64), Window>,
}

struct Window {
    top: u64,
    /// Bit n: number `top - n` has come.
    seen: u128,
    heard: u64,
}

impl Sealer {
    pub(super) fn new(key: &[u8; 32], sender: u64, session: u64) -> Self {
        Self { mac: keyed(key), sender, session, number: 0 }
    }

    /// `clock` is the wall clock in milliseconds.
    pub(super) fn seal(&mut self, clock: u64, payload: &[u8]) -> Vec<u8> {
        self.number += 1;
        let mut out = Vec::with_capacity(HEAD_BYTES + payload.len() + MAC_BYTES);
        out.extend(MAGIC);
        for word in [clock, self.sender, self.session, self.number] {
            out.extend(word.to_le_bytes());
        }
        out.extend(payload);
        let tag = self.mac.clone().chain_update(&out).finalize().into_bytes();
        out.extend(&tag[..MAC_BYTES]);
        out
    }
}

impl Opener {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self { mac: keyed(key), windows: HashMap::new() }
    }

    /// The payload, if everything is right.
    pub(super) fn open<'a>(&mut self, clock: u64, datagram: &'a [u8]) -> Result<&'a [u8], Dropped> {
        let sealed = datagram
            .len()
            .checked_sub(MAC_BYTES)
            .filter(|n| *n >= HEAD_BYTES && datagram.starts_with(MAGIC))
            .ok_or(Dropped::Foreign)?;
        let (body, tag) = datagram.split_at(sealed);
        self.mac.clone().chain_update(body).verify_truncated_left(tag).map_err(|_| Dropped::Forged)?;
        let word = |at: usize| body[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let off = word(4).wrapping_sub(clock).cast_signed();
        if off.unsigned_abs() > MAX_SKEW_MS {
            return Err(Dropped::Skewed(off));
        }
        self.window((word(12), word(20)), clock)?.take(word(28), clock)?;
        Ok(&body[HEAD_BYTES..])
    }

    fn window(&mut self, sender: (u64, u64), clock: u64) -> Result<&mut Window, Dropped> {
        if self.windows.len() >= MAX_SENDERS && !self.windows.contains_key(&sender) {
            self.windows.retain(|_, w| clock.saturating_sub(w.heard) < SENDER_LIFE_MS);
            if self.windows.len() >= MAX_SENDERS {
                return Err(Dropped::Crowded);
            }
        }
        Ok(self.windows.entry(sender).or_insert(Window { top: 0, seen: 0, heard: clock }))
    }
}

impl Window {
    fn take(&mut self, number: u64, clock: u64) -> Result<(), Dropped> {
        let ahead = number.saturating_sub(self.top);
        if ahead > 0 {
            self.seen = self.seen.checked_shl(u32::try_from(ahead).unwrap_or(u32::MAX)).unwrap_or(0);
            self.top = number;
        }
        let bit =
            u32::try_from(self.top - number).ok().and_then(|back| 1_u128.checked_shl(back)).ok_or(Dropped::Replayed)?;
        if self.seen & bit != 0 {
            return Err(Dropped::Replayed);
        }
        self.seen |= bit;
        self.heard = clock;
        Ok(())
    }
}

#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;

    #[test]
    fn what_was_sealed_opens_once() {
        let (mut sealer, mut opener) = (Sealer::new(&[1; 32], 5, 6), Opener::new(&[1; 32]));
        let sent: Vec<_> = (0..300_u16).map(|n| sealer.seal(NOW, &n.to_le_bytes())).collect();
        assert_eq!(opener.open(NOW, &sent[100]), Ok(&100_u16.to_le_bytes()[..]));
        assert_eq!(opener.open(NOW, &sent[100]), Err(Dropped::Replayed));
        assert_eq!(opener.open(NOW, &sent[50]), Ok(&50_u16.to_le_bytes()[..]), "datagrams overtake each other");
        assert!(opener.open(NOW, &sent[299]).is_ok());
        assert_eq!(opener.open(NOW, &sent[101]), Err(Dropped::Replayed), "too far behind to know");
        let mut anew = Sealer::new(&[1; 32], 5, 7);
        assert!(opener.open(NOW, &anew.seal(NOW, b"")).is_ok(), "a new session counts anew");
    }

    #[test]
    fn what_was_not_sealed_with_the_key_or_now_does_not_open() {
        let (mut sealer, mut opener) = (Sealer::new(&[1; 32], 5, 6), Opener::new(&[1; 32]));
        let sent = sealer.seal(NOW, b"payload");
        for n in 0..sent.len() {
            let mut bad = sent.clone();
            bad[n] ^= 1;
            let why = opener.open(NOW, &bad).unwrap_err();
            assert_eq!(why, if n < 4 { Dropped::Foreign } else { Dropped::Forged }, "byte {n}");
        }
        assert_eq!(opener.open(NOW, &sent[..20]), Err(Dropped::Foreign));
        assert_eq!(Opener::new(&[2; 32]).open(NOW, &sent), Err(Dropped::Forged));
        assert_eq!(opener.open(NOW + MAX_SKEW_MS + 1, &sent), Err(Dropped::Skewed(-30_001)));
        assert_eq!(opener.open(NOW - MAX_SKEW_MS - 1, &sent), Err(Dropped::Skewed(30_001)));
        assert!(opener.open(NOW + MAX_SKEW_MS, &sent).is_ok());
    }
}
