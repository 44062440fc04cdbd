//! What nodes send to each other once a connection stands, and their datagrams.

use super::input::{Input, patch};
use monarch_core::cluster::election::Reply;
use monarch_core::cluster::http::session::Session;
use monarch_core::cluster::http::{Key, auth};
use monarch_core::cluster::membership::datagram_auth::{Dropped, MAX_SKEW_MS, Opener, Sealer};
use monarch_core::cluster::node::{
    Link, NodeStatus, batched_lengths, batched_numbers, decode_receipts, encode_receipts,
};
use monarch_core::outputs::order::{Answer, Ask, Find, Found};
use std::collections::HashSet;

/// Numbers that a datagram may be behind the highest one that has come.
const WINDOW: u64 = 128;

/// What nodes say of themselves: answers to bids for a scan, and accounts as JSON.
pub(crate) fn account(bytes: &[u8]) {
    if let Some(reply) = Reply::of(bytes) {
        assert_eq!(Reply::of(reply.text().as_bytes()), Some(reply));
    }
    if let Ok(status) = serde_json::from_slice::<NodeStatus>(bytes) {
        let again = serde_json::to_vec(&status).expect("an account is JSON");
        assert_eq!(serde_json::from_slice::<NodeStatus>(&again).expect("what was sent arrives"), status);
    }
    if let Ok(links) = serde_json::from_slice::<Vec<Link>>(bytes) {
        let again = serde_json::to_vec(&links).expect("an account is JSON");
        assert_eq!(serde_json::from_slice::<Vec<Link>>(&again).expect("what was sent arrives"), links);
    }
}

/// Requests for several small files, and the front of answers to them.
pub(crate) fn batch(bytes: &[u8]) {
    if let Some(numbers) = batched_numbers(bytes) {
        assert!((1..=64).contains(&numbers.len()));
        assert_eq!(numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>(), bytes);
    }
    let mut input = Input(bytes);
    let sizes: Vec<u64> = (0..input.u8() % 65).map(|_| input.u64()).collect();
    // Mostly what the front says itself, so that the rest of it is looked at.
    let rest = match input.u8() {
        0 => input.u64(),
        _ => sizes.iter().fold(0, |all: u64, size| all.wrapping_add(*size)),
    };
    let Some((lengths, again)) = batched_lengths(input.0, &sizes, rest) else { return };
    assert_eq!(again, input.0);
    assert_eq!(lengths.len(), sizes.len());
    assert!(lengths.iter().zip(&sizes).all(|(len, size)| len.is_none_or(|len| u64::from(len) == *size)));
    let all: u64 = lengths.iter().flatten().map(|len| u64::from(*len)).sum();
    assert_eq!(all, rest);
}

/// Datagrams of gossip before their authentication: changed, repeated, delayed, in any order. None
/// that is not as it was sent, or came before, is taken; one in time is.
pub(crate) fn datagram(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (flags, start) = (input.u8(), 1 << 40);
    let key = [7; 32];
    let encrypt = flags & 1 != 0;
    let mut sealer = Sealer::new(&key, encrypt, 1, 2);
    let mut other_sealer = Sealer::new(&key, flags & 2 != 0, 1, 3);
    let mut opener = Opener::new(&key, encrypt);
    let (mut sent, mut taken, mut top) = (Vec::new(), HashSet::new(), 0);
    for _ in 0..64 {
        let now = start + u64::from(input.u16());
        match input.u8() % 8 {
            0 | 1 => {
                let payload = input.part();
                let Some(datagram) = sealer.seal(now, payload) else { return };
                sent.push((now, payload.to_vec(), datagram));
            }
            2 | 3 => {
                let number = usize::from(input.u8());
                let Some((at, payload, datagram)) = sent.get(number) else { continue };
                let mut datagram = datagram.clone();
                let number = number as u64 + 1;
                let got = opener.open(now, &mut datagram).map(<[u8]>::to_vec);
                let is_fresh = top - number.min(top) < WINDOW && !taken.contains(&number);
                match got {
                    Ok(got) => {
                        assert!(is_fresh && got == *payload && at.abs_diff(now) <= MAX_SKEW_MS);
                        taken.insert(number);
                        top = top.max(number);
                    }
                    Err(Dropped::Skewed(_)) => assert!(at.abs_diff(now) > MAX_SKEW_MS),
                    Err(Dropped::Replayed) => assert!(!is_fresh),
                    Err(other) => panic!("{other:?}"),
                }
            }
            4 => {
                let Some((_, _, datagram)) = sent.get(usize::from(input.u8())) else { continue };
                let mut changed = datagram.clone();
                patch(&mut input, &mut changed);
                let is_same = changed == *datagram;
                assert!(is_same || opener.open(now, &mut changed).is_err());
            }
            5 => {
                let mut raw = input.part().to_vec();
                assert!(opener.open(now, &mut raw).is_err());
            }
            6 => {
                let Some(mut other) = other_sealer.seal(now, input.part()) else { return };
                let got = opener.open(now, &mut other).is_ok();
                assert_eq!(got, encrypt == (flags & 2 != 0));
            }
            _ => {
                let Some((_, _, datagram)) = sent.get(usize::from(input.u8())) else { continue };
                let len = usize::from(input.u16()) % datagram.len();
                assert!(opener.open(now, &mut datagram.clone()[..len]).is_err());
            }
        }
        if input.is_empty() {
            return;
        }
    }
}

/// Heads behind the proof of a connection: only the next one of the other side is taken, as it was
/// sent; bodies only with the head that they belong to.
pub(crate) fn heads(bytes: &[u8]) {
    let mut input = Input(bytes);
    let Ok(nonce) = auth::parse_challenge("Monarch nonce=\"00112233445566778899aabbccddeeff\", version=\"4\"") else {
        panic!("a challenge of this version");
    };
    let exchange = auth::Exchange { nonce, cnonce: nonce, client: "a", server: "b" };
    let key = Key::new([9; 32]);
    let mut client = Session::new(&exchange, &key, auth::Side::Client);
    let mut server = Session::new(&exchange, &key, auth::Side::Server);
    let (mut sent, mut next) = (Vec::new(), 0);
    for _ in 0..64 {
        match input.u8() % 4 {
            0 => {
                let (mut head, body) = (input.part().to_vec(), input.part());
                let tag = client.outgoing.tag(body);
                client.outgoing.seal(&mut head);
                sent.push((head, tag, body));
            }
            1 => {
                let number = usize::from(input.u8());
                let Some((head, tag, body)) = sent.get(number) else { continue };
                assert_eq!(server.incoming.open(head), number == next);
                if number == next {
                    next += 1;
                    assert!(server.incoming.is_body(*tag, body));
                    let other = input.part();
                    assert!(other == *body || !server.incoming.is_body(*tag, other));
                }
            }
            2 => {
                let number = usize::from(input.u8());
                let Some((head, _, _)) = sent.get(number) else { continue };
                let mut changed = head.clone();
                patch(&mut input, &mut changed);
                if server.incoming.open(&changed) {
                    // (The digits of a code may be in either case.)
                    assert!(number == next && changed.eq_ignore_ascii_case(head));
                    next += 1;
                }
            }
            _ => assert!(!server.incoming.open(input.part())),
        }
        if input.is_empty() {
            return;
        }
    }
}

/// Questions of output roots to those of other nodes, and the answers.
pub(crate) fn order(bytes: &[u8]) {
    if let Some(ask) = Ask::decode(bytes) {
        assert_eq!(ask.encode(), bytes);
    }
    if let Some(answer) = Answer::decode(bytes) {
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
    }
    if let Some(find) = Find::decode(bytes) {
        assert_eq!(find.encode(), bytes);
    }
    if let Some(found) = Found::decode(bytes) {
        assert_eq!(found.encode(), bytes);
    }
}

/// Announcements of pieces of large files that a node has.
pub(crate) fn receipts(bytes: &[u8]) {
    if let Some(receipts) = decode_receipts(bytes) {
        assert!(receipts.len() <= 256);
        assert!(receipts.iter().all(|(_, part)| part.start < part.end && part.end - part.start <= 1 << 30));
        assert_eq!(encode_receipts(&receipts), bytes);
    }
}
