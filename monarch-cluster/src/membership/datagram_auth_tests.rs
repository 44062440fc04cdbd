use super::*;

const NOW: u64 = 1_800_000_000_000;

fn pair(encrypt: bool) -> (Sealer, Opener) {
    (Sealer::new(&[1; 32], encrypt, 5, 6), Opener::new(&[1; 32], encrypt))
}

fn open(opener: &mut Opener, clock: u64, sent: &[u8]) -> Result<Vec<u8>, Dropped> {
    opener.open(clock, &mut sent.to_vec()).map(<[u8]>::to_vec)
}

#[test]
fn what_was_sealed_opens_once() {
    for encrypt in [false, true] {
        let (mut sealer, mut opener) = pair(encrypt);
        let sent: Vec<_> = (0..300_u16).map(|n| sealer.seal(NOW, &n.to_le_bytes()).unwrap()).collect();
        assert_eq!(open(&mut opener, NOW, &sent[100]), Ok(100_u16.to_le_bytes().to_vec()));
        assert_eq!(open(&mut opener, NOW, &sent[100]), Err(Dropped::Replayed));
        let overtaken = open(&mut opener, NOW, &sent[50]);
        assert_eq!(overtaken, Ok(50_u16.to_le_bytes().to_vec()), "datagrams overtake each other");
        assert!(open(&mut opener, NOW, &sent[299]).is_ok());
        assert_eq!(open(&mut opener, NOW, &sent[101]), Err(Dropped::Replayed), "too far behind to know");
        let mut later = Sealer::new(&[1; 32], encrypt, 5, 7);
        assert!(open(&mut opener, NOW, &later.seal(NOW, b"").unwrap()).is_ok(), "a new session counts from 0");
    }
}

#[test]
fn what_was_not_sealed_with_the_key_or_now_does_not_open() {
    for encrypt in [false, true] {
        let (mut sealer, mut opener) = pair(encrypt);
        let sent = sealer.seal(NOW, b"payload").unwrap();
        for n in 0..sent.len() {
            let mut bad = sent.clone();
            bad[n] ^= 1;
            let why = open(&mut opener, NOW, &bad).unwrap_err();
            assert_eq!(why, if n < 4 { Dropped::Foreign } else { Dropped::Forged }, "byte {n}");
        }
        for len in 4..sent.len() {
            assert_eq!(open(&mut opener, NOW, &sent[..len]), Err(Dropped::Forged), "cut to {len} bytes");
        }
        assert_eq!(open(&mut opener, NOW, &sent[..3]), Err(Dropped::Foreign));
        assert_eq!(open(&mut Opener::new(&[2; 32], encrypt), NOW, &sent), Err(Dropped::Forged));
        assert_eq!(open(&mut opener, NOW + MAX_SKEW_MS + 1, &sent), Err(Dropped::Skewed(-30_001)));
        assert_eq!(open(&mut opener, NOW - MAX_SKEW_MS - 1, &sent), Err(Dropped::Skewed(30_001)));
        assert!(open(&mut opener, NOW + MAX_SKEW_MS, &sent).is_ok());
    }
}

#[test]
fn what_is_encrypted_shows_nothing_and_never_looks_the_same() {
    let (mut sealer, _) = pair(true);
    let payload = b"node17 node17 node17";
    let sent = [(); 2].map(|()| sealer.seal(NOW, payload).unwrap());
    assert!(!sent[0].windows(6).any(|bytes| bytes == b"node17"));
    let clock = NOW.to_le_bytes();
    assert!(!sent[0].windows(8).any(|bytes| bytes == clock));
    assert_ne!(sent[0][4..36], sent[1][4..36], "a nonce is used once");
    let (mut open, _) = pair(false);
    assert!(open.seal(NOW, payload).unwrap().windows(6).any(|bytes| bytes == b"node17"));
}

/// A node that encrypts is not talked into listening to what is not, nor the reverse.
#[test]
fn nodes_that_encrypt_and_nodes_that_do_not_refuse_each_other() {
    for encrypt in [false, true] {
        let (mut sealer, mut opener) = (pair(encrypt).0, pair(!encrypt).1);
        assert_eq!(open(&mut opener, NOW, &sealer.seal(NOW, b"x").unwrap()), Err(Dropped::OtherEncryption));
    }
}

/// Datagrams of version 0.2 were authentic in the same way: a node knows them for its own job's.
#[test]
fn an_earlier_version_of_the_same_job_is_told_from_a_stranger() {
    let mut earlier = b"MGS1".to_vec();
    earlier.extend([NOW, 5, 6, 1].iter().flat_map(|word| word.to_le_bytes()));
    let sealed = |key| {
        let mac = Keys::new(key).mac.chain_update(&earlier).finalize().into_bytes();
        [&earlier[..], &mac[..MAC_BYTES]].concat()
    };
    let (_, mut opener) = pair(false);
    assert_eq!(open(&mut opener, NOW, &sealed(&[1; 32])), Err(Dropped::OtherVersion));
    assert_eq!(open(&mut opener, NOW, &sealed(&[2; 32])), Err(Dropped::Forged));
}

/// The bytes of an encrypted datagram are fixed by the format: a change of it needs another magic.
#[test]
fn an_encrypted_datagram_of_the_format_opens() {
    let keys = Keys::new(&[1; 32]);
    let nonce = [9; NONCE_BYTES];
    let mut text: Vec<u8> = [NOW, 5, 6, 1].iter().flat_map(|word| word.to_le_bytes()).chain(*b"hello").collect();
    let tag = Aegis256::<MAC_BYTES>::new(&keys.cipher, &nonce).encrypt_in_place(&mut text, b"MGE2");
    let sent = [b"MGE2", &nonce[..], &text[..], &tag[..]].concat();
    let (_, mut opener) = pair(true);
    assert_eq!(open(&mut opener, NOW, &sent), Ok(b"hello".to_vec()));
}

#[test]
fn senders_are_bounded_and_silent_ones_make_way() {
    let mut opener = Opener::new(&[1; 32], false);
    let mut last = Vec::new();
    for sender in 0..=MAX_SENDERS as u64 {
        last = Sealer::new(&[1; 32], false, sender, 1).seal(NOW, b"").unwrap();
        let opened = open(&mut opener, NOW, &last);
        assert_eq!(opened.err(), (sender == MAX_SENDERS as u64).then_some(Dropped::Crowded));
    }
    opener.windows.values_mut().for_each(|window| window.heard -= SENDER_LIFE_MS);
    assert!(open(&mut opener, NOW, &last).is_ok());
}
