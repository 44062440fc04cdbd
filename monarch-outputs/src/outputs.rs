//! The output roots of an agent.

use crate::copy::MayCopy;
use crate::errors::OutputsError;
use crate::order::{Answer, Ask, Find, Found, NodeId};
use crate::room::TierSpace;
use crate::root::{RootDrain, RootOptions, root_number};
use crate::staging::{self, RootInfo, StagingDir};
use crate::status::OutputStatus;
use crate::target::{DirTarget, OutputTarget};
use monarch_abi::outputs::state::{closed, flag};
use monarch_storage::sharing::OutputPeers;
use monarch_storage::token_bucket::TokenBucket;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much of unused bandwidth is made up for.
const BURST: Duration = Duration::from_millis(100);
/// How often a wait looks at what is pending.
const WAIT_POLL: Duration = Duration::from_millis(20);
/// How long a look at open files may take before progress is told.
const LOOK_TIME: Duration = Duration::from_millis(500);

/// What all output roots of an agent share.
#[derive(Clone)]
pub struct OutputsOptions {
    /// Most bytes a second to the PFS, of all roots.
    pub bandwidth: Option<u64>,
    /// Answers whether copies may go on: the agent says no while demand reads need the PFS.
    pub may_copy: MayCopy,
    /// Whether published files are kept as clean copies, as long as the tier has space.
    pub keeps_clean: bool,
    /// The other nodes of the job, with whose entries those of this node are ordered.
    pub peers: Option<Arc<dyn OutputPeers>>,
}

impl Default for OutputsOptions {
    fn default() -> Self {
        Self { bandwidth: None, may_copy: Arc::new(|| true), keeps_clean: true, peers: None }
    }
}

/// An output root to be used.
#[derive(Clone, Debug)]
pub struct OutputRootSpec {
    /// Its real path.
    pub root: PathBuf,
    /// The tier that holds what is staged.
    pub tier: String,
    /// The directory `outputs` in the tier's directory; it is made if need be.
    pub outputs_dir: PathBuf,
    /// Whether the tier is lost with the node.
    pub is_volatile: bool,
    /// Whether an earlier job or agent has left it: patterns, flags and bounds of a job that still
    /// runs stay as they are.
    pub is_left: bool,
    /// Patterns of names that are not staged.
    pub through: Vec<String>,
    /// Bits of `monarch_abi::outputs::state::flag`.
    pub flags: u32,
    /// Most bytes of files that are not published.
    pub max_pending: Option<u64>,
    /// How long a process waits for other nodes to publish what it does not find.
    pub peer_wait: Duration,
    /// Space of the tier.
    pub space: TierSpace,
}

/// An output root in use, as the shim needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedRoot {
    /// The root's real path.
    pub root: PathBuf,
    /// The staging directory.
    pub staging: PathBuf,
    /// Number of the staging directory, in the names of part files.
    pub instance: u64,
    /// Device of the root.
    pub device: u64,
    /// Inode number of the root.
    pub inode: u64,
}

#[derive(Debug)]
struct Root {
    attached: AttachedRoot,
    drain: RootDrain,
    /// Whether no job of this agent has used it yet.
    is_left: AtomicBool,
}

/// The output roots of an agent.
pub struct Outputs {
    options: OutputsOptions,
    bandwidth: Option<Arc<TokenBucket>>,
    /// What other nodes have pushed: roots that are used later begin there.
    clock: AtomicU64,
    roots: Mutex<BTreeMap<PathBuf, Arc<Root>>>,
}

impl std::fmt::Debug for Outputs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outputs").field("roots", &self.lock().keys()).finish_non_exhaustive()
    }
}

impl Outputs {
    /// No roots yet.
    #[must_use]
    pub fn new(options: OutputsOptions) -> Self {
        let bandwidth = options.bandwidth.map(|rate| Arc::new(TokenBucket::new(rate as f64, BURST)));
        Self { options, bandwidth, clock: AtomicU64::new(0), roots: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Arc<Root>>> {
        self.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn root(&self, root: &Path) -> Option<Arc<Root>> {
        self.lock().get(root).cloned()
    }

    /// Makes or adopts the staging directory of a root and drains it. A root that is in use gets
    /// the patterns and flags of this call.
    ///
    /// # Errors
    /// [`OutputsError`]; the root is not staged then.
    pub fn attach(&self, spec: &OutputRootSpec) -> Result<AttachedRoot, OutputsError> {
        let fail = |source| OutputsError::Root { path: spec.root.clone(), source };
        let target = DirTarget::open(&spec.root).map_err(fail)?;
        self.attach_to(spec, Arc::new(target))
    }

    /// The same with another way to the PFS.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn attach_to(
        &self,
        spec: &OutputRootSpec,
        target: Arc<dyn OutputTarget>,
    ) -> Result<AttachedRoot, OutputsError> {
        // Before the lock: a PFS that does not answer must not stop the other roots.
        let looked = target.stat(b"");
        let mut roots = self.lock();
        if let Some(root) = roots.get(&spec.root) {
            if root.attached.staging == spec.outputs_dir.join(staging::key(&spec.root)) {
                if !spec.is_left {
                    root.drain.staging().set_policy(&spec.through, self.flags(spec));
                    root.drain.set_max_pending(spec.max_pending);
                    root.drain.set_peer_wait(spec.peer_wait);
                    root.is_left.store(false, Ordering::Release);
                }
                return Ok(root.attached.clone());
            }
            // A job of this agent stages in another tier: all of them share one order.
            if !root.is_left.load(Ordering::Acquire) {
                return Ok(root.attached.clone());
            }
            let status = root.drain.status();
            if status.is_pending() {
                return Err(OutputsError::OtherTier { path: spec.root.clone(), tier: status.tier });
            }
            roots.remove(&spec.root);
        }
        let fail = |source: rustix::io::Errno| OutputsError::Root { path: spec.root.clone(), source: source.into() };
        let st = looked.map_err(fail)?;
        let info = RootInfo::of(&spec.root, &spec.tier, spec.is_volatile);
        let staging = StagingDir::attach(&spec.outputs_dir, info)?;
        if spec.is_left {
            // A job that still runs, whose agent was killed, goes by them.
            let flags = &staging.state().flags;
            flags.fetch_and(!flag::NODES_ORDER, Ordering::AcqRel);
            flags.fetch_or(self.flags(spec), Ordering::AcqRel);
        } else {
            staging.set_policy(&spec.through, self.flags(spec));
        }
        staging.state().clock.fetch_max(self.clock.load(Ordering::Acquire), Ordering::AcqRel);
        staging.state().closed.store(closed::OPEN, Ordering::Release);
        let attached = AttachedRoot {
            root: spec.root.clone(),
            staging: staging.path().to_owned(),
            instance: staging.info().instance,
            device: st.dev,
            inode: st.ino,
        };
        let options = RootOptions {
            space: spec.space.clone(),
            max_pending: spec.max_pending,
            bandwidth: self.bandwidth.clone(),
            may_copy: self.options.may_copy.clone(),
            keeps_clean: self.options.keeps_clean,
            is_salvage: false,
            keeps_newer: false,
            peers: self.options.peers.clone(),
            peer_wait: spec.peer_wait,
        };
        let drain = RootDrain::start(staging, target, &options)?;
        roots.insert(
            spec.root.clone(),
            Arc::new(Root { attached: attached.clone(), drain, is_left: AtomicBool::new(spec.is_left) }),
        );
        Ok(attached)
    }

    fn flags(&self, spec: &OutputRootSpec) -> u32 {
        spec.flags | if self.options.peers.is_some() { flag::NODES_ORDER } else { 0 }
    }

    /// Answers another node about the order of the root with that number; `None` if it cannot now.
    #[must_use]
    pub fn answer(&self, from: NodeId, root: u64, question: &[u8]) -> Option<Vec<u8>> {
        if let Some(find) = Find::decode(question) {
            return self.find(root, &find).map(|found| found.encode());
        }
        let ask = Ask::decode(question)?;
        self.clock.fetch_max(ask.clock, Ordering::AcqRel);
        let answer = match self.root_of(root) {
            Some(root) => root.drain.answer(from, ask)?,
            // Nothing was staged here: what comes has a higher key.
            None => Answer {
                acknowledged: ask.clock,
                is_settled: true,
                owed: 0,
                floor: self.clock.load(Ordering::Acquire).saturating_add(1),
            },
        };
        Some(answer.encode())
    }

    /// Answers a node that does not find a name of the root with that number.
    fn find(&self, root: u64, find: &Find) -> Option<Found> {
        match self.root_of(root) {
            Some(root) => root.drain.find(find),
            None => Some(Found { key: 0, floor: self.clock.load(Ordering::Acquire).saturating_add(1) }),
        }
    }

    fn root_of(&self, number: u64) -> Option<Arc<Root>> {
        self.lock().values().find(|known| root_number(&known.attached.root) == number).cloned()
    }

    /// What is pending, of each root.
    #[must_use]
    pub fn status(&self) -> Vec<OutputStatus> {
        let roots: Vec<Arc<Root>> = self.lock().values().cloned().collect();
        roots.iter().map(|root| root.drain.status()).collect()
    }

    /// Waits until nothing of a root is pending and no staged file is open, the deadline has
    /// passed, or `progress` breaks. The last status; `None` when the root is not in use.
    pub fn wait_drained(
        &self,
        root: &Path,
        deadline: Option<Instant>,
        mut progress: impl FnMut(&OutputStatus) -> ControlFlow<()>,
    ) -> Option<OutputStatus> {
        let root = self.root(root)?;
        loop {
            let has_looked = root.drain.look(LOOK_TIME);
            let status = root.drain.status();
            let is_over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if (has_looked && !status.is_pending()) || is_over || progress(&status).is_break() {
                return Some(status);
            }
            std::thread::sleep(WAIT_POLL);
        }
    }

    /// Publishes the present content of a staged file that is open, under its name. The bytes
    /// copied.
    ///
    /// # Errors
    /// [`OutputsError::NotStaged`] when no staged file has the name.
    pub fn publish_snapshot(&self, file: &Path) -> Result<u64, OutputsError> {
        let roots: Vec<Arc<Root>> = self.lock().values().cloned().collect();
        let below = |root: &&Arc<Root>| file.starts_with(&root.attached.root);
        let Some(root) = roots.iter().filter(below).max_by_key(|root| root.attached.root.as_os_str().len()) else {
            return Err(OutputsError::NotStaged { path: file.to_owned() });
        };
        root.drain.publish_snapshot(&root.attached.root, file)
    }

    /// Stops to drain a root. What is pending stays in its staging directory; files go through.
    pub fn detach(&self, root: &Path) {
        let root = self.lock().remove(root);
        if let Some(root) = root {
            root.drain.staging().state().closed.store(closed::THROUGH, Ordering::Release);
            root.drain.staging().map().notify_processes();
        }
    }

    /// Stops to drain all roots. What is pending stays in the staging directories, and processes
    /// may go on to stage.
    pub fn stop(&self) {
        let roots = std::mem::take(&mut *self.lock());
        drop(roots);
    }
}
