//! A scan that other nodes help with: threads that hand directories to them and take listings back.
//!
//! The threads are not those of the scan, and may outlive it: a node that does not answer must not
//! hold it up.

use super::listed::Listed;
use super::scan_queue::{Helper, ScanQueue, Todo};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most requests that a node has under way at a time.
pub const MAX_REQUESTS_PER_NODE: usize = 8;
/// Most nodes that help.
const MAX_HELPERS: usize = 32;
/// How often it is looked for nodes that can help.
const RECRUIT_PERIOD: Duration = Duration::from_millis(100);
/// Requests that may fail one after the other before a node is left alone.
const MAX_FAILURES: u32 = 2;
/// Most directories that one request asks for.
const MAX_BATCH_DIRS: usize = 32;
/// Time of a request from which on the next asks for fewer directories; below a quarter of it, for
/// more. At the end of the scan no thread waits much longer for a node that works.
const LONG_REQUEST: Duration = Duration::from_millis(400);
const STACK_BYTES: usize = 128 << 10;

/// Nodes that can read directories for a scan.
pub trait ScanHelpers: Send + Sync {
    /// Those that can be asked now, by number.
    fn nodes(&self) -> Vec<u16>;
    /// Has a node read these directories, each named by its path as the scan has it. Blocks.
    ///
    /// # Errors
    /// When it does not answer, or with something else.
    fn read(&self, node: u16, dirs: &[&[u8]]) -> io::Result<Vec<Option<Listed>>>;
}

/// Begins to look for nodes that can help, until the scan is over. Each gets up to `requests` at a
/// time.
pub(super) fn recruit(queue: &Arc<ScanQueue>, helpers: &Arc<dyn ScanHelpers>, requests: usize) {
    let (queue, helpers) = (queue.clone(), helpers.clone());
    spawn(move || {
        let mut known = HashSet::new();
        loop {
            for node in helpers.nodes() {
                if known.len() < MAX_HELPERS && known.insert(node) {
                    ask(&queue, &helpers, node, requests.min(MAX_REQUESTS_PER_NODE));
                }
            }
            if queue.is_over_within(RECRUIT_PERIOD) {
                return;
            }
        }
    });
}

/// Without a thread the scan goes on alone.
fn spawn(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name("scan-lend".to_owned()).stack_size(STACK_BYTES);
    if let Err(e) = thread.spawn(work) {
        tracing::warn!(error = %e, "scanning with less help of other nodes: the system allows no more threads");
    }
}

/// Begins to hand directories to a node.
fn ask(queue: &Arc<ScanQueue>, helpers: &Arc<dyn ScanHelpers>, node: u16, requests: usize) {
    let helper = Arc::<Helper>::default();
    for _ in 0..requests {
        let (queue, helpers, helper) = (queue.clone(), helpers.clone(), helper.clone());
        queue.add_lender();
        spawn(move || lend(&queue, &*helpers, node, &helper));
    }
}

fn lend(queue: &ScanQueue, helpers: &dyn ScanHelpers, node: u16, helper: &Arc<Helper>) {
    let (mut failures, mut most) = (0, 1);
    while failures < MAX_FAILURES && helper.is_fit() {
        let Some(batch) = queue.lend(most) else { return };
        let asked = Instant::now();
        let paths: Vec<&[u8]> = batch.iter().map(|todo: &Todo| &*todo.path).collect();
        let listings = helpers.read(node, &paths);
        failures = if listings.is_ok() { 0 } else { failures + 1 };
        most = match asked.elapsed() {
            long if long > LONG_REQUEST => (most / 2).max(1),
            short if short < LONG_REQUEST / 4 && batch.len() == most => (most * 2).min(MAX_BATCH_DIRS),
            _ => most,
        };
        queue.give_back(&batch, listings.unwrap_or_default(), helper);
    }
}
