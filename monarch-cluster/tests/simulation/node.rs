//! A simulated node: its readers, its fetches, its copies and its view of the other nodes.

use crate::events::{INDEX, Plan, file_bytes, file_key};
use monarch_cluster::directory::{Asked, Members, NodeState, Residency, Search, balance};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) struct Node {
    pub(crate) me: usize,
    pub(crate) up: bool,
    pub(crate) life: u64,
    pub(crate) acting: bool,
    /// Nodes that it still waits for before it acts.
    pub(crate) joining: BTreeSet<usize>,
    pub(crate) view: Members,
    /// The owners for which the exceptions in the view were computed.
    balanced: Vec<u16>,
    pub(crate) known: Residency,
    pub(crate) copies: BTreeMap<u32, Copy>,
    pub(crate) changed: BTreeSet<u32>,
    /// When each node was heard, and until when it is not asked because it did not answer.
    pub(crate) heard: Vec<Option<u64>>,
    pub(crate) blocked: Vec<u64>,
    /// Requests that came in before it acted.
    pub(crate) queue: Vec<Queued>,
    /// Announcements that no node has confirmed.
    pub(crate) unconfirmed: BTreeMap<u64, (usize, Vec<u8>, u32)>,
    order: u64,
}

pub(crate) enum Copy {
    Resident,
    Coming(Box<Fetch>),
}

pub(crate) struct Fetch {
    pub(crate) search: Search,
    pub(crate) keep: bool,
    /// The node that answered for the file when the fetch began, and its life.
    pub(crate) began: (u16, u64),
    pub(crate) asking: Option<(u64, usize)>,
    pub(crate) from_pfs: Option<u64>,
    pub(crate) readers: Vec<u64>,
    pub(crate) askers: Vec<(usize, u64, Asked)>,
}

pub(crate) enum Queued {
    Read(u64, u32),
    Get { from: usize, file: u32, ask: u64, hops: u8, keeps: bool },
}

impl Node {
    pub(crate) fn new(me: usize, plan: &Plan, order: u64) -> Self {
        let mut known = Residency::new();
        known.add_index(INDEX, plan.files);
        Self {
            me,
            up: false,
            life: 0,
            acting: false,
            joining: BTreeSet::new(),
            view: Members::new(&format!("n{me}")),
            balanced: Vec::new(),
            known,
            copies: BTreeMap::new(),
            changed: BTreeSet::new(),
            heard: vec![None; plan.nodes],
            blocked: vec![0; plan.nodes],
            queue: Vec::new(),
            unconfirmed: BTreeMap::new(),
            order,
        }
    }

    /// The number that this node gave to a node of the world, and back.
    pub(crate) fn local(&self, node: usize) -> u16 {
        self.view.number(&format!("n{node}")).unwrap()
    }

    pub(crate) fn global(&self, node: u16) -> usize {
        self.view.get(node).unwrap().name[1..].parse().unwrap()
    }

    /// What this node announces: copies, and files that it reads from the PFS to keep. It announces
    /// neither files that it only passes on nor files that it fetches from a node that announces
    /// them: either would hide the node that really has them.
    pub(crate) fn held(&self) -> Vec<(u32, u64)> {
        let is_announced = |copy: &Copy| match copy {
            Copy::Resident => true,
            Copy::Coming(fetch) => fetch.keep && fetch.from_pfs.is_some(),
        };
        self.copies.iter().filter(|(_, copy)| is_announced(copy)).map(|(id, _)| (*id, file_key(*id).fp)).collect()
    }

    pub(crate) fn used(&self) -> usize {
        self.copies.values().filter(|c| matches!(c, Copy::Resident) || matches!(c, Copy::Coming(f) if f.keep)).count()
    }

    pub(crate) fn born(&mut self, life: u64, plan: &Plan) {
        let copies = std::mem::take(&mut self.copies);
        *self = Self::new(self.me, plan, self.order.wrapping_mul(31).wrapping_add(1));
        (self.up, self.life, self.copies) = (true, life, copies);
        // Each node numbers the others in an order of its own.
        let others: Vec<usize> = (0..plan.nodes).filter(|n| *n != self.me).collect();
        for n in 0..others.len() {
            let other = others[(n + self.order as usize % others.len()) % others.len()];
            self.view.add(&format!("n{other}"), NodeState::Expected).unwrap();
        }
        self.joining = others.into_iter().collect();
        self.balance(plan);
    }

    /// Computes the owners by exception again if the owners have changed since; whether they have.
    pub(crate) fn balance(&mut self, plan: &Plan) -> bool {
        if self.balanced == self.view.owners() {
            return false;
        }
        self.balanced = self.view.owners().to_vec();
        let files = || (0..plan.files).map(|id| (file_key(id).fp, file_bytes(id)));
        self.view = self.view.with_exceptions(Arc::new(balance::exceptions(&self.view, files)));
        true
    }
}
