//! An attacker on the path reads and changes what two nodes send to each other: neither believes
//! anything false.

use super::support::*;
use crate::http::*;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn changed(text: &[u8], from: &str, to: &str) -> Vec<u8> {
    String::from_utf8_lossy(text).replace(from, to).into_bytes()
}

fn is_forged(error: &std::io::Error) -> bool {
    matches!(error.get_ref().and_then(|e| e.downcast_ref()), Some(WireError::Forged { .. }))
}

#[test]
fn nobody_between_two_nodes_changes_nothing_unnoticed() {
    let server = serve(options());
    let addr = between(server.addr(), Arc::new(unchanged), Arc::new(unchanged));
    let peer = peer(addr);
    for _ in 0..3 {
        assert_eq!(peer.post("/echo", b"abc", max_wait()).unwrap().bytes(9).unwrap(), b"abc");
    }
    assert_eq!(server.metrics().handshakes.load(Ordering::Relaxed), 1);
}

#[test]
fn a_changed_request_is_not_answered() {
    let changes: [(&str, &str); 5] =
        [("/echo", "/none"), ("abc", "abd"), ("Host", "Hose"), ("Monarch-Mac: ", "Monarch-Mac:  "), ("POST", "GETT")];
    for (from, to) in changes {
        let double = Arc::new(Double::new());
        let server = Server::start(options(), double.clone(), None).unwrap();
        let change = move |_, bytes: Vec<u8>| changed(&bytes, from, to);
        let peer = peer(between(server.addr(), Arc::new(change), Arc::new(unchanged)));
        assert!(peer.post("/echo", b"abc", max_wait()).is_err(), "{from}");
        assert_eq!(double.asked.load(Ordering::Relaxed), 0, "{from}");
    }
}

#[test]
fn a_request_that_is_sent_again_is_not_answered() {
    let double = Arc::new(Double::new());
    let server = Server::start(options(), double.clone(), None).unwrap();
    // The second message of the client has the proof and the request.
    let again = |number, bytes: Vec<u8>| if number == 1 { bytes.repeat(2) } else { bytes };
    let peer = peer(between(server.addr(), Arc::new(again), Arc::new(unchanged)));
    let _ = peer.post("/echo", b"abc", max_wait());
    let until = std::time::Instant::now() + MS * 3000;
    while server.metrics().refused(Refusal::Forged) == 0 && std::time::Instant::now() < until {
        std::thread::sleep(MS * 5);
    }
    assert_eq!((double.asked.load(Ordering::Relaxed), server.metrics().refused(Refusal::Forged)), (1, 1));
}

#[test]
fn a_changed_answer_is_not_believed() {
    for (from, to) in
        [("200 OK", "409 OK"), ("abc", "xyz"), ("Length: 3", "Length: 2"), ("\r\n\r\n", "\r\nA: b\r\n\r\n")]
    {
        let server = serve(options());
        // (The first one is the challenge.)
        let change = move |number, bytes: Vec<u8>| if number == 0 { bytes } else { changed(&bytes, from, to) };
        let peer = peer(between(server.addr(), Arc::new(unchanged), Arc::new(change)));
        match peer.post("/echo", b"abc", max_wait()) {
            Ok(answer) => assert!(is_forged(&answer.bytes(9).unwrap_err()), "{from}"),
            Err(e) => assert!(matches!(e, WireError::Unauthenticated { .. }), "{from}: {e}"),
        }
    }
}

/// Answers to requests of one connection are exchanged, repeated, and taken from another one.
#[test]
fn an_answer_belongs_to_its_request() {
    let (addr, _) = impostor(|mut stream, turn| {
        let Some(mut session) = take_login(&stream, &key()) else { return };
        let first = answer(&mut session, "one");
        let _ = stream.write_all(&first);
        read_head(&stream);
        let second = answer(&mut session, "two");
        let mut later = second.clone();
        match turn {
            // Again the first one.
            0 => later = first,
            // The one after the next.
            1 => later = answer(&mut session, "two"),
            // The head of one, the body of another.
            _ => later.splice(second.len() - 3.., *b"one").for_each(drop),
        }
        let _ = stream.write_all(&later);
        read_head(&stream);
    });
    for turn in 0..3 {
        let peer = peer(addr);
        assert_eq!(peer.get("/a", None, 0, max_wait()).unwrap().bytes(9).unwrap(), b"one");
        match peer.get("/b", None, 0, max_wait()) {
            Ok(answer) => assert!(is_forged(&answer.bytes(9).unwrap_err()), "{turn}"),
            Err(e) => assert!(matches!(e, WireError::Forged { .. }), "{turn}: {e}"),
        }
    }
}

#[test]
fn a_sign_of_life_cannot_be_forged() {
    let (addr, _) = impostor(|mut stream, _| {
        let Some(mut session) = take_login(&stream, &key()) else { return };
        let _ = stream.write_all(&answer(&mut session, "one"));
        read_head(&stream);
        // The server is silent, and an attacker would have the client wait for it.
        while stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n").is_ok() {
            std::thread::sleep(MS * 50);
        }
    });
    let peer = peer(addr);
    assert_eq!(peer.get("/a", None, 0, max_wait()).unwrap().bytes(9).unwrap(), b"one");
    let began = std::time::Instant::now();
    let end = peer.get("/b", None, 0, max_wait()).unwrap_err();
    assert!(matches!(end, WireError::Forged { .. }) && began.elapsed() < MS * 1500, "{end}");
}

#[test]
fn a_body_without_a_tag_is_not_authentic() {
    let server = serve(options());
    // The tests' server sends parts of files without tags.
    let end = peer(server.addr()).get("/file", Some(0..9), 0, max_wait()).unwrap().bytes(9).unwrap_err();
    assert!(is_forged(&end), "{end}");
}

#[test]
fn another_version_is_refused_with_its_number() {
    let server = serve(options());
    let change = |_, bytes: Vec<u8>| changed(&bytes, "version=\"4\"", "version=\"5\"");
    let end =
        peer(between(server.addr(), Arc::new(unchanged), Arc::new(change))).head("/none", max_wait()).unwrap_err();
    let text = end.to_string();
    assert!(text.contains("version 5 ") && text.contains("version 4"), "{text}");
}
