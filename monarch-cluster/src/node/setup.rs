//! What a node needs before it can talk to others: settings, the secrets, addresses.

use crate::discovery::{self, DiscoveryError};
use crate::http::{Tls, WireError};
use crate::membership::MembershipError;
use crate::secret::{JobSecret, SecretError, UserSecret};
use monarch_config::{Cluster, Encryption, Spread};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name among the members.
    pub name: String,
    /// The members that are expected, and where they are, as far as that was known at the start.
    pub members: HashMap<String, Option<SocketAddr>>,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Which copies it keeps of files that others own.
    pub placement: Spread,
    /// Whether what nodes send to each other is encrypted. Connections and datagrams.
    pub encryption: Encryption,
    /// How long a peer may be silent.
    pub peer_timeout: Duration,
    /// Most small files that are requested of another node at a time.
    pub batch_files: usize,
    /// How long a peer that is itself waiting for the PFS is waited for.
    pub max_wait: Duration,
    /// How long a scan of another node that makes no progress is waited for.
    pub stalled_scan: Duration,
}

/// Why a node cannot work with others. It then works alone.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its own address, or that of others.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// A secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Membership.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The server.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Threads.
    #[error("cannot start the threads that talk to other nodes: {0}")]
    Threads(std::io::Error),
}

/// What a node needs to know before it can talk to others.
pub struct Introduction {
    /// What the names of copies and the owners of files are derived from.
    pub user: UserSecret,
    /// What the keys between the nodes are derived from.
    pub job: JobSecret,
    /// The port of all nodes.
    pub port: u16,
    /// Where this one listens.
    pub listen: SocketAddr,
    /// The members, and where they are, as far as that is known.
    pub members: Vec<(String, Option<SocketAddr>)>,
}

impl Introduction {
    /// What encrypts the connections between nodes, if the configuration asks for it.
    ///
    /// # Errors
    /// Those of [`Tls::new`].
    pub fn tls(&self, encryption: Encryption) -> Result<Option<Tls>, WireError> {
        match encryption {
            Encryption::None => Ok(None),
            Encryption::Tls => Tls::new(&self.job.tls()).map(Some),
        }
    }

    /// Loads the secrets, and looks up where the nodes of the configuration are.
    ///
    /// # Errors
    /// When a secret cannot be loaded, or this node has no address.
    pub fn of(cluster: &Cluster) -> Result<Self, NodeError> {
        let environment = |name: &str| std::env::var(name).ok();
        let user = UserSecret::load(cluster.secret_file.as_deref(), &environment)?;
        let job = JobSecret::load(cluster, &user, &environment)?;
        let port = cluster.port.unwrap_or_else(|| job.port(cluster.agreed()));
        let local = discovery::SystemLocal;
        let listen = SocketAddr::new(discovery::listen_address(cluster, &local)?, port);
        let first = |name: &String| discovery::resolve_addresses(name, port, &local).ok()?.first().copied();
        let locate = |name: &String| (name.clone(), first(name));
        Ok(Self { user, job, port, listen, members: cluster.members.iter().map(locate).collect() })
    }
}
