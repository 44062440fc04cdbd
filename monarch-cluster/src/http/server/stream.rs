//! A connection as the rest of the server sees it, with or without TLS.

use super::shared::Shared;
use super::tls_end::TlsEnd;
use crate::http::refusal::Refusal;
use crate::http::tls::{self, Fault, HELLO_BYTE};
use std::io;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

/// Least room for what is read from a connection with TLS.
const READ_BYTES: usize = 2048;
/// How long, and how many bytes of, what a refused client still sends is taken, so that it reads
/// the answer before its connection is reset.
const LINGER: (Duration, usize) = (Duration::from_millis(500), 1 << 20);

/// A connection.
pub(super) enum Stream {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<TlsEnd>),
}

/// Why there is none.
pub(super) enum NotOpen {
    /// The client went away.
    Gone,
    /// The client is shut out.
    Refused(Refusal),
    /// The client sends plain requests to a node that encrypts; it is to be told so.
    Unencrypted(TcpStream),
}

impl Stream {
    /// A connection that was accepted; with TLS once its client has shaken hands, until `by`.
    pub(super) async fn open(socket: TcpStream, shared: &Shared, by: Instant) -> Result<Self, NotOpen> {
        let Some(tls) = &shared.options.encryption else { return Ok(Self::Plain(socket)) };
        match timeout_at(by, first_byte(&socket)).await {
            Ok(Some(HELLO_BYTE)) => {}
            Ok(Some(_)) => return Err(NotOpen::Unencrypted(socket)),
            Ok(None) => return Err(NotOpen::Gone),
            Err(_) => return Err(NotOpen::Refused(Refusal::Unauthenticated)),
        }
        let mut end = TlsEnd::new(socket, tls).map_err(|_| NotOpen::Gone)?;
        match timeout_at(by, end.shake_hands(&shared.handshake_gate)).await {
            Ok(Ok(())) => Ok(Self::Tls(Box::new(end))),
            Ok(Err(error)) => {
                let Some(refusal) = refusal_of(&error, true) else { return Err(NotOpen::Gone) };
                let mut refused = Self::Tls(Box::new(end));
                refused.linger().await;
                Err(NotOpen::Refused(refusal))
            }
            Err(_) => Err(NotOpen::Refused(Refusal::Unauthenticated)),
        }
    }

    /// The socket below.
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(end) => end.socket(),
        }
    }

    /// Reads into `buf`; 0 at the end.
    pub(super) async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buf).await,
            Self::Tls(end) => end.read(buf).await,
        }
    }

    /// Reads behind what `buf` holds; 0 at the end.
    pub(super) async fn read_buf(&mut self, buf: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read_buf(buf).await,
            Self::Tls(end) => {
                let mut got = [0; READ_BYTES];
                let len = end.read(&mut got).await?;
                buf.extend_from_slice(got.get(..len).unwrap_or_default());
                Ok(len)
            }
        }
    }

    /// Ends what is sent, and takes for a moment what the client is still sending.
    pub(super) async fn linger(&mut self) {
        if let Self::Tls(end) = self {
            end.take_leave();
        }
        let _ = rustix::net::shutdown(self.socket(), rustix::net::Shutdown::Write);
        let mut left = LINGER.1;
        let drain = async {
            let mut sink = [0; 4096];
            // (Below TLS: these bytes are not looked at.)
            while let Ok(got @ 1..) = read_raw(self.socket(), &mut sink).await {
                left = left.saturating_sub(got);
                if left == 0 {
                    break;
                }
            }
        };
        let _ = timeout(LINGER.0, drain).await;
    }
}

/// The first byte that a client sends, which stays to be read.
async fn first_byte(socket: &TcpStream) -> Option<u8> {
    let mut first = [0];
    match socket.peek(&mut first).await {
        Ok(1) => first.first().copied(),
        _ => None,
    }
}

async fn read_raw(socket: &TcpStream, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        socket.readable().await?;
        match socket.try_read(buf) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
    }
}

/// Why a client whose bytes ended in `error` is refused; `None` if it only went away.
pub(super) fn refusal_of(error: &io::Error, handshaking: bool) -> Option<Refusal> {
    let error = tls::of_io(error)?;
    Some(match Fault::of(error, handshaking) {
        Fault::ItsKey | Fault::MyKey => Refusal::BadProof,
        Fault::Version => Refusal::Handshake,
        Fault::Forged => Refusal::Forged,
    })
}
