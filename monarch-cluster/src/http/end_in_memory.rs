//! Ends of connections without sockets: a door for tests of what decides on the other end.

use super::tls::{Tls, check_protocol};
use rustls::{ClientConnection, Connection, Error, ServerConnection};
use std::io::{Read, Write};

/// One end of a connection. What it sends is taken and handed in by the caller.
#[derive(Debug)]
pub struct EndInMemory(Connection);

impl EndInMemory {
    /// The server's end, as a node has it.
    ///
    /// # Errors
    /// The library does not take the settings.
    pub fn server(tls: &Tls) -> Result<Self, Error> {
        Ok(Self(ServerConnection::new(tls.server.clone())?.into()))
    }

    /// A client's end that offers these protocols.
    ///
    /// # Errors
    /// The library does not take the settings.
    pub fn client(tls: &Tls, protocols: &[&[u8]]) -> Result<Self, Error> {
        let mut config = (*tls.client).clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(Self(ClientConnection::new(config.into(), Tls::no_name())?.into()))
    }

    /// Takes bytes of the other end. Returns what it has sent inside.
    ///
    /// # Errors
    /// They are none that this end takes.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let mut plain = Vec::new();
        while !bytes.is_empty() {
            let taken = self.0.read_tls(&mut bytes).map_err(|e| Error::General(e.to_string()))?;
            self.0.process_new_packets()?;
            // The end of the connection, or nothing for now, is an error of its own there.
            let _ = self.0.reader().read_to_end(&mut plain);
            if taken == 0 {
                break;
            }
        }
        Ok(plain)
    }

    /// Encrypts bytes, which are [sent](Self::send) then.
    ///
    /// # Errors
    /// The connection does not stand, or has too much to send.
    pub fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.writer().write_all(bytes)
    }

    /// What this end has to send now.
    pub fn send(&mut self) -> Vec<u8> {
        let mut sent = Vec::new();
        while self.0.wants_write() && self.0.write_tls(&mut sent).is_ok() {}
        sent
    }

    /// Whether the handshake is over, and the other end has proven that it knows the secret.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        !self.0.is_handshaking() && check_protocol(self.0.alpn_protocol()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ALPN;

    /// Whether the server's end counts a client as one that knows the secret of `mine`.
    fn is_taken(mine: &Tls, its: &Tls, protocols: &[&[u8]]) -> bool {
        let (mut server, mut client) =
            (EndInMemory::server(mine).unwrap(), EndInMemory::client(its, protocols).unwrap());
        for _ in 0..4 {
            if server.receive(&client.send()).is_err() || client.receive(&server.send()).is_err() {
                return false;
            }
        }
        server.is_proven() && client.is_proven()
    }

    #[test]
    fn an_end_is_proven_that_has_the_secret_and_speaks_the_protocol() {
        let [mine, other] = [1, 2].map(|n| Tls::new(&[n; 32]).unwrap());
        assert!(is_taken(&mine, &mine, &[ALPN]));
        assert!(!is_taken(&mine, &other, &[ALPN]), "another secret");
        assert!(!is_taken(&mine, &mine, &[]), "no protocol");
        assert!(!is_taken(&mine, &mine, &[b"monarch/3", b"h2"]), "others");
        assert!(is_taken(&mine, &mine, &[b"h2", ALPN]));
    }
}
