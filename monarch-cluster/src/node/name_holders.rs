//! Directories that the index does not hold: which node holds each, and what it says.
//!
//! The agent owns the directories of this node, and asks for those of other nodes through this: it
//! is referred to weakly.

use super::peer_pool::PeerPool;
use super::request_paths::{hex, unhex};
use crate::directory::members::{ME, Members};
use crate::http::{Answer, WireError};
use monarch_storage::index::{Directory, MAX_LISTINGS_BYTES};
use monarch_storage::sharing::LocalNames;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How long a holder that shows that it works is waited for: it may have to read the directory.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Seed of the hash by which directories are spread: not that of files, of which some have another
/// owner than their order says.
const SEED: u64 = 0x6d6f_6e5f_6e61_6d65;

/// Asks the nodes that hold directories, and answers those that ask this one.
pub struct NameHolders {
    pool: Arc<PeerPool>,
    names: OnceLock<Weak<dyn LocalNames>>,
}

impl std::fmt::Debug for NameHolders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NameHolders").finish_non_exhaustive()
    }
}

/// The local number of the node that holds a directory: the first in its order that is up.
fn holder(view: &Members, rel: &[u8]) -> u16 {
    view.first_up(xxh3_64_with_seed(rel, SEED))
}

impl NameHolders {
    /// Asks the nodes of `pool`. Until this node's directories are handed in, none is answered.
    pub(super) const fn new(pool: Arc<PeerPool>) -> Self {
        Self { pool, names: OnceLock::new() }
    }

    /// Hands in this node's directories, which are not kept alive; a second call is ignored.
    pub fn set(&self, names: &Arc<dyn LocalNames>) {
        let _ = self.names.set(Arc::downgrade(names));
    }

    /// The node that holds a directory, by its path relative to its root; `None`: this one.
    #[must_use]
    pub fn holder(&self, rel: &[u8]) -> Option<u16> {
        Some(holder(&self.pool.view(), rel)).filter(|&node| node != ME)
    }

    /// Asks another node for a directory of an index; `None` if it leaves it to the PFS. Blocks,
    /// for 30 s where the node reads the directory.
    ///
    /// # Errors
    /// When it does not answer, or with something else.
    pub fn ask(&self, node: u16, index: &[u8; 16], rel: &[u8]) -> io::Result<Option<Directory>> {
        let life = self.pool.life_of(node);
        let peer = self.pool.peer(node).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let path = format!("/v1/names/{}", hex(index));
        let answer = peer.post(&path, rel, MAX_WAIT).map_err(|e: WireError| {
            self.pool.note_failure(node, life, &e);
            io::Error::other(e)
        })?;
        match answer.status() {
            200 => {
                let bytes =
                    answer.bytes(MAX_LISTINGS_BYTES).inspect_err(|e| self.pool.note_io_failure(node, life, e))?;
                Directory::decode(&bytes).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
            }
            404 => Ok(None),
            status => Err(io::Error::other(format!("it answers with status {status}"))),
        }
    }

    /// Answers a node that asks for a directory. Blocks.
    pub(super) fn answer(&self, index: &str, rel: &[u8]) -> Answer {
        let Some(index) = unhex(index) else {
            return Answer::text(400, "an index is named by 32 hexadecimal digits");
        };
        let names = self.names.get().and_then(Weak::upgrade);
        match names.and_then(|names| names.directory(&index, rel)) {
            Some(message) => Answer::bytes(message),
            None => Answer::text(404, "that directory is read from the PFS"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::NodeState;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_directory_has_one_holder_on_all_nodes_and_a_node_that_goes_moves_its_own_only(
            nodes in 2..20_usize,
            gone in 0..20_usize,
            dirs in proptest::collection::vec("[a-z]{0,8}(/[a-z]{1,8}){0,4}", 1..60),
        ) {
            let gone = gone % nodes;
            let name = |n: usize| format!("node{n}");
            // As each of them sees all: with numbers of its own.
            let view = |me: usize, gone: Option<usize>| {
                let mut view = Members::new(&name(me));
                for n in (0..nodes).filter(|n| *n != me) {
                    let number = view.add(&name(n), NodeState::Up).unwrap();
                    if Some(n) == gone {
                        view.set(number, NodeState::Gone);
                    }
                }
                view
            };
            let of = |view: &Members, dir: &str| view.get(holder(view, dir.as_bytes())).unwrap().name.to_string();
            for dir in &dirs {
                let held_by = of(&view(0, None), dir);
                for me in 1..nodes {
                    prop_assert_eq!(&of(&view(me, None), dir), &held_by);
                }
                for me in (0..nodes).filter(|me| *me != gone) {
                    let after = of(&view(me, Some(gone)), dir);
                    prop_assert!(after != name(gone));
                    prop_assert!(after == held_by || held_by == name(gone));
                }
            }
        }
    }

    #[test]
    fn nodes_hold_about_as_many_directories_each() {
        let mut view = Members::new("node0");
        (1..16).for_each(|n| _ = view.add(&format!("node{n}"), NodeState::Up).unwrap());
        let mut held = [0_u32; 16];
        (0..16_000).for_each(|n| held[usize::from(holder(&view, format!("train/{n}").as_bytes()))] += 1);
        assert!(held.iter().all(|&n| (850..1150).contains(&n)), "{held:?}");
    }
}
