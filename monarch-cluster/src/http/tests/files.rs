//! Answers that have several files behind some bytes.

use super::support::*;
use crate::http::*;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const FRONT: &str = "in front";

/// Answers with files of these sizes. Each is `short` bytes shorter than it should be.
struct Files {
    files: Vec<(Arc<rustix::fd::OwnedFd>, u64)>,
    bytes: Vec<u8>,
}

impl Files {
    fn new(sizes: &[usize], short: u64) -> Self {
        let (all, mut bytes) = (content(), FRONT.as_bytes().to_vec());
        let file = |size: &usize| {
            let mut file = tempfile::tempfile().unwrap();
            let part = &all[bytes.len()..bytes.len() + size];
            file.write_all(part).unwrap();
            bytes.extend_from_slice(part);
            (Arc::new(file.into()), *size as u64 + short)
        };
        Self { files: sizes.iter().map(file).collect(), bytes }
    }
}

impl Handler for Files {
    fn answer<'a>(&'a self, _: &'a str, _: Request) -> Answering<'a> {
        Box::pin(async move {
            let body = Body::Files { front: FRONT.into(), files: self.files.clone() };
            Answer { body, ..Answer::status(200) }
        })
    }
}

fn got(peer: &Peer) -> Vec<u8> {
    let mut answer = peer.post("/", b"x", max_wait()).unwrap();
    let mut bytes = answer.front(FRONT.len()).unwrap();
    answer.renew_patience();
    answer.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn bytes_and_files_come_in_order_whatever_their_sizes() {
    let sizes: [&[usize]; 5] =
        [&[], &[1], &[4096; 64], &[200_000, 1, 30_000, 128 << 10, 127 << 10, 7], &[20_000, 1_200_000]];
    for sizes in sizes {
        let files = Arc::new(Files::new(sizes, 0));
        for encryption in [None, Some(tls())] {
            let served = Options { encryption: encryption.clone(), ..options() };
            let server = Server::start(served, files.clone(), None).unwrap();
            let peer = Peer::new(PeerOptions { encryption, ..peer_options(server.addr()) }).unwrap();
            for _ in 0..2 {
                assert!(got(&peer) == files.bytes, "{sizes:?}");
            }
            assert_eq!(server.metrics().handshakes.load(Ordering::Relaxed), 1, "the connection is used again");
        }
    }
}

#[test]
fn several_files_keep_the_limits_of_bandwidth() {
    let files = Arc::new(Files::new(&[200_000; 8], 0));
    let limit = 8 << 20;
    let server = Server::start(Options { bandwidth_limit: Some(limit), ..options() }, files.clone(), None).unwrap();
    let (peer, began) = (peer(server.addr()), std::time::Instant::now());
    for _ in 0..4 {
        assert!(got(&peer) == files.bytes);
    }
    // (Some bytes go out at once, for the time before the first.)
    let least = (3 * files.bytes.len()) as f64 / limit as f64;
    assert!(began.elapsed().as_secs_f64() > least, "{:?} for at least {least} s", began.elapsed());
}

#[test]
fn a_file_that_is_shorter_than_it_was_ends_the_answer() {
    for encryption in [None, Some(tls())] {
        let served = Options { encryption: encryption.clone(), ..options() };
        let server = Server::start(served, Arc::new(Files::new(&[4096, 4096], 10)), None).unwrap();
        let peer = Peer::new(PeerOptions { encryption, ..peer_options(server.addr()) }).unwrap();
        let mut answer = peer.post("/", b"x", max_wait()).unwrap();
        assert_eq!(answer.front(FRONT.len()).unwrap(), FRONT.as_bytes());
        assert!(answer.read_to_end(&mut Vec::new()).is_err());
    }
}

#[test]
fn what_comes_before_files_is_authentic_and_never_more_than_there_is() {
    let changes: [(&str, &str); 3] = [("in front", "in fromt"), ("200 OK", "201 OK"), ("Length: 9", "Length: 8")];
    for (from, to) in changes {
        let server = Server::start(options(), Arc::new(Files::new(&[9000], 0)), None).unwrap();
        let change = move |number, bytes: Vec<u8>| {
            let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).filter(|_| number > 0);
            let mut bytes = bytes;
            if let Some(at) = at {
                bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            }
            bytes
        };
        let peer = peer(between(server.addr(), Arc::new(unchanged), Arc::new(change)));
        let front = peer.post("/", b"x", max_wait()).map(|mut answer| answer.front(FRONT.len()));
        assert!(!matches!(front, Ok(Ok(_))), "{from}");
    }
    let server = Server::start(options(), Arc::new(Files::new(&[9], 0)), None).unwrap();
    let peer = peer(server.addr());
    let mut answer = peer.post("/", b"x", max_wait()).unwrap();
    let end = answer.front(FRONT.len() + 10).unwrap_err();
    assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(answer.read_to_end(&mut Vec::new()).is_err() || answer.is_empty(), "the connection is closed");
}
