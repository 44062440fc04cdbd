//! Whether every pair of nodes can talk, how fast, and whether they agree: for `monarch cluster
//! check` and `status --cluster`.

use super::{Node, NodeStatus, lock};
use crate::cluster::http::{Answer, Peer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes that are sent to find out how fast a link is.
const BYTES: usize = 8 << 20;
/// Round trips, of which the shortest counts.
const TURNS: usize = 5;
/// How long one node may take to look at all others.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a node may be silent.
const SILENCE: Duration = Duration::from_secs(3);
/// Most bytes of an account.
const MOST: u64 = 16 << 20;

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

/// What one node says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Said<T> {
    /// Its name.
    pub node: String,
    /// What it said, or why it did not.
    pub said: Result<T, String>,
}

fn now_ms() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(0)
}

impl Node {
    /// What every node says of itself, this one first.
    #[must_use]
    pub fn statuses(&self) -> Vec<Said<NodeStatus>> {
        let mine = Said { node: self.options.name.clone(), said: Ok(self.status()) };
        self.of_each(mine, "/v1/status", self.options.peer_timeout)
    }

    /// What every node says of its links to all others.
    #[must_use]
    pub fn checks(&self) -> Vec<Said<Vec<Link>>> {
        let mine = Said { node: self.options.name.clone(), said: Ok(self.links()) };
        // One after the other: they would be slowed down by each other.
        let mut all = vec![mine];
        for (number, _) in self.view().iter().skip(1) {
            all.push(self.ask_one(number, "/v1/check", PATIENCE));
        }
        all
    }

    fn of_each<T: DeserializeOwned + Send>(&self, mine: Said<T>, path: &str, wait: Duration) -> Vec<Said<T>> {
        let all = Mutex::new(vec![mine]);
        self.each_expected(|number| {
            let said = self.ask_one(number, path, wait);
            lock(&all).push(said);
        });
        let mut all = all.into_inner().unwrap_or_default();
        if let Some(others) = all.get_mut(1..) {
            others.sort_by(|a, b| a.node.cmp(&b.node));
        }
        all
    }

    fn ask_one<T: DeserializeOwned>(&self, number: u16, path: &str, wait: Duration) -> Said<T> {
        let node = self.view().get(number).map_or_else(String::new, |m| m.name.to_string());
        let ask = || {
            let peer = self.visited(number)?;
            let answer = peer.get(path, None, 0, wait).map_err(|e| e.to_string())?;
            let bytes = answer.bytes(MOST).map_err(|e| e.to_string())?;
            serde_json::from_slice(&bytes).map_err(|e| format!("it runs another version of Monarch: {e}"))
        };
        Said { node, said: ask() }
    }

    /// A node that somebody wants to hear of, who does not wait as long as readers may have to.
    fn visited(&self, number: u16) -> Result<Peer, String> {
        let peer = self.new_peer(&self.view(), number, self.options.peer_timeout.min(SILENCE));
        peer.ok_or_else(|| "it was not seen yet, and its address is not known".to_owned())
    }

    /// This node's links.
    #[must_use]
    pub fn links(&self) -> Vec<Link> {
        let view = self.view();
        let others = view.iter().skip(1).map(|(number, m)| {
            self.link(number).unwrap_or_else(|e| Link { error: Some(e), ..Link::default() }).named(&m.name)
        });
        others.collect()
    }

    fn link(&self, number: u16) -> Result<Link, String> {
        let peer = self.visited(number)?;
        let mut link = Link { round_trip_us: u64::MAX, ..Link::default() };
        for _ in 0..TURNS {
            let begun = Instant::now();
            peer.post("/v1/probe", &[], PATIENCE).map_err(|e| e.to_string())?;
            link.round_trip_us = link.round_trip_us.min(begun.elapsed().as_micros() as u64);
        }
        let begun = Instant::now();
        let mut answer = peer.get(&format!("/v1/probe?{BYTES}"), None, 0, PATIENCE).map_err(|e| e.to_string())?;
        let (mut buf, mut got) = (vec![0; 256 << 10], 0);
        while got < BYTES {
            match answer.read(&mut buf).map_err(|e| e.to_string())? {
                0 => return Err("it sent less than it was asked for".to_owned()),
                n => got += n,
            }
        }
        link.bytes_per_second = (got as f64 / begun.elapsed().as_secs_f64()) as u64;
        let before = now_ms();
        let status: NodeStatus = self.ask_one(number, "/v1/status?short", PATIENCE).said?;
        link.clock_ahead_ms = status.clock_ms as i64 - i64::midpoint(before, now_ms());
        (link.version, link.indexes) = (status.version, status.indexes);
        Ok(link)
    }

    pub(super) fn check_answer(&self) -> Answer {
        match serde_json::to_vec(&self.links()) {
            Ok(bytes) => Answer::bytes(bytes).header("Content-Type", "application/json".to_owned()),
            Err(e) => Answer::text(500, &e.to_string()),
        }
    }
}

impl Link {
    fn named(mut self, to: &str) -> Self {
        to.clone_into(&mut self.to);
        self
    }
}
