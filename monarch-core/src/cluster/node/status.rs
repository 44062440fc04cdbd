//! What a node says of itself and of the others.

use super::{Node, Traffic};
use crate::cluster::directory::NodeState;
use crate::cluster::directory::members::ME;
use crate::cluster::http::{Answer, Metrics};
use monarch_abi::word::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One node, by its own account.
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
    /// Indexed files that it owns, and their bytes.
    pub owned: (u64, u64),
    /// Indexed files of which it has a copy, and their bytes.
    pub held: (u64, u64),
    /// Those of them that others own.
    pub held_of_others: (u64, u64),
    /// Bytes of its tiers, and bytes in use.
    pub capacity: (u64, u64),
    /// Answers of others whose bytes arrived damaged.
    pub damaged: u64,
    /// Complaints of others, to whom bytes from here came damaged, that were looked into.
    #[serde(default)]
    pub complaints: u64,
    /// Copies here that were found damaged by that, and dropped.
    #[serde(default)]
    pub found_damaged: u64,
    /// The other nodes as it sees them.
    pub peers: Vec<PeerStatus>,
}

/// Another node, as one sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Where it listens, once that is known.
    pub address: Option<String>,
    /// One of expected, up, suspect, left, gone.
    pub state: String,
    /// What went between the two.
    #[serde(flatten)]
    pub traffic: Traffic,
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

impl Node {
    /// See [`NodeStatus`].
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        self.account(false)
    }

    /// How many others share, as far as this one knows; those that have gone do not.
    pub(crate) fn sharers(&self) -> usize {
        self.view().iter().skip(1).filter(|(_, m)| m.standing.takes_part()).count()
    }

    /// The same without what takes a walk over all files: what is owned and held.
    pub(crate) fn brief(&self) -> NodeStatus {
        self.account(true)
    }

    /// What other nodes were answered, as long as this one answers.
    pub(crate) fn served(&self) -> Option<Arc<Metrics>> {
        super::lock(&self.server).as_ref().map(|server| server.metrics().clone())
    }

    fn account(&self, short: bool) -> NodeStatus {
        let view = self.view();
        let mut status = NodeStatus {
            name: self.options.name.clone(),
            address: self.options.listen.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            clock_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64,
            damaged: self.figures.damaged(),
            complaints: self.figures.complaints.load(Ordering::Relaxed),
            found_damaged: self.figures.found_damaged.load(Ordering::Relaxed),
            ..NodeStatus::default()
        };
        let Some(tiering) = self.tiering() else { return status };
        for (_, live) in tiering.segments.served() {
            status.indexes.push(super::hex(&live.segment.index.header.uuid));
            for e in live.segment.files().take(if short { 0 } else { usize::MAX }) {
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
        for tier in &tiering.cx.tiers {
            let u = tier.ledger.usage();
            status.capacity = (status.capacity.0 + u.capacity, status.capacity.1 + u.used);
        }
        status.peers = view
            .iter()
            .skip(1)
            .map(|(number, m)| PeerStatus {
                name: m.name.to_string(),
                address: m.address.map(|a| a.to_string()),
                state: state(m.standing).to_owned(),
                traffic: self.figures.of(number),
            })
            .collect();
        status
    }

    pub(super) fn status_answer(&self, short: bool) -> Answer {
        match serde_json::to_vec(&self.account(short)) {
            Ok(bytes) => Answer::bytes(bytes).header("Content-Type", "application/json".to_owned()),
            Err(e) => Answer::text(500, &e.to_string()),
        }
    }
}
