//! Events and messages of simulated nodes, and the plan of a run.

use monarch_cluster::directory::{File, Uuid};

pub(crate) const INDEX: Uuid = [9; 16];
/// Milliseconds that a reader waits for a peer.
pub(crate) const PEER_TIMEOUT_MS: u64 = 2_000;
/// A deliberate mistake, to show that a test would see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutant {
    None,
    JoinWithoutTelling,
    ActBeforeJoin,
    ServeChanged,
    NoLedger,
    ForgetAnnouncements,
    NeverGiveUp,
}

/// Probabilities of faults, in thousandths, and the capacities of nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) files: u32,
    pub(crate) loss: u64,
    pub(crate) double: u64,
    pub(crate) capacity: usize,
    pub(crate) keep_all: bool,
    pub(crate) mutant: Mutant,
}

/// An event at a node, or on its way there.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Start,
    Crash { warm: bool },
    Read(u32),
    GiveUp(u64),
    JoinOver(u64),
    PfsDone(u32, u64),
    AskTimeout(u32, u64),
    Tick(u64),
    Evict(u32),
    Arrive { from: usize, life: u64, what: Message },
    Heal,
    Cut(usize, usize),
    Change(u32),
}

#[derive(Clone, Debug)]
pub(crate) enum Message {
    Beat,
    Join,
    JoinRefused,
    /// The answer to a join: what the newcomer answers for, and which other nodes are up.
    Joined {
        files: Vec<u8>,
        up: Vec<(usize, u64)>,
    },
    ToldAck(u64),
    Held {
        files: Vec<u8>,
        id: u64,
    },
    Get {
        file: u32,
        ask: u64,
        hops: u8,
        keeps: bool,
    },
    Reply {
        file: u32,
        ask: u64,
        what: Reply,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Data { version: u32 },
    Redirect(usize),
    YouRead { keep: bool },
    Unreachable,
}

/// Size of a file in bytes.
pub(crate) fn file_bytes(id: u32) -> u64 {
    u64::from(1 + id % 3)
}

pub(crate) fn file_key(id: u32) -> File {
    File { index: INDEX, id, fp: u64::from(id).wrapping_mul(0x2545_f491_4f6c_dd1d) }
}
