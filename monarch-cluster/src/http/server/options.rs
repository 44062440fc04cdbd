//! How a server is to be.

use crate::http::auth::Key;
use crate::http::tls::Tls;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// This node's name, by which the others know it.
    pub name: String,
    /// What they prove to each other.
    pub key: Key,
    /// What encrypts all connections. Default `None`: nothing does.
    pub encryption: Option<Tls>,
    /// The names that nodes of the job may have. Default `None`: any, since not all are known.
    pub members: Option<Arc<HashSet<String>>>,
    /// Where to listen; port 0 for any.
    pub listen: SocketAddr,
    /// Threads, unless the caller gives a runtime. Default 2.
    pub workers: usize,
    /// Authenticated connections at a time, until [`super::Server::admit`] says
    /// otherwise. Default 1024. Those that have not take none of these places.
    pub connections: usize,
    /// How long a connection may take to authenticate. Default 2 s.
    pub handshake_timeout: Duration,
    /// How long a connection is kept that asks for nothing. Default 120 s.
    pub idle_timeout: Duration,
    /// How long a client may take to make room for, or to send, the next bytes of a body. Default
    /// 10 s.
    pub progress_timeout: Duration,
    /// Bytes a second to all others. Default `None`: no limit.
    pub bandwidth_limit: Option<u64>,
    /// Bytes a second to one of them. Default `None`: no limit.
    pub peer_bandwidth_limit: Option<u64>,
}

impl Options {
    /// Whether a node of the job may be called so.
    pub(super) fn is_member(&self, name: &str) -> bool {
        self.members.as_ref().is_none_or(|members| members.contains(name))
    }

    /// The defaults, for a node of this name.
    #[must_use]
    pub fn new(name: &str, key: Key, listen: SocketAddr) -> Self {
        Self {
            name: name.to_owned(),
            key,
            encryption: None,
            members: None,
            listen,
            workers: 2,
            connections: 1024,
            handshake_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(120),
            progress_timeout: Duration::from_secs(10),
            bandwidth_limit: None,
            peer_bandwidth_limit: None,
        }
    }
}
