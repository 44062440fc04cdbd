//! Who scans a root: one node, whoever is there first.
//!
//! Nobody waits for nodes that have not started. A node that needs the index of a root *bids*: it
//! says so to all others, each of which answers where it is itself: it has the index, is scanning,
//! waits for it, bids too, or does not need it. Who finds nobody that has it, makes it, or goes
//! first (of two that bid the one with the lower name) scans. A bid is noted and answered under one
//! lock, and a node begins to scan under the same lock only if no lower bid was noted: of two nodes
//! that bid at a time at least one hears of the other, and never do both scan, unless they cannot
//! reach each other. Then both do, which costs the PFS a scan and nothing else.
//!
//! Who scans says how far it is. One that gets no further (its mount hangs) is waited for for a
//! while, and then by nobody: another node scans.
//!
//! Who has the index sends it to a few that ask; the others are sent to those, in the order in
//! which they came, so that all together form a tree of which no node sends more than [`FAN`]
//! times. Who finds its parent gone asks the first one directly.

use super::directory::members::MAX_NODES;
use crate::index::ScanProgress;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// To how many nodes one sends an index.
pub const FAN: usize = 4;

/// What a node answers to a bid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It has the index.
    Have,
    /// It scans, and has made so many calls to the PFS for it.
    Scanning(u64),
    /// It bids, too, and goes first.
    First,
    /// It bids, too, and lets the other one go first; or it does not need it now, or waits for it
    /// from somebody.
    Yield,
}

impl Reply {
    /// As it is sent.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Have => "have".to_owned(),
            Self::Scanning(calls) => format!("scanning {calls}"),
            Self::First => "first".to_owned(),
            Self::Yield => "yield".to_owned(),
        }
    }

    /// From what was sent.
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

/// Makes the packed bytes of an index.
pub type Packer = Box<dyn Fn() -> std::io::Result<Arc<Vec<u8>>> + Send + Sync>;

/// An index that other nodes can get from here.
pub struct Offer {
    packer: Packer,
    packed: Mutex<Option<Arc<Vec<u8>>>>,
}

impl Offer {
    /// Its bytes, made when they are first asked for.
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

    /// What it was made of has changed: it is made anew for who comes later. Who is being sent it
    /// keeps it.
    pub fn renew(&self) {
        *self.packed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Gives its memory back if nobody is being sent it; it is made again for who comes later.
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
    /// It has come, and is about to be served here.
    Relaying(Arc<Offer>),
    Have(Arc<Offer>),
}

#[derive(Debug, Default)]
struct Root {
    standing: NodeState,
    /// Nodes that asked for the index and are not gone, in the order they came; no more than a job
    /// can have.
    askers: Vec<String>,
}

/// What is to be done for a node that asks for an index.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It is sent.
    Send(Arc<Offer>),
    /// It is on its way to this node: the asker waits.
    Wait,
    /// It gets it from this node.
    From(String),
    /// It is not to be had here.
    No,
}

/// See the module. All roots of a node.
#[derive(Debug, Default)]
pub struct Election {
    roots: Mutex<HashMap<u64, Root>>,
}

impl Election {
    fn roots(&self) -> MutexGuard<'_, HashMap<u64, Root>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node needs the index of a root; whoever bids from now on is heard.
    pub fn bid(&self, root: u64) {
        *self.roots().entry(root).or_default() =
            Root { standing: NodeState::Bidding { yields: false }, askers: Vec::new() };
    }

    /// Another node bids.
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

    /// All others were asked, and none is to be waited for: whether this node scans. If not, it
    /// bids once more.
    pub fn scan(&self, root: u64, progress: &Arc<ScanProgress>) -> bool {
        let mut roots = self.roots();
        let standing = &mut roots.entry(root).or_default().standing;
        let scans = matches!(standing, NodeState::Bidding { yields: false });
        if scans {
            *standing = NodeState::Scanning(progress.clone());
        }
        scans
    }

    /// Another node is waited for.
    pub fn wait(&self, root: u64) {
        self.roots().entry(root).or_default().standing = NodeState::Waiting;
    }

    /// The index has come, as these bytes: others need not wait until it is served here, too.
    pub fn relay(&self, root: u64, packed: Arc<Vec<u8>>) {
        let gone = || Err(std::io::ErrorKind::NotFound.into());
        let offer = Offer { packer: Box::new(gone), packed: Mutex::new(Some(packed)) };
        self.roots().entry(root).or_default().standing = NodeState::Relaying(Arc::new(offer));
    }

    /// The index is there. (As it came it goes on, if it did.)
    pub fn have(&self, root: u64, packer: Packer) {
        let mut roots = self.roots();
        let standing = &mut roots.entry(root).or_default().standing;
        let packed = match standing {
            // (Who was answered with the former offer may be about to read it.)
            NodeState::Relaying(came) => came.packed.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            _ => None,
        };
        *standing = NodeState::Have(Arc::new(Offer { packer, packed: Mutex::new(packed) }));
    }

    /// There is none, or it is none any more that a job could use.
    pub fn give_up(&self, root: u64) {
        self.roots().remove(&root);
    }

    /// A node asks for the index; `direct` if it was sent elsewhere in vain.
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
        if at >= FAN
            && !direct
            && let Some(parent) = r.askers.get((at - FAN) / FAN)
        {
            return Answer::From(parent.clone());
        }
        match &r.standing {
            NodeState::Relaying(offer) | NodeState::Have(offer) => Answer::Send(offer.clone()),
            _ => Answer::Wait,
        }
    }

    /// A node is gone: nobody is sent to it any more.
    pub fn forget(&self, node: &str) {
        self.roots().values_mut().for_each(|r| r.askers.retain(|a| a != node));
    }

    /// Whether an index is on its way to this node, or being made here.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let pends = |r: &Root| !matches!(r.standing, NodeState::Idle | NodeState::Have(_));
        self.roots().values().any(pends)
    }

    /// Gives memory back that packed indexes take.
    pub fn rest(&self) {
        self.offers().iter().for_each(|offer| offer.rest());
    }

    /// Has packed indexes made anew: files have changed.
    pub fn renew(&self) {
        self.offers().iter().for_each(|offer| offer.renew());
    }

    /// (One may be being packed, for which nobody else is to wait.)
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

    /// Who asked for an index while another node was still being sent it got what it had been
    /// before files changed.
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
        assert!(children.values().all(|n| *n <= FAN));
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
                Answer::Send(_) => assert!(n < 10 + FAN as u32),
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
