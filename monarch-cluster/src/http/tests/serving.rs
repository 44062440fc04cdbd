//! What is asked for is what is got.

use super::support::*;
use crate::http::*;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The body; that of files has no tag here, and is as it came.
fn all(mut response: Response<'_>) -> Vec<u8> {
    if response.tag().is_some() {
        return response.bytes(u64::MAX).unwrap();
    }
    let mut bytes = Vec::new();
    response.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn files_and_shared_bytes_whole_and_in_ranges() {
    let server = serve(options());
    let (peer, content) = (peer(server.addr()), content());
    for path in ["/file", "/shared"] {
        let whole = peer.get(path, None, 0, max_wait()).unwrap();
        assert_eq!((whole.status(), whole.len()), (200, FILE as u64));
        assert!(all(whole) == content, "{path}");
        for range in [0..1, 1..100_000, 2_999_999..3_000_000, 5..FILE as u64] {
            let part = peer.get(path, Some(range.clone()), 0, max_wait()).unwrap();
            assert_eq!(part.status(), 206);
            let said = format!("bytes {}-{}/{FILE}", range.start, range.end - 1);
            assert_eq!(part.header("content-range"), Some(said.as_str()));
            assert!(all(part) == content[range.start as usize..range.end as usize], "{path} {range:?}");
        }
        let beyond = peer.get(path, Some(FILE as u64 - 1..FILE as u64 + 50), 0, max_wait()).unwrap();
        assert_eq!((beyond.status(), beyond.len()), (206, 1));
        drop(beyond);
        let past = peer.get(path, Some(FILE as u64..FILE as u64 + 1), 0, max_wait()).unwrap();
        assert_eq!((past.status(), past.header("Content-Range")), (416, Some("bytes */3000000")));
    }
}

#[test]
fn one_connection_serves_many_requests() {
    let server = serve(options());
    let peer = peer(server.addr());
    for turn in 0..20u64 {
        let range = turn * 1000..turn * 1000 + 5000;
        assert_eq!(all(peer.get("/file", Some(range), 0, max_wait()).unwrap()).len(), 5000);
        assert_eq!(peer.head("/file", max_wait()).unwrap().len(), FILE as u64);
        assert_eq!(peer.get("/none", None, 0, max_wait()).unwrap().status(), 204);
        assert_eq!(peer.get("/missing", None, 0, max_wait()).unwrap().status(), 404);
    }
    assert_eq!(server.metrics().handshakes.load(Ordering::Relaxed), 1);
    assert!(server.metrics().requests.load(Ordering::Relaxed) >= 79);
    assert_eq!(server.metrics().bytes_sent.load(Ordering::Relaxed), 100_000);
}

#[test]
fn what_was_sent_ahead_is_answered_once() {
    let double = Arc::new(Double::new());
    let server = Server::start(options(), double.clone(), None).unwrap();
    let peer = peer(server.addr());
    assert!(peer.send("/file", Some(0..5000), 0).is_none(), "no connection is idle yet");
    let get = |sent| all(peer.get_sent(sent, "/file", Some(0..5000), 0, max_wait()).unwrap());
    assert!(get(None) == content()[..5000]);
    let before = double.asked.load(Ordering::Relaxed);
    for _ in 0..5 {
        let sent = peer.send("/file", Some(0..5000), 0);
        assert!(sent.is_some());
        assert!(get(sent) == content()[..5000]);
    }
    assert_eq!(double.asked.load(Ordering::Relaxed) - before, 5);
    assert_eq!(server.metrics().handshakes.load(Ordering::Relaxed), 1);
    // Nobody wants the answer: its connection is gone, and nothing else.
    drop(peer.send("/file", None, 0).unwrap());
    assert!(get(peer.send("/file", Some(0..5000), 0)) == content()[..5000]);
}

#[test]
fn what_was_sent_ahead_on_a_connection_that_is_closed_is_sent_again() {
    let server = serve(Options { idle_timeout: MS * 100, ..options() });
    let peer = peer(server.addr());
    assert_eq!(all(peer.get("/file", Some(0..10), 0, max_wait()).unwrap()).len(), 10);
    std::thread::sleep(MS * 300);
    let sent = peer.send("/file", Some(0..10), 0);
    let got = peer.get_sent(sent, "/file", Some(0..10), 0, max_wait()).unwrap();
    assert!(all(got) == content()[..10]);
}

#[test]
fn an_answer_that_lay_there_for_long_is_asked_for_again() {
    let server = serve(options());
    let peer = peer(server.addr());
    assert_eq!(all(peer.get("/file", Some(0..10), 0, max_wait()).unwrap()).len(), 10);
    let sent = peer.send("/file", Some(0..10), 0);
    assert!(sent.is_some());
    std::thread::sleep(MS * 600);
    assert!(all(peer.get_sent(sent, "/file", Some(0..10), 0, max_wait()).unwrap()) == content()[..10]);
    assert_eq!(server.metrics().handshakes.load(Ordering::Relaxed), 2, "on a connection of its own");
}

#[test]
fn an_answer_that_is_not_read_costs_its_connection_only() {
    let server = serve(options());
    let peer = peer(server.addr());
    let mut half = peer.get("/file", None, 0, max_wait()).unwrap();
    half.read_exact(&mut [0; 1000]).unwrap();
    drop(half);
    assert!(all(peer.get("/file", None, 0, max_wait()).unwrap()) == content());
    assert_eq!(server.metrics().handshakes.load(Ordering::Relaxed), 2);
}

#[test]
fn posts_of_all_sizes_come_back() {
    let server = serve(options());
    let peer = peer(server.addr());
    for len in [0, 1, 70_000, 16 << 20] {
        let body: Vec<u8> = content().into_iter().cycle().take(len).collect();
        assert!(all(peer.post("/echo", &body, max_wait()).unwrap()) == body, "{len}");
    }
    assert!(matches!(peer.post("/echo", &vec![0; (16 << 20) + 1], max_wait()), Err(WireError::Request { .. })));
}

#[test]
fn the_handler_knows_who_asks_and_how_far_it_came() {
    let server = serve(options());
    let peer = peer(server.addr());
    assert_eq!(all(peer.get("/who?a=b", None, 7, max_wait()).unwrap()), b"z 7 Some(\"a=b\")\n");
    assert_eq!(all(peer.get("/who", None, 0, max_wait()).unwrap()), b"z 0 None\n");
}

#[test]
fn requests_that_come_at_once_are_answered_one_after_the_other() {
    let server = serve(options());
    let (stream, mut session) = logged_in(server.addr());
    let mut asked = sealed(&mut session, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n", "abc");
    asked.extend(sealed(&mut session, "GET /who?1 HTTP/1.1\r\nHost: x\r\n", ""));
    asked.extend(sealed(&mut session, "GET /who?2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n", ""));
    let got = talk(&stream, &asked, MS * 5000);
    let (abc, one, two) = (got.find("abc"), got.find("Some(\"1\")"), got.find("Some(\"2\")"));
    assert!(abc.is_some() && abc < one && one < two, "{got}");
    assert_eq!(got.matches("HTTP/1.1 200 OK").count(), 3);
}

#[test]
fn many_threads_at_once_get_their_own_bytes() {
    let server = serve(options());
    let (peer, content) = (Arc::new(peer(server.addr())), Arc::new(content()));
    let threads: Vec<_> = (0..16usize)
        .map(|thread| {
            let (peer, content) = (Arc::clone(&peer), Arc::clone(&content));
            std::thread::spawn(move || {
                for turn in 0..30usize {
                    let start = (thread * 31 + turn * 7919) % (FILE - 60_000);
                    let range = start..start + 1 + (turn * 1999) % 60_000;
                    let asked = range.start as u64..range.end as u64;
                    assert!(all(peer.get("/file", Some(asked), 0, max_wait()).unwrap()) == content[range]);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_file_that_became_shorter_ends_the_connection() {
    let server = serve(options());
    let peer = peer(server.addr());
    let mut response = peer.get("/short", None, 0, max_wait()).unwrap();
    let mut got = Vec::new();
    let err = response.read_to_end(&mut got).unwrap_err();
    assert!(got == content() && err.kind() == std::io::ErrorKind::UnexpectedEof, "{err}");
    assert_eq!(all(peer.get("/who", None, 0, max_wait()).unwrap()), b"z 0 None\n");
}

#[test]
fn an_answer_cannot_smuggle_headers() {
    let server = serve(options());
    let peer = peer(server.addr());
    let response = peer.get("/split", None, 0, max_wait()).unwrap();
    assert_eq!((response.status(), response.header("C")), (500, None));
}

#[test]
fn a_restarted_server_is_found_again() {
    let options = options();
    let server = serve(options.clone());
    let addr = server.addr();
    let peer = peer(addr);
    drop((peer.head("/file", max_wait()).unwrap(), server));
    let again = || Server::start(Options { listen: addr, ..options.clone() }, Arc::new(Double::new()), None);
    let server = (0..100).find_map(|_| {
        std::thread::sleep(MS * 20);
        again().ok()
    });
    assert_eq!(peer.head("/file", max_wait()).unwrap().len(), FILE as u64);
    drop(server);
}

#[test]
fn a_server_runs_on_a_given_runtime_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::start(options(), Arc::new(Double::new()), Some(runtime.handle().clone())).unwrap();
    assert_eq!(peer(server.addr()).head("/file", max_wait()).unwrap().len(), FILE as u64);
}

#[test]
fn what_an_answer_holds_lives_until_its_last_byte_is_sent() {
    struct Holding(Arc<()>);
    impl Handler for Holding {
        fn answer<'a>(&'a self, _: &'a str, _: Request) -> Answering<'a> {
            Box::pin(async move { Answer::bytes(vec![7; 64 << 20]).holding(self.0.clone()) })
        }
    }
    let held = Arc::new(());
    let server = Server::start(options(), Arc::new(Holding(held.clone())), None).unwrap();
    let peer = peer(server.addr());
    let mut answer = peer.get("/all", None, 0, max_wait()).unwrap();
    let mut first = vec![0; 1 << 20];
    answer.read_exact(&mut first).unwrap();
    // (One is the test's, one the handler's.)
    assert_eq!(Arc::strong_count(&held), 3, "63 MiB are on their way, or to be sent");
    let mut rest = Vec::new();
    assert_eq!(answer.read_to_end(&mut rest).unwrap(), 63 << 20);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(3);
    while Arc::strong_count(&held) > 2 {
        assert!(std::time::Instant::now() < until, "it was never let go of");
        std::thread::yield_now();
    }
}
