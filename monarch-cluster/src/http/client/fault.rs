//! What an error of a connection says about the peer.

use crate::http::error::WireError;
use crate::http::tls::{self, Fault};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// What an error of a connection that is open means: the kernel says `WouldBlock` when a wait is
/// over. `what` is what was waited for, `after` how long.
pub(super) fn fault(source: io::Error, addr: SocketAddr, what: &'static str, after: Duration) -> WireError {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => WireError::Timeout { addr, what, after },
        _ => of_tls(&source, addr, false).unwrap_or(WireError::Closed { addr, source }),
    }
}

/// The same before the connection is open.
pub(super) fn handshake_fault(source: io::Error, addr: SocketAddr, after: Duration) -> WireError {
    match of_tls(&source, addr, true) {
        Some(error) => error,
        None => fault(source, addr, "it does not shake hands", after),
    }
}

fn of_tls(source: &io::Error, addr: SocketAddr, handshaking: bool) -> Option<WireError> {
    let error = tls::of_io(source)?;
    Some(match Fault::of(error, handshaking) {
        Fault::ItsKey => WireError::Unauthenticated { addr, who: "the peer" },
        Fault::MyKey => WireError::Unauthenticated { addr, who: "this node" },
        Fault::Version => WireError::Protocol { addr, what: format!("no TLS 1.3 connection came about ({error})") },
        Fault::Forged => WireError::Forged { addr },
    })
}

/// What a peer means that answers the beginning of a TLS connection with plain HTTP, if it does:
/// that it takes no further connection, or no TLS.
pub(super) fn plain_answer(bytes: &[u8], addr: SocketAddr) -> Option<WireError> {
    let rest = bytes.strip_prefix(b"HTTP/1.")?;
    Some(match rest.get(1..5) {
        Some(b" 503") => WireError::Full { addr },
        _ => WireError::Encryption { addr, mine: "tls", its: "none" },
    })
}
