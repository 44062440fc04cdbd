//! Heads that are right, that are wrong, and that are anything.

use super::*;
use proptest::prelude::*;

fn get(lines: &str) -> Result<RequestHead, Refusal> {
    asked(&format!("GET /a HTTP/1.1\r\nHost: x\r\n{lines}\r\n"))
}

fn asked(text: &str) -> Result<RequestHead, Refusal> {
    request(text.as_bytes()).map(|head| head.expect("a whole head").0)
}

#[test]
fn a_request_with_everything() {
    let tag = "0123456789abcdef0123456789abcdef";
    let text = format!(
        "POST /v1/a?b=c HTTP/1.1\r\nhost: x\r\nCONTENT-LENGTH: 3\r\nMonarch-Hops: 2\r\nAuthorization: y\r\n\
                Monarch-Tag: {tag}\r\nRange: lines=1\r\nConnection: keep-alive, Close\r\n\r\nabc"
    );
    let (head, len) = request(text.as_bytes()).unwrap().unwrap();
    assert_eq!(len, text.len() - 3);
    let expected = RequestHead {
        method: Method::Post,
        path: "/v1/a".into(),
        query: Some("b=c".into()),
        range: None,
        hops: 2,
        authorization: Some("y".into()),
        body: 3,
        tag: tag.parse().ok(),
        close: true,
    };
    assert_eq!(head, expected);
}

#[test]
fn a_head_is_not_taken_before_its_end() {
    let text = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n";
    for end in 0..text.len() {
        assert_eq!(request(&text[..end]), Ok(None), "{end}");
    }
    assert!(request(text).unwrap().is_some());
}

#[test]
fn each_wrong_head_has_its_refusal() {
    use Refusal as R;
    assert_eq!(get("Range: bytes=1-2\r\n").map(|head| head.range), Ok(Some(ByteRange::Between(1, 2))));
    let cases = [
        ("GET /a HTTP/1.0\r\nHost: x\r\n\r\n", R::Version),
        ("GET /a HTTP/2.0\r\nHost: x\r\n\r\n", R::Version),
        ("PUT /a HTTP/1.1\r\nHost: x\r\n\r\n", R::Method),
        ("GET /../a HTTP/1.1\r\nHost: x\r\n\r\n", R::Path),
        ("GET /%2e/a HTTP/1.1\r\nHost: x\r\n\r\n", R::Path),
        ("GET /a//b HTTP/1.1\r\nHost: x\r\n\r\n", R::Path),
        ("GET /a\0b HTTP/1.1\r\nHost: x\r\n\r\n", R::Malformed),
        ("GET /a HTTP/1.1\r\n\r\n", R::Malformed),
        ("\x16\x03\x01\x02\0\x01", R::Malformed),
        ("POST /a HTTP/1.1\r\nHost: x\r\n\r\n", R::NoLength),
        ("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", R::Coding),
        ("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 16777217\r\n\r\n", R::BodyTooLarge),
        ("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", R::Malformed),
        ("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", R::Malformed),
    ];
    for (text, refusal) in cases {
        assert_eq!(request(text.as_bytes()), Err(refusal), "{text:?}");
    }
    let lines = [
        ("Host: y\r\n", R::Malformed),
        ("Monarch-Tag: 00\r\n", R::Malformed),
        ("Content-Length: 3\r\n", R::Malformed),
        ("Content-Length: 0\r\nContent-Length: 0\r\n", R::Malformed),
        ("Monarch-Hops: 256\r\n", R::Malformed),
        ("Monarch-Hops: -1\r\n", R::Malformed),
        ("Range: bytes=2-1\r\n", R::Range),
        ("Range: bytes=0-1,4-5\r\n", R::Range),
        (" folded: x\r\n", R::Malformed),
        ("A : b\r\n", R::Malformed),
        ("A: b\0\r\n", R::Malformed),
        ("Range: \u{e9}\r\nRange: x\r\n", R::Malformed),
    ];
    for (line, refusal) in lines {
        assert_eq!(get(line), Err(refusal), "{line:?}");
    }
    assert_eq!(get(&"A: b\r\n".repeat(65)), Err(R::HeadTooLarge));
    assert_eq!(get(&format!("A: {}\r\n", "b".repeat(HEAD_MAX))), Err(R::HeadTooLarge));
    assert_eq!(request(&[b'G'; HEAD_MAX]), Err(R::HeadTooLarge));
}

#[test]
fn every_refusal_has_a_status_and_its_own_label() {
    let mut labels: Vec<_> = Refusal::ALL.iter().map(|refusal| refusal.label()).collect();
    assert!(Refusal::ALL.iter().all(|refusal| (400..600).contains(&refusal.status()) && !refusal.reason().is_empty()));
    labels.sort_unstable();
    labels.dedup();
    assert_eq!(labels.len(), Refusal::ALL.len());
    for (at, refusal) in Refusal::ALL.into_iter().enumerate() {
        assert_eq!(refusal as usize, at, "{refusal:?}");
    }
}

#[test]
fn responses() {
    let (head, len) = response(b"HTTP/1.1 206 OK\r\nContent-Length: 7\r\nX: y\r\n\r\nz").unwrap().unwrap();
    assert_eq!((head.status, head.len, head.close, head.header("x"), len), (206, 7, false, Some("y"), 44));
    assert_eq!(response(b"HTTP/1.1 102 Processing\r\n\r\n").unwrap().unwrap().0.len, 0);
    assert!(response(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n").unwrap().unwrap().0.close);
    for bad in [
        "SSH-2.0-OpenSSH_9.2p1\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 999 OK\r\nContent-Length: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        assert!(response(bad.as_bytes()).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = request(&bytes);
        let _ = response(&bytes);
    }

    #[test]
    fn no_near_miss_panics(bytes in "(GET|POST|HTTP/1.1 200) /?[a.%/?]{0,6} ?(HTTP/1.[01])?\r\n(Host: x\r\n)?((Content-Length|Range|Monarch-Hops): ?[0-9a-z=,-]{0,12}\r\n){0,4}\r?\n?") {
        if let Ok(Some((head, len))) = request(bytes.as_bytes()) {
            prop_assert!(len <= bytes.len() && head.body <= BODY_MAX && path::split(&head.path).is_some());
        }
        let _ = response(bytes.as_bytes());
    }
}
