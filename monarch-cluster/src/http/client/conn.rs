//! One connection to a peer.

use super::fault::fault;
use super::options::PeerOptions;
use super::transport::Transport;
use crate::http::auth::{self, Credentials, Exchange, Nonce, Side};
use crate::http::error::WireError;
use crate::http::head::{self, HEAD_MAX, Method, ResponseHead};
use crate::http::session::Session;
use crate::tag::Tag;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Most bytes read with a head: those of the body among them are copied once more.
const READ_BYTES: usize = 4096;
/// Longest body that is sent in one call with its head.
const MAX_COALESCED_BYTES: usize = 64 << 10;
/// Bytes of body that are sent within one timeout.
const SENT_BYTES_PER_TIMEOUT: usize = 8 << 20;

/// A request.
pub(super) struct Asked<'a> {
    pub(super) method: Method,
    pub(super) target: &'a str,
    pub(super) range: Option<Range<u64>>,
    pub(super) hops: u8,
    pub(super) body: &'a [u8],
}

#[derive(Debug)]
pub(super) struct Conn {
    stream: Transport,
    /// What was read and not yet taken.
    buffer: Vec<u8>,
    /// How long the kernel waits in a read.
    waits: Duration,
    first_byte: Option<Instant>,
    handshake: Handshake,
}

#[derive(Debug)]
enum Handshake {
    /// Nothing was said yet.
    Fresh,
    /// The next request answers this.
    Challenged(Nonce),
    /// The server was sent a proof.
    Answered(Box<Session>),
    /// The server has sent an authentic answer.
    Proven(Box<Session>),
}

impl Handshake {
    fn session(&mut self) -> Option<&mut Session> {
        match self {
            Self::Fresh | Self::Challenged(_) => None,
            Self::Answered(session) | Self::Proven(session) => Some(session),
        }
    }
}

impl Conn {
    /// Connects and fetches the server's challenge.
    pub(super) fn open(options: &PeerOptions, patience: Duration) -> Result<Self, WireError> {
        let stream = Transport::open(options, patience)?;
        let mut conn =
            Self { stream, buffer: Vec::new(), waits: patience, first_byte: None, handshake: Handshake::Fresh };
        conn.fetch_challenge(options, patience)?;
        Ok(conn)
    }

    fn fetch_challenge(&mut self, options: &PeerOptions, patience: Duration) -> Result<(), WireError> {
        let addr = options.addr;
        let text = format!("HEAD / HTTP/1.1\r\nHost: {addr}\r\n\r\n");
        self.write(text.as_bytes(), options)?;
        let head = self.head(patience, Instant::now() + options.peer_timeout, addr)?;
        match head.status {
            401 if !head.close => {}
            503 => return Err(WireError::Full { addr }),
            426 => return Err(WireError::Encryption { addr, mine: "none", its: "tls" }),
            status => return Err(WireError::Protocol { addr, what: format!("it answers {status} to a stranger") }),
        }
        let value = head.header("WWW-Authenticate").unwrap_or_default();
        let nonce = auth::parse_challenge(value).map_err(|what| WireError::Protocol { addr, what })?;
        self.handshake = Handshake::Challenged(nonce);
        Ok(())
    }

    /// Sends a request, with the proof if this is the first one.
    pub(super) fn send(&mut self, asked: &Asked<'_>, options: &PeerOptions) -> Result<(), WireError> {
        self.first_byte = None;
        let mut text = request_head(asked, options.addr);
        if let Handshake::Challenged(nonce) = self.handshake {
            let cnonce = Nonce::random().map_err(|source| WireError::System { what: "get random bytes", source })?;
            let exchange = Exchange { nonce, cnonce, client: &options.my_name, server: &options.its_name };
            let mac = exchange.proof(&options.key);
            let credentials = Credentials { node: options.my_name.clone(), nonce, cnonce, mac };
            // Writing into a String cannot fail.
            let _ = write!(text, "Authorization: {credentials}\r\n");
            self.handshake = Handshake::Answered(Box::new(Session::new(&exchange, &options.key, Side::Client)));
        }
        let Some(session) = self.handshake.session() else {
            let what = "a request without a proof".to_owned();
            return Err(WireError::Request { what });
        };
        if !asked.body.is_empty() {
            let _ = write!(text, "Monarch-Tag: {}\r\n", session.outgoing.tag(asked.body));
        }
        let mut bytes = text.into_bytes();
        session.outgoing.seal(&mut bytes);
        if asked.body.len() <= MAX_COALESCED_BYTES {
            bytes.extend_from_slice(asked.body);
            return self.write(&bytes, options);
        }
        self.write(&bytes, options)?;
        self.write(asked.body, options)
    }

    /// Writes all of it; a peer that takes it too slowly is given up.
    fn write(&mut self, mut bytes: &[u8], options: &PeerOptions) -> Result<(), WireError> {
        let limit = options.peer_timeout.saturating_mul((bytes.len() / SENT_BYTES_PER_TIMEOUT + 1) as u32);
        let start = Instant::now();
        while !bytes.is_empty() || self.stream.has_unsent() {
            if start.elapsed() > limit {
                return Err(WireError::Timeout {
                    addr: options.addr,
                    what: "it takes a request too slowly",
                    after: limit,
                });
            }
            match self.stream.write(bytes) {
                Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(err) => return Err(fault(err, options.addr, "it does not take a request", options.peer_timeout)),
            }
        }
        Ok(())
    }

    /// Reads the head of the answer, passing over those that say only that it will take a while.
    /// `patience` is for each sign of life, `give_up` for all of it.
    pub(super) fn head(
        &mut self,
        patience: Duration,
        give_up: Instant,
        addr: SocketAddr,
    ) -> Result<ResponseHead, WireError> {
        let start = Instant::now();
        loop {
            while let Some((head, len)) = self.parsed(addr)? {
                self.check_head(&head, len, addr)?;
                self.buffer.drain(..len);
                if head.status >= 200 {
                    return Ok(head);
                }
            }
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let what = "it is there, but its answer takes too long";
                return Err(WireError::Timeout { addr, what, after: start.elapsed() });
            }
            let old = self.buffer.len();
            self.buffer.resize(old + READ_BYTES, 0);
            self.wait_at_most(patience.min(left), addr)?;
            let got = self.stream.read(&mut self.buffer[old..]);
            self.buffer.truncate(old + got.as_ref().copied().unwrap_or(0));
            match got {
                Ok(0) => return Err(fault(io::ErrorKind::UnexpectedEof.into(), addr, "", patience)),
                Ok(_) => self.first_byte = self.first_byte.or_else(|| Some(Instant::now())),
                Err(err) => return Err(fault(err, addr, "it gives no sign of life", patience.min(left))),
            }
        }
    }

    fn parsed(&self, addr: SocketAddr) -> Result<Option<(ResponseHead, usize)>, WireError> {
        debug_assert!(self.buffer.len() <= HEAD_MAX + READ_BYTES, "the parser bounds it");
        head::response(&self.buffer).map_err(|bad| WireError::Protocol { addr, what: bad.0.to_owned() })
    }

    /// Checks that the head at the front of the buffer is what the server sent next. A server that
    /// takes no proof from this node has nothing to prove itself by.
    fn check_head(&mut self, head: &ResponseHead, len: usize, addr: SocketAddr) -> Result<(), WireError> {
        let Some(session) = self.handshake.session() else { return Ok(()) };
        let is_next = session.incoming.open(&self.buffer[..len]);
        self.handshake = match std::mem::replace(&mut self.handshake, Handshake::Fresh) {
            Handshake::Answered(session) | Handshake::Proven(session) if is_next => Handshake::Proven(session),
            Handshake::Answered(session) if head.close && matches!(head.status, 401 | 403 | 503) => {
                Handshake::Answered(session)
            }
            Handshake::Answered(_) => return Err(WireError::Unauthenticated { addr, who: "the peer" }),
            _ => return Err(WireError::Forged { addr }),
        };
        Ok(())
    }

    /// Whether a body is that of the head that came last.
    pub(super) fn is_body(&self, tag: Tag, body: &[u8]) -> bool {
        match &self.handshake {
            Handshake::Proven(session) => session.incoming.is_body(tag, body),
            _ => false,
        }
    }

    /// Whether the server has proven itself.
    pub(super) fn proven(&self) -> bool {
        matches!(self.handshake, Handshake::Proven(_))
    }

    /// Whether anything came since the last request was sent.
    pub(super) fn heard(&self) -> bool {
        self.first_byte.is_some()
    }

    /// When the first byte came since then.
    pub(super) fn first_byte(&self) -> Option<Instant> {
        self.first_byte
    }

    /// Whether bytes came without a request.
    pub(super) fn has_more(&self) -> bool {
        !self.buffer.is_empty() || self.stream.has_more()
    }

    /// Gives back the memory that an idle connection does not need.
    pub(super) fn rest(&mut self) {
        self.stream.rest();
    }

    /// Reads body: what came with the head, then from the socket into `buf` itself.
    pub(super) fn body(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.buffer.is_empty() {
            return self.stream.read(buf);
        }
        let len = buf.len().min(self.buffer.len());
        buf[..len].copy_from_slice(&self.buffer[..len]);
        self.buffer.drain(..len);
        Ok(len)
    }

    /// Has reads end after `limit`. The call is saved as long as it stays the same.
    pub(super) fn wait_at_most(&mut self, limit: Duration, addr: SocketAddr) -> Result<(), WireError> {
        let limit = round(limit);
        if limit != self.waits {
            let set = self.stream.set_read_timeout(limit);
            set.map_err(|source| fault(source, addr, "", limit))?;
            self.waits = limit;
        }
        Ok(())
    }
}

/// To whole steps of 50 ms where it is long, so that it rarely changes; the kernel takes 0 for no
/// limit.
fn round(limit: Duration) -> Duration {
    let step = if limit < Duration::from_millis(50) { 1 } else { 50 };
    Duration::from_millis((limit.as_millis() as u64).div_ceil(step).max(1) * step)
}

fn request_head(asked: &Asked<'_>, addr: SocketAddr) -> String {
    let method = match asked.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
    };
    let mut text = String::with_capacity(512);
    let _ = write!(text, "{method} {} HTTP/1.1\r\nHost: {addr}\r\n", asked.target);
    if let Some(range) = &asked.range {
        let _ = write!(text, "Range: bytes={}-{}\r\n", range.start, range.end.saturating_sub(1));
    }
    if asked.hops > 0 {
        let _ = write!(text, "Monarch-Hops: {}\r\n", asked.hops);
    }
    if asked.method == Method::Post {
        let _ = write!(text, "Content-Length: {}\r\n", asked.body.len());
    }
    text
}
