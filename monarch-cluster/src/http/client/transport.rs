//! A connection as the rest of the client sees it, with or without TLS.

use super::options::PeerOptions;
use super::tls_end::TlsEnd;
use crate::http::error::WireError;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A connection.
#[derive(Debug)]
pub(super) enum Transport {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsEnd>),
}

impl Transport {
    /// A connection to a peer, over which reads may take `patience`; with TLS once hands are
    /// shaken.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn open(options: &PeerOptions, patience: Duration) -> Result<Self, WireError> {
        let (addr, limit) = (options.addr, options.peer_timeout);
        let socket = TcpStream::connect_timeout(&addr, limit).map_err(|source| match source.kind() {
            io::ErrorKind::TimedOut => WireError::Timeout { addr, what: "it does not take connections", after: limit },
            _ => WireError::Unreachable { addr, source },
        })?;
        let set = |source| WireError::System { what: "set up a connection", source };
        socket.set_nodelay(true).map_err(set)?;
        socket.set_write_timeout(Some(limit)).map_err(set)?;
        socket.set_read_timeout(Some(patience)).map_err(set)?;
        match &options.encryption {
            None => Ok(Self::Plain(socket)),
            Some(tls) => Ok(Self::Tls(Box::new(TlsEnd::open(socket, tls, options)?))),
        }
    }

    /// Has reads end after `limit`.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn set_read_timeout(&self, limit: Duration) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.set_read_timeout(Some(limit)),
            Self::Tls(end) => end.socket().set_read_timeout(Some(limit)),
        }
    }

    /// Reads into `buf`; 0 at the end.
    ///
    /// # Errors
    /// Those of the socket, or of TLS.
    pub(super) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let got = match self {
                Self::Plain(socket) => socket.read(buf),
                Self::Tls(end) => end.read(buf),
            };
            match got {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Takes some of `bytes` to send them, in one call. With TLS they may be left
    /// [unsent](Self::has_unsent); then the next call sends those, and may take none.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(end) => end.write(bytes),
        }
    }

    /// Whether bytes were taken and not yet sent.
    pub(super) const fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(end) => end.has_unsent(),
        }
    }

    /// Whether bytes came that were not asked for.
    pub(super) const fn has_more(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(end) => end.has_more(),
        }
    }

    /// Gives back the memory that an idle connection does not need.
    pub(super) fn rest(&mut self) {
        if let Self::Tls(end) = self {
            end.rest();
        }
    }
}
