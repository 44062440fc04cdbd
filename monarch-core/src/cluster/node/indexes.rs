//! The index of a root: scanned by one node, sent to all.

use super::request_handlers::root_name;
use super::{Node, lock};
use crate::cluster::directory::{Member, NodeState};
use crate::cluster::election::Reply;
use crate::cluster::http::WireError;
use crate::cluster::index_image::{self, Image, ImageError};
use crate::held_dir::HeldDir;
use crate::index::ScanProgress;
use monarch_abi::segment::Segment;
use std::collections::HashMap;
use std::io;
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
/// How long after its start a node waits for names of others to lead somewhere before it makes an
/// index.
const NAMES: Duration = Duration::from_secs(10);
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

/// What is asked for.
struct Wanted<'a> {
    root: u64,
    /// Bytes that it may have.
    most: u64,
    /// Directory of its file.
    dir: &'a Arc<HeldDir>,
}

/// How far the scans of other nodes are.
struct Scanners {
    /// How long one that gets no further is waited for.
    patience: Duration,
    /// What each said of itself, and since when.
    seen: HashMap<u16, (u64, Instant)>,
}

impl Scanners {
    /// Whether a scan that is so far is to be waited for.
    fn gets_on(&mut self, node: u16, calls: u64) -> bool {
        let now = Instant::now();
        let (last, since) = self.seen.entry(node).or_insert((calls, now));
        if *last != calls {
            (*last, *since) = (calls, now);
        }
        now.duration_since(*since) < self.patience
    }
}

/// Why it did not come.
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

impl Node {
    /// The index of a root, in a file in `dir`, or the word that this node is to make it.
    /// [`Node::offer`] or [`Node::give_up`] is to follow.
    ///
    /// # Errors
    /// When the scan was called off, or there is no room for the index.
    pub fn obtain(
        &self,
        root: u64,
        most: u64,
        dir: &Arc<HeldDir>,
        progress: &Arc<ScanProgress>,
    ) -> io::Result<Obtained> {
        let wanted = Wanted { root, most: most.saturating_mul(WITH_TABLE), dir };
        let mut scanners = Scanners { patience: self.options.stalled_scan, seen: HashMap::new() };
        let mut tries = 0;
        while self.started.elapsed() < NAMES && self.lacks_names() && !progress.cancel.load(Ordering::Relaxed) {
            std::thread::sleep(PAUSE);
        }
        while tries < TRIES {
            if progress.cancel.load(Ordering::Relaxed) {
                return Err(io::Error::other("called off"));
            }
            self.election.bid(root);
            let Some(from) = self.best_bid(root, &mut scanners) else {
                if self.election.scan(root, progress) {
                    return Ok(Obtained::Mine);
                }
                tries += 1;
                std::thread::sleep(PAUSE);
                continue;
            };
            self.election.wait(root);
            match self.fetch_index(&wanted, from) {
                Ok((image, packed)) => {
                    self.election.relay(root, packed.into());
                    return Ok(Obtained::Theirs(Box::new(image)));
                }
                Err(Missed::NotYet) => continue,
                Err(Missed::Place(e)) => return Err(e),
                Err(Missed::Failed(why)) => {
                    tracing::warn!(node = self.name_of(from), %why, "no index from a peer; asking again");
                    tries += 1;
                }
            }
            std::thread::sleep(PAUSE);
        }
        tracing::warn!("no index from any peer; scanning here");
        self.election.bid(root);
        self.election.scan(root, progress);
        Ok(Obtained::Mine)
    }

    /// Whether nodes are expected of which nobody knows yet where they are: each of them would make
    /// an index of its own.
    fn lacks_names(&self) -> bool {
        let lost = |m: &Member| m.standing == NodeState::Expected && self.membership.is_lost(&m.name);
        self.view().iter().any(|(_, m)| lost(m))
    }

    fn name_of(&self, number: u16) -> String {
        self.view().get(number).map_or_else(String::new, |m| m.name.to_string())
    }

    /// Asks all nodes where they are with an index; the one to be waited for, if any.
    fn best_bid(&self, root: u64, scanners: &mut Scanners) -> Option<u16> {
        let replies: Mutex<Vec<(Reply, u16)>> = Mutex::default();
        let path = format!("/v1/bid/{}", root_name(root));
        self.each_expected(|node| {
            let Some(peer) = self.peer(node) else { return };
            let answer = peer.post(&path, &[], BID);
            let reply = answer.ok().filter(|a| a.status() == 200).and_then(|a| a.bytes(64).ok());
            lock(&replies).extend(reply.and_then(|bytes| Reply::of(&bytes)).map(|reply| (reply, node)));
        });
        let replies = replies.into_inner().unwrap_or_default();
        let rank = |(reply, node)| match reply {
            Reply::Have => Some((0, node)),
            Reply::Scanning(calls) if scanners.gets_on(node, calls) => Some((1, node)),
            Reply::Scanning(_) => {
                tracing::warn!(node = self.name_of(node), "its scan gets no further; it is not waited for");
                None
            }
            Reply::First => Some((2, node)),
            Reply::Yield => None,
        };
        replies.into_iter().filter_map(rank).min().map(|(_, node)| node)
    }

    /// Gets an index from a node, or from the one that it names.
    fn fetch_index(&self, wanted: &Wanted<'_>, from: u16) -> Result<Came, Missed> {
        let path = format!("/v1/index/{}", root_name(wanted.root));
        let parent = match self.ask_index(wanted, from, &path)? {
            Ok(came) => return Ok(came),
            Err(parent) => parent,
        };
        if let Some(n) = self.view().number(&parent) {
            match self.ask_index(wanted, n, &path) {
                Ok(Ok(came)) => return Ok(came),
                Err(Missed::Place(e)) => return Err(Missed::Place(e)),
                // The parent has gone.
                _ => {}
            }
        }
        let direct = self.ask_index(wanted, from, &format!("{path}?direct"))?;
        direct.map_err(|_| Missed::Failed("it sends it elsewhere".to_owned()))
    }

    /// The index, or the name of another node that has it.
    fn ask_index(&self, wanted: &Wanted<'_>, from: u16, path: &str) -> Result<Result<Came, String>, Missed> {
        let peer = self.peer(from).ok_or_else(|| Missed::Failed("its address is not known".to_owned()))?;
        let begun = Instant::now();
        let answer = match peer.get(path, None, 0, SCAN) {
            Ok(answer) => answer,
            Err(WireError::Timeout { .. }) if begun.elapsed() >= SCAN => return Err(Missed::NotYet),
            Err(e) => return Err(e.into()),
        };
        match answer.status() {
            200 => {
                let bytes = answer.bytes(wanted.most).map_err(|e| Missed::Failed(e.to_string()))?;
                let image = index_image::unpack(&bytes, wanted.most, wanted.dir)?;
                Ok(Ok((image, bytes)))
            }
            307 => Ok(Err(answer.header("Monarch-Node").unwrap_or_default().to_owned())),
            status => Err(Missed::Failed(format!("it answers {status}"))),
        }
    }

    /// The index of a root is there, and other nodes can have it from here.
    pub fn offer(&self, root: u64, segment: Segment<'static>, (dir, index): (Arc<HeldDir>, String), fresh: bool) {
        let packer = move || {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut std::fs::File::from(dir.read_file(index.as_str())?), &mut bytes)?;
            Ok(Arc::new(index_image::pack(&bytes, &index_image::table_at_first(&segment), fresh)))
        };
        self.election.have(root, Box::new(packer));
    }

    /// It cannot be had from here any more, or never came.
    pub fn give_up(&self, root: u64) {
        self.election.give_up(root);
    }
}
