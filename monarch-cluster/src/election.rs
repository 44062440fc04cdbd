//! Election of the node that scans a root: the first that needs its index.
//!
//! * A node that needs an index *bids* at all others, which reply with their own state. It scans if
//!   no other has the index, makes it, or goes first: of two bidders, the one with the lower name.
//! * A bid is noted and answered under one lock, and a scan begins under it only if no lower bid
//!   was noted. So two bidders that reach each other never both scan; two that do not cost a second
//!   scan.
//! * A scanner reports its progress. If it stalls (its mount hangs), another node scans after a
//!   while.
//! * The first [`FANOUT`] askers get the index from the node that has it, the others from those, in
//!   order of arrival: a tree, in which no node sends it more often. A node whose parent has gone
//!   asks the first node directly.

use super::directory::members::MAX_NODES;
use monarch_storage::index::ScanProgress;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most nodes that one node sends an index to, as its children in the tree.
pub const FANOUT: usize = 4;

/// Reply of a node to a bid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It has the index.
    Have,
    /// It scans, and has made this number of calls to the PFS for it.
    Scanning(u64),
    /// It bids, too, and goes first.
    First,
    /// It bids, too, and lets the other node go first; or it does not need the index now, or waits
    /// for it from another node.
    Yield,
}

impl Reply {
    /// The text that is sent.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Have => "have".to_owned(),
            Self::Scanning(calls) => format!("scanning {calls}"),
            Self::First => "first".to_owned(),
            Self::Yield => "yield".to_owned(),
        }
    }

    /// Parses a text that was sent.
    #[must_use]
    pub fn of(text: &[u8]) -> Option<Self> {
        Some(match text {
            b"have" => Self::Have,
            b"first" => Self::First,
            b"yield" => Self::Yield,
            _ => Self::Scanning(std::str::from_utf8(text.strip_prefix(b"scanning ")?).ok()?.parse().ok()?),
        })
    }
}

/// Packs an index.
pub type Packer = Box<dyn Fn() -> std::io::Result<Arc<Vec<u8>>> + Send + Sync>;

/// An index that other nodes can get from here.
pub struct Offer {
    packer: Packer,
    packed: Mutex<Option<Arc<Vec<u8>>>>,
}

impl Offer {
    /// Packed bytes of the index, made when they are first asked for.
    ///
    /// # Errors
    /// When it cannot be read any more.
    pub fn bytes(&self) -> std::io::Result<Arc<Vec<u8>>> {
        let mut packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = &*packed {
            return Ok(bytes.clone());
        }
        let bytes = (self.packer)()?;
        Ok(packed.insert(bytes).clone())
    }

    /// Has the bytes made again for later askers: files have changed. A node that is being sent the
    /// old ones still gets those.
    pub fn renew(&self) {
        *self.packed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Frees the bytes unless they are being sent to a node; they are made again for later askers.
    pub fn rest(&self) {
        let mut packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        if packed.as_ref().is_some_and(|bytes| Arc::strong_count(bytes) == 1) {
            *packed = None;
        }
    }
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Offer").finish_non_exhaustive()
    }
}

/// Where this node is with the index of a root.
#[derive(Clone, Debug, Default)]
enum NodeState {
    #[default]
    Idle,
    Bidding {
        yields: bool,
    },
    Scanning(Arc<ScanProgress>),
    /// It comes from another node.
    Waiting,
    /// It has arrived, and is about to be served here.
    Relaying(Arc<Offer>),
    Have(Arc<Offer>),
}

#[derive(Debug, Default)]
struct Root {
    standing: NodeState,
    /// Nodes that asked for the index and are not gone, in order of arrival; no more than a job can
    /// have.
    askers: Vec<String>,
}

/// What a node does for one that asks for an index.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It is sent.
    Send(Arc<Offer>),
    /// The index is on its way to this node: the asker waits.
    Wait,
    /// The asker gets it from this node.
    From(String),
    /// It is not to be had here.
    No,
}

/// State of a node in the elections of all roots.
#[derive(Debug, Default)]
pub struct Election {
    roots: Mutex<HashMap<u64, Root>>,
}

impl Election {
    fn roots(&self) -> MutexGuard<'_, HashMap<u64, Root>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bids for a root: this node needs its index. Bids of other nodes are noted from now on.
    pub fn bid(&self, root: u64) {
        *self.roots().entry(root).or_default() =
            Root { standing: NodeState::Bidding { yields: false }, askers: Vec::new() };
    }

    /// Replies to the bid of the node `from`; `me` is the name of this node.
    pub fn heard(&self, root: u64, from: &str, me: &str) -> Reply {
        // (Of a root that this node does not need nothing is kept.)
        match self.roots().get_mut(&root).map_or(&mut NodeState::Idle, |r| &mut r.standing) {
            NodeState::Relaying(_) | NodeState::Have(_) => Reply::Have,
            NodeState::Scanning(progress) => Reply::Scanning(progress.calls.load(Ordering::Relaxed)),
            NodeState::Bidding { yields } if from < me => {
                *yields = true;
                Reply::Yield
            }
            NodeState::Bidding { .. } => Reply::First,
            NodeState::Idle | NodeState::Waiting => Reply::Yield,
        }
    }

    /// Decides whether this node scans, after all others were asked and none is to be waited for.
    /// If not, this node bids once more.
    pub fn scan(&self, root: u64, progress: &Arc<ScanProgress>) -> bool {
        let mut roots = self.roots();
        let standing = &mut roots.entry(root).or_default().standing;
        let scans = matches!(standing, NodeState::Bidding { yields: false });
        if scans {
            *standing = NodeState::Scanning(progress.clone());
        }
        scans
    }

    /// Notes that this node waits for another one.
    pub fn wait(&self, root: u64) {
        self.roots().entry(root).or_default().standing = NodeState::Waiting;
    }

    /// Notes that the index has arrived, as these bytes: other nodes get them before it is served
    /// here.
    pub fn relay(&self, root: u64, packed: Arc<Vec<u8>>) {
        let gone = || Err(std::io::ErrorKind::NotFound.into());
        let offer = Offer { packer: Box::new(gone), packed: Mutex::new(Some(packed)) };
        self.roots().entry(root).or_default().standing = NodeState::Relaying(Arc::new(offer));
    }

    /// Notes that the index is there. (If it came from another node, it is sent as it came.)
    pub fn have(&self, root: u64, packer: Packer) {
        let mut roots = self.roots();
        let standing = &mut roots.entry(root).or_default().standing;
        let packed = match standing {
            // (A node that was answered with the former offer may be about to read it.)
            NodeState::Relaying(came) => came.packed.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            _ => None,
        };
        *standing = NodeState::Have(Arc::new(Offer { packer, packed: Mutex::new(packed) }));
    }

    /// Notes that there is no index, or none that a job could use any more.
    pub fn give_up(&self, root: u64) {
        self.roots().remove(&root);
    }

    /// Answers a node that asks for the index; `direct` if it was sent elsewhere in vain.
    pub fn asked(&self, root: u64, from: &str, direct: bool) -> Answer {
        let mut roots = self.roots();
        let Some(r) = roots.get_mut(&root) else { return Answer::No };
        if matches!(r.standing, NodeState::Idle | NodeState::Bidding { .. }) {
            return if matches!(r.standing, NodeState::Idle) { Answer::No } else { Answer::Wait };
        }
        let known = r.askers.iter().position(|a| a == from);
        let at = known.unwrap_or(r.askers.len());
        if at == r.askers.len() && at < MAX_NODES {
            r.askers.push(from.to_owned());
        }
        if at >= FANOUT
            && !direct
            && let Some(parent) = r.askers.get((at - FANOUT) / FANOUT)
        {
            return Answer::From(parent.clone());
        }
        match &r.standing {
            NodeState::Relaying(offer) | NodeState::Have(offer) => Answer::Send(offer.clone()),
            _ => Answer::Wait,
        }
    }

    /// The nodes that have asked for an index of this node, in order of arrival.
    #[must_use]
    pub fn askers(&self, root: u64) -> Vec<String> {
        self.roots().get(&root).map_or_else(Vec::new, |r| r.askers.clone())
    }

    /// Forgets a node that has gone: no asker is sent to it any more.
    pub fn forget(&self, node: &str) {
        self.roots().values_mut().for_each(|r| r.askers.retain(|a| a != node));
    }

    /// Whether an index is on its way to this node, or being made here.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let pends = |r: &Root| !matches!(r.standing, NodeState::Idle | NodeState::Have(_));
        self.roots().values().any(pends)
    }

    /// Frees packed indexes, as [`Offer::rest`] does.
    pub fn rest(&self) {
        self.offers().iter().for_each(|offer| offer.rest());
    }

    /// Has packed indexes made again: files have changed.
    pub fn renew(&self) {
        self.offers().iter().for_each(|offer| offer.renew());
    }

    /// Offers of this node, taken out of the lock: one may be being packed, which takes long.
    fn offers(&self) -> Vec<Arc<Offer>> {
        let offer = |r: &Root| if let NodeState::Have(offer) = &r.standing { Some(offer.clone()) } else { None };
        self.roots().values().filter_map(offer).collect()
    }
}

#[cfg(test)]
mod tests;
