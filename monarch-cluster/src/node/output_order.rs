//! Questions of output roots to those of other nodes, and answers.
//!
//! The agent owns the output roots, which ask through this: it refers to them weakly.

use super::peer_pool::PeerPool;
use super::request_paths::{root_name, root_of};
use crate::directory::members::ME;
use crate::directory::{Member, NodeState};
use crate::http::{Answer, WireError};
use monarch_storage::sharing::{LocalOutputs, OutputPeer, OutputPeerState, OutputPeers};
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Most bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 4096;

/// Asks the other nodes, and passes on what they ask.
pub(super) struct OutputOrder {
    pool: Arc<PeerPool>,
    outputs: OnceLock<Weak<dyn LocalOutputs>>,
}

impl OutputOrder {
    /// Asks the nodes of `pool`. Until output roots are handed in, nothing is answered.
    pub(super) const fn new(pool: Arc<PeerPool>) -> Self {
        Self { pool, outputs: OnceLock::new() }
    }

    /// Hands in this node's output roots; a second call is ignored.
    pub(super) fn set(&self, outputs: &Arc<dyn LocalOutputs>) {
        let _ = self.outputs.set(Arc::downgrade(outputs));
    }

    /// Answers a node. Blocks for a moment.
    pub(super) fn answer(&self, peer: &str, root: &str, question: &[u8]) -> Answer {
        let Some(root) = root_of(root) else { return Answer::text(400, "a root is named by 16 hexadecimal digits") };
        let view = self.pool.view();
        let Some(from) = view.number(peer).and_then(|number| view.get(number)) else { return Answer::status(409) };
        let outputs = self.outputs.get().and_then(Weak::upgrade);
        match outputs.and_then(|outputs| outputs.answer(from.key, root, question)) {
            Some(answer) => Answer::bytes(answer),
            None => Answer::text(503, "the output roots of this node cannot answer that now"),
        }
    }
}

/// What a node's standing means for its outputs. One that has died may have left some; one that
/// never came has none.
const fn state_of(standing: NodeState, was_seen: bool) -> OutputPeerState {
    match standing {
        NodeState::Expected => OutputPeerState::Expected,
        NodeState::Up => OutputPeerState::Up,
        NodeState::Suspect => OutputPeerState::Silent,
        NodeState::Gone if was_seen => OutputPeerState::Silent,
        NodeState::Left | NodeState::Gone => OutputPeerState::Absent,
    }
}

fn to_io(e: WireError) -> io::Error {
    let kind = match &e {
        WireError::Unreachable { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, e)
}

impl OutputPeers for OutputOrder {
    fn me(&self) -> u64 {
        self.pool.view().get(ME).map_or(0, |me| me.key)
    }

    fn nodes(&self) -> Vec<OutputPeer> {
        let view = self.pool.view();
        let others = view.iter().skip(1);
        let peer = |(_, member): (u16, &Member)| OutputPeer {
            number: member.key,
            name: member.name.clone(),
            state: state_of(member.standing, member.incarnation != 0),
        };
        others.map(peer).collect()
    }

    fn ask(&self, node: u64, root: u64, question: &[u8], timeout: Duration) -> io::Result<Vec<u8>> {
        let unknown = || io::Error::new(io::ErrorKind::NotFound, "its address is not known yet");
        let view = self.pool.view();
        let number = view.iter().skip(1).find(|(_, member)| member.key == node).map(|(number, _)| number);
        let number = number.ok_or_else(unknown)?;
        let peer = self.pool.peer(number).ok_or_else(unknown)?;
        let path = format!("/v1/outputs/{}", root_name(root));
        let answer = peer.post(&path, question, timeout).map_err(to_io)?;
        match answer.status() {
            200 => answer.bytes(MAX_ANSWER_BYTES),
            status => Err(io::Error::other(format!("it answers with status {status}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_died_may_have_left_something_and_one_that_left_has_not() {
        assert_eq!(state_of(NodeState::Gone, true), OutputPeerState::Silent);
        assert_eq!(state_of(NodeState::Gone, false), OutputPeerState::Absent);
        assert_eq!(state_of(NodeState::Left, true), OutputPeerState::Absent);
    }
}
