//! Which nodes are up: by gossip, and by what readers find.
//!
//! The nodes probe each other and pass on what changes ([`gossip`]), in datagrams that only nodes
//! with the job's secret can make ([`datagram_auth`]). Readers report nodes that do not answer them
//! ([`peer_backoff`]), which counts at once. Both end in a [`Members`], an immutable view that
//! costs a reader one reference count; [`Membership::changes`] announces a new one.
//!
//! The protocol is of the SWIM family and Monarch's own: it knows nodes that are expected and nodes
//! that left, and heals cuts of any length. docs/CLUSTER.md compares it with the crates at hand.
//! Time and datagrams are arguments, so that a test of 1,000 nodes is exact.

mod anti_entropy;
pub mod datagram_auth;
mod gossip;
mod greetings;
mod key_index;
mod member;
mod membership_task;
mod message;
mod peer_backoff;
mod piggyback;
mod probes;
mod recent_senders;
mod record;
mod rotation;
mod table;
pub mod transport;
mod types;

use crate::directory::Members;
use crate::directory::members::node_key;
use membership_task::Shared;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use transport::Datagrams;
pub use types::{Drops, MembershipError, Options, Peer};

/// This node's part in the job. Dropping it says goodbye and ends it.
pub struct Membership {
    shared: Arc<Shared>,
    /// Ends the task by being dropped.
    running: Mutex<Option<tokio::sync::oneshot::Sender<()>>>,
}

impl Membership {
    /// Takes part over UDP, on a runtime.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub fn start(options: &Options, handle: &tokio::runtime::Handle) -> Result<Self, MembershipError> {
        let listen = options.listen;
        let socket = {
            let _runtime = handle.enter();
            transport::Udp::bind(listen).map_err(|source| MembershipError::Bind { listen, source })?
        };
        Self::start_on(options, socket, handle)
    }

    /// Takes part over datagrams of any kind.
    ///
    /// # Errors
    /// See [`MembershipError`].
    pub fn start_on(
        options: &Options,
        socket: impl Datagrams,
        handle: &tokio::runtime::Handle,
    ) -> Result<Self, MembershipError> {
        if options.listen.ip().is_unspecified() {
            return Err(MembershipError::Unspecified(options.listen));
        }
        let shared = Arc::new(Shared::new(options)?);
        let (running, ended) = tokio::sync::oneshot::channel();
        handle.spawn(membership_task::run(shared.clone(), socket, ended));
        Ok(Self { shared, running: Mutex::new(Some(running)) })
    }

    /// Says goodbye and takes part no more.
    pub fn leave(&self) {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The current view of the nodes.
    pub fn view(&self) -> Arc<Members> {
        self.shared.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of the current view; it changes with each.
    pub fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// Number of this life of the node; it grows when other nodes remember a later one.
    pub fn incarnation(&self) -> u64 {
        self.shared.core().gossip.life()
    }

    /// Notes a node that presented itself in a join, or was presented as up in the answer to one:
    /// it is up from now on. Returns the view that says so.
    pub fn joined(&self, peer: &Peer) -> Arc<Members> {
        self.shared.joined(peer);
        self.view()
    }

    /// This node and those that are up, as the answer to a join presents them.
    pub fn peers(&self) -> Vec<Peer> {
        self.shared.peers()
    }

    /// Notes where the datagrams of an expected node go, unless that is known.
    pub fn locate(&self, name: &str, at: SocketAddr) {
        self.shared.change(|core, _| core.gossip.table.locate(name, at));
    }

    /// Whether it is not known where the datagrams of a node go.
    pub fn is_lost(&self, name: &str) -> bool {
        let core = self.shared.core();
        let table = &core.gossip.table;
        table.number(node_key(name)).is_some_and(|n| table.get(n).contact.gossip.is_none())
    }

    /// Notes that a node did not answer a reader in time in that life of it, or answered with less
    /// than was asked: it is not asked for a while.
    pub fn report_failure(&self, node: u16, life: u64) {
        self.shared.change(|core, now| core.evidence.failure(node, life, now));
    }

    /// Notes that a node served a request.
    pub fn report_success(&self, node: u16) {
        // On the way of every transfer: the lock is taken only when there is something to forget.
        if self.shared.any_failures() {
            self.shared.change(|core, _| core.evidence.success(node));
        }
    }

    /// Datagrams that were dropped.
    pub fn drops(&self) -> Drops {
        self.shared.core().drops
    }
}

/// Whether bytes are a message, after their authentication: a door for tests of the parser.
#[must_use]
pub fn is_message(bytes: &[u8]) -> bool {
    message::Payload::decode(bytes).is_some()
}

#[cfg(test)]
mod simulated_net;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
#[path = "membership/tests.rs"]
mod tests;
