//! The client's end of a connection with TLS.
//!
//! Records are decrypted where they were received, many of them after one call, and copied into the
//! caller's memory. What the caller has no room for stays in `plain`; what the socket does not
//! take stays in `outgoing`.

use super::fault::{handshake_fault, plain_answer};
use super::options::PeerOptions;
use crate::http::error::WireError;
use crate::http::tls::{self, Tls};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustls::Error;
use rustls::client::UnbufferedClientConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes that are received at a time: several records, of which each has at most 16,645.
const RECEIVE_BYTES: usize = 64 << 10;
/// Most bytes that are encrypted at a time.
const MAX_ENCRYPT_BYTES: usize = 64 << 10;

/// A connection to a server that knows the job's secret.
pub(super) struct TlsEnd {
    socket: TcpStream,
    tls: UnbufferedClientConnection,
    /// Records that came; those before `opened` were decrypted.
    incoming: Vec<u8>,
    opened: usize,
    /// What was decrypted; what is before `taken` was read.
    plain: Vec<u8>,
    taken: usize,
    /// Records; what is before `sent` was sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// Whether the server has taken leave.
    ended: bool,
    /// Why there is nothing more; then the library is not asked again.
    failed: Option<Error>,
}

impl std::fmt::Debug for TlsEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsEnd").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// What the connection can do next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Go on when more has come.
    Receive,
    /// Send what it is given.
    Write,
    /// Nothing before what was decrypted has been read.
    Read,
}

/// What is to be encrypted.
#[derive(Clone, Copy)]
enum Send<'a> {
    Nothing,
    Bytes(&'a [u8]),
    Leave,
}

impl TlsEnd {
    /// Shakes hands: then the server has proven that it knows the secret.
    ///
    /// # Errors
    /// Why it has not.
    pub(super) fn open(socket: TcpStream, tls: &Tls, options: &PeerOptions) -> Result<Self, WireError> {
        Self::shake_hands(socket, tls, (options.addr, options.peer_timeout))
    }

    fn shake_hands(socket: TcpStream, tls: &Tls, (addr, limit): (SocketAddr, Duration)) -> Result<Self, WireError> {
        let until = Instant::now() + limit;
        let tls = UnbufferedClientConnection::new(tls.client.clone(), Tls::no_name())
            .map_err(|source| WireError::Encrypt { source })?;
        let (incoming, plain, outgoing) = (Vec::new(), Vec::new(), Vec::new());
        let mut end =
            Self { socket, tls, incoming, opened: 0, plain, taken: 0, outgoing, sent: 0, ended: false, failed: None };
        let fault = |source| handshake_fault(source, addr, limit);
        loop {
            let (_, next) = end.advance(&mut [], Send::Nothing).map_err(fault)?;
            while end.has_unsent() {
                end.send_some().map_err(fault)?;
            }
            match next {
                Next::Receive if !end.ended => {}
                Next::Receive => return Err(fault(io::ErrorKind::UnexpectedEof.into())),
                Next::Write | Next::Read => break,
            }
            if Instant::now() >= until {
                return Err(fault(io::ErrorKind::TimedOut.into()));
            }
            end.receive().map_err(fault)?;
            if let Some(error) = plain_answer(&end.incoming, addr) {
                return Err(error);
            }
        }
        match tls::check_protocol(end.tls.alpn_protocol()) {
            Ok(()) => Ok(end),
            Err(error) => Err(fault(tls::into_io(error))),
        }
    }

    /// The socket below.
    pub(super) const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Reads what the server has sent; 0 once it has taken leave.
    ///
    /// # Errors
    /// Those of the socket and of TLS, also if the connection was cut off.
    pub(super) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(plain) = self.plain.get(self.taken..).filter(|plain| !plain.is_empty()) {
                let len = plain.len().min(buf.len());
                buf[..len].copy_from_slice(&plain[..len]);
                self.taken += len;
                return Ok(len);
            }
            let (filled, _) = self.advance(buf, Send::Nothing)?;
            if filled > 0 || self.ended {
                return Ok(filled);
            }
            if self.has_unsent() {
                self.send_some()?;
            }
            self.receive()?;
        }
    }

    /// Encrypts some of `bytes`, unless there is something [unsent](Self::has_unsent), and sends in
    /// one call what the socket takes.
    ///
    /// # Errors
    /// Those of the socket and of TLS.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        if !self.has_unsent() {
            let some = bytes.get(..bytes.len().min(MAX_ENCRYPT_BYTES)).unwrap_or_default();
            let (_, next) = self.advance(&mut [], Send::Bytes(some))?;
            if next != Next::Write {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            taken = some.len();
        }
        self.send_some()?;
        Ok(taken)
    }

    /// Whether there are records that were not sent.
    pub(super) const fn has_unsent(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    /// Whether anything came that was not read, an error or the end among it.
    pub(super) const fn has_more(&self) -> bool {
        let is_over = self.ended || self.failed.is_some();
        is_over || self.taken < self.plain.len() || self.opened < self.incoming.len()
    }

    /// Gives back the memory that an idle connection does not need.
    pub(super) fn rest(&mut self) {
        if !self.has_more() {
            (self.incoming, self.opened, self.plain, self.taken) = (Vec::new(), 0, Vec::new(), 0);
        }
        if !self.has_unsent() {
            (self.outgoing, self.sent) = (Vec::new(), 0);
        }
    }

    /// Decrypts into `buf` what has come, and encrypts what is to be sent once the connection
    /// stands. Returns how many bytes it has put into `buf`.
    fn advance(&mut self, buf: &mut [u8], send: Send<'_>) -> io::Result<(usize, Next)> {
        let mut filled = 0;
        loop {
            if let Some(error) = &self.failed {
                return if filled > 0 { Ok((filled, Next::Read)) } else { Err(tls::into_io(error.clone())) };
            }
            let Self { tls, incoming, opened, plain, taken, outgoing, .. } = self;
            let records = incoming.get_mut(*opened..).unwrap_or_default();
            let UnbufferedStatus { discard, state } = tls.process_tls_records(records);
            let mut next = None;
            match state {
                Err(error) => {
                    self.opened += discard;
                    self.fail(error);
                    continue;
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let payload = record.map_err(tls::into_io)?.payload;
                        let room = buf.get_mut(filled..).unwrap_or_default();
                        let (now, later) = payload.split_at(payload.len().min(room.len()));
                        if let Some(room) = room.get_mut(..now.len()) {
                            room.copy_from_slice(now);
                        }
                        filled += now.len();
                        if *taken == plain.len() {
                            plain.clear();
                            *taken = 0;
                        }
                        plain.extend_from_slice(later);
                    }
                    if filled == buf.len() {
                        next = Some(Next::Read);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => append(outgoing, |to| data.encode(to))?,
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    self.ended = true;
                    next = Some(Next::Receive);
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    match send {
                        Send::Nothing => {}
                        Send::Bytes(bytes) => append(outgoing, |to| traffic.encrypt(bytes, to))?,
                        Send::Leave => append(outgoing, |to| traffic.queue_close_notify(to))?,
                    }
                    next = Some(Next::Write);
                }
                Ok(_) => next = Some(Next::Receive),
            }
            self.opened += discard;
            if let Some(next) = next {
                return Ok((filled, next));
            }
        }
    }

    /// Notes the error, and tells the server of it if the socket has room.
    fn fail(&mut self, error: Error) {
        let Self { tls, incoming, opened, outgoing, .. } = self;
        let records = incoming.get_mut(*opened..).unwrap_or_default();
        if let Ok(ConnectionState::EncodeTlsData(mut alert)) = tls.process_tls_records(records).state
            && append(outgoing, |to| alert.encode(to)).is_ok()
        {
            self.try_send();
        }
        self.failed = Some(error);
    }

    /// Takes what the socket has, and waits for it.
    fn receive(&mut self) -> io::Result<()> {
        if self.opened > 0 {
            self.incoming.drain(..self.opened);
            self.opened = 0;
        }
        // (What is left is less than a record, so that there is room.)
        self.incoming.reserve_exact(RECEIVE_BYTES.saturating_sub(self.incoming.len()));
        loop {
            match rustix::io::read(&self.socket, rustix::buffer::spare_capacity(&mut self.incoming)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send_some(&mut self) -> io::Result<()> {
        self.send(SendFlags::NOSIGNAL)
    }

    /// Sends what the socket takes without waiting.
    fn try_send(&mut self) {
        let _ = self.send(SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    fn send(&mut self, flags: SendFlags) -> io::Result<()> {
        let unsent = self.outgoing.get(self.sent..).unwrap_or_default();
        self.sent += match rustix::net::send(&self.socket, unsent, flags) {
            // Nothing was sent, and the caller comes again.
            Err(Errno::INTR) => 0,
            sent => sent?,
        };
        if self.sent >= self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
        Ok(())
    }
}

impl Drop for TlsEnd {
    /// Takes leave of the server.
    fn drop(&mut self) {
        if !self.has_unsent() && self.failed.is_none() && self.advance(&mut [], Send::Leave).is_ok() {
            self.try_send();
        }
    }
}

/// What a client's end reads from a server at the other end of `socket`, up to its end or the first
/// error; `None` if the server does not prove that it knows the secret. A door for tests.
///
/// # Errors
/// The socket does not take a time limit.
pub fn read_all(tls: &Tls, socket: TcpStream, limit: Duration) -> io::Result<Option<Vec<u8>>> {
    socket.set_read_timeout(Some(limit))?;
    let addr = (Ipv4Addr::LOCALHOST, 1).into();
    let Ok(mut end) = TlsEnd::shake_hands(socket, tls, (addr, limit)) else { return Ok(None) };
    let (mut all, mut buf) = (Vec::new(), [0; 1000]);
    while let Ok(got @ 1..) = end.read(&mut buf) {
        all.extend_from_slice(buf.get(..got).unwrap_or_default());
    }
    Ok(Some(all))
}

/// An error of the library that may only say how much room it needs.
trait NeedsRoom: std::error::Error + std::marker::Send + Sync + 'static {
    fn room(&self) -> Option<usize>;
}

impl NeedsRoom for EncodeError {
    fn room(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::AlreadyEncoded => None,
        }
    }
}

impl NeedsRoom for EncryptError {
    fn room(&self) -> Option<usize> {
        match self {
            Self::InsufficientSize(InsufficientSizeError { required_size }) => Some(*required_size),
            Self::EncryptExhausted => None,
        }
    }
}

/// Has `fill` write behind what `to` holds, with the room that it asks for.
fn append<E: NeedsRoom>(to: &mut Vec<u8>, mut fill: impl FnMut(&mut [u8]) -> Result<usize, E>) -> io::Result<()> {
    let old = to.len();
    let mut wrote = fill(&mut []);
    if let Err(room) = wrote.as_ref().map_err(|error| error.room().unwrap_or(0)) {
        to.resize(old + room, 0);
        wrote = fill(to.get_mut(old..).unwrap_or_default());
    }
    to.truncate(old + *wrote.as_ref().unwrap_or(&0));
    wrote.map(drop).map_err(io::Error::other)
}
