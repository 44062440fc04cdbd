//! A server with a handler for tests, clients of it, and listeners that behave badly.

use crate::http::auth::{self, Credentials, Exchange, Nonce, Side};
use crate::http::session::Session;
use crate::http::*;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const FILE: usize = 3_000_000;

pub(super) fn key() -> Key {
    Key::new([5; 32])
}

/// The job's encryption.
pub(super) fn tls() -> Tls {
    Tls::new(&[5; 32]).unwrap()
}

/// The bytes of the file, none of which is like the others around it.
pub(super) fn content() -> Vec<u8> {
    (0..FILE as u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
}

/// Answers by path; counts how often it was asked.
#[derive(Default)]
pub(super) struct Double {
    pub(super) asked: AtomicU64,
    file: Option<Arc<rustix::fd::OwnedFd>>,
    shared: Option<Arc<Vec<u8>>>,
}

impl Double {
    pub(super) fn new() -> Self {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content()).unwrap();
        Self { asked: AtomicU64::new(0), file: Some(Arc::new(file.into())), shared: Some(content().into()) }
    }

    fn file(&self, len: u64, range: Option<ByteRange>) -> Answer {
        self.file.as_ref().map_or_else(|| Answer::status(404), |fd| Answer::file(Arc::clone(fd), 0, len, range))
    }
}

impl Handler for Double {
    fn answer<'a>(&'a self, peer: &'a str, request: Request) -> Answering<'a> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::Relaxed);
            match request.path.as_str() {
                "/file" => self.file(FILE as u64, request.range),
                "/short" => self.file(FILE as u64 + 100_000, None),
                "/shared" => {
                    self.shared.as_ref().map_or_else(|| Answer::status(404), |all| Answer::shared(all, request.range))
                }
                "/echo" => Answer::bytes(request.body),
                "/who" => Answer::text(200, &format!("{peer} {} {:?}", request.hops, request.query)),
                "/split" => Answer::status(200).header("A", "b\r\nC: d".into()),
                "/none" => Answer::status(204),
                path => match path.strip_prefix("/busy/").and_then(|ms| ms.parse().ok()) {
                    Some(ms) => {
                        tokio::time::sleep(Duration::from_millis(ms)).await;
                        Answer::text(200, "done")
                    }
                    None => Answer::status(404),
                },
            }
        })
    }
}

pub(super) fn options() -> Options {
    Options::new("o", key(), "127.0.0.1:0".parse().unwrap())
}

pub(super) fn serve(options: Options) -> Server {
    Server::start(options, Arc::new(Double::new()), None).unwrap()
}

pub(super) fn peer_options(addr: SocketAddr) -> PeerOptions {
    let (my_name, its_name) = ("z".to_owned(), "o".to_owned());
    let (key, senders, peer_timeout) = (key(), Senders::default(), Duration::from_secs(2));
    PeerOptions { addr, my_name, its_name, key, encryption: None, peer_timeout, idle: 4, senders }
}

pub(super) fn peer(addr: SocketAddr) -> Peer {
    Peer::new(peer_options(addr)).unwrap()
}

pub(super) fn max_wait() -> Duration {
    Duration::from_secs(20)
}

/// Sends bytes and returns all that comes back until the other side closes, or for so long.
pub(super) fn talk(mut stream: &TcpStream, bytes: &[u8], wait: Duration) -> String {
    stream.set_read_timeout(Some(wait)).unwrap();
    let _ = stream.write_all(bytes);
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    String::from_utf8_lossy(&got).into_owned()
}

/// A connection and its challenge.
pub(super) fn challenged(addr: SocketAddr) -> (TcpStream, Nonce) {
    let stream = TcpStream::connect(addr).unwrap();
    let nonce = challenge_on(&stream);
    (stream, nonce)
}

pub(super) fn challenge_on(stream: &TcpStream) -> Nonce {
    let text = talk_once(stream, b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n");
    let value = text.split("WWW-Authenticate: ").nth(1).unwrap().lines().next().unwrap();
    auth::parse_challenge(value).unwrap()
}

/// Sends bytes and returns what comes in one read.
pub(super) fn talk_once(mut stream: &TcpStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).unwrap();
    let mut buf = [0; 4096];
    let got = stream.read(&mut buf).unwrap();
    String::from_utf8_lossy(&buf[..got]).into_owned()
}

/// A line that proves who asks, and what the connection is from then on.
pub(super) fn authorization(nonce: Nonce) -> (String, Session) {
    let cnonce = Nonce::random().unwrap();
    let exchange = Exchange { nonce, cnonce, client: "z", server: "o" };
    let credentials = Credentials { node: "z".into(), nonce, cnonce, mac: exchange.proof(&key()) };
    (format!("Authorization: {credentials}\r\n"), Session::new(&exchange, &key(), Side::Client))
}

/// A sealed request with this body; `lines` are those of its head but for what keeps it authentic.
pub(super) fn sealed(session: &mut Session, lines: &str, body: &str) -> Vec<u8> {
    let mut request = lines.as_bytes().to_vec();
    if !body.is_empty() {
        request.extend(format!("Monarch-Tag: {}\r\n", session.outgoing.tag(body.as_bytes())).as_bytes());
    }
    session.outgoing.seal(&mut request);
    request.extend(body.as_bytes());
    request
}

/// A connection that is authenticated, and its session.
pub(super) fn logged_in(addr: SocketAddr) -> (TcpStream, Session) {
    let (stream, nonce) = challenged(addr);
    let (line, mut session) = authorization(nonce);
    let request = sealed(&mut session, &format!("HEAD /file HTTP/1.1\r\nHost: x\r\n{line}"), "");
    let text = talk_once(&stream, &request);
    assert!(text.starts_with("HTTP/1.1 200 ") && session.incoming.open(text.as_bytes()), "{text}");
    (stream, session)
}

/// A listener whose connections, one after the other, are left to `each`.
pub(super) fn impostor(each: impl Fn(TcpStream, usize) + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        for (turn, stream) in listener.incoming().flatten().enumerate() {
            each(stream, turn);
        }
    });
    (addr, thread)
}

/// The server's side of a handshake by a process that knows the secret.
pub(super) fn take_login(mut stream: &TcpStream, key: &Key) -> Option<Session> {
    take_login_on(&mut stream, key)
}

/// The same over anything.
pub(super) fn take_login_on(stream: &mut (impl Read + Write), key: &Key) -> Option<Session> {
    let nonce = Nonce::random().unwrap();
    read_head_on(stream);
    let text = format!("HTTP/1.1 401 No\r\nContent-Length: 0\r\nWWW-Authenticate: {}\r\n\r\n", auth::challenge(nonce));
    stream.write_all(text.as_bytes()).unwrap();
    let request = read_head_on(stream);
    let value = request.split("Authorization: ").nth(1)?.lines().next()?;
    let given = Credentials::parse(value)?;
    let exchange = Exchange { nonce, cnonce: given.cnonce, client: &given.node, server: "o" };
    let mut session = Session::new(&exchange, key, Side::Server);
    let _ = session.incoming.open(request.as_bytes());
    Some(session)
}

/// A sealed answer with this body.
pub(super) fn answer(session: &mut Session, body: &str) -> Vec<u8> {
    sealed(session, &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", body.len()), body)
}

pub(super) fn read_head(mut stream: &TcpStream) -> String {
    read_head_on(&mut stream)
}

pub(super) fn read_head_on(stream: &mut impl Read) -> String {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        text.push(byte[0]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// What is done to one message: a head, or some bytes of a body.
pub(super) type Change = dyn Fn(usize, Vec<u8>) -> Vec<u8> + Send + Sync;

pub(super) fn unchanged(_: usize, bytes: Vec<u8>) -> Vec<u8> {
    bytes
}

/// Passes on what comes, and changes it; messages are counted from 0 in each direction.
fn pass(mut from: TcpStream, mut to: TcpStream, change: &Change) {
    let (mut buf, mut number) = (vec![0; 1 << 16], 0);
    while let Ok(got @ 1..) = from.read(&mut buf) {
        if to.write_all(&change(number, buf[..got].to_vec())).is_err() {
            break;
        }
        number += 1;
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// A listener between a client and a server.
pub(super) fn between(server: SocketAddr, requests: Arc<Change>, answers: Arc<Change>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (requests, answers) = (requests.clone(), answers.clone());
            let server = TcpStream::connect(server).unwrap();
            let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || pass(client, server, &*requests));
            std::thread::spawn(move || pass(back, forth, &*answers));
        }
    });
    addr
}
