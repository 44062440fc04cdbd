//! The nodes of the job as one of them sees them, and the order in which they come for a file.
//!
//! A node gets a local number when it is first heard of and keeps it: tables of two bytes a file
//! refer to it. The order is by a hash of the node's key and the file's, highest first, so that a
//! node that comes or goes moves its own files. The keys of the nodes that are up lie side by side:
//! the first of 512 is found in well under a microsecond. A few files have another owner by
//! exception, so that no node owns much more than the mean ([`super::balance`]); some of these move
//! when a node comes or goes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Most nodes that one job can have. Numbers above it are never given out, so that `u16::MAX` can
/// mean none.
pub const MAX_NODES: usize = 8192;

/// State of a node, as another one believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It was never seen, and counts as an owner until the join timeout has passed.
    Expected,
    /// It answers.
    Up,
    /// It did not answer gossip or a reader of late: it is not asked, and other nodes answer for
    /// its files. It may be back in a moment with all of its copies: no node prefetches what it
    /// owns.
    Suspect,
    /// It left of late: it is not asked, and other nodes fetch its files on demand. No node
    /// prefetches the rest: nodes that stage do not end together, and it has staged them.
    Left,
    /// It died, left long ago, or was expected and never came.
    Gone,
}

impl NodeState {
    /// Whether it is expected to answer, now or later.
    #[must_use]
    pub const fn takes_part(self) -> bool {
        matches!(self, Self::Expected | Self::Up | Self::Suspect)
    }

    /// Whether copies belong to it.
    const fn owns(self) -> bool {
        matches!(self, Self::Expected | Self::Up | Self::Suspect | Self::Left)
    }
}

/// One node.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name, the same everywhere.
    pub name: Arc<str>,
    /// Hash of the name.
    pub key: u64,
    /// State that this node believes it is in.
    pub standing: NodeState,
    /// Number of its life; 0: none was seen.
    pub incarnation: u64,
    /// Where it serves files, once that is known.
    pub address: Option<SocketAddr>,
}

/// Owners by exception: the hash of a file's path, and the local number of the node that owns the
/// file in place of the first in its order. [`super::balance`] computes them.
pub type Exceptions = HashMap<u64, u16>;

/// Too many nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "node {name:?} is one more than the {MAX_NODES} that a job can have: start fewer nodes, or give them names that stay the same"
)]
pub struct TooMany {
    /// The node that was turned away.
    pub name: String,
}

/// The nodes by local number. This node is number 0 and always up.
#[derive(Clone, Debug)]
pub struct Members {
    nodes: Vec<Member>,
    numbers: HashMap<Arc<str>, u16>,
    owners: Ranked,
    up: Ranked,
    exceptions: Arc<Exceptions>,
}

/// Keys and numbers of some of the nodes, apart: the search for the first reads the keys alone.
#[derive(Clone, Debug, Default)]
struct Ranked {
    keys: Vec<u64>,
    numbers: Vec<u16>,
}

/// This node's own number.
pub const ME: u16 = 0;

impl Members {
    /// This node, alone.
    pub fn new(me: &str) -> Self {
        let mut members = Self {
            nodes: Vec::new(),
            numbers: HashMap::new(),
            owners: Ranked::default(),
            up: Ranked::default(),
            exceptions: Arc::default(),
        };
        members.push(me, NodeState::Up);
        members
    }

    /// Gives a node its number, or finds the one that it has; its state is then as it was.
    pub fn add(&mut self, name: &str, standing: NodeState) -> Result<u16, TooMany> {
        match self.number(name) {
            Some(node) => Ok(node),
            None if self.nodes.len() == MAX_NODES => Err(TooMany { name: name.into() }),
            None => Ok(self.push(name, standing)),
        }
    }

    fn push(&mut self, name: &str, standing: NodeState) -> u16 {
        let (number, name) = (self.nodes.len() as u16, Arc::<str>::from(name));
        self.numbers.insert(name.clone(), number);
        self.nodes.push(Member { key: node_key(&name), name, standing, incarnation: 0, address: None });
        self.rank();
        number
    }

    /// Sets the state of a node; whether that is a change. A node itself is always up.
    pub fn set(&mut self, node: u16, standing: NodeState) -> bool {
        let Some(member) = self.nodes.get_mut(usize::from(node)).filter(|m| node != ME && m.standing != standing)
        else {
            return false;
        };
        member.standing = standing;
        self.rank();
        true
    }

    /// Notes the life of a node and where it serves files.
    pub fn locate(&mut self, node: u16, incarnation: u64, address: Option<SocketAddr>) {
        if let Some(member) = self.nodes.get_mut(usize::from(node)) {
            member.incarnation = incarnation;
            member.address = address;
        }
    }

    fn rank(&mut self) {
        self.up = Ranked::of(&self.nodes, |s| s == NodeState::Up);
        self.owners = Ranked::of(&self.nodes, NodeState::owns);
    }

    /// The number of a node by its name.
    pub fn number(&self, name: &str) -> Option<u16> {
        self.numbers.get(name).copied()
    }

    /// A node by its number.
    pub fn get(&self, node: u16) -> Option<&Member> {
        self.nodes.get(usize::from(node))
    }

    /// All nodes that were ever heard of, with their numbers; this node is the first.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Member)> {
        self.nodes.iter().enumerate().map(|(n, m)| (n as u16, m))
    }

    /// How many nodes were ever heard of, this one included.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// How many are up, this one included.
    pub fn count_up(&self) -> usize {
        self.up.keys.len()
    }

    /// Whether a node is up.
    pub fn is_up(&self, node: u16) -> bool {
        self.get(node).is_some_and(|m| m.standing == NodeState::Up)
    }

    /// The same nodes with other owners by exception. An exception counts while its node owns or
    /// answers.
    #[must_use]
    pub fn with_exceptions(&self, exceptions: Arc<Exceptions>) -> Self {
        Self { exceptions, ..self.clone() }
    }

    /// The local numbers of the nodes that count as owners, ascending: those that are up, suspect
    /// or expected, or have left.
    pub fn owners(&self) -> &[u16] {
        &self.owners.numbers
    }

    /// The node where the copy of a file belongs: its exceptional owner, or else the first of its
    /// order that counts as an owner.
    pub fn owner(&self, fp: u64) -> u16 {
        self.exception(fp, NodeState::owns).unwrap_or_else(|| self.owners.first(fp))
    }

    /// The node that answers for a file now: its exceptional owner while that is up, or else the
    /// first of its order that is up.
    pub fn answerer(&self, fp: u64) -> u16 {
        self.exception(fp, |s| s == NodeState::Up).unwrap_or_else(|| self.up.first(fp))
    }

    /// The first node in an order that is up, whatever exceptions there are.
    pub fn first_up(&self, fp: u64) -> u16 {
        self.up.first(fp)
    }

    /// Whether a node answers for a file now, or would without exceptions: one that comes up
    /// changes the owners, and the exceptions of the new ones are not computed yet.
    pub fn may_answer(&self, node: u16, fp: u64) -> bool {
        self.answerer(fp) == node || (self.exceptions.contains_key(&fp) && self.up.first(fp) == node)
    }

    /// The node that answers for a file now, and the number of its life: one that came up again may
    /// know nothing.
    pub fn answerer_life(&self, fp: u64) -> (u16, u64) {
        let node = self.answerer(fp);
        (node, self.get(node).map_or(0, |m| m.incarnation))
    }

    /// All nodes that are up, in the order of a file; the one that answers comes first. Lazy: each
    /// step costs one pass over the nodes.
    pub fn order(&self, fp: u64) -> impl Iterator<Item = u16> {
        let exception = self.exception(fp, |s| s == NodeState::Up);
        let mut last = None;
        let plain = std::iter::from_fn(move || {
            last = self.up.after(fp, last);
            last.map(|(_, node)| node)
        });
        exception.into_iter().chain(plain.filter(move |node| Some(*node) != exception))
    }

    fn exception(&self, fp: u64, counts: impl Fn(NodeState) -> bool) -> Option<u16> {
        if self.exceptions.is_empty() {
            return None;
        }
        let node = *self.exceptions.get(&fp)?;
        self.get(node).filter(|m| counts(m.standing)).map(|_| node)
    }
}

impl Ranked {
    fn of(nodes: &[Member], counts: impl Fn(NodeState) -> bool) -> Self {
        let chosen = || nodes.iter().enumerate().filter(|(_, m)| counts(m.standing));
        Self { keys: chosen().map(|(_, m)| m.key).collect(), numbers: chosen().map(|(n, _)| n as u16).collect() }
    }

    /// This node is always among them; equal scores need equal keys, and two names of one key are
    /// one in 2^64.
    fn first(&self, fp: u64) -> u16 {
        let (mut best, mut at) = (0, 0);
        for (n, key) in self.keys.iter().enumerate() {
            let score = score(*key, fp);
            if score > best {
                (best, at) = (score, n);
            }
        }
        self.numbers.get(at).copied().unwrap_or(ME)
    }

    fn after(&self, fp: u64, last: Option<(u64, u16)>) -> Option<(u64, u16)> {
        let scored = self.keys.iter().zip(&self.numbers).map(|(key, node)| (score(*key, fp), *node));
        scored.filter(|s| last.is_none_or(|l| *s < l)).max()
    }
}

/// The key of a node, from its name.
pub fn node_key(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// Where a node comes in the order of a file: the folded product of wyhash (Wang Yi 2019), one
/// multiplication. Both factors depend on both words, so that the orders of different files have
/// nothing to do with each other.
pub(super) fn score(key: u64, fp: u64) -> u64 {
    let product = u128::from(key ^ fp) * u128::from(key.rotate_left(32) ^ fp ^ 0xa076_1d64_78bd_642f);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
