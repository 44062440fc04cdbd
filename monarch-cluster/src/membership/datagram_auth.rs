//! Authentication of datagrams, and encryption where the job asks for it: a keyed MAC over all of
//! it, a time stamp, and a number that is used once.
//!
//! ```text
//! authentic: 0 magic[4] "MGS2"  4 time[8]: ms since 1970  12 sender[8]  20 session[8]
//!            28 number[8]  36 payload  .. mac[16]
//! encrypted: 0 magic[4] "MGE2"  4 nonce[32]  36 time to payload as above, encrypted  .. tag[16]
//! ```
//! Little-endian; the MAC is HMAC-SHA256 cut to 16 bytes, the cipher AEGIS-256 with a random nonce
//! and a key of its own, the magic its associated data. A datagram whose clock is more than
//! [`MAX_SKEW_MS`] off is dropped: together with a window of 128 numbers a sender that leaves
//! nothing to replay. Nothing is parsed or allocated before a datagram has proved authentic.

use aegis::aegis256::Aegis256;
use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;
use std::collections::HashMap;

/// Begins a datagram that is authentic, and readable on the network.
const MAGIC_OPEN: &[u8; 4] = b"MGS2";
/// Begins a datagram that is encrypted.
const MAGIC_ENCRYPTED: &[u8; 4] = b"MGE2";
/// Began the datagrams of version 0.2 and before, which were authenticated in the same way.
const MAGIC_EARLIER: &[u8; 4] = b"MGS1";
/// Bytes of time, sender, session and number.
const STAMP_BYTES: usize = 32;
/// Bytes of a nonce.
const NONCE_BYTES: usize = 32;
/// Bytes of the MAC, and of the tag.
const MAC_BYTES: usize = 16;
/// Distinguishes the key of the cipher from that of the MAC.
const CIPHER_KEY: &[u8] = b"monarch gossip AEGIS-256";
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
    /// It is authentic and of an earlier version of Monarch.
    OtherVersion,
    /// It is authentic, and encrypted where this node does not encrypt, or the reverse.
    OtherEncryption,
    /// The sender's clock is this many milliseconds ahead of ours, or behind.
    Skewed(i64),
    /// It came before.
    Replayed,
    /// More senders than a job can have.
    Crowded,
    /// It is authentic and malformed.
    Malformed,
}

/// The keys of a job.
struct Keys {
    mac: Hmac<Sha256>,
    cipher: [u8; 32],
}

/// Authenticates what this node sends.
pub struct Sealer {
    keys: Keys,
    encrypt: bool,
    sender: u64,
    session: u64,
    number: u64,
}

/// Checks what comes in.
pub struct Opener {
    keys: Keys,
    encrypt: bool,
    windows: HashMap<(u64, u64), Window>,
}

struct Window {
    top: u64,
    /// Bit n: number `top - n` has come.
    seen: u128,
    heard: u64,
}

impl Keys {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    fn new(key: &[u8; 32]) -> Self {
        let mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
        let cipher = mac.clone().chain_update(CIPHER_KEY).finalize().into_bytes().into();
        Self { mac, cipher }
    }

    /// The stamp and the payload, if the MAC is right.
    fn verify<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (body, mac) = datagram.split_last_chunk::<MAC_BYTES>()?;
        self.mac.clone().chain_update(body).verify_truncated_left(mac).ok()?;
        body.get(MAGIC_OPEN.len()..)
    }

    /// The stamp and the payload, if the tag is right.
    fn decrypt<'a>(&self, datagram: &'a mut [u8]) -> Option<&'a [u8]> {
        let (magic, rest) = datagram.split_first_chunk_mut::<4>()?;
        let (nonce, rest) = rest.split_first_chunk_mut::<NONCE_BYTES>()?;
        let (text, tag) = rest.split_last_chunk_mut::<MAC_BYTES>()?;
        Aegis256::<MAC_BYTES>::new(&self.cipher, nonce).decrypt_in_place(text, tag, magic).ok()?;
        Some(text)
    }
}

impl Sealer {
    /// `encrypt`: only a process with the key can read what this node sends.
    pub fn new(key: &[u8; 32], encrypt: bool, sender: u64, session: u64) -> Self {
        Self { keys: Keys::new(key), encrypt, sender, session, number: 0 }
    }

    /// Makes a datagram; `clock` is the wall clock in milliseconds. Returns `None` when the system
    /// gives no random numbers for a nonce.
    pub fn seal(&mut self, clock: u64, payload: &[u8]) -> Option<Vec<u8>> {
        self.number += 1;
        let head = MAGIC_OPEN.len() + if self.encrypt { NONCE_BYTES } else { 0 };
        let mut out = Vec::with_capacity(head + STAMP_BYTES + payload.len() + MAC_BYTES);
        out.extend(if self.encrypt { MAGIC_ENCRYPTED } else { MAGIC_OPEN });
        let mut nonce = [0; NONCE_BYTES];
        if self.encrypt {
            let filled = getrandom(&mut nonce, GetRandomFlags::empty()).ok()?;
            out.extend((filled == NONCE_BYTES).then_some(nonce)?);
        }
        for word in [clock, self.sender, self.session, self.number] {
            out.extend(word.to_le_bytes());
        }
        out.extend(payload);
        if self.encrypt {
            let tag = Aegis256::new(&self.keys.cipher, &nonce).encrypt_in_place(&mut out[head..], MAGIC_ENCRYPTED);
            out.extend::<[u8; MAC_BYTES]>(tag);
        } else {
            let mac = self.keys.mac.clone().chain_update(&out).finalize().into_bytes();
            out.extend(&mac[..MAC_BYTES]);
        }
        Some(out)
    }
}

impl Opener {
    /// `encrypt`: only what is encrypted is opened; otherwise only what is not.
    pub fn new(key: &[u8; 32], encrypt: bool) -> Self {
        Self { keys: Keys::new(key), encrypt, windows: HashMap::new() }
    }

    /// Returns the payload, if everything is right. An encrypted one is decrypted where it lies.
    pub fn open<'a>(&mut self, clock: u64, datagram: &'a mut [u8]) -> Result<&'a [u8], Dropped> {
        let Some(magic) = datagram.first_chunk::<4>().copied() else { return Err(Dropped::Foreign) };
        let body = match &magic {
            MAGIC_ENCRYPTED => self.keys.decrypt(datagram),
            MAGIC_OPEN | MAGIC_EARLIER => self.keys.verify(datagram),
            _ => return Err(Dropped::Foreign),
        };
        let body = body.ok_or(Dropped::Forged)?;
        if magic == *MAGIC_EARLIER {
            return Err(Dropped::OtherVersion);
        }
        if (magic == *MAGIC_ENCRYPTED) != self.encrypt {
            return Err(Dropped::OtherEncryption);
        }
        let (stamp, payload) = body.split_at_checked(STAMP_BYTES).ok_or(Dropped::Malformed)?;
        let word = |at: usize| stamp[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let off = word(0).wrapping_sub(clock).cast_signed();
        if off.unsigned_abs() > MAX_SKEW_MS {
            return Err(Dropped::Skewed(off));
        }
        self.window((word(8), word(16)), clock)?.take(word(24), clock)?;
        Ok(payload)
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

#[cfg(test)]
#[path = "datagram_auth_tests.rs"]
mod tests;
