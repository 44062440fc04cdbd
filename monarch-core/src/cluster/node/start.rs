//! Setting a node up: its address, the secret, who is there, the server.

use super::request_handlers::PeerRequestHandler;
use super::{Node, Others, Sums, TrafficStats};
use crate::cluster::directory::Residency;
use crate::cluster::discovery::{self, DiscoveryError};
use crate::cluster::election::Election;
use crate::cluster::http::{self, Key, Server, WireError};
use crate::cluster::membership::{self, Membership, MembershipError};
use crate::cluster::secret::{Secret, SecretError};
use crate::config::{Cluster, Config, Spread};
use crate::tiering::TieringEngine;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How often news go round.
const GOSSIP: Duration = Duration::from_millis(200);
/// Threads that may wait for copies at a time, and those for all else that blocks.
const READERS: usize = 192;
const OTHERS: usize = 64;
/// Answers under way from which on others who have a file had better send it.
const BUSY: usize = 64;

/// After what time a name is looked up again that led nowhere, and after what time at most.
const LOOK_UP: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];

/// How a node is set up.
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
    /// How long a peer may be silent.
    pub peer_timeout: Duration,
    /// How long a peer that is itself waiting for the PFS is waited for.
    pub max_wait: Duration,
    /// How long a node that scans and gets no further is waited for.
    pub stalled_scan: Duration,
    /// Answers being made from which on it is busy.
    pub busy: usize,
}

/// Why a node cannot work with others. It then works alone.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Its own address, or that of others.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// The secret.
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

/// What nodes need to know before they can talk.
pub struct Introduction {
    /// The secret.
    pub secret: Secret,
    /// The port of all nodes.
    pub port: u16,
    /// Where this one listens.
    pub listen: SocketAddr,
    /// The members, and where they are, as far as that is known.
    pub members: Vec<(String, Option<SocketAddr>)>,
}

impl Introduction {
    /// By the configuration.
    ///
    /// # Errors
    /// When there is no secret to be had, or no address.
    pub fn of(cluster: &Cluster) -> Result<Self, NodeError> {
        let secret = Secret::load(cluster.secret_file.as_deref(), &|name| std::env::var(name).ok())?;
        let port = cluster.port.unwrap_or_else(|| secret.port(cluster.agreed()));
        let local = discovery::SystemLocal;
        let listen = SocketAddr::new(discovery::listen_address(cluster, &local)?, port);
        let first = |name: &String| discovery::resolve_addresses(name, port, &local).ok()?.first().copied();
        let locate = |name: &String| (name.clone(), first(name));
        Ok(Self { secret, port, listen, members: cluster.members.iter().map(locate).collect() })
    }
}

impl Node {
    /// A node of a job, or `None` where the configuration names no others.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub fn start(config: &Config) -> Result<Option<Arc<Self>>, NodeError> {
        let cluster = &config.cluster;
        let Some(name) = cluster.members.get(cluster.me).filter(|_| !cluster.is_alone()) else { return Ok(None) };
        let intro = Introduction::of(cluster)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(READERS + OTHERS)
            .thread_name("cluster")
            .enable_all()
            .build()
            .map_err(NodeError::Threads)?;
        // Disks that are slow hold up those who send files, and must not make this node look dead.
        let gossip = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("gossip")
            .enable_all()
            .build()
            .map_err(NodeError::Threads)?;
        let key = Key::new(intro.secret.derive("wire"));
        let membership = Membership::start(
            &membership::Options {
                me: name.clone(),
                listen: intro.listen,
                files: intro.listen,
                members: intro.members.clone(),
                key: intro.secret.derive("gossip"),
                join_timeout: cluster.join_timeout,
                interval: GOSSIP,
            },
            gossip.handle(),
        )?;
        let options = NodeOptions {
            name: name.clone(),
            members: intro.members.into_iter().collect(),
            listen: intro.listen,
            placement: cluster.placement,
            peer_timeout: cluster.peer_timeout,
            max_wait: config.wait.max_wait,
            stalled_scan: cluster.join_timeout,
            busy: BUSY,
        };
        let node = Arc::new(Self {
            options,
            figures: TrafficStats::default(),
            election: Election::default(),
            seed: intro.secret.seed(),
            key,
            membership,
            residency: Mutex::new(Residency::new()),
            sums: Sums::default(),
            complaints: super::corruption_reports::Complaints::default(),
            peers: Mutex::default(),
            tiering: OnceLock::new(),
            waits: Mutex::default(),
            forced: Mutex::default(),
            begun: super::inflight_fetches::Begun::default(),
            complete: Mutex::default(),
            lacking: Mutex::default(),
            lives: Mutex::default(),
            changed: Mutex::default(),
            server: Mutex::default(),
            readers: tokio::sync::Semaphore::new(READERS),
            confined: AtomicBool::new(false),
            told: Mutex::default(),
            untold: AtomicU64::new(0),
            started: Instant::now(),
            adopting: AtomicBool::new(false),
            answering: Arc::default(),
            runtime,
            gossip,
        });
        node.listen(cluster)?;
        tracing::info!(name = %node.options.name, listen = %node.options.listen, members = cluster.members.len(),
            placement = ?cluster.placement, "one of several nodes");
        Ok(Some(node))
    }

    fn listen(self: &Arc<Self>, cluster: &Cluster) -> Result<(), WireError> {
        let options = http::Options {
            bandwidth_limit: cluster.bandwidth_limit,
            peer_bandwidth_limit: cluster.peer_bandwidth_limit,
            ..http::Options::new(&self.options.name, self.key.clone(), self.options.listen)
        };
        let server =
            Server::start(options, Arc::new(PeerRequestHandler(self.clone())), Some(self.runtime.handle().clone()))?;
        *super::lock(&self.server) = Some(server);
        self.admit(&self.view());
        Ok(())
    }

    /// From now on files come from and go to other nodes.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn serve(self: &Arc<Self>, tiering: &Arc<TieringEngine>, stop: Arc<AtomicBool>) -> std::io::Result<()> {
        let _ = self.tiering.set(tiering.clone());
        tiering.peers.join(Arc::new(Others(self.clone())));
        let (me, stop_too) = (self.clone(), stop.clone());
        let look = move || me.look_into_complaints(&stop_too);
        std::thread::Builder::new().name("complaints".to_owned()).spawn(look)?;
        if self.options.members.iter().any(|(name, at)| at.is_none() && *name != self.options.name) {
            let (me, stop_too) = (self.clone(), stop.clone());
            std::thread::Builder::new().name("names".to_owned()).spawn(move || me.look_up_names(&stop_too))?;
        }
        let me = self.clone();
        std::thread::Builder::new().name("news".to_owned()).spawn(move || me.tell_news(&stop)).map(drop)
    }

    /// Looks up names that led nowhere at the start until all do or the agent ends: where all nodes
    /// start at a time, names come to be known when they have started.
    fn look_up_names(&self, stop: &AtomicBool) {
        let NodeOptions { name: me, members, .. } = &self.options;
        let mut lost: Vec<&String> =
            members.iter().filter(|(n, at)| at.is_none() && *n != me).map(|(n, _)| n).collect();
        tracing::warn!(members = ?lost, "no address is known for these nodes yet; they are looked up again");
        let ([mut pause, longest], port) = (LOOK_UP, self.options.listen.port());
        loop {
            let until = Instant::now() + pause;
            while Instant::now() < until {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            lost.retain(|name| {
                let found = discovery::resolve_addresses(name, port, &discovery::SystemLocal);
                if let Some(at) = found.ok().and_then(|all| all.first().copied()) {
                    self.membership.locate(name, at);
                }
                self.membership.is_lost(name)
            });
            if lost.is_empty() {
                return;
            }
            pause = (pause * 2).min(longest);
        }
    }
}
