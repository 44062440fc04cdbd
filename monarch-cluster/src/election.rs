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
mod tests {
    use super::*;

    const ROOT: u64 = 7;

    fn offered(e: &Election) {
        e.have(ROOT, Box::new(|| Ok(Arc::new(vec![1, 2, 3]))));
    }

    /// A node that asked for an index while another one was still being sent it got the index as it
    /// was before files changed.
    #[test]
    fn an_index_is_made_anew_when_files_have_changed() {
        let e = Election::default();
        offered(&e);
        let bytes = || match e.asked(ROOT, "b", true) {
            Answer::Send(offer) => offer.bytes().unwrap(),
            _ => panic!("it is here"),
        };
        let (sent, again) = (bytes(), bytes());
        e.rest();
        assert!(Arc::ptr_eq(&sent, &again) && Arc::ptr_eq(&sent, &bytes()), "somebody is being sent it");
        e.renew();
        assert!(!Arc::ptr_eq(&sent, &bytes()));
    }

    #[test]
    fn of_two_that_bid_one_scans_in_whatever_order_they_hear_of_each_other() {
        // Each order of: a bids, b bids, a asks b, b asks a, a decides, b decides, in which each
        // node's steps stay in order.
        fn go(steps: &mut Vec<u8>, left: [u8; 2], seen: &mut usize) {
            if left == [0, 0] {
                let nodes = [("a", Election::default()), ("b", Election::default())];
                let (mut replies, mut scans) = ([None, None], [false; 2]);
                let mut done = [0; 2];
                for &n in steps.iter() {
                    let (me, other) = (&nodes[n as usize], &nodes[1 - n as usize]);
                    match done[n as usize] {
                        0 => me.1.bid(ROOT),
                        1 => replies[n as usize] = Some(other.1.heard(ROOT, me.0, other.0)),
                        _ => {
                            let yielded = replies[n as usize] == Some(Reply::Yield);
                            scans[n as usize] = yielded && me.1.scan(ROOT, &Arc::default());
                        }
                    }
                    done[n as usize] += 1;
                }
                assert!(!(scans[0] && scans[1]), "{steps:?}");
                assert!(scans[0] || scans[1] || replies.contains(&Some(Reply::Scanning(0))), "{steps:?} {replies:?}");
                *seen += 1;
                return;
            }
            for n in 0..2u8 {
                if left[n as usize] > 0 {
                    let mut left = left;
                    left[n as usize] -= 1;
                    steps.push(n);
                    go(steps, left, seen);
                    steps.pop();
                }
            }
        }
        let mut seen = 0;
        go(&mut Vec::new(), [3, 3], &mut seen);
        assert_eq!(seen, 20);
    }

    #[test]
    fn what_has_come_goes_on_before_it_is_served_here_and_as_it_came() {
        let e = Election::default();
        e.bid(ROOT);
        e.wait(ROOT);
        assert!(matches!(e.asked(ROOT, "c", false), Answer::Wait));
        e.relay(ROOT, Arc::new(vec![7, 8]));
        assert!(e.is_pending(), "files of it cannot be had here yet");
        let sent = |e: &Election| match e.asked(ROOT, "c", false) {
            Answer::Send(offer) => offer.bytes().unwrap(),
            _ => panic!("not sent"),
        };
        assert_eq!((e.heard(ROOT, "c", "b"), sent(&e).as_slice()), (Reply::Have, &[7, 8][..]));
        let Answer::Send(before) = e.asked(ROOT, "d", false) else { panic!("not sent") };
        offered(&e);
        assert_eq!((e.is_pending(), sent(&e).as_slice()), (false, &[7, 8][..]));
        assert_eq!(before.bytes().unwrap().as_slice(), [7, 8], "who was answered before still gets it");
        drop(before);
        // Its memory is given back; what is packed next is what is here.
        e.rest();
        assert_eq!(sent(&e).as_slice(), [1, 2, 3]);
        e.relay(ROOT, Arc::new(vec![7]));
        e.give_up(ROOT);
        assert!(matches!(e.asked(ROOT, "c", false), Answer::No));
    }

    #[test]
    fn who_has_it_says_so_and_who_gave_up_does_not() {
        let e = Election::default();
        assert_eq!(e.heard(ROOT, "b", "a"), Reply::Yield);
        e.bid(ROOT);
        let progress = Arc::new(ScanProgress::default());
        assert!(e.scan(ROOT, &progress) && !e.scan(ROOT, &progress));
        progress.calls.store(3, Ordering::Relaxed);
        assert_eq!(e.heard(ROOT, "A", "a"), Reply::Scanning(3));
        offered(&e);
        assert_eq!(e.heard(ROOT, "b", "a"), Reply::Have);
        e.give_up(ROOT);
        assert_eq!(e.heard(ROOT, "b", "a"), Reply::Yield);
        assert!(matches!(e.asked(ROOT, "b", false), Answer::No));
    }

    #[test]
    fn replies_are_read_as_they_are_written() {
        for reply in [Reply::Have, Reply::Scanning(0), Reply::Scanning(u64::MAX), Reply::First, Reply::Yield] {
            assert_eq!(Reply::of(reply.text().as_bytes()), Some(reply));
        }
        for text in
            ["", "scanning", "scanning ", "scanning -1", "scanning 1 ", "scanning 18446744073709551616", "haves"]
        {
            assert_eq!(Reply::of(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn askers_form_a_tree_in_which_nobody_sends_often() {
        let e = Election::default();
        e.bid(ROOT);
        e.scan(ROOT, &Arc::default());
        assert!(matches!(e.asked(ROOT, "n0", false), Answer::Wait));
        offered(&e);
        let mut children: HashMap<String, usize> = HashMap::new();
        for n in 0..500 {
            let parent = match e.asked(ROOT, &format!("n{n}"), false) {
                Answer::Send(_) => "root".to_owned(),
                Answer::From(parent) => parent,
                other => panic!("{other:?}"),
            };
            assert!(parent == "root" || parent[1..].parse::<usize>().unwrap() < n);
            *children.entry(parent).or_default() += 1;
        }
        assert!(children.values().all(|n| *n <= FANOUT));
        assert!(matches!(e.asked(ROOT, "n499", true), Answer::Send(_)));
    }

    #[test]
    fn nodes_that_are_gone_are_no_parents() {
        let e = Election::default();
        offered(&e);
        for n in 0..20 {
            e.asked(ROOT, &format!("n{n}"), false);
        }
        (0..10).for_each(|n| e.forget(&format!("n{n}")));
        assert_eq!(e.roots()[&ROOT].askers.len(), 10);
        for n in 10..40 {
            match e.asked(ROOT, &format!("n{n}"), false) {
                Answer::Send(_) => assert!(n < 10 + FANOUT as u32),
                Answer::From(parent) => assert!((10..n).contains(&parent[1..].parse().unwrap()), "{n}: {parent}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn what_others_ask_takes_bounded_room() {
        let e = Election::default();
        for root in 0..1000 {
            assert_eq!(e.heard(root, "b", "a"), Reply::Yield);
            assert!(matches!(e.asked(root, "b", false), Answer::No));
        }
        assert!(e.roots().is_empty(), "roots that this node does not need");
        offered(&e);
        for n in 0..MAX_NODES + 1000 {
            assert!(matches!(e.asked(ROOT, &format!("n{n}"), false), Answer::Send(_) | Answer::From(_)));
        }
        assert_eq!(e.roots()[&ROOT].askers.len(), MAX_NODES);
    }

    #[test]
    fn packed_bytes_are_made_once_and_given_back() {
        let e = Election::default();
        offered(&e);
        let Answer::Send(offer) = e.asked(ROOT, "b", false) else { panic!() };
        let bytes = offer.bytes().unwrap();
        assert!(Arc::ptr_eq(&bytes, &offer.bytes().unwrap()));
        e.rest();
        assert!(Arc::ptr_eq(&bytes, &offer.bytes().unwrap()), "somebody is being sent it");
        drop(bytes);
        e.rest();
        assert_eq!(*offer.bytes().unwrap(), [1, 2, 3]);
    }
}
