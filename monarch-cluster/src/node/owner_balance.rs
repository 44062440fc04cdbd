//! Keeps the owners by exception of the served indexes in step with the nodes.
//!
//! * The thread that makes an index computes its exceptions before the index is served, so that all
//!   nodes that know the same nodes route its files alike from the first read on. Where that would
//!   take more than about a second, the thread of the next case does it.
//! * When the nodes that count as owners change, a thread of its own computes them again. Until it
//!   is done the earlier ones count, except those that name a node that has gone.

use super::peer_pool::PeerPool;
use super::store::Store;
use crate::directory::balance::{self, MAX_ENTRIES};
use crate::directory::{Exceptions, Members};
use crate::sync::lock;
use monarch_abi::segment::Segment;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Most hashes, one for each entry and owner, that are computed before an index is served.
const MAX_HASHES_BEFORE_SERVING: usize = 1_000_000_000;

/// How long the owners stay the same before exceptions are computed again: nodes come and go in
/// groups.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// What was computed for an index.
#[derive(Default)]
struct Done {
    /// Local numbers of the owners that it was computed for; none: it is still to be computed.
    owners: Vec<u16>,
    exceptions: Exceptions,
}

/// The exceptions of each index, and the thread that computes them again.
pub(super) struct OwnerBalance {
    pool: Arc<PeerPool>,
    store: Arc<Store>,
    /// By identifier of the index. Where two indexes have a path in common, the exception of the
    /// lower identifier counts, on all nodes.
    done: Mutex<BTreeMap<[u8; 16], Done>>,
    is_computing: AtomicBool,
    /// The owners of the last look, and since when they are the same.
    settled: Mutex<(Vec<u16>, Instant)>,
}

impl OwnerBalance {
    /// Nothing is computed yet. The indexes of `store` are balanced over the nodes of `pool`.
    pub(super) fn new(pool: Arc<PeerPool>, store: Arc<Store>) -> Self {
        let settled = Mutex::new((Vec::new(), Instant::now()));
        Self { pool, store, done: Mutex::default(), is_computing: AtomicBool::new(false), settled }
    }

    /// Computes the exceptions of an index that is about to be served, unless that was done for the
    /// same owners. Takes about a second for a thousand million files times nodes; with more of
    /// them, [`OwnerBalance::refresh`] computes the exceptions when the index is served.
    pub(super) fn balance(&self, segment: &Segment<'static>) {
        let view = self.pool.view();
        if lock(&self.done).get(uuid(segment)).is_none_or(|d| d.owners != view.owners()) {
            let hashes = segment.index.len().saturating_mul(view.owners().len());
            let is_long = hashes > MAX_HASHES_BEFORE_SERVING && segment.index.len() <= MAX_ENTRIES;
            let done = if is_long { Done::default() } else { compute(&view, segment) };
            self.publish(uuid(segment), done, None);
        }
    }

    /// Forgets an index that is not served any more.
    pub(super) fn forget(&self, index: &[u8; 16]) {
        let mut done = lock(&self.done);
        if done.remove(index).is_some() {
            self.set(&done);
        }
    }

    /// Starts a thread that computes exceptions again, if the owners have changed some time ago and
    /// none runs.
    pub(super) fn refresh(self: &Arc<Self>) {
        let view = self.pool.view();
        let stale = self.stale(&view);
        if stale.is_empty() || !self.are_settled(view.owners()) || self.is_computing.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.clone();
        let work = move || {
            for (segment, before) in &stale {
                me.publish(uuid(segment), compute(&view, segment), Some(before));
            }
            me.is_computing.store(false, Ordering::Release);
        };
        if std::thread::Builder::new().name("owners".to_owned()).spawn(work).is_err() {
            // No thread to be had now: at the next call.
            self.is_computing.store(false, Ordering::Release);
        }
    }

    fn are_settled(&self, owners: &[u16]) -> bool {
        let mut settled = lock(&self.settled);
        if settled.0 != owners {
            *settled = (owners.to_vec(), Instant::now());
        }
        settled.1.elapsed() >= SETTLED_AFTER
    }

    /// The served indexes whose exceptions are those of other owners, and these.
    fn stale(&self, view: &Members) -> Vec<(Segment<'static>, Vec<u16>)> {
        let served = self.store.served();
        let done = lock(&self.done);
        let stale = |segment: Segment<'static>| {
            let owners = &done.get(uuid(&segment))?.owners;
            (owners != view.owners()).then(|| (segment, owners.clone()))
        };
        served.into_iter().filter_map(|s| stale(s.segment)).collect()
    }

    /// Makes exceptions count: of an index that is about to be served, or those that replace the
    /// ones of the owners `before`. Such an index may have been forgotten meanwhile, or balanced
    /// over later owners.
    fn publish(&self, index: &[u8; 16], computed: Done, before: Option<&Vec<u16>>) {
        let mut done = lock(&self.done);
        if before.is_none_or(|before| done.get(index).is_some_and(|now| now.owners == *before)) {
            done.insert(*index, computed);
            self.set(&done);
        }
    }

    fn set(&self, done: &BTreeMap<[u8; 16], Done>) {
        let mut all = Exceptions::new();
        for done in done.values().rev() {
            all.extend(&done.exceptions);
        }
        self.pool.set_exceptions(all);
    }
}

const fn uuid(segment: &Segment<'static>) -> &'static [u8; 16] {
    &segment.index.header.uuid
}

fn compute(view: &Members, segment: &Segment<'static>) -> Done {
    let files = || segment.files().map(|e| (e.master.fp, e.record.size));
    let is_balanced = segment.index.len() <= MAX_ENTRIES;
    let exceptions = if is_balanced { balance::exceptions(view, files) } else { Exceptions::new() };
    Done { owners: view.owners().to_vec(), exceptions }
}
