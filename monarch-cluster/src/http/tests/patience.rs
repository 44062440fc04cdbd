//! Waits: that busy peers are waited for, and others are not.

use super::support::*;
use crate::http::*;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

fn timed<R>(ask: impl FnOnce() -> R) -> (R, Duration) {
    let start = Instant::now();
    let got = ask();
    (got, start.elapsed())
}

fn short(addr: std::net::SocketAddr) -> Peer {
    Peer::new(PeerOptions { peer_timeout: MS * 500, ..peer_options(addr) }).unwrap()
}

#[test]
fn a_busy_owner_is_waited_for_longer_than_a_silent_one() {
    let server = serve(options());
    let peer = short(server.addr());
    for _ in 0..2 {
        let (response, took) = timed(|| peer.get("/busy/1200", None, 0, max_wait()).unwrap());
        assert!(response.status() == 200 && took >= MS * 1200, "{took:?}");
        drop(response.bytes(100));
    }
    let (err, took) = timed(|| peer.get("/busy/9000", None, 0, MS * 700).unwrap_err());
    assert!(matches!(err, WireError::Timeout { .. }) && took >= MS * 650 && took < MS * 8000, "{err} {took:?}");
}

#[test]
fn a_peer_that_never_answers_is_given_up() {
    // The kernel takes the connection for it, as for an agent that is stopped.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = short(listener.local_addr().unwrap());
    let (err, took) = timed(|| peer.head("/file", max_wait()).unwrap_err());
    assert!(matches!(err, WireError::Timeout { .. }) && took >= MS * 450 && took < MS * 10_000, "{err} {took:?}");
    assert!(err.peer_is_in_doubt());
}

#[test]
fn a_peer_that_usually_answers_is_given_up_sooner() {
    let (addr, _) = impostor(|mut stream, _| {
        let mut session = take_login(&stream, &key()).unwrap();
        for _ in 0..9 {
            let _ = stream.write_all(&answer(&mut session, ""));
            read_head(&stream);
        }
        std::thread::sleep(MS * 60_000);
    });
    let peer = Peer::new(PeerOptions { peer_timeout: MS * 19_000, ..peer_options(addr) }).unwrap();
    for _ in 0..9 {
        peer.head("/a", max_wait()).unwrap();
    }
    let (err, took) = timed(|| peer.head("/a", max_wait()).unwrap_err());
    assert!(matches!(err, WireError::Timeout { .. }) && took >= MS * 290 && took < MS * 10_000, "{err} {took:?}");
}

#[test]
fn nobody_there_is_known_at_once() {
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let patient = Peer::new(PeerOptions { peer_timeout: MS * 19_000, ..peer_options(addr) }).unwrap();
    let (err, took) = timed(|| patient.head("/file", max_wait()).unwrap_err());
    assert!(matches!(err, WireError::Unreachable { .. }) && took < MS * 10_000, "{err} {took:?}");
}

/// A peer that sends `len` in its head and leaves the body to `send`.
fn body_by(len: u64, send: impl Fn(&mut std::net::TcpStream) + Send + 'static) -> Peer {
    let (addr, _) = impostor(move |mut stream, _| {
        let mut session = take_login(&stream, &key()).unwrap();
        let _ = stream.write_all(&sealed(&mut session, &format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n"), ""));
        send(&mut stream);
    });
    short(addr)
}

fn read_error(peer: &Peer) -> (std::io::Error, usize, Duration) {
    let mut response = peer.get("/a", None, 0, max_wait()).unwrap();
    let mut got = Vec::new();
    let (err, took) = timed(|| response.read_to_end(&mut got).unwrap_err());
    (err, got.len(), took)
}

#[test]
fn a_peer_that_dies_in_the_body_is_known_at_once() {
    let peer = body_by(1 << 20, |stream| stream.write_all(&[7; 5000]).unwrap());
    let (err, got, took) = read_error(&peer);
    assert!(got == 5000 && took < MS * 10_000, "{got} {took:?}");
    assert!(matches!(err.get_ref().and_then(|err| err.downcast_ref()), Some(WireError::Closed { .. })), "{err}");
}

#[test]
fn a_peer_that_stops_in_the_body_is_given_up() {
    let peer = body_by(1 << 20, |stream| {
        stream.write_all(&[7; 5000]).unwrap();
        std::thread::sleep(MS * 60_000);
    });
    let (err, got, took) = read_error(&peer);
    assert_eq!((err.kind(), got), (std::io::ErrorKind::TimedOut, 5000));
    assert!(took >= MS * 250 && took < MS * 10_000, "{took:?}");
}

#[test]
fn a_trickle_is_no_answer() {
    let peer = body_by(1 << 20, |stream| {
        while stream.write_all(&[7; 100]).is_ok() {
            std::thread::sleep(MS * 20);
        }
    });
    let (err, got, took) = read_error(&peer);
    assert_eq!(err.kind(), std::io::ErrorKind::TimedOut);
    assert!(got > 100 && took >= MS * 450 && took < MS * 10_000, "{got} {took:?}");
}

/// The same trickle, beside three peers that send: the node's link may be what is slow.
#[test]
fn peers_that_share_a_link_have_the_time_of_all_of_them() {
    let trickle = || {
        let (addr, _) = impostor(|mut stream, _| {
            let mut session = take_login(&stream, &key()).unwrap();
            let _ = stream.write_all(&sealed(&mut session, "HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n", ""));
            while stream.write_all(&[7; 100]).is_ok() {
                std::thread::sleep(MS * 20);
            }
        });
        addr
    };
    let senders = Senders::default();
    let peer =
        |_| Peer::new(PeerOptions { senders: senders.clone(), peer_timeout: MS * 500, ..peer_options(trickle()) });
    let peers: Vec<Peer> = (0..4).map(|n| peer(n).unwrap()).collect();
    let mut bodies: Vec<_> = peers.iter().map(|peer| peer.get("/a", None, 0, max_wait()).unwrap()).collect();
    let (got, took) = timed(|| bodies[0].read_exact(&mut vec![0; 1 << 20]));
    assert_eq!(got.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    assert!(took >= MS * 1900 && took < MS * 20_000, "{took:?}");
}

#[test]
fn only_waiting_counts_and_not_what_the_reader_does() {
    let server = serve(options());
    let peer = short(server.addr());
    let mut response = peer.get("/file", None, 0, max_wait()).unwrap();
    let (mut got, mut part) = (Vec::new(), vec![0; 1_000_000]);
    while got.len() < FILE {
        std::thread::sleep(MS * 200);
        response.read_exact(&mut part).unwrap();
        got.extend_from_slice(&part);
    }
    assert!(got == content());
}

#[test]
fn a_client_that_stops_reading_is_left() {
    let server = serve(Options { progress_timeout: MS * 300, ..options() });
    let (mut stream, mut session) = logged_in(server.addr());
    for _ in 0..20 {
        stream.write_all(&sealed(&mut session, "GET /file HTTP/1.1\r\nHost: x\r\n", "")).unwrap();
    }
    let connections = || server.metrics().connections.load(std::sync::atomic::Ordering::Relaxed);
    let until = Instant::now() + Duration::from_secs(5);
    while connections() > 0 && Instant::now() < until {
        std::thread::sleep(MS * 20);
    }
    assert_eq!(connections(), 0);
}

#[test]
fn a_client_that_stops_sending_is_left() {
    let server = serve(Options { progress_timeout: MS * 200, ..options() });
    let (stream, mut session) = logged_in(server.addr());
    let whole = sealed(&mut session, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n", "abcdefghi");
    let text = talk(&stream, &whole[..whole.len() - 6], MS * 3000);
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
}

#[test]
fn work_for_a_client_that_left_is_dropped() {
    let server = serve(options());
    let (mut stream, mut session) = logged_in(server.addr());
    stream.write_all(&sealed(&mut session, "GET /busy/60000 HTTP/1.1\r\nHost: x\r\n", "")).unwrap();
    std::thread::sleep(MS * 50);
    drop(stream);
    let until = Instant::now() + Duration::from_secs(3);
    while server.metrics().connections.load(std::sync::atomic::Ordering::Relaxed) > 0 {
        assert!(Instant::now() < until, "still at it");
        std::thread::sleep(MS * 20);
    }
}
