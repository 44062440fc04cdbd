//! An answer that is being read.

use super::Peer;
use super::conn::Conn;
use super::fault::fault;
use super::senders::Receiving;
use crate::http::error::WireError;
use crate::http::head::{Method, ResponseHead};
use crate::tag::Tag;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Bytes of body for which the timeout is granted once.
const BYTES_PER_TIMEOUT: u64 = 8 << 20;

/// An answer. Read to its end it gives its connection back; dropped before, it closes it.
#[derive(Debug)]
pub struct Response<'a> {
    peer: &'a Peer,
    conn: Option<Conn>,
    head: ResponseHead,
    /// Body that has not been read.
    left: u64,
    /// What may still be spent waiting for it.
    patience: Duration,
    /// Until the body has come.
    receiving: Option<Receiving<'a>>,
}

impl<'a> Response<'a> {
    pub(super) fn new(peer: &'a Peer, conn: Conn, head: ResponseHead, method: Method) -> Self {
        let left = if method == Method::Head { 0 } else { head.len };
        let turns = u32::try_from(left.div_ceil(BYTES_PER_TIMEOUT).max(1)).unwrap_or(u32::MAX);
        let patience = peer.options.peer_timeout.saturating_mul(turns);
        let receiving = (left > 0).then(|| peer.options.senders.receiving(&peer.bodies));
        let mut response = Self { peer, conn: Some(conn), head, left, patience, receiving };
        response.give_back_at_end();
        response
    }

    /// What became of the request.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// Bytes of the body; after HEAD, those that GET would send.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.head.len
    }

    /// Whether the body has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.len == 0
    }

    /// The value of a header, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    /// The tag of the body: of a part of a file that is the file's, and otherwise that of this
    /// answer, which [`Response::bytes`] compares.
    #[must_use]
    pub fn tag(&self) -> Option<Tag> {
        self.header("Monarch-Tag")?.parse().ok()
    }

    /// All of the body, if it is at most `most` bytes and what the peer sent.
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`] if it is longer, [`WireError::Forged`] if it is another, and
    /// those of reading.
    pub fn bytes(mut self, most: u64) -> io::Result<Vec<u8>> {
        if self.left > most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.front(self.left as usize)
    }

    /// The first bytes of a body, which its tag covers: all of it, or what comes before files that
    /// have tags of their own. To be read first.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the body has fewer, [`WireError::Forged`] if they are
    /// not what the peer sent, and those of reading. The connection is closed after an error.
    pub fn front(&mut self, len: usize) -> io::Result<Vec<u8>> {
        if len as u64 > self.left {
            self.conn = None;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; len];
        match self.fill_authentic(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(err) => {
                self.conn = None;
                Err(self.peer.failed(err).into_io())
            }
        }
    }

    /// Grants the rest of the body, up to 8 MiB, the time for a body of its own.
    pub fn renew_patience(&mut self) {
        self.patience = self.peer.options.peer_timeout;
    }

    fn fill_authentic(&mut self, body: &mut [u8]) -> Result<(), WireError> {
        if body.is_empty() {
            return Ok(());
        }
        let mut filled = 0;
        while let Some(rest) = body.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            filled += self.fill(rest)?;
        }
        let is_authentic = self.tag().zip(self.conn.as_ref()).is_some_and(|(tag, conn)| conn.is_body(tag, body));
        if !is_authentic {
            return Err(WireError::Forged { addr: self.peer.options.addr });
        }
        self.left = self.left.saturating_sub(body.len() as u64);
        self.give_back_at_end();
        Ok(())
    }

    fn give_back_at_end(&mut self) {
        if self.left > 0 {
            return;
        }
        self.receiving = None;
        if let Some(conn) = self.conn.take().filter(|conn| !self.head.close && !conn.has_more()) {
            self.peer.keep(conn);
        }
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, WireError> {
        let addr = self.peer.options.addr;
        let what = "its answer stopped, or comes too slowly";
        let late = WireError::Timeout { addr, what, after: self.peer.options.peer_timeout };
        let Some(conn) = &mut self.conn else { return Err(late) };
        if self.patience.is_zero() {
            return Err(late);
        }
        let share = self.peer.options.senders.share();
        conn.wait_at_most(self.peer.rto.patience().min(self.patience * share), addr)?;
        let start = Instant::now();
        let got = conn.body(buf);
        self.patience = self.patience.saturating_sub(start.elapsed() / share);
        match got {
            Ok(0) => Err(fault(io::ErrorKind::UnexpectedEof.into(), addr, what, self.patience)),
            Ok(got) => Ok(got),
            Err(err) => Err(fault(err, addr, what, start.elapsed())),
        }
    }
}

impl Read for Response<'_> {
    /// Reads body straight into `buf`; 0 at its end. Errors are [`WireError`]s inside of
    /// [`io::Error`]s; the connection is closed after one.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        match self.fill(&mut buf[..most]) {
            Ok(got) => {
                self.left -= got as u64;
                self.give_back_at_end();
                Ok(got)
            }
            Err(err) => {
                self.conn = None;
                Err(self.peer.failed(err).into_io())
            }
        }
    }
}
