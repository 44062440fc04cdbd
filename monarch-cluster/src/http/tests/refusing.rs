//! What a server turns down, and what a client does not believe.

use super::support::*;
use crate::http::*;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn refused(server: &Server, refusal: Refusal) -> u64 {
    // The client may read the answer before the server has counted it.
    let until = Instant::now() + Duration::from_secs(2);
    while server.metrics().refused(refusal) == 0 && Instant::now() < until {
        std::thread::sleep(MS * 5);
    }
    server.metrics().refused(refusal)
}

fn status(text: &str) -> u16 {
    text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn another_secret_is_refused_on_both_sides() {
    let server = serve(options());
    let other = Peer::new(PeerOptions { key: Key::new([6; 32]), ..peer_options(server.addr()) }).unwrap();
    let err = other.head("/file", max_wait()).unwrap_err();
    assert!(matches!(err, WireError::Unauthenticated { who: "this node", .. }), "{err}");
    assert_eq!(refused(&server, Refusal::BadProof), 1);

    let (addr, _) = impostor(|mut stream, _| {
        let mut session = take_login(&stream, &Key::new([6; 32])).unwrap();
        let _ = stream.write_all(&answer(&mut session, "bad"));
    });
    let err = peer(addr).get("/file", None, 0, max_wait()).unwrap_err();
    assert!(matches!(err, WireError::Unauthenticated { who: "the peer", .. }), "{err}");
}

#[test]
fn a_server_without_proof_is_not_believed() {
    let (addr, _) = impostor(|mut stream, _| {
        take_login(&stream, &key());
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad");
    });
    let err = peer(addr).get("/file", None, 0, max_wait()).unwrap_err();
    assert!(matches!(err, WireError::Unauthenticated { who: "the peer", .. }), "{err}");
}

#[test]
fn what_is_no_agent_is_told_apart() {
    for answer in [
        "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n",
    ] {
        let (addr, _) = impostor(move |mut stream, _| {
            read_head(&stream);
            let _ = stream.write_all(answer.as_bytes());
        });
        let err = peer(addr).head("/file", max_wait()).unwrap_err();
        assert!(matches!(err, WireError::Protocol { .. }), "{answer}: {err}");
    }
}

#[test]
fn another_name_than_meant_is_refused() {
    let server = serve(options());
    let other = Peer::new(PeerOptions { its_name: "p".into(), ..peer_options(server.addr()) }).unwrap();
    assert!(matches!(other.head("/file", max_wait()), Err(WireError::Unauthenticated { .. })));
    assert!(Peer::new(PeerOptions { its_name: "a b".into(), ..peer_options(server.addr()) }).is_err());
}

#[test]
fn a_name_that_is_in_no_list_is_refused() {
    let members = |names: &[&str]| Some(std::sync::Arc::new(names.iter().map(|&name| name.to_owned()).collect()));
    let server = serve(Options { members: members(&["o", "p"]), ..options() });
    let err = peer(server.addr()).head("/file", max_wait()).unwrap_err();
    assert!(matches!(err, WireError::NoMember { .. }), "{err}");
    assert_eq!(refused(&server, Refusal::NoMember), 1);
    let server = serve(Options { members: members(&["o", "z"]), ..options() });
    assert_eq!(peer(server.addr()).head("/file", max_wait()).unwrap().status(), 200);
}

#[test]
fn a_proof_seen_on_the_network_is_of_no_use() {
    let server = serve(options());
    let (first, nonce) = challenged(server.addr());
    let (line, mut session) = authorization(nonce);
    let request = sealed(&mut session, &format!("HEAD /file HTTP/1.1\r\nHost: x\r\n{line}"), "");
    assert!(talk_once(&first, &request).starts_with("HTTP/1.1 200"));
    let (second, _) = challenged(server.addr());
    assert_eq!(status(&talk(&second, &request, MS * 2000)), 401);
    let third = TcpStream::connect(server.addr()).unwrap();
    assert_eq!(status(&talk(&third, &request, MS * 2000)), 401);
    assert_eq!(refused(&server, Refusal::Replayed), 2);
}

#[test]
fn strangers_have_three_requests_and_two_seconds() {
    let server = serve(Options { handshake_timeout: MS * 2000, ..options() });
    let (stream, first) = challenged(server.addr());
    assert_ne!(challenge_on(&stream), first);
    let text = talk(&stream, b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n", MS * 10_000);
    assert!(status(&text) == 401 && text.contains("Connection: close"), "{text}");
    for start in ["", "GET /fi", "GET /file HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let stream = TcpStream::connect(server.addr()).unwrap();
        let begun = Instant::now();
        assert!(talk(&stream, start.as_bytes(), MS * 30_000).contains("401"), "{start}");
        assert!(begun.elapsed() < MS * 20_000, "{start}: {:?}", begun.elapsed());
    }
    let post = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc";
    let stream = TcpStream::connect(server.addr()).unwrap();
    let text = talk(&stream, post, MS * 2000);
    assert!(status(&text) == 401 && text.contains("nonce=") && text.contains("Connection: close"), "{text}");
}

fn refusal_of(addr: SocketAddr, bytes: &[u8]) -> u16 {
    let stream = TcpStream::connect(addr).unwrap();
    let text = talk(&stream, bytes, MS * 4000);
    assert!(text.contains("Connection: close"), "{text}");
    status(&text)
}

#[test]
fn bad_requests_get_their_status_before_any_login() {
    let server = serve(options());
    let host = "HTTP/1.1\r\nHost: x\r\n";
    let long = format!("GET /a {host}A: {}\r\n\r\n", "b".repeat(20_000));
    let endless = "G".repeat(17_000);
    let cases = [
        (format!("GET /../etc/passwd {host}\r\n"), 400, Refusal::Path),
        (format!("GET //a {host}\r\n"), 400, Refusal::Path),
        (format!("GET /%2e%2e/a {host}\r\n"), 400, Refusal::Path),
        (format!("GET /a\0b {host}\r\n"), 400, Refusal::Malformed),
        (format!("BREW /a {host}\r\n"), 405, Refusal::Method),
        ("GET /a HTTP/1.0\r\n\r\n".into(), 505, Refusal::Version),
        (long, 431, Refusal::HeadTooLarge),
        (endless, 431, Refusal::HeadTooLarge),
        (format!("POST /a {host}\r\n"), 411, Refusal::NoLength),
        (format!("POST /a {host}Transfer-Encoding: chunked\r\n\r\n"), 501, Refusal::Coding),
        (format!("POST /a {host}Content-Length: 16777217\r\n\r\n"), 413, Refusal::BodyTooLarge),
        (format!("GET /a {host}Range: bytes=1-2,5-6\r\n\r\n"), 416, Refusal::Range),
        ("\x16\x03\x01 tls?".into(), 426, Refusal::Encrypted),
    ];
    for (text, expected, refusal) in cases {
        let before = server.metrics().refused(refusal);
        assert_eq!(refusal_of(server.addr(), text.as_bytes()), expected, "{refusal:?}");
        assert!(refused(&server, refusal) > before, "{refusal:?}");
    }
}

#[test]
fn connections_are_limited_and_come_free_again() {
    let server = serve(Options { connections: 2, ..options() });
    let (first, second) = (logged_in(server.addr()), logged_in(server.addr()));
    assert!(matches!(
        peer(server.addr()).head("/file", max_wait()),
        Err(WireError::Full { .. } | WireError::Closed { .. })
    ));
    assert!(refused(&server, Refusal::Full) >= 1);
    drop((first, second));
    let until = Instant::now() + MS * 3000;
    while peer(server.addr()).head("/file", max_wait()).is_err() {
        assert!(Instant::now() < until, "no connection came free");
        std::thread::sleep(MS * 20);
    }
}

#[test]
fn the_limit_of_connections_follows_what_is_admitted() {
    let server = serve(Options { connections: 2, ..options() });
    let open: Vec<_> = (0..2).map(|_| logged_in(server.addr())).collect();
    assert!(peer(server.addr()).head("/file", max_wait()).is_err());
    server.admit(12);
    let more: Vec<_> = (0..10).map(|_| logged_in(server.addr())).collect();
    assert!(peer(server.addr()).head("/file", max_wait()).is_err());
    // Fewer again: those that are open stay, and count.
    server.admit(11);
    drop(open);
    let until = Instant::now() + MS * 3000;
    while peer(server.addr()).head("/file", max_wait()).is_err() {
        assert!(Instant::now() < until, "no connection came free");
        std::thread::sleep(MS * 20);
    }
    server.admit(1);
    assert!(peer(server.addr()).head("/file", max_wait()).is_err());
    drop(more);
}

#[test]
fn idle_connections_are_closed() {
    let server = serve(Options { idle_timeout: MS * 1000, ..options() });
    let (stream, _) = logged_in(server.addr());
    assert_eq!(talk(&stream, b"", MS * 10_000), "");
    let (stream, _) = logged_in(server.addr());
    assert_eq!(status(&talk(&stream, b"GET /fi", MS * 10_000)), 408);
    let peer = peer(server.addr());
    drop(peer.head("/file", max_wait()).unwrap());
    std::thread::sleep(MS * 1500);
    assert_eq!(peer.head("/file", max_wait()).unwrap().status(), 200, "a closed idle connection is not an error");
}

#[test]
fn two_hundred_silent_strangers_keep_no_proven_peer_waiting() {
    let server = serve(Options { handshake_timeout: MS * 60_000, ..options() });
    let (known, mut session) = logged_in(server.addr());
    let strangers: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(server.addr()).unwrap()).collect();
    let until = Instant::now() + MS * 20_000;
    // Those for which there is no place have gone, the oldest first.
    while server.metrics().refused(Refusal::Full) < 200 - 64 {
        assert!(Instant::now() < until, "they all stay");
        std::thread::sleep(MS * 5);
    }
    assert_eq!(talk(&strangers[0], b"", MS * 20_000), "");
    let begun = Instant::now();
    for _ in 0..20 {
        let got = peer(server.addr()).get("/shared", None, 0, max_wait()).unwrap().bytes(u64::MAX).unwrap();
        assert!(*got == content()[..]);
    }
    assert!(begun.elapsed() < MS * 15_000, "{:?}", begun.elapsed());
    let request = sealed(&mut session, "HEAD /file HTTP/1.1\r\nHost: x\r\n", "");
    assert!(talk_once(&known, &request).starts_with("HTTP/1.1 200 "));
}

/// A node that asks for all chunks of a file opens many connections at once, more than there are
/// places for connections that have not authenticated. Found by three nodes that mapped one file:
/// some were closed, and the PFS sent those chunks again.
#[test]
fn a_burst_of_connections_of_one_node_is_served() {
    let server = serve(options());
    for _ in 0..8 {
        let (peer, together) = (peer(server.addr()), std::sync::Barrier::new(200));
        let ask = || {
            together.wait();
            usize::from(peer.head("/file", max_wait()).is_ok_and(|r| r.status() == 200))
        };
        let served: usize = std::thread::scope(|scope| {
            let all: Vec<_> = (0..200).map(|_| scope.spawn(ask)).collect();
            all.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!((served, server.metrics().refused(Refusal::Full)), (200, 0));
    }
}

#[test]
fn strangers_take_no_place_of_a_proven_peer() {
    let server = serve(Options { connections: 2, handshake_timeout: MS * 60_000, ..options() });
    let _strangers: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(server.addr()).unwrap()).collect();
    let _open: Vec<_> = (0..2).map(|_| logged_in(server.addr())).collect();
    assert!(matches!(
        peer(server.addr()).head("/file", max_wait()),
        Err(WireError::Full { .. } | WireError::Closed { .. })
    ));
}
