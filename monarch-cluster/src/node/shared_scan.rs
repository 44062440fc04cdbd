//! Directories that nodes read for the node that scans a root.
//!
//! A node that waits for an index of another node has nothing else to do: it reads directories for
//! the scan there. The scanner knows these nodes, as they have asked it for the index. What it asks
//! for is opened beneath the root that the node waits for, without following links, and only while
//! it waits.

use super::peer_pool::PeerPool;
use super::request_paths::{root_name, root_of};
use crate::election::Election;
use crate::http::{Answer, WireError};
use crate::sync::lock;
use monarch_storage::index::{
    DirReader, Listed, MAX_LISTINGS_BYTES, ScanHelpers, decode_listings, decode_paths, encode_listings, encode_paths,
};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a node that shows that it works on a request is waited for. (The scan itself does not
/// wait for it when it has nothing else to do.)
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Reads for the scans of other nodes, and has them read for those of this one.
pub(super) struct SharedScan {
    pool: Arc<PeerPool>,
    election: Arc<Election>,
    /// By the root whose index this node waits for.
    readers: Mutex<HashMap<u64, Arc<DirReader>>>,
}

impl SharedScan {
    /// Shares scans with the nodes of `pool`.
    pub(super) fn new(pool: Arc<PeerPool>, election: Arc<Election>) -> Self {
        Self { pool, election, readers: Mutex::default() }
    }

    /// Reads directories of a root for other nodes from now on.
    pub(super) fn begin(&self, root: u64, reader: Arc<DirReader>) {
        lock(&self.readers).insert(root, reader);
    }

    /// Reads none any more.
    pub(super) fn end(&self, root: u64) {
        lock(&self.readers).remove(&root);
    }

    /// Answers a node that asks for listings. Blocks.
    pub(super) fn answer(&self, root: &str, body: &[u8]) -> Answer {
        let Some(root) = root_of(root) else { return Answer::text(400, "a root is named by 16 hexadecimal digits") };
        let Some(dirs) = decode_paths(body) else {
            return Answer::text(400, "a directory is named by its path behind its length");
        };
        let Some(reader) = lock(&self.readers).get(&root).cloned() else {
            return Answer::text(404, "this node reads nothing of that root for others");
        };
        match reader.read(&dirs) {
            Ok(listings) => Answer::bytes(encode_listings(&listings)),
            Err(e) => Answer::text(500, &format!("the root cannot be opened: {e}")),
        }
    }

    /// The nodes that can help with a scan of this one.
    pub(super) fn helpers(self: &Arc<Self>, root: u64) -> Arc<dyn ScanHelpers> {
        Arc::new(Waiting { scans: self.clone(), root })
    }
}

/// The nodes that wait for the index of a root from this one.
struct Waiting {
    scans: Arc<SharedScan>,
    root: u64,
}

impl ScanHelpers for Waiting {
    fn nodes(&self) -> Vec<u16> {
        let view = self.scans.pool.view();
        self.scans.election.askers(self.root).iter().filter_map(|name| view.number(name)).collect()
    }

    fn read(&self, node: u16, dirs: &[&[u8]]) -> io::Result<Vec<Option<Listed>>> {
        let pool = &self.scans.pool;
        let life = pool.life_of(node);
        let peer = pool.peer(node).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let path = format!("/v1/scan/{}", root_name(self.root));
        let answer = peer.post(&path, &encode_paths(dirs), MAX_WAIT).map_err(|e: WireError| {
            pool.note_failure(node, life, &e);
            io::Error::other(e)
        })?;
        if answer.status() != 200 {
            return Err(io::Error::other(format!("it answers {}", answer.status())));
        }
        let bytes = answer.bytes(MAX_LISTINGS_BYTES).inspect_err(|e| pool.note_io_failure(node, life, e))?;
        decode_listings(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}
