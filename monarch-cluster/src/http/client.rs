//! The side that asks: for plain threads that may block, but never for longer than they allow.
//!
//! A [`Peer`] is one other agent with the connections to it that are idle. Every wait has its
//! bound:
//!
//! | for | at most |
//! |---|---|
//! | a connection | `peer_timeout`; as much again where many are being opened, and for TLS |
//! | any sign of life (bytes of an answer, or `102`) | a multiple of what this peer usually takes: see [`rto_estimator`] |
//! | the answer of a peer that is busy and says so | the caller's `max_wait` |
//! | the body, up to 8 MiB, once it has begun | `peer_timeout` spent waiting for it; as much again for each further 8 MiB; what is spent while up to four peers send counts once for all of them ([`Senders`]) |
//!
//! The last one makes a link that is far too slow fail, where the silence alone would let it drag
//! on. Only waiting counts, not what the caller does between reads.
//!
//! A connection goes back to the idle ones when its answer was read to the end, and is closed
//! otherwise. The peer may have closed an idle one meanwhile; a request that finds it so before any
//! byte of an answer is sent once more, on a new connection. Requests therefore have to be such
//! that sending them twice does no harm.

mod conn;
mod fault;
mod handshakes;
mod options;
mod response;
mod rto_estimator;
mod senders;
mod tls_end;
mod transport;

pub use options::PeerOptions;
pub use response::Response;
pub use senders::Senders;
pub use tls_end::read_all as read_all_over_tls;

use super::auth;
use super::error::WireError;
use super::head::{BODY_MAX, Method, ResponseHead};
use super::path;
use conn::{Asked, Conn};
use handshakes::Handshakes;
use rto_estimator::RtoEstimator;
use senders::Bodies;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A request whose answer was not asked for yet.
#[derive(Debug)]
pub struct Sent {
    conn: Conn,
    when: Instant,
}

/// How long an answer may stay untaken. After that it is not waited for: the peer may have given up
/// sending it.
const MAX_UNTAKEN: Duration = Duration::from_millis(500);

/// Another agent.
#[derive(Debug)]
pub struct Peer {
    options: PeerOptions,
    idle: Mutex<Vec<Conn>>,
    handshakes: Handshakes,
    rto: RtoEstimator,
    bodies: Bodies,
}

impl Peer {
    /// Nothing is sent before the first request.
    ///
    /// # Errors
    /// [`WireError::Request`] for names that no node may have.
    pub fn new(options: PeerOptions) -> Result<Self, WireError> {
        for name in [&options.my_name, &options.its_name] {
            if !auth::is_name(name) {
                return Err(WireError::Request { what: format!("{name:?} is no name for a node") });
            }
        }
        let rto = RtoEstimator::new(options.peer_timeout);
        let (idle, handshakes, bodies) = Default::default();
        Ok(Self { options, idle, handshakes, rto, bodies })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.options.addr
    }

    /// Asks for a file or some bytes of one, passed on by `hops` nodes so far.
    ///
    /// # Errors
    /// [`WireError`]; what the peer answers, error or not, is in the response's status.
    pub fn get(
        &self,
        target: &str,
        range: Option<Range<u64>>,
        hops: u8,
        max_wait: Duration,
    ) -> Result<Response<'_>, WireError> {
        self.get_sent(None, target, range, hops, max_wait)
    }

    /// Sends the request of a [`Peer::get`], if a connection is idle: the peer works on it while
    /// the caller does something else, for a moment.
    #[must_use]
    pub fn send(&self, target: &str, range: Option<Range<u64>>, hops: u8) -> Option<Sent> {
        let asked = Asked { method: Method::Get, target, range, hops, body: &[] };
        check(&asked).ok()?;
        let reused = self.idle().pop();
        let mut conn = reused?;
        // If it fails, get_sent finds out why.
        conn.send(&asked, &self.options).ok()?;
        Some(Sent { conn, when: Instant::now() })
    }

    /// The answer of what [`Peer::send`] has sent with these arguments; [`Peer::get`] where it has
    /// sent nothing.
    ///
    /// # Errors
    /// As [`Peer::get`].
    pub fn get_sent(
        &self,
        sent: Option<Sent>,
        target: &str,
        range: Option<Range<u64>>,
        hops: u8,
        max_wait: Duration,
    ) -> Result<Response<'_>, WireError> {
        self.ask_sent(sent, &Asked { method: Method::Get, target, range, hops, body: &[] }, max_wait)
    }

    /// Asks what [`Peer::get`] would be headed with.
    ///
    /// # Errors
    /// As [`Peer::get`].
    pub fn head(&self, target: &str, max_wait: Duration) -> Result<Response<'_>, WireError> {
        self.ask(&Asked { method: Method::Head, target, range: None, hops: 0, body: &[] }, max_wait)
    }

    /// Sends `body`, at most 16 MiB. It may arrive twice.
    ///
    /// # Errors
    /// As [`Peer::get`].
    pub fn post(&self, target: &str, body: &[u8], max_wait: Duration) -> Result<Response<'_>, WireError> {
        self.ask(&Asked { method: Method::Post, target, range: None, hops: 0, body }, max_wait)
    }

    fn ask(&self, asked: &Asked<'_>, max_wait: Duration) -> Result<Response<'_>, WireError> {
        self.ask_sent(None, asked, max_wait)
    }

    fn ask_sent(&self, sent: Option<Sent>, asked: &Asked<'_>, max_wait: Duration) -> Result<Response<'_>, WireError> {
        check(asked)?;
        let give_up = Instant::now() + max_wait;
        let sent = sent.filter(|s| s.when.elapsed() < MAX_UNTAKEN).map(|s| (s.conn, true));
        // A statement of its own: the lock must not be held while the peer is waited for.
        let reused = sent.or_else(|| Some((self.idle().pop()?, false)));
        if let Some((mut conn, was_sent)) = reused {
            let got = if was_sent { self.heard(&mut conn, give_up) } else { self.on(&mut conn, asked, give_up) };
            match got {
                Ok(head) => return Ok(Response::new(self, conn, head, asked.method)),
                // It has restarted, or did not wait for us: the other idle connections are as old.
                Err(WireError::Closed { .. }) if !conn.heard() => self.idle().clear(),
                Err(err) => return Err(self.failed(err)),
            }
        }
        let fresh = self.opened_with(asked).and_then(|mut conn| {
            let head = self.heard(&mut conn, give_up)?;
            Ok((conn, head))
        });
        match fresh {
            Ok((conn, head)) if conn.proven() => Ok(Response::new(self, conn, head, asked.method)),
            Ok(_) => Err(WireError::Unauthenticated { addr: self.options.addr, who: "the peer" }),
            Err(err) => Err(self.failed(err)),
        }
    }

    /// A new connection, on which this request and the proof with it were sent.
    fn opened_with(&self, asked: &Asked<'_>) -> Result<Conn, WireError> {
        let _place = self.handshakes.enter(self.options.peer_timeout);
        let mut conn = Conn::open(&self.options, self.rto.patience())?;
        conn.send(asked, &self.options)?;
        Ok(conn)
    }

    /// Sends a request and reads the head of its answer.
    fn on(&self, conn: &mut Conn, asked: &Asked<'_>, give_up: Instant) -> Result<ResponseHead, WireError> {
        conn.send(asked, &self.options)?;
        self.heard(conn, give_up)
    }

    /// Reads the head of the answer to a request that was sent.
    fn heard(&self, conn: &mut Conn, give_up: Instant) -> Result<ResponseHead, WireError> {
        let sent = Instant::now();
        let head = conn.head(self.rto.patience(), give_up, self.options.addr)?;
        if let Some(first) = conn.first_byte() {
            self.rto.heard_after(first.saturating_duration_since(sent));
        }
        match head.status {
            401 => Err(WireError::Unauthenticated { addr: self.options.addr, who: "this node" }),
            403 if !conn.proven() => Err(WireError::NoMember { addr: self.options.addr }),
            503 if head.close && !conn.proven() => Err(WireError::Full { addr: self.options.addr }),
            _ => Ok(head),
        }
    }

    fn failed(&self, err: WireError) -> WireError {
        if let WireError::Timeout { .. } = err {
            self.rto.was_silent();
            self.idle().clear();
        }
        err
    }

    fn keep(&self, mut conn: Conn) {
        conn.rest();
        let mut idle = self.idle();
        if idle.len() < self.options.idle {
            idle.push(conn);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Conn>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check(asked: &Asked<'_>) -> Result<(), WireError> {
    let what = if path::split(asked.target).is_none() {
        format!("{:?} is no path that agents take", asked.target)
    } else if asked.range.as_ref().is_some_and(Range::is_empty) {
        "an empty range of bytes".to_owned()
    } else if asked.body.len() as u64 > BODY_MAX {
        format!("{} bytes are more than the 16 MiB that a request may have", asked.body.len())
    } else {
        return Ok(());
    };
    Err(WireError::Request { what })
}
