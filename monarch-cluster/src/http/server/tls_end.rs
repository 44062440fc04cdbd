//! The server's end of a connection with TLS.
//!
//! What the socket does not take at once stays in the connection's queue and is sent first the next
//! time. What was decrypted and not yet asked for stays as well.

use crate::http::tls::{self, Tls};
use rustix::net::{RecvFlags, SendFlags};
use rustls::{Error, ServerConnection};
use std::io::{self, IoSlice, Read, Write};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Most bytes that a client may send before its handshake is done; a node's are below 700.
const MAX_HANDSHAKE_BYTES: usize = 4096;

/// A connection whose client knows the job's secret.
pub(super) struct TlsEnd {
    socket: TcpStream,
    tls: ServerConnection,
}

/// The socket, as the library reads and writes it: without waiting.
struct Raw<'a> {
    socket: &'a TcpStream,
    /// Most bytes to read.
    most: usize,
}

impl Read for Raw<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = buf.len().min(self.most);
        let (got, _) = rustix::net::recv(self.socket, buf.get_mut(..most).unwrap_or_default(), RecvFlags::empty())?;
        Ok(got)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.socket, buf, SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = rustix::net::SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(self.socket, bufs, &mut control, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsEnd {
    /// Nothing is read yet.
    ///
    /// # Errors
    /// The library does not take the settings.
    pub(super) fn new(socket: TcpStream, tls: &Tls) -> io::Result<Self> {
        let mut tls = ServerConnection::new(tls.server.clone()).map_err(tls::into_io)?;
        // Bounded by those who fill it: one piece of an answer.
        tls.set_buffer_limit(None);
        Ok(Self { socket, tls })
    }

    /// Shakes hands: then the client has proven that it knows the secret. A place of `gate` is
    /// held while keys are worked out.
    ///
    /// # Errors
    /// Of TLS ([`tls::of_io`]) or of the socket.
    pub(super) async fn shake_hands(&mut self, gate: &Semaphore) -> io::Result<()> {
        let mut left = MAX_HANDSHAKE_BYTES;
        while self.tls.is_handshaking() {
            let got = self.receive(left).await?;
            left -= got.min(left);
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let place = gate.acquire().await;
            let processed = self.process();
            drop(place);
            processed?;
            while self.has_unsent() {
                self.send_some().await?;
            }
            if left == 0 && self.tls.is_handshaking() {
                return Err(tls::into_io(Error::General("its handshake is too long".to_owned())));
            }
        }
        tls::check_protocol(self.tls.alpn_protocol()).map_err(tls::into_io)
    }

    /// The socket below.
    pub(super) const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Takes bytes of the socket, at most so many; 0 at its end.
    async fn receive(&mut self, most: usize) -> io::Result<usize> {
        let Self { socket, tls } = self;
        socket.async_io(Interest::READABLE, || tls.read_tls(&mut Raw { socket, most })).await
    }

    /// Decrypts what was received. After an error an alert goes out, if there is room.
    fn process(&mut self) -> io::Result<()> {
        match self.tls.process_new_packets() {
            Ok(_) => Ok(()),
            Err(error) => {
                self.try_send();
                Err(tls::into_io(error))
            }
        }
    }

    /// Reads what the client has sent; 0 once it has taken leave.
    ///
    /// # Errors
    /// Of TLS or the socket, also if it was cut off without leave.
    pub(super) async fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            self.receive(usize::MAX).await?;
            self.process()?;
        }
    }

    /// Encrypts `bytes` into the queue. [`TlsEnd::send_some`] is to follow until all is sent.
    ///
    /// # Errors
    /// Those of the library.
    pub(super) fn queue(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.writer().write_all(bytes)
    }

    /// Whether the queue holds anything.
    pub(super) fn has_unsent(&self) -> bool {
        self.tls.wants_write()
    }

    /// Sends a part of the queue as soon as the socket has room.
    ///
    /// # Errors
    /// Those of the socket.
    pub(super) async fn send_some(&mut self) -> io::Result<usize> {
        let Self { socket, tls } = self;
        socket.async_io(Interest::WRITABLE, || tls.write_tls(&mut Raw { socket, most: 0 })).await
    }

    /// Sends what the socket takes now.
    fn try_send(&mut self) {
        let Self { socket, tls } = self;
        while tls.wants_write() && tls.write_tls(&mut Raw { socket, most: 0 }).is_ok() {}
    }

    /// Takes leave of the client, if the socket has room for it.
    pub(super) fn take_leave(&mut self) {
        self.tls.send_close_notify();
        self.try_send();
    }
}

impl Drop for TlsEnd {
    fn drop(&mut self) {
        self.take_leave();
    }
}
