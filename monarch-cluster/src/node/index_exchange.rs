//! The index of a root: scanned by one node, sent to all.

use super::peer_pool::PeerPool;
use super::request_paths::root_name;
use super::startup::Startup;
use crate::directory::{Member, NodeState};
use crate::election::{Election, Reply};
use crate::http::WireError;
use crate::index_image::{self, Image, ImageError};
use crate::sync::lock;
use monarch_abi::segment::Segment;
use monarch_storage::held_dir::HeldDir;
use monarch_storage::index::ScanProgress;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Failed attempts to get an index from other nodes before this one scans after all.
const MAX_ATTEMPTS: u32 = 20;
/// Pause between two attempts.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(200);
/// How long a node may take to answer a bid.
const BID_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an index that is being made elsewhere is waited for before all nodes are asked again.
const INDEX_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after its start a node waits for names of others to resolve before it makes an index.
const NAMES_TIMEOUT: Duration = Duration::from_secs(10);
/// Bound of index and lookup table together, in multiples of the bound of the index: the table is
/// no larger than the index.
const WITH_TABLE: u64 = 2;
/// Most bytes of an answer to a bid.
const MAX_REPLY_BYTES: u64 = 64;

/// Where an index comes from.
pub enum Obtained {
    /// This node makes it, for all.
    Mine,
    /// Another node made it.
    Theirs(Box<Image>),
}

/// An index, and the bytes that it came as.
type Came = (Image, Vec<u8>);

/// An index that is asked for.
struct Wanted<'a> {
    root: u64,
    max_bytes: u64,
    /// Directory of its file.
    dir: &'a Arc<HeldDir>,
}

/// How far the scans of other nodes are.
struct Scanners {
    /// How long a scan that makes no progress is waited for.
    patience: Duration,
    /// Calls to the PFS that each node has said its scan made, and since when that is so.
    seen: HashMap<u16, (u64, Instant)>,
}

impl Scanners {
    /// Whether the scan of a node, which has made `calls` calls to the PFS, is to be waited for.
    fn makes_progress(&mut self, node: u16, calls: u64, now: Instant) -> bool {
        let (last, since) = self.seen.entry(node).or_insert((calls, now));
        if *last != calls {
            (*last, *since) = (calls, now);
        }
        now.duration_since(*since) < self.patience
    }
}

/// Why an index did not come.
enum Missed {
    /// It is still being made there.
    NotYet,
    /// There is no place for it here: another node's would find none, either.
    Place(io::Error),
    /// Anything else.
    Failed(String),
}

impl From<ImageError> for Missed {
    fn from(e: ImageError) -> Self {
        match e {
            ImageError::Place(e) => Self::Place(e),
            e => Self::Failed(e.to_string()),
        }
    }
}

impl From<WireError> for Missed {
    fn from(e: WireError) -> Self {
        Self::Failed(e.to_string())
    }
}

/// Gets indexes from other nodes, and offers those of this one.
pub(super) struct IndexExchange {
    pool: Arc<PeerPool>,
    election: Arc<Election>,
    startup: Arc<Startup>,
}

impl IndexExchange {
    /// Exchanges indexes with the nodes of `pool`.
    pub(super) const fn new(pool: Arc<PeerPool>, election: Arc<Election>, startup: Arc<Startup>) -> Self {
        Self { pool, election, startup }
    }

    /// Where this node is with each index.
    pub(super) fn election(&self) -> &Election {
        &self.election
    }

    /// The index of a root, in a file in `dir`, or the word that this node is to make it.
    /// [`IndexExchange::offer`] or [`IndexExchange::give_up`] is to follow. Blocks.
    ///
    /// # Errors
    /// When the scan was cancelled, or there is no room for the index.
    pub(super) fn obtain(
        &self,
        root: u64,
        max_index_bytes: u64,
        dir: &Arc<HeldDir>,
        progress: &Arc<ScanProgress>,
    ) -> io::Result<Obtained> {
        let wanted = Wanted { root, max_bytes: max_index_bytes.saturating_mul(WITH_TABLE), dir };
        let mut scanners = Scanners { patience: self.pool.options().stalled_scan, seen: HashMap::new() };
        let mut attempts = 0;
        let is_early = || self.startup.age(Instant::now()) < NAMES_TIMEOUT;
        while is_early() && self.lacks_names() && !progress.cancel.load(Ordering::Relaxed) {
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        while attempts < MAX_ATTEMPTS {
            if progress.cancel.load(Ordering::Relaxed) {
                return Err(io::Error::other("called off"));
            }
            self.election.bid(root);
            let Some(from) = self.best_bid(root, &mut scanners) else {
                if self.election.scan(root, progress) {
                    return Ok(Obtained::Mine);
                }
                attempts += 1;
                std::thread::sleep(ATTEMPT_PAUSE);
                continue;
            };
            self.election.wait(root);
            match self.fetch(&wanted, from) {
                Ok((image, packed)) => {
                    self.election.relay(root, packed.into());
                    return Ok(Obtained::Theirs(Box::new(image)));
                }
                Err(Missed::NotYet) => continue,
                Err(Missed::Place(e)) => return Err(e),
                Err(Missed::Failed(why)) => {
                    tracing::warn!(node = self.pool.name_of(from), %why, "no index from a peer; asking again");
                    attempts += 1;
                }
            }
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        tracing::warn!("no index from any peer; scanning here");
        self.election.bid(root);
        self.election.scan(root, progress);
        Ok(Obtained::Mine)
    }

    /// Whether the address of an expected node is not known yet: each such node would make an index
    /// of its own.
    fn lacks_names(&self) -> bool {
        let lost = |m: &Member| m.standing == NodeState::Expected && self.pool.membership().is_lost(&m.name);
        self.pool.view().iter().any(|(_, m)| lost(m))
    }

    /// Asks all nodes where they are with an index; the one to be waited for, if any.
    fn best_bid(&self, root: u64, scanners: &mut Scanners) -> Option<u16> {
        let replies: Mutex<Vec<(Reply, u16)>> = Mutex::default();
        let path = format!("/v1/bid/{}", root_name(root));
        self.pool.each_expected(|node| {
            let Some(peer) = self.pool.peer(node) else { return };
            let answer = peer.post(&path, &[], BID_TIMEOUT);
            let reply = answer.ok().filter(|a| a.status() == 200).and_then(|a| a.bytes(MAX_REPLY_BYTES).ok());
            lock(&replies).extend(reply.and_then(|bytes| Reply::of(&bytes)).map(|reply| (reply, node)));
        });
        let (replies, now) = (replies.into_inner().unwrap_or_default(), Instant::now());
        let rank = |(reply, node)| match reply {
            Reply::Have => Some((0, node)),
            Reply::Scanning(calls) if scanners.makes_progress(node, calls, now) => Some((1, node)),
            Reply::Scanning(_) => {
                tracing::warn!(node = self.pool.name_of(node), "its scan gets no further; it is not waited for");
                None
            }
            Reply::First => Some((2, node)),
            Reply::Yield => None,
        };
        replies.into_iter().filter_map(rank).min().map(|(_, node)| node)
    }

    /// Gets an index from a node, or from the one that it names.
    fn fetch(&self, wanted: &Wanted<'_>, from: u16) -> Result<Came, Missed> {
        let path = format!("/v1/index/{}", root_name(wanted.root));
        let parent = match self.ask(wanted, from, &path)? {
            Ok(came) => return Ok(came),
            Err(parent) => parent,
        };
        if let Some(n) = self.pool.view().number(&parent) {
            match self.ask(wanted, n, &path) {
                Ok(Ok(came)) => return Ok(came),
                Err(Missed::Place(e)) => return Err(Missed::Place(e)),
                // The parent has gone.
                _ => {}
            }
        }
        let direct = self.ask(wanted, from, &format!("{path}?direct"))?;
        direct.map_err(|_| Missed::Failed("it sends it elsewhere".to_owned()))
    }

    /// The index, or the name of another node that has it.
    fn ask(&self, wanted: &Wanted<'_>, from: u16, path: &str) -> Result<Result<Came, String>, Missed> {
        let peer = self.pool.peer(from).ok_or_else(|| Missed::Failed("its address is not known".to_owned()))?;
        let begun = Instant::now();
        let answer = match peer.get(path, None, 0, INDEX_TIMEOUT) {
            Ok(answer) => answer,
            Err(WireError::Timeout { .. }) if begun.elapsed() >= INDEX_TIMEOUT => return Err(Missed::NotYet),
            Err(e) => return Err(e.into()),
        };
        match answer.status() {
            200 => {
                let bytes = answer.bytes(wanted.max_bytes).map_err(|e| Missed::Failed(e.to_string()))?;
                let image = index_image::unpack(&bytes, wanted.max_bytes, wanted.dir)?;
                Ok(Ok((image, bytes)))
            }
            307 => Ok(Err(answer.header("Monarch-Node").unwrap_or_default().to_owned())),
            status => Err(Missed::Failed(format!("it answers {status}"))),
        }
    }

    /// Offers the index of a root to other nodes: it is there, in a file of a directory.
    pub(super) fn offer(
        &self,
        root: u64,
        segment: Segment<'static>,
        (dir, index): (Arc<HeldDir>, String),
        fresh: bool,
    ) {
        let packer = move || {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut std::fs::File::from(dir.read_file(index.as_str())?), &mut bytes)?;
            Ok(Arc::new(index_image::pack(&bytes, &index_image::table_at_first(&segment), fresh)))
        };
        self.election.have(root, Box::new(packer));
    }

    /// Withdraws an index that cannot be had from here any more, or never came.
    pub(super) fn give_up(&self, root: u64) {
        self.election.give_up(root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_that_stalls_is_waited_for_for_a_while_and_one_that_goes_on_as_long_as_it_takes() {
        let patience = Duration::from_secs(30);
        let (mut scanners, start) = (Scanners { patience, seen: HashMap::new() }, Instant::now());
        assert!((0..10).all(|n| scanners.makes_progress(1, n, start + patience * n as u32)));
        assert!(scanners.makes_progress(1, 9, start + patience * 9 + patience / 2));
        assert!(!scanners.makes_progress(1, 9, start + patience * 10));
        assert!(scanners.makes_progress(1, 10, start + patience * 11) && scanners.makes_progress(2, 9, start));
    }
}
