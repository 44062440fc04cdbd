//! One connection, from accept to close.

use super::answer::{Answer, Body, Request};
use super::handshake::{Handshake, Verdict};
use super::pace::Pace;
use super::send::Out;
use super::shared::{Proven, Shared};
use super::strangers::Stranger;
use super::stream::{self, NotOpen, Stream};
use super::text;
use crate::http::head::{self, Method, RequestHead};
use crate::http::refusal::Refusal;
use crate::http::tls::HELLO_BYTE;
use crate::http::{BUSY_EVERY, auth};
use socket2::SockRef;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

/// Bytes of requests that a connection usually has room for.
const BUFFER_BYTES: usize = 4096;
/// Most bytes of answers that wait in the kernel to be sent. With the 4 MiB of a full socket buffer
/// a whole piece of a large file would count as sent, and the next one begin, when a slow link has
/// carried almost nothing of it.
const MAX_UNSENT_BYTES: u32 = 256 << 10;

/// Why a connection ends.
enum End {
    /// The client went away, or the answer said that it would be closed.
    Gone,
    /// The client gets the reason, and is shut out.
    Refused(Refusal),
    /// The same, and it has the reason already.
    Told(Refusal),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        stream::refusal_of(&error, false).map_or(Self::Gone, Self::Told)
    }
}

struct Conn<'a> {
    stream: Stream,
    shared: &'a Shared,
    /// What was read and not yet taken.
    buffer: Vec<u8>,
    handshake: Handshake,
    pace: Pace,
    /// When it has to have authenticated.
    handshake_by: Instant,
    /// Until it has.
    stranger: Option<Stranger>,
    /// From then on.
    proven: Option<Proven<'a>>,
}

/// Answers what comes from `stream` until one side ends it, or until it has to go for another
/// stranger.
pub(super) async fn serve(stream: TcpStream, from: IpAddr, shared: &Shared, stranger: Stranger) {
    let told = stranger.is_to_go();
    let served = talk(stream, from, shared, stranger);
    tokio::pin!(served, told);
    tokio::select! {
        () = &mut served => {}
        // Nothing is said to it: there are too many.
        () = &mut told => shared.refusals.note(Refusal::Full, from),
    }
}

async fn talk(socket: TcpStream, from: IpAddr, shared: &Shared, stranger: Stranger) {
    // Answers are sent in whole; without this the last packet of each would wait for the one before
    // to be acknowledged.
    let _ = socket.set_nodelay(true);
    let _ = SockRef::from(&socket).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
    let handshake_by = Instant::now() + shared.options.handshake_timeout;
    let (stream, refused) = match Stream::open(socket, shared, handshake_by).await {
        Ok(stream) => (stream, Ok(())),
        Err(NotOpen::Unencrypted(socket)) => (Stream::Plain(socket), Err(End::Refused(Refusal::Unencrypted))),
        Err(NotOpen::Refused(refusal)) => return shared.refusals.note(refusal, from),
        Err(NotOpen::Gone) => return,
    };
    if matches!(stream, Stream::Tls(_)) {
        stranger.spoke();
    }
    let (buffer, handshake, pace) = (Vec::with_capacity(BUFFER_BYTES), Handshake::default(), Pace::default());
    let mut conn =
        Conn { stream, shared, buffer, handshake, pace, handshake_by, stranger: Some(stranger), proven: None };
    let mut turn = refused;
    loop {
        match turn {
            Ok(()) => turn = conn.turn().await,
            Err(End::Gone) => return,
            Err(End::Refused(refusal)) => {
                shared.refusals.note(refusal, from);
                let _ = conn.out().bytes(&text::refusal(refusal, text::WHICH), false).await;
                return conn.stream.linger().await;
            }
            Err(End::Told(refusal)) => {
                shared.refusals.note(refusal, from);
                return conn.stream.linger().await;
            }
        }
    }
}

impl Conn<'_> {
    /// One request and its answer.
    async fn turn(&mut self) -> Result<(), End> {
        let (head, bytes) = self.head().await?;
        self.stranger.iter().for_each(Stranger::spoke);
        let options = &self.shared.options;
        let (value, now) = (head.authorization.as_deref(), std::time::Instant::now());
        match self.handshake.check((&options.key, &options.name), &bytes, value, now)? {
            Verdict::Known => {}
            Verdict::Proven => {
                if self.handshake.peer().is_some_and(|peer| !options.is_member(peer)) {
                    return Err(End::Refused(Refusal::NoMember));
                }
                let Some(place) = Proven::new(self.shared) else { return Err(End::Refused(Refusal::Full)) };
                self.proven = Some(place);
                self.shared.metrics.handshakes.fetch_add(1, Ordering::Relaxed);
                self.stranger = None;
                if let Some(peer) = self.handshake.peer() {
                    self.pace = self.shared.paces.of(peer);
                }
            }
            Verdict::Challenged(nonce) => return self.challenge(&head, nonce).await,
            Verdict::Refused(refusal) => return Err(End::Refused(refusal)),
        }
        let body = self.body(&head).await?;
        let answer = self.answer(&head, body).await?;
        self.send(&head, answer).await
    }

    fn out(&mut self) -> Out<'_> {
        out(&mut self.stream, self.shared)
    }

    /// When reading the next head is given up.
    fn head_by(&self) -> Instant {
        match self.handshake.peer() {
            Some(_) => Instant::now() + self.shared.options.idle_timeout,
            None => self.handshake_by,
        }
    }

    /// The next head, and its bytes.
    async fn head(&mut self) -> Result<(RequestHead, Vec<u8>), End> {
        let mut by = None;
        loop {
            // Parsed again only when a line has ended: a head that comes byte by byte is no work.
            if let Some((head, len)) = head::request(&self.buffer).map_err(End::Refused)? {
                let bytes = self.buffer.drain(..len).collect();
                return Ok((head, bytes));
            }
            let by = *by.get_or_insert_with(|| self.head_by());
            let old = self.buffer.len();
            while !self.buffer.get(old..).unwrap_or_default().contains(&b'\n') && self.buffer.len() <= head::HEAD_MAX {
                self.more(by).await?;
                if self.buffer.first() == Some(&HELLO_BYTE) && self.handshake.peer().is_none() {
                    return Err(End::Refused(Refusal::Encrypted));
                }
            }
        }
    }

    /// Reads what has come; at the end of the connection or of the time there is no more.
    async fn more(&mut self, by: Instant) -> Result<(), End> {
        self.buffer.reserve(BUFFER_BYTES / 2);
        match timeout_at(by, self.stream.read_buf(&mut self.buffer)).await {
            Ok(Ok(0)) => Err(self.leaves()),
            Ok(Err(error)) => Err(stream::refusal_of(&error, false).map_or_else(|| self.leaves(), End::Told)),
            Ok(Ok(_)) => Ok(()),
            Err(_) if self.handshake.peer().is_none() => Err(End::Refused(Refusal::Unauthenticated)),
            Err(_) if self.buffer.is_empty() => Err(End::Gone),
            Err(_) => Err(End::Refused(Refusal::Slow)),
        }
    }

    /// A client that was challenged and goes without an answer is one that does not know the
    /// secret.
    fn leaves(&self) -> End {
        if self.handshake.was_challenged() { End::Refused(Refusal::Unauthenticated) } else { End::Gone }
    }

    async fn challenge(&mut self, head: &RequestHead, nonce: auth::Nonce) -> Result<(), End> {
        let which = auth::challenge(nonce);
        // The body of a stranger is not read; without it the next head cannot be found.
        if head.close || head.body > 0 {
            self.out().bytes(&text::refusal(Refusal::Unauthenticated, &which), false).await?;
            return Err(End::Told(Refusal::Unauthenticated));
        }
        let text = text::challenge(&which);
        Ok(self.out().bytes(text.as_bytes(), false).await?)
    }

    async fn body(&mut self, head: &RequestHead) -> Result<Vec<u8>, End> {
        if head.body == 0 {
            return Ok(Vec::new());
        }
        let len = head.body as usize;
        let mut body = vec![0; len];
        let mut filled = self.buffer.len().min(len);
        body[..filled].copy_from_slice(&self.buffer[..filled]);
        self.buffer.drain(..filled);
        while filled < len {
            let read = timeout(self.shared.options.progress_timeout, self.stream.read(&mut body[filled..])).await;
            match read.map_err(|_| End::Refused(Refusal::Slow))?? {
                0 => return Err(End::Gone),
                got => filled += got,
            }
        }
        let Some(session) = self.handshake.session() else { return Err(End::Gone) };
        let is_authentic = head.tag.is_some_and(|tag| session.incoming.is_body(tag, &body));
        if is_authentic { Ok(body) } else { Err(End::Refused(Refusal::Forged)) }
    }

    /// Ends a head so that the client can tell that it is authentic.
    fn seal(&mut self, mut head: Vec<u8>) -> Vec<u8> {
        if let Some(session) = self.handshake.session() {
            session.outgoing.seal(&mut head);
        }
        head
    }

    /// What the handler says, once its first bytes may be sent; the client hears every 100 ms that
    /// it is waited for.
    async fn answer(&mut self, head: &RequestHead, body: Vec<u8>) -> Result<Answer, End> {
        let Some(peer) = self.handshake.peer().map(Arc::clone) else { return Err(End::Gone) };
        let RequestHead { method, path, query, range, hops, .. } = head.clone();
        let request = Request { method, path, query, range, hops, body };
        let (shared, pace) = (self.shared, self.pace.clone());
        let making = async move {
            let answer = shared.handler.answer(&peer, request).await;
            if method != Method::Head {
                pace.wait(answer.body.len().min(pace.slice())).await;
            }
            answer
        };
        tokio::pin!(making);
        loop {
            match timeout(BUSY_EVERY, &mut making).await {
                Ok(answer) => return Ok(answer),
                Err(_) => {
                    let busy = self.seal(text::BUSY.to_vec());
                    self.out().bytes(&busy, false).await?;
                }
            }
        }
    }

    async fn send(&mut self, head: &RequestHead, answer: Answer) -> Result<(), End> {
        let answer = if text::is_sound(&answer) {
            answer
        } else {
            Answer::text(500, "the answer has a header that cannot be sent")
        };
        let body = if head.method == Method::Head || answer.status == 204 { &Body::None } else { &answer.body };
        let Some(session) = self.handshake.session() else { return Err(End::Gone) };
        let tag = answer.tag.or_else(|| Some(session.outgoing.tag(body.in_memory().filter(|b| !b.is_empty())?)));
        let text = self.seal(text::answer(&answer, tag, head.close));
        let mut out = out(&mut self.stream, self.shared);
        out.answer(&text, body, &self.pace).await.inspect_err(|err| {
            if err.kind() == io::ErrorKind::UnexpectedEof {
                tracing::warn!(path = head.path, "answer cut off: {err}");
            }
        })?;
        self.shared.metrics.requests.fetch_add(1, Ordering::Relaxed);
        self.shared.metrics.bytes_sent.fetch_add(body.len(), Ordering::Relaxed);
        if head.close { Err(End::Gone) } else { Ok(()) }
    }
}

fn out<'a>(stream: &'a mut Stream, shared: &'a Shared) -> Out<'a> {
    Out { stream, timeout: shared.options.progress_timeout, rooms: &shared.rooms }
}

/// Says that there is no room, without waiting for anything: a fresh socket has room for so few
/// bytes.
pub(super) fn refuse_full(stream: &TcpStream) {
    let _ = stream.try_write(&text::refusal(Refusal::Full, text::WHICH));
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
}
