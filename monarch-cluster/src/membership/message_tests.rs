use super::super::record::{Contact, Incarnation, Status};
use super::*;
use crate::directory::members::node_key;
use proptest::prelude::*;

fn contact() -> impl Strategy<Value = Contact> {
    let address = || proptest::option::of(any::<std::net::SocketAddr>().prop_map(without_scope));
    ("[a-z]{1,40}", address(), address()).prop_map(|(name, gossip, files)| Contact { name: name.into(), gossip, files })
}

/// Flow and scope of an IPv6 address mean something on one node only, and do not travel.
fn without_scope(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip(), at.port())
}

fn record(contact: impl Strategy<Value = Option<Contact>>) -> impl Strategy<Value = Record> {
    (any::<(u64, u64, u32, u32)>(), 0..3_u8, contact).prop_map(|((key, life, refutations, age), status, contact)| {
        let status = [Status::Alive, Status::Silent, Status::Left][usize::from(status)];
        let age_s = if status == Status::Alive { 0 } else { age };
        let key = contact.as_ref().map_or(key, |c| node_key(&c.name));
        Record { key, incarnation: Incarnation { life, refutations }, status, age_s, contact }
    })
}

fn message() -> impl Strategy<Value = Message> {
    (0..10_u8, any::<u32>(), any::<u64>(), any::<bool>()).prop_map(|(kind, seq, hash, wants_reply)| {
        let mut buckets = Mask::default();
        buckets.insert(seq as usize % BUCKETS);
        match kind {
            0 => Message::Ping(seq),
            1 => Message::Ack(seq),
            2 => Message::PingRequest { seq, target: hash },
            3 => Message::RelayedAck(seq),
            4 => Message::Greeting,
            5 => Message::Welcome,
            6 => Message::News,
            7 => Message::Digest(hash),
            8 => Message::Buckets(Box::new([seq; BUCKETS])),
            _ => Message::Pieces { buckets, wants_reply },
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn payloads_arrive_as_they_were_sent_and_are_refused_when_cut_short(
        from in record(contact().prop_map(Some)),
        message in message(),
        asks in proptest::collection::vec(any::<u64>(), 0..MAX_ASKS),
        news in proptest::collection::vec(record(proptest::option::of(contact())), 0..9),
        cut in any::<usize>(),
    ) {
        let lens = from.wire_len() + message.wire_len() + news.iter().map(Record::wire_len).sum::<usize>();
        let payload = Payload { to: 7, from, message, asks, news };
        let sent = payload.encode();
        prop_assert_eq!(sent.len(), 11 + lens + 8 * payload.asks.len());
        prop_assert_eq!(Payload::decode(&sent), Some(payload));
        prop_assert_eq!(Payload::decode(&sent[..cut % sent.len()]), None);
    }

    #[test]
    fn nonsense_is_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Payload::decode(&bytes);
    }
}
