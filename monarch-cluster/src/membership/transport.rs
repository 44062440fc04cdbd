//! How datagrams travel: UDP, and a double whose links can be cut.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;

/// Bytes of a datagram that are read. None of ours is as long, and one that is longer is not
/// authentic.
pub(super) const MAX_DATAGRAM_BYTES: usize = 2048;

/// Sends and receives datagrams. Any of them may be lost, doubled or late.
pub trait Datagrams: Send + Sync + 'static {
    /// Sends one, or loses it: never waits.
    fn send(&self, to: SocketAddr, datagram: &[u8]);

    /// Waits for one and writes it to the front of `buffer`. Returns its length in bytes. May be
    /// given up and called again.
    fn receive(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;
}

/// Datagrams over UDP.
#[derive(Debug)]
pub struct Udp(tokio::net::UdpSocket);

impl Udp {
    /// Listens; must be called within a tokio runtime.
    pub fn bind(listen: SocketAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind(listen)?;
        socket.set_nonblocking(true)?;
        tokio::net::UdpSocket::from_std(socket).map(Self)
    }
}

impl Datagrams for Udp {
    fn send(&self, to: SocketAddr, datagram: &[u8]) {
        // A full buffer and a host that refuses are losses like any other.
        let _ = self.0.try_send_to(datagram, to);
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.0.recv_from(buffer).await?.0)
    }
}

/// A network in memory whose links can be cut: for tests.
#[derive(Clone, Debug, Default)]
pub struct Links(Arc<Mutex<Wires>>);

#[derive(Debug, Default)]
struct Wires {
    ends: HashMap<SocketAddr, mpsc::Sender<Vec<u8>>>,
    cut: HashSet<(SocketAddr, SocketAddr)>,
}

/// One end in such a network.
#[derive(Debug)]
pub struct End {
    at: SocketAddr,
    links: Links,
    inbox: tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>,
}

impl Links {
    /// Listens at an address, in place of an earlier listener.
    pub fn end(&self, at: SocketAddr) -> End {
        let (sender, inbox) = mpsc::channel(1024);
        self.wires().ends.insert(at, sender);
        End { at, links: self.clone(), inbox: tokio::sync::Mutex::new(inbox) }
    }

    /// Cuts a link in both directions, or mends it.
    pub fn cut(&self, a: SocketAddr, b: SocketAddr, cut: bool) {
        let mut wires = self.wires();
        for link in [(a, b), (b, a)] {
            if cut {
                wires.cut.insert(link)
            } else {
                wires.cut.remove(&link)
            };
        }
    }

    fn wires(&self) -> std::sync::MutexGuard<'_, Wires> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Datagrams for End {
    fn send(&self, to: SocketAddr, datagram: &[u8]) {
        let wires = self.links.wires();
        if let Some(end) = wires.ends.get(&to).filter(|_| !wires.cut.contains(&(self.at, to))) {
            let _ = end.try_send(datagram.to_vec());
        }
    }

    async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "another process listens at this address now");
        let datagram = self.inbox.lock().await.recv().await.ok_or_else(gone)?;
        let len = datagram.len().min(buffer.len());
        buffer[..len].copy_from_slice(&datagram[..len]);
        Ok(len)
    }
}
