//! Content of a datagram: its sender, the beats of the nodes that it knows, the nodes that it asks
//! about, and those that it introduces.
//!
//! ```text
//! payload = intro  u8 n beat*n  u8 n key[8]*n  u8 n intro*n
//! intro   = str name  incarnation[8] beat[4]  addr gossip  addr files  str version
//! beat    = key[8] incarnation[8] beat[4]      key: hash of the name
//! str     = u8 len, bytes      addr = u8 kind (0 none, 4, 6), ip, port[2]
//! ```

use std::net::{IpAddr, SocketAddr};

/// Most beats in one datagram, so that it fits a frame.
pub(super) const MAX_BEATS: usize = 48;
/// Most questions and introductions in one datagram.
pub(super) const MAX_INTROS: usize = 6;
/// Longest name in a datagram, in bytes; names of hosts have at most 253.
pub(super) const MAX_NAME_BYTES: usize = 255;

/// A node, as it presents itself or is presented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Intro {
    pub(super) name: String,
    pub(super) incarnation: u64,
    pub(super) beat: u32,
    pub(super) gossip: Option<SocketAddr>,
    pub(super) files: Option<SocketAddr>,
    pub(super) version: String,
}

/// The count of a node's heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) key: u64,
    pub(super) incarnation: u64,
    pub(super) beat: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) from: Intro,
    pub(super) beats: Vec<Beat>,
    pub(super) asks: Vec<u64>,
    pub(super) intros: Vec<Intro>,
}

impl Payload {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + 20 * self.beats.len());
        put_intro(&self.from, &mut out);
        out.push(self.beats.len() as u8);
        for b in &self.beats {
            out.extend(b.key.to_le_bytes());
            out.extend(b.incarnation.to_le_bytes());
            out.extend(b.beat.to_le_bytes());
        }
        out.push(self.asks.len() as u8);
        out.extend(self.asks.iter().flat_map(|key| key.to_le_bytes()));
        out.push(self.intros.len() as u8);
        self.intros.iter().for_each(|intro| put_intro(intro, &mut out));
        out
    }

    /// `None`: it is not one.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let b = &mut bytes;
        let payload = Self {
            from: take_intro(b)?,
            beats: many(b, |b| {
                Some(Beat { key: take_u64(b)?, incarnation: take_u64(b)?, beat: u32::from_le_bytes(take(b)?) })
            })?,
            asks: many(b, take_u64)?,
            intros: many(b, take_intro)?,
        };
        bytes.is_empty().then_some(payload)
    }
}

fn put_intro(intro: &Intro, out: &mut Vec<u8>) {
    put_str(&intro.name, out);
    out.extend(intro.incarnation.to_le_bytes());
    out.extend(intro.beat.to_le_bytes());
    put_addr(intro.gossip, out);
    put_addr(intro.files, out);
    put_str(&intro.version, out);
}

fn put_str(s: &str, out: &mut Vec<u8>) {
    let bytes = &s.as_bytes()[..s.len().min(MAX_NAME_BYTES)];
    out.push(bytes.len() as u8);
    out.extend(bytes);
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

fn many<T>(b: &mut &[u8], one: impl Fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    let [count] = take(b)?;
    (0..count).map(|_| one(b)).collect()
}

fn take_intro(b: &mut &[u8]) -> Option<Intro> {
    Some(Intro {
        name: take_str(b)?,
        incarnation: take_u64(b)?,
        beat: u32::from_le_bytes(take(b)?),
        gossip: take_addr(b)?,
        files: take_addr(b)?,
        version: take_str(b)?,
    })
}

fn take_str(b: &mut &[u8]) -> Option<String> {
    let [len] = take(b)?;
    let (s, rest) = b.split_at_checked(usize::from(len))?;
    *b = rest;
    String::from_utf8(s.to_vec()).ok()
}

fn take_addr(b: &mut &[u8]) -> Option<Option<SocketAddr>> {
    let ip = match take(b)? {
        [0] => return Some(None),
        [4] => IpAddr::from(take::<4>(b)?),
        [6] => IpAddr::from(take::<16>(b)?),
        _ => return None,
    };
    Some(Some(SocketAddr::new(ip, u16::from_le_bytes(take(b)?))))
}

fn take_u64(b: &mut &[u8]) -> Option<u64> {
    take(b).map(u64::from_le_bytes)
}

fn take<const N: usize>(b: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = b.split_first_chunk()?;
    *b = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn intro(name: &str, gossip: &str) -> Intro {
        let gossip = Some(gossip.parse().unwrap());
        Intro { name: name.into(), incarnation: 7, beat: 9, gossip, files: None, version: "1.0".into() }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nonsense_is_refused_and_payloads_cut_short_too(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0..100usize) {
            let _ = Payload::decode(&bytes);
            let beats = vec![Beat { key: 1, incarnation: 2, beat: 3 }; 3];
            let payload = Payload { from: intro("a", "1.2.3.4:5"), beats, asks: vec![4, 5], intros: vec![intro("b", "[::1]:80")] };
            let sent = payload.encode();
            prop_assert_eq!(Payload::decode(&sent), Some(payload));
            prop_assert_eq!(Payload::decode(&sent[..cut % sent.len()]), None);
        }
    }
}
