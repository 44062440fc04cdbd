//! The other nodes of the job: which are up, connections to each, and how requests to them end.
//!
//! Requests are made by the threads that need the answer, which may block. No thread that holds a
//! lock of a node asks another node.

use super::background_runtime::BackgroundRuntime;
use super::balanced_view::BalancedView;
use super::setup::NodeOptions;
use super::traffic_stats::TrafficStats;
use crate::directory::{Exceptions, Members};
use crate::http::{Key, Peer, PeerOptions, Senders, Tls, WireError};
use crate::membership::Membership;
use crate::sync::lock;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Idle connections kept to each node.
pub(super) const MAX_IDLE_CONNECTIONS: usize = 8;
/// Most nodes that one call asks at a time.
pub(super) const MAX_NODES_AT_A_TIME: usize = 64;

/// Connections to the other nodes by number.
pub(super) struct PeerPool {
    options: NodeOptions,
    key: Key,
    tls: Option<Tls>,
    membership: Membership,
    balanced: BalancedView,
    traffic: Arc<TrafficStats>,
    /// The life of a node, and the connections to it in that life.
    peers: Mutex<HashMap<u16, (u64, Arc<Peer>)>>,
    /// Those that send bodies, over this node's one link.
    senders: Senders,
    /// Runs the membership.
    #[expect(dead_code, reason = "it lives as long as the membership")]
    gossip: BackgroundRuntime,
}

impl PeerPool {
    /// The nodes of `membership`, which runs on `gossip`, with what they prove to each other, and
    /// `tls` if they encrypt. Nothing is sent before the first request.
    pub(super) fn new(
        options: NodeOptions,
        (key, tls): (Key, Option<Tls>),
        (membership, gossip): (Membership, BackgroundRuntime),
        traffic: Arc<TrafficStats>,
    ) -> Self {
        let (balanced, senders) = (BalancedView::default(), Senders::default());
        Self { options, key, tls, membership, balanced, traffic, peers: Mutex::default(), senders, gossip }
    }

    /// Settings of this node.
    pub(super) const fn options(&self) -> &NodeOptions {
        &self.options
    }

    /// This node's part in the job.
    pub(super) const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The nodes as this one sees them, with the owners by exception.
    pub(super) fn view(&self) -> Arc<Members> {
        self.balanced.get(|| self.membership.view())
    }

    /// Replaces the owners by exception.
    pub(super) fn set_exceptions(&self, exceptions: Exceptions) {
        self.balanced.set(exceptions, || self.membership.view());
    }

    /// Connections to a node; `None` if its address is not known.
    pub(super) fn peer(&self, number: u16) -> Option<Arc<Peer>> {
        let view = self.view();
        let life = view.get(number)?.incarnation;
        let mut peers = lock(&self.peers);
        if let Some((_, peer)) = peers.get(&number).filter(|(of, _)| *of == life) {
            return Some(peer.clone());
        }
        let peer = Arc::new(self.connect(&view, number, self.options.peer_timeout)?);
        peers.insert(number, (life, peer.clone()));
        Some(peer)
    }

    /// Connections of their own to a node that may be silent for `peer_timeout` at most; `None` if
    /// its address is not known.
    pub(super) fn impatient_peer(&self, number: u16, peer_timeout: Duration) -> Option<Peer> {
        self.connect(&self.view(), number, peer_timeout)
    }

    fn connect(&self, view: &Members, number: u16, peer_timeout: Duration) -> Option<Peer> {
        let member = view.get(number)?;
        let options = PeerOptions {
            addr: member.address.or_else(|| self.options.members.get(&*member.name).copied().flatten())?,
            my_name: self.options.name.clone(),
            its_name: member.name.to_string(),
            key: self.key.clone(),
            encryption: self.tls.clone(),
            peer_timeout,
            idle: MAX_IDLE_CONNECTIONS,
            senders: self.senders.clone(),
        };
        Peer::new(options).ok()
    }

    /// The life of a node that is known now, 0 before it was seen.
    pub(super) fn life_of(&self, node: u16) -> u64 {
        self.view().get(node).map_or(0, |m| m.incarnation)
    }

    /// The name of a node, empty if there is none with this number.
    pub(super) fn name_of(&self, number: u16) -> String {
        self.view().get(number).map_or_else(String::new, |m| m.name.to_string())
    }

    /// How many other nodes share copies, as far as this one knows; those that have gone do not.
    pub(super) fn sharers(&self) -> usize {
        self.view().iter().skip(1).filter(|(_, m)| m.standing.takes_part()).count()
    }

    /// Notes that a node failed in that life to answer: it is not asked for a while, if the error
    /// is the node's and not the request's.
    pub(super) fn note_failure(&self, node: u16, life: u64, e: &WireError) {
        self.traffic.failed(node);
        if e.peer_is_in_doubt() {
            self.membership.report_failure(node, life);
        }
    }

    /// The same of an error while an answer was read.
    pub(super) fn note_io_failure(&self, node: u16, life: u64, e: &io::Error) {
        match e.get_ref().and_then(|e| e.downcast_ref::<WireError>()) {
            Some(e) => self.note_failure(node, life, e),
            None => self.traffic.failed(node),
        }
    }

    /// Notes that a node served a request.
    pub(super) fn note_success(&self, node: u16) {
        self.membership.report_success(node);
    }

    /// Sends `body` to a node; whether it accepted.
    pub(super) fn post(&self, to: u16, path: &str, body: &[u8]) -> bool {
        let life = self.life_of(to);
        let Some(peer) = self.peer(to) else { return false };
        match peer.post(path, body, self.options.peer_timeout) {
            Ok(answer) => answer.status() < 300,
            Err(e) => {
                self.note_failure(to, life, &e);
                false
            }
        }
    }

    /// Asks all nodes that may be there, [`MAX_NODES_AT_A_TIME`] at a time.
    pub(super) fn each_expected(&self, ask: impl Fn(u16) + Sync) {
        let view = self.view();
        let nodes: Vec<u16> = view.iter().skip(1).filter(|(_, m)| m.standing.takes_part()).map(|(n, _)| n).collect();
        Self::each(&nodes, ask);
    }

    /// Asks some nodes, [`MAX_NODES_AT_A_TIME`] at a time.
    pub(super) fn each(nodes: &[u16], ask: impl Fn(u16) + Sync) {
        if let [node] = nodes {
            return ask(*node);
        }
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(node) = nodes.get(next.fetch_add(1, Ordering::Relaxed)) {
                ask(*node);
            }
        };
        std::thread::scope(|s| {
            for _ in 1..nodes.len().min(MAX_NODES_AT_A_TIME) {
                // Where no more threads are to be had, those that are there do it all.
                let _ = std::thread::Builder::new().name("news".to_owned()).spawn_scoped(s, work);
            }
            work();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_asked_once_however_many_there_are() {
        for n in [0, 1, 2, 3 * MAX_NODES_AT_A_TIME] {
            let nodes: Vec<u16> = (0..n as u16).collect();
            let asked = Mutex::new(Vec::new());
            PeerPool::each(&nodes, |node| lock(&asked).push(node));
            let mut asked = asked.into_inner().unwrap();
            asked.sort_unstable();
            assert_eq!(asked, nodes);
        }
    }
}
