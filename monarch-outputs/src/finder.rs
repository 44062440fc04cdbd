//! Names that other nodes have written, and that the PFS does not have yet.
//!
//! A process that does not find a name asks the agent of its node, when other nodes may have
//! something to publish. The agent asks those, and answers when they have published it. Processes
//! ask by the socket of the staging directory: each question is answered by a thread of its own.

use crate::errors::OutputsError;
use crate::order::{Find, Found, NodeId};
use crate::shared_plan::SharedPlan;
use crate::staging::StagingDir;
use monarch_abi::outputs::question::{self, HEAD_LEN, NOT_THERE, PUBLISHED, SOCKET, Subject, UNKNOWN};
use monarch_storage::sharing::{OutputPeerState, OutputPeers};
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, unlinkat};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long another node has for an answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// First pause between two questions to a node that is publishing.
const MIN_PAUSE: Duration = Duration::from_millis(1);
/// Longest one.
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// How long a process has for its question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(1);
/// Questions that are answered at a time. Others find nothing.
const MAX_QUESTIONS: usize = 256;
/// Stack of a thread that answers one, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// What became of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No other node had it.
    NotThere,
    /// Another node had it, and has published it.
    Published,
    /// A node did not answer, or did not publish it in time.
    Unknown,
}

/// Finds names of one output root on other nodes.
pub struct Finder {
    listener: UnixListener,
    plan: Arc<SharedPlan>,
    peers: Arc<dyn OutputPeers>,
    root: u64,
    /// How long a question waits for other nodes, in milliseconds.
    wait_ms: AtomicU64,
    questions: AtomicUsize,
    /// Nodes that were waited for in vain, with their floors: until those rise, no question waits.
    late: Mutex<BTreeMap<NodeId, u64>>,
    is_stopping: AtomicBool,
}

impl std::fmt::Debug for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Finder").field("wait_ms", &self.wait_ms).finish_non_exhaustive()
    }
}

impl Finder {
    /// The finder of an output root whose path has the hash `root`, which listens in its staging
    /// directory. Questions wait for `wait`.
    ///
    /// # Errors
    /// [`OutputsError`].
    pub fn new(
        plan: Arc<SharedPlan>,
        peers: Arc<dyn OutputPeers>,
        root: u64,
        wait: Duration,
    ) -> Result<Self, OutputsError> {
        let this = Self {
            listener: listen(plan.staging())?,
            plan,
            peers,
            root,
            wait_ms: AtomicU64::default(),
            questions: AtomicUsize::default(),
            late: Mutex::default(),
            is_stopping: AtomicBool::default(),
        };
        this.set_wait(wait);
        Ok(this)
    }

    /// Sets how long questions wait. Zero: no node is asked.
    pub fn set_wait(&self, wait: Duration) {
        self.wait_ms.store(wait.as_millis() as u64, Ordering::Relaxed);
    }

    /// Asks the nodes that may have something to publish, and waits until they have published what
    /// is asked for.
    pub fn find(&self, find: &Find) -> Outcome {
        let wait = Duration::from_millis(self.wait_ms.load(Ordering::Relaxed));
        if wait.is_zero() {
            return Outcome::NotThere;
        }
        let deadline = Instant::now() + wait;
        let holding = self.holding();
        let mut waited = self.ask(&holding, find, wait);
        let mut is_unsure = waited.len() < holding.len();
        waited.retain(|_, found| found.floor <= found.key);
        if waited.is_empty() {
            return if is_unsure { Outcome::Unknown } else { Outcome::NotThere };
        }
        let (mut pause, only_floor) = (MIN_PAUSE, Find { subject: Subject::Name, path: Vec::new() });
        loop {
            // A node that was waited for in vain delays no other question.
            let up = self.up();
            let asked = waited.len();
            waited.retain(|node, found| up.contains(node) && !self.is_late(*node, found.floor));
            is_unsure |= waited.len() < asked;
            if waited.is_empty() || self.is_stopping.load(Ordering::Acquire) {
                break;
            }
            if Instant::now() >= deadline {
                self.tell_late(find, &waited);
                is_unsure = true;
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
            let nodes: Vec<NodeId> = waited.keys().copied().collect();
            for (node, found) in self.ask(&nodes, &only_floor, wait) {
                waited.entry(node).and_modify(|first| first.floor = found.floor);
            }
            waited.retain(|_, found| found.floor <= found.key);
        }
        // (What is left was waited for until the agent ended.)
        if is_unsure || !waited.is_empty() { Outcome::Unknown } else { Outcome::Published }
    }

    /// The nodes that answer.
    fn up(&self) -> Vec<NodeId> {
        let nodes = self.peers.nodes().into_iter();
        nodes.filter(|peer| peer.state == OutputPeerState::Up).map(|peer| peer.number).collect()
    }

    /// Those of them that may have something to publish.
    fn holding(&self) -> Vec<NodeId> {
        let mut nodes = self.up();
        let plan = self.plan.lock();
        let holding: Vec<NodeId> = plan.order.iter().flat_map(|order| order.order.holding()).collect();
        nodes.retain(|node| holding.contains(node));
        nodes
    }

    fn late(&self) -> MutexGuard<'_, BTreeMap<NodeId, u64>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a node was waited for in vain, and has published nothing since.
    fn is_late(&self, node: NodeId, floor: u64) -> bool {
        let mut late = self.late();
        late.retain(|known, then| *known != node || floor <= *then);
        late.contains_key(&node)
    }

    /// Asks nodes at the same time, for about `wait` at most; what they answered.
    fn ask(&self, nodes: &[NodeId], find: &Find, wait: Duration) -> BTreeMap<NodeId, Found> {
        let (question, timeout) = (find.encode(), wait.min(ASK_TIMEOUT));
        let ask = |node: NodeId| {
            let bytes = self.peers.ask(node, self.root, &question, timeout).ok()?;
            Found::decode(&bytes).map(|found| (node, found))
        };
        let answers: BTreeMap<NodeId, Found> = std::thread::scope(|scope| {
            let Some((first, others)) = nodes.split_first() else { return BTreeMap::new() };
            let thread = || std::thread::Builder::new().name("outputs-ask".to_owned()).stack_size(STACK_BYTES);
            // Where no thread can be had, they are asked in turn.
            let asked: Vec<_> =
                others.iter().map(|&node| thread().spawn_scoped(scope, move || ask(node)).map_err(|_| node)).collect();
            let mut answers: BTreeMap<NodeId, Found> = ask(*first).into_iter().collect();
            for thread in asked {
                answers.extend(match thread {
                    Ok(thread) => thread.join().ok().flatten(),
                    Err(node) => ask(node),
                });
            }
            answers
        });
        if let Some(order) = &mut self.plan.lock().order {
            answers.iter().for_each(|(&node, found)| order.order.has_floor(node, found.floor));
            order.tell_holding();
        }
        answers
    }

    fn tell_late(&self, find: &Find, waited: &BTreeMap<NodeId, Found>) {
        self.late().extend(waited.iter().map(|(&node, found)| (node, found.floor)));
        let nodes = self.peers.nodes();
        let names: Vec<String> =
            nodes.iter().filter(|node| waited.contains_key(&node.number)).map(|node| node.name.to_string()).collect();
        tracing::warn!(
            "output {}: node {} did not publish it in time, so that a process of this node did not find it; see `monarch \
             outputs` there",
            self.plan.staging().info().path().join(String::from_utf8_lossy(&find.path).as_ref()).display(),
            names.join(", ")
        );
    }

    /// Answers processes that come by the socket, until [`Self::stop`].
    pub fn serve(self: &Arc<Self>) {
        for stream in self.listener.incoming() {
            if self.is_stopping.load(Ordering::Acquire) {
                break;
            }
            let Ok(stream) = stream else {
                // No descriptor is left, perhaps.
                std::thread::sleep(MAX_PAUSE);
                continue;
            };
            if self.questions.fetch_add(1, Ordering::AcqRel) >= MAX_QUESTIONS {
                self.questions.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let this = self.clone();
            let work = move || {
                // A process that has gone needs no answer.
                let _ = this.answer(stream);
                this.questions.fetch_sub(1, Ordering::AcqRel);
            };
            let thread = std::thread::Builder::new().name("outputs-find".to_owned()).stack_size(STACK_BYTES);
            if thread.spawn(work).is_err() {
                self.questions.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn answer(&self, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(QUESTION_TIMEOUT))?;
        let mut head = [0; HEAD_LEN];
        stream.read_exact(&mut head)?;
        let (subject, len) = question::parse(head).ok_or(io::ErrorKind::InvalidData)?;
        let mut path = vec![0; len];
        stream.read_exact(&mut path)?;
        let answer = match self.find(&Find { subject, path }) {
            Outcome::NotThere => NOT_THERE,
            Outcome::Published => PUBLISHED,
            Outcome::Unknown => UNKNOWN,
        };
        stream.write_all(&[answer])
    }

    /// Ends [`Self::serve`] and questions that wait.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        // SAFETY: a socket of this value. Wakes the thread that accepts.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

/// A path of the socket that is short enough for an address, wherever the tier is.
fn socket(staging: &StagingDir) -> String {
    format!("/proc/self/fd/{}/{SOCKET}", staging.dir().as_raw_fd())
}

/// Listens in the staging directory.
fn listen(staging: &StagingDir) -> Result<UnixListener, OutputsError> {
    // That of an agent before.
    let _ = unlinkat(staging.dir(), SOCKET, AtFlags::empty());
    UnixListener::bind(socket(staging)).map_err(OutputsError::io("make", &staging.path().join(SOCKET)))
}
