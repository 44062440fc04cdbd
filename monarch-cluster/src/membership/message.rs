//! Content of a datagram: its sender, a message, questions, and news that ride along.
//!
//! ```text
//! payload = kind[1]  key[8] receiver  record sender  body  u8 n key[8]*n asks  u8 n record*n news
//! body    = ping, ack, relayed ack: seq[4]   ping request: seq[4] key[8]
//!           greeting, welcome, news: none
//!           digest: hash[8]   buckets: hash[4]*224   pieces: u8 wants reply, bits[28]
//! ```

use super::record::{Record, take, take_u64};
use std::net::SocketAddr;

/// Most bytes of a payload. With its authentication a datagram has about 1,200 bytes and fits a
/// frame.
pub(super) const MAX_PAYLOAD_BYTES: usize = 1_100;
/// Most members that one datagram asks about.
pub(super) const MAX_ASKS: usize = 16;
/// Parts of a table, by the key of its members, that are compared on their own.
pub(super) const BUCKETS: usize = 224;

/// What a datagram is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Asks the receiver for an [`Message::Ack`] with this number.
    Ping(u32),
    /// Answers a ping.
    Ack(u32),
    /// Asks the receiver to ping a member, and to pass the answer on with the number of the sender.
    PingRequest { seq: u32, target: u64 },
    /// A helper passes on that the member that it was asked to ping has answered.
    RelayedAck(u32),
    /// Announces the sender to a member that is not known to be alive.
    Greeting,
    /// Answers a greeting.
    Welcome,
    /// News, questions and answers alone.
    News,
    /// Hash of the sender's table.
    Digest(u64),
    /// Hashes of the parts of the sender's table: its hash is not that of a digest.
    Buckets(Box<[u32; BUCKETS]>),
    /// All that the sender knows of the members of some buckets is in the news of this datagram.
    Pieces { buckets: Mask, wants_reply: bool },
}

/// A set of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mask([u8; BUCKETS / 8]);

/// A datagram before its authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    /// The key of the member that it is for. Any other node that gets it (it has that address
    /// now, or the datagram was sent there again) answers nothing for that member.
    pub(super) to: u64,
    pub(super) from: Record,
    pub(super) message: Message,
    /// Keys of members whose contacts the sender does not know.
    pub(super) asks: Vec<u64>,
    pub(super) news: Vec<Record>,
}

/// A datagram to be sent.
pub(super) type Outgoing = (SocketAddr, Payload);

impl Mask {
    pub(super) fn insert(&mut self, bucket: usize) {
        self.0[bucket / 8] |= 1 << (bucket % 8);
    }

    pub(super) fn contains(&self, bucket: usize) -> bool {
        self.0[bucket / 8] & (1 << (bucket % 8)) != 0
    }
}

impl Message {
    const fn kind(&self) -> u8 {
        match self {
            Self::Ping(_) => 0,
            Self::Ack(_) => 1,
            Self::PingRequest { .. } => 2,
            Self::RelayedAck(_) => 3,
            Self::Greeting => 4,
            Self::Welcome => 5,
            Self::News => 6,
            Self::Digest(_) => 7,
            Self::Buckets(_) => 8,
            Self::Pieces { .. } => 9,
        }
    }

    /// Returns the length of the body on the wire in bytes.
    pub(super) const fn wire_len(&self) -> usize {
        match self {
            Self::Ping(_) | Self::Ack(_) | Self::RelayedAck(_) => 4,
            Self::PingRequest { .. } => 12,
            Self::Greeting | Self::Welcome | Self::News => 0,
            Self::Digest(_) => 8,
            Self::Buckets(_) => 4 * BUCKETS,
            Self::Pieces { .. } => 1 + BUCKETS / 8,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ping(seq) | Self::Ack(seq) | Self::RelayedAck(seq) => out.extend(seq.to_le_bytes()),
            Self::PingRequest { seq, target } => {
                out.extend(seq.to_le_bytes());
                out.extend(target.to_le_bytes());
            }
            Self::Greeting | Self::Welcome | Self::News => {}
            Self::Digest(hash) => out.extend(hash.to_le_bytes()),
            Self::Buckets(hashes) => out.extend(hashes.iter().flat_map(|hash| hash.to_le_bytes())),
            Self::Pieces { buckets, wants_reply } => {
                out.push(u8::from(*wants_reply));
                out.extend(buckets.0);
            }
        }
    }

    fn decode(kind: u8, b: &mut &[u8]) -> Option<Self> {
        Some(match kind {
            0 => Self::Ping(take_seq(b)?),
            1 => Self::Ack(take_seq(b)?),
            2 => Self::PingRequest { seq: take_seq(b)?, target: take_u64(b)? },
            3 => Self::RelayedAck(take_seq(b)?),
            4 => Self::Greeting,
            5 => Self::Welcome,
            6 => Self::News,
            7 => Self::Digest(take_u64(b)?),
            8 => Self::Buckets(take_hashes(b)?),
            9 => Self::Pieces { wants_reply: take::<1>(b)? == [1], buckets: Mask(take(b)?) },
            _ => return None,
        })
    }
}

impl Payload {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MAX_PAYLOAD_BYTES);
        out.push(self.message.kind());
        out.extend(self.to.to_le_bytes());
        self.from.encode(&mut out);
        self.message.encode(&mut out);
        out.push(self.asks.len() as u8);
        out.extend(self.asks.iter().flat_map(|key| key.to_le_bytes()));
        out.push(self.news.len() as u8);
        self.news.iter().for_each(|record| record.encode(&mut out));
        out
    }

    /// Returns `None` when the bytes are no payload.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let b = &mut bytes;
        let ([kind], to) = (take(b)?, take_u64(b)?);
        let from = Record::decode(b).filter(|from| from.contact.is_some())?;
        let message = Message::decode(kind, b)?;
        let payload = Self { to, from, message, asks: take_many(b, take_u64)?, news: take_many(b, Record::decode)? };
        bytes.is_empty().then_some(payload)
    }
}

fn take_seq(b: &mut &[u8]) -> Option<u32> {
    take(b).map(u32::from_le_bytes)
}

fn take_hashes(b: &mut &[u8]) -> Option<Box<[u32; BUCKETS]>> {
    let mut hashes = Box::new([0; BUCKETS]);
    for hash in hashes.iter_mut() {
        *hash = take_seq(b)?;
    }
    Some(hashes)
}

fn take_many<T>(b: &mut &[u8], one: impl Fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    let [count] = take(b)?;
    (0..count).map(|_| one(b)).collect()
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
