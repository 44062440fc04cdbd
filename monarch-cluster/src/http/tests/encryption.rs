//! Nodes that encrypt: what they serve is the same, and what is refused is refused before a byte of
//! a request reaches a handler.

use super::support::*;
use crate::http::tls::Tls;
use crate::http::*;
use rustls::client::ResolvesClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, ServerConnection, SignatureScheme, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

fn encrypting() -> Options {
    Options { encryption: Some(tls()), ..options() }
}

fn peer_with(tls: Tls, addr: SocketAddr) -> Peer {
    Peer::new(PeerOptions { encryption: Some(tls), ..peer_options(addr) }).unwrap()
}

fn encrypted(addr: SocketAddr) -> Peer {
    peer_with(tls(), addr)
}

/// A server and how often its handler was asked.
fn counting() -> (Server, Arc<Double>) {
    let double = Arc::new(Double::new());
    (Server::start(encrypting(), double.clone(), None).unwrap(), double)
}

/// That the server has counted this refusal, and asked no handler.
#[track_caller]
fn refused(server: &Server, double: &Double, refusal: Refusal) {
    let until = Instant::now() + MS * 3000;
    while server.metrics().refused(refusal) == 0 {
        assert!(Instant::now() < until, "{refusal:?} was not counted");
        std::thread::sleep(MS * 5);
    }
    assert_eq!(double.asked.load(Ordering::Relaxed), 0, "{refusal:?}");
}

#[test]
fn what_is_served_is_the_same_as_without_encryption() {
    let server = serve(encrypting());
    let peer = encrypted(server.addr());
    for _ in 0..3 {
        let mut got = Vec::new();
        peer.get("/file", None, 0, max_wait()).unwrap().read_to_end(&mut got).unwrap();
        assert!(got == content());
        let mut got = vec![0; 70_000];
        peer.get("/file", Some(900_001..970_001), 0, max_wait()).unwrap().read_exact(&mut got).unwrap();
        assert!(got == content()[900_001..970_001]);
        let shared = peer.get("/shared", Some(5..2_000_000), 0, max_wait()).unwrap().bytes(u64::MAX).unwrap();
        assert!(shared == content()[5..2_000_000]);
        for len in [0, 3, 16_384, 65_536, 65_537, 9 << 20] {
            let body = content().repeat(4)[..len].to_vec();
            let echo = peer.post("/echo", &body, max_wait()).unwrap().bytes(u64::MAX).unwrap();
            assert!(echo == body, "{len}");
        }
        assert_eq!(peer.head("/file", max_wait()).unwrap().len(), FILE as u64);
        assert_eq!(peer.get("/none", None, 0, max_wait()).unwrap().status(), 204);
        assert_eq!(peer.get("/busy/350", None, 0, max_wait()).unwrap().bytes(99).unwrap(), b"done\n");
    }
    assert_eq!(server.metrics().handshakes.load(Ordering::Relaxed), 1, "all of it over one connection");
}

#[test]
fn a_file_that_is_shorter_than_promised_ends_the_connection() {
    let server = serve(encrypting());
    let mut got = Vec::new();
    let cut = encrypted(server.addr()).get("/short", None, 0, max_wait()).unwrap().read_to_end(&mut got);
    assert!(cut.is_err() && got == content(), "{cut:?}");
}

/// Bytes that the socket does not take wait for it, and come in their order.
#[test]
fn a_client_that_reads_slowly_gets_all_of_it() {
    let server = serve(encrypting());
    let peers: Vec<Peer> = (0..4).map(|_| encrypted(server.addr())).collect();
    std::thread::scope(|scope| {
        for peer in &peers {
            scope.spawn(move || {
                let mut answer = peer.get("/file", None, 0, max_wait()).unwrap();
                let (mut got, mut part) = (Vec::new(), vec![0; 150_001]);
                loop {
                    let len = answer.read(&mut part).unwrap();
                    got.extend_from_slice(&part[..len]);
                    if len == 0 {
                        break;
                    }
                    if got.len() % 7 == 0 {
                        std::thread::sleep(MS * 20);
                    }
                }
                assert!(got == content());
            });
        }
    });
}

#[test]
fn an_idle_connection_that_was_closed_is_not_an_error() {
    let server = serve(Options { idle_timeout: MS * 500, ..encrypting() });
    let peer = encrypted(server.addr());
    for _ in 0..2 {
        assert_eq!(peer.head("/file", max_wait()).unwrap().status(), 200);
        std::thread::sleep(MS * 1500);
    }
    assert_eq!(server.metrics().handshakes.load(Ordering::Relaxed), 2);
}

#[test]
fn another_secret_is_refused_on_both_sides() {
    let (server, double) = counting();
    let end = peer_with(Tls::new(&[6; 32]).unwrap(), server.addr()).head("/file", max_wait()).unwrap_err();
    assert!(matches!(end, WireError::Unauthenticated { who: "the peer", .. }), "{end}");
    refused(&server, &double, Refusal::BadProof);
}

/// What an attacker's client does with the server's key.
#[derive(Debug)]
struct TakesAny;

impl ServerCertVerifier for TakesAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// A client without a key.
#[derive(Debug)]
struct NoKey;

impl ResolvesClientCert for NoKey {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }
}

/// Sends a request over TLS with this configuration; what came back, or why nothing did.
fn ask_with(config: ClientConfig, addr: SocketAddr) -> std::io::Result<Vec<u8>> {
    let tls = ClientConnection::new(Arc::new(config), Tls::no_name()).unwrap();
    let mut stream = StreamOwned::new(tls, TcpStream::connect(addr).unwrap());
    stream.write_all(b"HEAD /file HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut got = Vec::new();
    stream.read_to_end(&mut got)?;
    Ok(got)
}

#[test]
fn a_client_needs_the_key_and_the_protocol_to_be_heard() {
    let config = |tls: &Tls| (*tls.client).clone();
    // The key and the protocol: it is asked for its proof, and the server takes leave in order.
    let (server, _) = counting();
    let got = String::from_utf8(ask_with(config(&tls()), server.addr()).unwrap()).unwrap();
    assert!(got.starts_with("HTTP/1.1 401") && got.contains("nonce="), "{got}");

    let mut keyless = config(&tls());
    keyless.client_auth_cert_resolver = Arc::new(NoKey);
    let mut foreign = config(&Tls::new(&[6; 32]).unwrap());
    foreign.dangerous().set_certificate_verifier(Arc::new(TakesAny));
    let mut other = config(&tls());
    other.alpn_protocols = vec![b"h2".to_vec()];
    let mut none = config(&tls());
    none.alpn_protocols.clear();
    for (what, config, refusal) in [
        ("no key", keyless, Refusal::BadProof),
        ("a foreign key", foreign, Refusal::BadProof),
        ("another protocol", other, Refusal::Handshake),
        ("no protocol", none, Refusal::Handshake),
    ] {
        let (server, double) = counting();
        let end = ask_with(config, server.addr());
        assert!(!end.as_ref().is_ok_and(|got| !got.is_empty()), "{what}: {end:?}");
        refused(&server, &double, refusal);
    }
}

#[test]
fn another_version_is_refused_by_its_protocol() {
    let (server, double) = counting();
    let old = Tls::speaking(&[5; 32], b"monarch/1").unwrap();
    let end = peer_with(old.clone(), server.addr()).head("/file", max_wait()).unwrap_err();
    assert!(matches!(end, WireError::Protocol { .. }), "{end}");
    refused(&server, &double, Refusal::Handshake);

    let server = serve(Options { encryption: Some(old), ..options() });
    let end = encrypted(server.addr()).head("/file", max_wait()).unwrap_err();
    assert!(matches!(end, WireError::Protocol { .. }), "{end}");
}

#[test]
fn nodes_of_which_one_encrypts_say_so_on_both_sides() {
    let (server, double) = counting();
    let end = peer(server.addr()).head("/file", max_wait()).unwrap_err();
    assert!(matches!(end, WireError::Encryption { mine: "none", its: "tls", .. }), "{end}");
    refused(&server, &double, Refusal::Unencrypted);
    let stream = TcpStream::connect(server.addr()).unwrap();
    let text = talk(&stream, b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n", MS * 3000);
    assert!(text.starts_with("HTTP/1.1 426 ") && text.contains("Upgrade: TLS/1.3"), "{text}");

    let double = Arc::new(Double::new());
    let server = Server::start(options(), double.clone(), None).unwrap();
    let end = encrypted(server.addr()).head("/file", max_wait()).unwrap_err();
    assert!(matches!(end, WireError::Encryption { mine: "tls", its: "none", .. }), "{end}");
    refused(&server, &double, Refusal::Encrypted);
    assert!(end.to_string().contains("cluster.encryption") && end.peer_is_in_doubt(), "{end}");
}

/// What an attacker does to one message of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Attack {
    Flip,
    Cut,
    Repeat,
}

/// A request whose message `turn`, forth or back, is attacked: whether that message came, and what
/// the client got.
fn attacked(attack: Attack, turn: usize, back: bool) -> (bool, Option<Vec<u8>>, u64) {
    let (server, double) = counting();
    let reached = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = reached.clone();
    let change: Arc<Change> = Arc::new(move |number, mut bytes: Vec<u8>| {
        if number != turn {
            return bytes;
        }
        seen.store(true, Ordering::SeqCst);
        let last = bytes.len() - 1;
        match attack {
            Attack::Flip => bytes[last] ^= 1,
            Attack::Cut => bytes.truncate(last),
            Attack::Repeat => bytes = bytes.repeat(2),
        }
        bytes
    });
    let same: Arc<Change> = Arc::new(unchanged);
    let (requests, answers) = if back { (same, change) } else { (change, same) };
    let peer = encrypted(between(server.addr(), requests, answers));
    let got = peer.post("/echo", b"abc", MS * 3000).ok().and_then(|answer| answer.bytes(9).ok());
    let asked = double.asked.load(Ordering::Relaxed);
    // The server is as it was.
    assert_eq!(encrypted(server.addr()).post("/echo", b"abc", max_wait()).unwrap().bytes(9).unwrap(), b"abc");
    (reached.load(Ordering::SeqCst), got, asked)
}

#[test]
fn flipped_cut_and_repeated_bytes_are_believed_by_neither_side() {
    for (back, attack) in [false, true]
        .into_iter()
        .flat_map(|back| [Attack::Flip, Attack::Cut, Attack::Repeat].map(|attack| (back, attack)))
    {
        let mut attacks = 0;
        for turn in 0..4 {
            let (reached, got, asked) = attacked(attack, turn, back);
            let what = format!("{attack:?} of message {turn}, back {back}: {got:?}");
            attacks += usize::from(reached);
            assert!(asked <= 1 && got.as_ref().is_none_or(|got| got == b"abc"), "{what}");
            // A message that came twice may have been the last one.
            assert!(!reached || attack == Attack::Repeat || got.is_none(), "{what}");
        }
        assert!(attacks >= 3, "{attack:?} {back}: {attacks} messages");
    }
}

/// A server by hand that shakes hands with a client and proves itself.
fn by_hand(stream: TcpStream) -> (StreamOwned<ServerConnection, TcpStream>, crate::http::session::Session) {
    let tls = ServerConnection::new(tls().server.clone()).unwrap();
    let mut stream = StreamOwned::new(tls, stream);
    let session = take_login_on(&mut stream, &key()).unwrap();
    (stream, session)
}

#[test]
fn bytes_that_were_not_asked_for_are_not_taken_for_the_next_answer() {
    let (addr, _) = impostor(|stream, _| {
        let (mut stream, mut session) = by_hand(stream);
        let mut both = answer(&mut session, "one");
        both.extend(answer(&mut session, "two"));
        // In one record, and in two that come together.
        let _ = stream.write_all(&both);
        let _ = stream.read(&mut [0]);
    });
    let peer = encrypted(addr);
    for _ in 0..2 {
        assert_eq!(peer.get("/a", None, 0, max_wait()).unwrap().bytes(9).unwrap(), b"one");
    }
}

#[test]
fn a_changed_record_is_reported_as_forged() {
    let (addr, _) = impostor(|stream, _| {
        let (mut stream, mut session) = by_hand(stream);
        let _ = stream.write_all(&answer(&mut session, "one"));
        // No record of this connection.
        let _ = stream.sock.write_all(&[0x17, 3, 3, 0, 30].into_iter().chain([7; 30]).collect::<Vec<u8>>());
        let _ = stream.sock.read(&mut [0; 64]);
        let _ = stream.sock.read(&mut [0; 64]);
    });
    let peer = encrypted(addr);
    assert_eq!(peer.get("/a", None, 0, max_wait()).unwrap().bytes(9).unwrap(), b"one");
    std::thread::sleep(MS * 100);
    let end = peer.get("/b", None, 0, max_wait()).unwrap_err();
    assert!(matches!(end, WireError::Forged { .. }), "{end}");
}

#[test]
fn a_server_that_does_not_shake_hands_is_given_up() {
    let (addr, _) = impostor(|stream, _| {
        std::thread::spawn(move || {
            std::thread::sleep(MS * 20_000);
            drop(stream);
        });
    });
    let peer =
        Peer::new(PeerOptions { encryption: Some(tls()), peer_timeout: MS * 500, ..peer_options(addr) }).unwrap();
    let begun = Instant::now();
    let end = peer.head("/a", max_wait()).unwrap_err();
    assert!(matches!(end, WireError::Timeout { .. }) && begun.elapsed() < MS * 8000, "{end} {:?}", begun.elapsed());
}
