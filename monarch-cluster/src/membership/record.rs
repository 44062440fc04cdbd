//! The wire form of a member's news.
//!
//! ```text
//! record  = flags[1]  contact or key[8]  life[8]  refutations(varint)  age(varint, unless alive)
//! flags   = status in bits 0 and 1, bit 2: a contact follows and the key is left out
//! contact = str name  addr gossip  addr files
//! str     = u8 len, bytes      addr = u8 kind (0 none, 4, 6), ip, port[2]
//! ```
//! Little-endian; the key is the hash of the name. A record without a contact has about 20 bytes,
//! so that one datagram carries the news of 50 members.

use super::types::Peer;
use crate::directory::members::node_key;
use integer_encoding::VarInt;
use std::net::{IpAddr, SocketAddr};

/// Longest name in a datagram, in bytes; names of hosts have at most 253.
pub(super) const MAX_NAME_BYTES: usize = 255;
/// Bit of the flags: the record has a contact.
const HAS_CONTACT: u8 = 4;

/// The incarnation number of SWIM. The life comes first: a node that was restarted outranks all
/// that is known of its life before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Incarnation {
    /// Number of the node's life: milliseconds since 1970 when it started, or more.
    pub(super) life: u64,
    /// How often the node has refuted a suspicion in this life.
    pub(super) refutations: u32,
}

/// What a record says of a member. Of two records with one incarnation the later status counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    /// It answers.
    Alive,
    /// It does not answer: suspect, and down once that is so for long enough.
    Silent,
    /// It said goodbye.
    Left,
}

/// Where a member is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contact {
    pub(super) name: Box<str>,
    pub(super) gossip: Option<SocketAddr>,
    pub(super) files: Option<SocketAddr>,
}

/// News of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: u64,
    pub(super) incarnation: Incarnation,
    pub(super) status: Status,
    /// Seconds since the member has this status; 0 for one that is alive.
    pub(super) age_s: u32,
    pub(super) contact: Option<Contact>,
}

impl Record {
    /// Describes a member that presented itself by another way than a datagram.
    pub(super) fn of_peer(peer: &Peer, refutations: u32) -> Self {
        let contact = Contact { name: peer.name.as_str().into(), gossip: peer.gossip, files: peer.files };
        Self {
            key: node_key(&peer.name),
            incarnation: Incarnation { life: peer.incarnation, refutations },
            status: Status::Alive,
            age_s: 0,
            contact: Some(contact),
        }
    }

    /// Returns the length on the wire in bytes.
    pub(super) fn wire_len(&self) -> usize {
        let age = if self.status == Status::Alive { 0 } else { self.age_s.required_space() };
        let whose = self.contact.as_ref().map_or(8, |contact| {
            1 + name_bytes(&contact.name).len() + addr_len(contact.gossip) + addr_len(contact.files)
        });
        1 + whose + 8 + self.incarnation.refutations.required_space() + age
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.status as u8 | if self.contact.is_some() { HAS_CONTACT } else { 0 });
        match &self.contact {
            None => out.extend(self.key.to_le_bytes()),
            Some(contact) => {
                let name = name_bytes(&contact.name);
                out.push(name.len() as u8);
                out.extend(name);
                put_addr(contact.gossip, out);
                put_addr(contact.files, out);
            }
        }
        out.extend(self.incarnation.life.to_le_bytes());
        put_varint(self.incarnation.refutations, out);
        if self.status != Status::Alive {
            put_varint(self.age_s, out);
        }
    }

    /// Takes a record from the front of `b`. Returns `None` when it is malformed.
    pub(super) fn decode(b: &mut &[u8]) -> Option<Self> {
        let [flags] = take(b)?;
        let status = match flags & !HAS_CONTACT {
            0 => Status::Alive,
            1 => Status::Silent,
            2 => Status::Left,
            _ => return None,
        };
        let contact = if flags & HAS_CONTACT == 0 { None } else { Some(take_contact(b)?) };
        let key = match &contact {
            Some(contact) => node_key(&contact.name),
            None => take_u64(b)?,
        };
        let incarnation = Incarnation { life: take_u64(b)?, refutations: take_varint(b)? };
        let age_s = if status == Status::Alive { 0 } else { take_varint(b)? };
        Some(Self { key, incarnation, status, age_s, contact })
    }
}

fn name_bytes(name: &str) -> &[u8] {
    &name.as_bytes()[..name.len().min(MAX_NAME_BYTES)]
}

const fn addr_len(addr: Option<SocketAddr>) -> usize {
    match addr {
        None => 1,
        Some(SocketAddr::V4(_)) => 7,
        Some(SocketAddr::V6(_)) => 19,
    }
}

fn put_addr(addr: Option<SocketAddr>, out: &mut Vec<u8>) {
    match addr.map(|a| a.ip()) {
        None => return out.push(0),
        Some(IpAddr::V4(ip)) => {
            out.push(4);
            out.extend(ip.octets());
        }
        Some(IpAddr::V6(ip)) => {
            out.push(6);
            out.extend(ip.octets());
        }
    }
    out.extend(addr.map_or(0, |a| a.port()).to_le_bytes());
}

/// Appends a varint (LEB128).
pub(super) fn put_varint(n: u32, out: &mut Vec<u8>) {
    let mut buffer = [0; 5];
    let len = n.encode_var(&mut buffer);
    out.extend(&buffer[..len]);
}

/// Takes a varint (LEB128) from the front.
pub(super) fn take_varint(b: &mut &[u8]) -> Option<u32> {
    let (n, len) = u32::decode_var(b)?;
    *b = b.get(len..)?;
    Some(n)
}

fn take_contact(b: &mut &[u8]) -> Option<Contact> {
    let [len] = take(b)?;
    let (name, rest) = b.split_at_checked(usize::from(len)).filter(|(name, _)| !name.is_empty())?;
    *b = rest;
    let name = str::from_utf8(name).ok()?.into();
    Some(Contact { name, gossip: take_addr(b)?, files: take_addr(b)? })
}

#[expect(clippy::option_option, reason = "malformed, or an address that is not known")]
fn take_addr(b: &mut &[u8]) -> Option<Option<SocketAddr>> {
    let ip = match take(b)? {
        [0] => return Some(None),
        [4] => IpAddr::from(take::<4>(b)?),
        [6] => IpAddr::from(take::<16>(b)?),
        _ => return None,
    };
    Some(Some(SocketAddr::new(ip, u16::from_le_bytes(take(b)?))))
}

/// Takes a number of 8 bytes from the front.
pub(super) fn take_u64(b: &mut &[u8]) -> Option<u64> {
    take(b).map(u64::from_le_bytes)
}

/// Takes `N` bytes from the front.
pub(super) fn take<const N: usize>(b: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = b.split_first_chunk()?;
    *b = rest;
    Some(*head)
}
