//! The index of a root: scanned by one node, sent to all.

use super::serve::root_name;
use super::{Node, lock};
use crate::cluster::election::Reply;
use crate::cluster::image::{self, Image};
use crate::cluster::wire::WireError;
use crate::index::ScanProgress;
use monarch_abi::segment::Segment;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often another node is turned to before this one scans after all.
const TRIES: u32 = 20;
/// Pause between two turns.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a node may take to answer a bid.
const BID: Duration = Duration::from_secs(2);
/// How long an index that is being made elsewhere is waited for before all are asked again.
const SCAN: Duration = Duration::from_secs(5);
/// The lookup table is at most so many times as large as the index.
const WITH_TABLE: u64 = 2;

/// Where an index comes from.
pub enum Obtained {
    /// This node makes it, for all.
    Mine,
    /// Another node made it.
    Theirs(Box<Image>),
}

/// An index, and the bytes that it came as.
type Came = (Image, Vec<u8>);

impl Node {
    /// The index of a root, or the word that this node is to make it. [`Node::offer`] or [`Node::give_up`] is to follow.
    ///
    /// # Errors
    /// When the scan was called off.
    pub fn obtain(&self, root: u64, most: u64, progress: &ScanProgress) -> io::Result<Obtained> {
        let mut tries = 0;
        while tries < TRIES {
            if progress.cancel.load(Ordering::Relaxed) {
                return Err(io::Error::other("called off"));
            }
            self.election.bid(root);
            let Some(from) = self.best_bid(root) else {
                if self.election.scan(root) {
                    return Ok(Obtained::Mine);
                }
                tries += 1;
                std::thread::sleep(PAUSE);
                continue;
            };
            self.election.wait(root);
            match self.fetch_index(root, from, most) {
                Ok((image, packed)) => {
                    self.election.relay(root, packed.into());
                    return Ok(Obtained::Theirs(Box::new(image)));
                }
                // It is still being made there.
                Err(None) => continue,
                Err(Some(why)) => {
                    tracing::warn!(node = self.name_of(from), %why, "no index from a peer; asking again");
                    tries += 1;
                }
            }
            std::thread::sleep(PAUSE);
        }
        tracing::warn!("no index from any peer; scanning here");
        self.election.bid(root);
        self.election.scan(root);
        Ok(Obtained::Mine)
    }

    fn name_of(&self, number: u16) -> String {
        self.view().get(number).map_or_else(String::new, |m| m.name.to_string())
    }

    /// Asks all nodes where they are with an index; the one to be waited for, if any.
    fn best_bid(&self, root: u64) -> Option<u16> {
        let best: Mutex<Option<(u8, u16)>> = Mutex::new(None);
        let path = format!("/v1/bid/{}", root_name(root));
        self.each_expected(|node| {
            let Some(peer) = self.peer(node) else { return };
            let answer = peer.post(&path, &[], BID);
            let reply = answer.ok().filter(|a| a.status() == 200).and_then(|a| a.bytes(64).ok());
            let rank = match reply.and_then(|bytes| Reply::of(&bytes)) {
                Some(Reply::Have) => 0,
                Some(Reply::Scanning) => 1,
                Some(Reply::First) => 2,
                Some(Reply::Yield) | None => return,
            };
            let mut best = lock(&best);
            if best.is_none_or(|(r, n)| (rank, node) < (r, n)) {
                *best = Some((rank, node));
            }
        });
        best.into_inner().ok().flatten().map(|(_, node)| node)
    }

    /// Gets an index from a node, or from the one that it names. `Err(None)`: it is not there yet.
    fn fetch_index(&self, root: u64, from: u16, most: u64) -> Result<Came, Option<String>> {
        let path = format!("/v1/index/{}", root_name(root));
        let image = match self.ask_index(from, &path, most)? {
            Ok(image) => return Ok(image),
            Err(parent) => self.view().number(&parent).and_then(|n| self.ask_index(n, &path, most).ok()?.ok()),
        };
        match image {
            Some(image) => Ok(image),
            // The parent has gone.
            None => {
                let direct = self.ask_index(from, &format!("{path}?direct"), most)?;
                direct.map_err(|_| Some("it sends it elsewhere".to_owned()))
            }
        }
    }

    /// The index, or the name of another node that has it.
    fn ask_index(&self, from: u16, path: &str, most: u64) -> Result<Result<Came, String>, Option<String>> {
        let said = |why: String| Some(why);
        let peer = self.peer(from).ok_or_else(|| said("its address is not known".to_owned()))?;
        let begun = Instant::now();
        let answer = match peer.get(path, None, 0, SCAN) {
            Ok(answer) => answer,
            Err(WireError::Timeout { .. }) if begun.elapsed() >= SCAN => return Err(None),
            Err(e) => return Err(said(e.to_string())),
        };
        match answer.status() {
            200 => {
                let bytes = answer.bytes(most.saturating_mul(WITH_TABLE)).map_err(|e| said(e.to_string()))?;
                let image = image::unpack(&bytes, most.saturating_mul(WITH_TABLE)).map_err(|e| said(e.to_string()))?;
                Ok(Ok((image, bytes)))
            }
            307 => Ok(Err(answer.header("Monarch-Node").unwrap_or_default().to_owned())),
            status => Err(said(format!("it answers {status}"))),
        }
    }

    /// The index of a root is there, and other nodes can have it from here.
    pub fn offer(&self, root: u64, segment: Segment<'static>, index: PathBuf, fresh: bool) {
        let packer = move || {
            let bytes = std::fs::read(&index)?;
            Ok(Arc::new(image::pack(&bytes, &image::table_at_first(&segment), fresh)))
        };
        self.election.have(root, Box::new(packer));
    }

    /// It cannot be had from here any more, or never came.
    pub fn give_up(&self, root: u64) {
        self.election.give_up(root);
    }
}
