//! This node's store of copies, once there is one.

use monarch_storage::sharing::{LocalStore, ServedIndex};
use std::sync::{Arc, OnceLock, Weak};

/// The local store, handed in when the node begins to serve. Before that no index is served.
///
/// The agent owns the local store, which itself holds the node's files of peers. The node refers to
/// it weakly: when the agent drops it, the locks of its tiers are released.
#[derive(Default)]
pub(super) struct Store(OnceLock<Weak<dyn LocalStore>>);

impl Store {
    /// Hands the store in; a second one is ignored.
    pub(super) fn set(&self, store: &Arc<dyn LocalStore>) {
        let _ = self.0.set(Arc::downgrade(store));
    }

    /// The store; `None` before the node serves and after the agent has dropped the store.
    pub(super) fn get(&self) -> Option<Arc<dyn LocalStore>> {
        self.0.get()?.upgrade()
    }

    /// All indexes that are served now.
    pub(super) fn served(&self) -> Vec<ServedIndex> {
        self.get().map_or_else(Vec::new, |store| store.served())
    }

    /// The served index with this identifier.
    pub(super) fn served_index(&self, index: &[u8; 16]) -> Option<ServedIndex> {
        self.get()?.served_index(index)
    }

    /// Blocks until a call to the PFS that reads `bytes` is within the configured limits.
    pub(super) fn before_pfs_call(&self, bytes: u64, demand: bool) {
        if let Some(store) = self.get() {
            store.before_pfs_call(bytes, demand);
        }
    }
}
