//! A node's account of itself and of the other nodes.

use super::peer_pool::PeerPool;
use super::request_paths::hex;
use super::store::Store;
use super::traffic_stats::{Traffic, TrafficStats};
use crate::directory::NodeState;
use crate::directory::members::ME;
use crate::http::Answer;
use monarch_abi::word::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Account of a node, by itself. The fields are those of one JSON object, which nodes of other
/// versions read: so they stay flat.
///
/// Fields: 16, one per key of the object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// Its version of Monarch.
    pub version: String,
    /// Milliseconds since 1970 by its clock.
    pub clock_ms: u64,
    /// Identifiers of the indexes it serves.
    pub indexes: Vec<String>,
    /// Indexed files that it owns: number and bytes.
    pub owned: (u64, u64),
    /// Indexed files of which it has a copy: number and bytes.
    pub held: (u64, u64),
    /// Those of them that other nodes own.
    pub held_of_others: (u64, u64),
    /// Bytes of its tiers, and bytes in use.
    pub capacity: (u64, u64),
    /// Answers of other nodes whose bytes arrived damaged.
    pub damaged: u64,
    /// Reports of other nodes, which got damaged bytes from here, that were looked into.
    #[serde(default)]
    pub complaints: u64,
    /// Copies here that were found damaged, before they were sent or after a report, and dropped.
    #[serde(default)]
    pub found_damaged: u64,
    /// Bytes of large files that it passed on, instead of the node that was asked for them.
    #[serde(default)]
    pub relayed_bytes: u64,
    /// Requests for several small files that other nodes answered.
    #[serde(default)]
    pub batches: u64,
    /// Files that came in those answers.
    #[serde(default)]
    pub batched_files: u64,
    /// The other nodes as it sees them.
    pub peers: Vec<PeerStatus>,
}

/// Another node, as this one sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Where it listens, once that is known.
    pub address: Option<String>,
    /// One of expected, up, suspect, left, gone.
    pub state: String,
    /// Whether it was ever heard of.
    #[serde(default = "seen")]
    pub seen: bool,
    /// Traffic between the two.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// (An agent without the key does not say so.)
const fn seen() -> bool {
    true
}

const fn state(standing: NodeState) -> &'static str {
    match standing {
        NodeState::Expected => "expected",
        NodeState::Up => "up",
        NodeState::Suspect => "suspect",
        NodeState::Left => "left",
        NodeState::Gone => "gone",
    }
}

/// Makes accounts of this node.
pub(super) struct StatusReporter {
    pool: Arc<PeerPool>,
    store: Arc<Store>,
    traffic: Arc<TrafficStats>,
}

impl StatusReporter {
    /// Reports on the copies in `store`, and the nodes of `pool`.
    pub(super) const fn new(pool: Arc<PeerPool>, store: Arc<Store>, traffic: Arc<TrafficStats>) -> Self {
        Self { pool, store, traffic }
    }

    /// The account of this node. A `short` one leaves out what takes a walk over all files: what is
    /// owned and held.
    pub(super) fn status(&self, short: bool) -> NodeStatus {
        let view = self.pool.view();
        let options = self.pool.options();
        let mut status = NodeStatus {
            name: options.name.clone(),
            address: options.listen.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            clock_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64,
            damaged: self.traffic.damaged(),
            complaints: self.traffic.complaints.load(Ordering::Relaxed),
            relayed_bytes: self.traffic.relayed_bytes.load(Ordering::Relaxed),
            batches: self.traffic.batches.load(Ordering::Relaxed),
            batched_files: self.traffic.batched_files.load(Ordering::Relaxed),
            found_damaged: self.traffic.found_damaged.load(Ordering::Relaxed),
            ..NodeStatus::default()
        };
        let Some(store) = self.store.get() else { return status };
        for served in store.served() {
            status.indexes.push(hex(&served.segment.index.header.uuid));
            for e in served.segment.files().take(if short { 0 } else { usize::MAX }) {
                let (mine, size) = (view.owner(e.master.fp) == ME, e.record.size);
                let add = |to: &mut (u64, u64), counts: bool| {
                    if counts {
                        *to = (to.0 + 1, to.1 + size);
                    }
                };
                let held = e.word().state() == State::Resident;
                add(&mut status.owned, mine);
                add(&mut status.held, held);
                add(&mut status.held_of_others, held && !mine);
            }
        }
        status.capacity = store.usage();
        status.peers = view
            .iter()
            .skip(1)
            .map(|(number, m)| PeerStatus {
                name: m.name.to_string(),
                address: m.address.map(|a| a.to_string()),
                state: state(m.standing).to_owned(),
                seen: m.incarnation != 0,
                traffic: self.traffic.of(number),
            })
            .collect();
        status
    }

    /// The account as an answer to another node.
    pub(super) fn answer(&self, short: bool) -> Answer {
        match serde_json::to_vec(&self.status(short)) {
            Ok(bytes) => Answer::bytes(bytes).header("Content-Type", "application/json".to_owned()),
            Err(e) => Answer::text(500, &e.to_string()),
        }
    }
}
