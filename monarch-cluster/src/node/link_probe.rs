//! Whether every pair of nodes can talk, how fast, and whether they agree: for `monarch cluster
//! check` and `status --cluster`.

use super::peer_pool::PeerPool;
use super::status::{NodeStatus, StatusReporter};
use crate::http::{Answer, Peer};
use crate::sync::lock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes that are sent to find out how fast a link is.
const PROBE_BYTES: usize = 8 << 20;
/// Bytes of them that are read at a time.
const READ_BYTES: usize = 256 << 10;
/// Round trips, of which the shortest counts.
const ROUND_TRIPS: usize = 5;
/// How long one node may take to probe all others.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a node may be silent.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// Most bytes of an account.
const MAX_ACCOUNT_BYTES: u64 = 16 << 20;

/// A link, as one end sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The other end.
    pub to: String,
    /// What is wrong with it; nothing else is known then.
    pub error: Option<String>,
    /// Microseconds of a round trip.
    pub round_trip_us: u64,
    /// Bytes a second that arrived from there.
    pub bytes_per_second: u64,
    /// By how many milliseconds the other clock is ahead.
    pub clock_ahead_ms: i64,
    /// The other end's version of Monarch.
    pub version: String,
    /// The indexes it serves.
    pub indexes: Vec<String>,
}

/// The account of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Said<T> {
    /// Its name.
    pub node: String,
    /// What it said, or why it said nothing.
    pub said: Result<T, String>,
}

fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(0)
}

/// Probes the links of this node, and asks the other nodes for their accounts.
pub(super) struct LinkProbe {
    pool: Arc<PeerPool>,
    reporter: Arc<StatusReporter>,
}

impl LinkProbe {
    /// Probes the nodes of `pool`; `reporter` accounts for this one.
    pub(super) const fn new(pool: Arc<PeerPool>, reporter: Arc<StatusReporter>) -> Self {
        Self { pool, reporter }
    }

    fn name(&self) -> String {
        self.pool.options().name.clone()
    }

    /// The accounts of all nodes, this one's first.
    pub(super) fn statuses(&self) -> Vec<Said<NodeStatus>> {
        let mine = Said { node: self.name(), said: Ok(self.reporter.status(false)) };
        let (all, wait) = (Mutex::new(vec![mine]), self.pool.options().peer_timeout);
        self.pool.each_expected(|number| {
            let said = self.ask(number, "/v1/status", wait);
            lock(&all).push(said);
        });
        let mut all = all.into_inner().unwrap_or_default();
        if let Some(others) = all.get_mut(1..) {
            others.sort_by(|a, b| a.node.cmp(&b.node));
        }
        all
    }

    /// The links of all nodes, by their own accounts, this one's first.
    pub(super) fn checks(&self) -> Vec<Said<Vec<Link>>> {
        // One node after the other: they would be slowed down by each other.
        let mut all = vec![Said { node: self.name(), said: Ok(self.links()) }];
        for (number, _) in self.pool.view().iter().skip(1) {
            all.push(self.ask(number, "/v1/check", CHECK_TIMEOUT));
        }
        all
    }

    fn ask<T: DeserializeOwned>(&self, number: u16, path: &str, wait: Duration) -> Said<T> {
        let ask = || {
            let peer = self.peer(number)?;
            let answer = peer.get(path, None, 0, wait).map_err(|e| e.to_string())?;
            let bytes = answer.bytes(MAX_ACCOUNT_BYTES).map_err(|e| e.to_string())?;
            serde_json::from_slice(&bytes).map_err(|e| format!("it runs another version of Monarch: {e}"))
        };
        Said { node: self.pool.name_of(number), said: ask() }
    }

    /// A node that a user asks about: a user does not wait as long as readers may have to.
    fn peer(&self, number: u16) -> Result<Peer, String> {
        let timeout = self.pool.options().peer_timeout.min(SILENCE_TIMEOUT);
        let peer = self.pool.impatient_peer(number, timeout);
        peer.ok_or_else(|| "it was not seen yet, and its address is not known".to_owned())
    }

    /// This node's links.
    fn links(&self) -> Vec<Link> {
        let view = self.pool.view();
        let others = view.iter().skip(1).map(|(number, m)| {
            let link = self.link(number).unwrap_or_else(|e| Link { error: Some(e), ..Link::default() });
            Link { to: m.name.to_string(), ..link }
        });
        others.collect()
    }

    fn link(&self, number: u16) -> Result<Link, String> {
        let peer = self.peer(number)?;
        let mut link = Link { round_trip_us: u64::MAX, ..Link::default() };
        for _ in 0..ROUND_TRIPS {
            let begun = Instant::now();
            peer.post("/v1/probe", &[], CHECK_TIMEOUT).map_err(|e| e.to_string())?;
            link.round_trip_us = link.round_trip_us.min(begun.elapsed().as_micros() as u64);
        }
        let begun = Instant::now();
        let path = format!("/v1/probe?{PROBE_BYTES}");
        let mut answer = peer.get(&path, None, 0, CHECK_TIMEOUT).map_err(|e| e.to_string())?;
        let (mut buf, mut got) = (vec![0; READ_BYTES], 0);
        while got < PROBE_BYTES {
            match answer.read(&mut buf).map_err(|e| e.to_string())? {
                0 => return Err("it sent less than it was asked for".to_owned()),
                n => got += n,
            }
        }
        link.bytes_per_second = (got as f64 / begun.elapsed().as_secs_f64()) as u64;
        let before = now_ms();
        let status: NodeStatus = self.ask(number, "/v1/status?short", CHECK_TIMEOUT).said?;
        link.clock_ahead_ms = status.clock_ms as i64 - i64::midpoint(before, now_ms());
        (link.version, link.indexes) = (status.version, status.indexes);
        Ok(link)
    }

    /// This node's links as an answer to another node.
    pub(super) fn answer(&self) -> Answer {
        match serde_json::to_vec(&self.links()) {
            Ok(bytes) => Answer::bytes(bytes).header("Content-Type", "application/json".to_owned()),
            Err(e) => Answer::text(500, &e.to_string()),
        }
    }
}
