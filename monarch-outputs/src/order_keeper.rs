//! Keeps the order of one output root among the nodes: asks the others for their clocks before
//! calls return, and for their floors while they hold the first entry.
//!
//! The keeper sleeps on the counter of records, as the drain does. Each node is asked by a thread
//! of its own, which ends when it has had nothing to do for a while.

use crate::order::{Answer, Ask, NodeId};
use crate::shared_plan::{PlanState, SharedPlan};
use crate::sys::now_ns;
use monarch_storage::sharing::{OutputPeer, OutputPeerState, OutputPeers};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a call waits for nodes that do not answer.
const ROUND_TIMEOUT: Duration = Duration::from_secs(1);
/// First pause between two questions for a floor.
const MIN_FLOOR_PAUSE: Duration = Duration::from_millis(2);
/// Longest one: a node that is waited for tells when its floor has risen.
const MAX_FLOOR_PAUSE: Duration = Duration::from_millis(200);
/// Pause after a question that failed.
const FAILURE_PAUSE: Duration = Duration::from_millis(250);
/// How often the keeper looks which nodes there are, while it sleeps.
const MEET_EVERY: Duration = Duration::from_secs(1);
/// How long a thread that asks a node stays without a question.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// When a question that is not answered is put again: a thread that ends may lose one.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// Stack of such a thread, in bytes.
const STACK_BYTES: usize = 256 << 10;
/// How long a node is silent before the status says so.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// What the keeper tells others: for which nodes the first entry waits.
#[derive(Debug, Default)]
pub struct OrderView(Mutex<Vec<WaitedNode>>);

/// A node that the first entry waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitedNode {
    /// Its name.
    pub name: String,
    /// Since when it does not answer, and why, if it does not.
    pub silent: Option<(Instant, String)>,
}

impl OrderView {
    fn lock(&self) -> MutexGuard<'_, Vec<WaitedNode>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes that the first entry waits for.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().iter().map(|node| node.name.clone()).collect()
    }

    /// Why nothing is published, if that is a node which does not answer.
    #[must_use]
    pub fn held(&self) -> Option<String> {
        let waited = self.lock();
        let silent = waited.iter().find_map(|node| Some((&node.name, node.silent.as_ref()?)));
        let (name, (since, why)) = silent.filter(|(_, (since, _))| since.elapsed() >= TELL_AFTER)?;
        Some(format!(
            "node {name}, which may have to publish before this one, does not answer since {} s ({why}); if it does \
             not come back, run `monarch recover` there, and here when the job has ended",
            since.elapsed().as_secs()
        ))
    }
}

/// Answers that came, and failures.
type Replies = Arc<Mutex<Vec<(NodeId, io::Result<Answer>)>>>;

/// A node of the order.
#[derive(Debug)]
struct Node {
    name: Arc<str>,
    questions: Option<SyncSender<Ask>>,
    /// When the question was put that is not answered yet.
    asked: Option<Instant>,
    due: Instant,
    pause: Duration,
    silent: Option<(Instant, String)>,
}

/// The keeper of one output root.
pub struct OrderKeeper {
    plan: Arc<SharedPlan>,
    peers: Arc<dyn OutputPeers>,
    root: u64,
    view: Arc<OrderView>,
    replies: Replies,
    nodes: BTreeMap<NodeId, Node>,
    /// Nodes without an agent, until they are up.
    refused: HashSet<NodeId>,
}

impl std::fmt::Debug for OrderKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrderKeeper").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl OrderKeeper {
    /// The keeper of an output root whose path has the hash `root`.
    #[must_use]
    pub fn new(plan: Arc<SharedPlan>, peers: Arc<dyn OutputPeers>, root: u64, view: Arc<OrderView>) -> Self {
        let (replies, nodes, refused) = (Replies::default(), BTreeMap::new(), HashSet::new());
        Self { plan, peers, root, view, replies, nodes, refused }
    }

    /// Keeps the order until it is to stop.
    pub fn run(mut self, is_stopping: &AtomicBool) {
        let state = self.plan.staging().state();
        while !is_stopping.load(Ordering::Acquire) {
            let seen = state.appended.load(Ordering::Acquire);
            let pause = self.turn();
            if is_stopping.load(Ordering::Acquire) {
                break;
            }
            self.plan.staging().sleep(seen, pause);
        }
    }

    /// Goes round once. How long the keeper may sleep when nothing happens.
    fn turn(&mut self) -> Duration {
        let plan = self.plan.clone();
        let mut plan = plan.lock();
        self.meet(&mut plan);
        // The drain tells of a journal that cannot be read.
        let _ = plan.read(self.plan.staging());
        let held_before = self.holders(&plan);
        self.take_replies(&mut plan);
        let has_keys = self.settle(&mut plan);
        let held = self.holders(&plan);
        let pause = self.ask(&mut plan);
        if let Some(order) = &mut plan.order {
            order.tell_holding();
        }
        drop(plan);
        self.tell(&held);
        if has_keys || held != held_before {
            self.plan.staging().map().notify_agent();
        }
        if has_keys {
            self.plan.staging().map().notify_processes();
        }
        pause
    }

    /// Takes in nodes that may have something to publish, and leaves out those that have not.
    fn meet(&mut self, plan: &mut PlanState) {
        let Some(order) = &mut plan.order else { return };
        let mut silent = BTreeSet::new();
        for OutputPeer { number, name, state } in self.peers.nodes() {
            if state != OutputPeerState::Up {
                silent.insert(number);
            }
            let is_known = self.nodes.contains_key(&number);
            let is_one = match state {
                OutputPeerState::Up => true,
                OutputPeerState::Expected => is_known || !self.refused.contains(&number),
                OutputPeerState::Silent => is_known,
                OutputPeerState::Absent => false,
            };
            if is_one && !is_known {
                self.refused.remove(&number);
                order.order.join(number);
                let (due, pause) = (Instant::now(), MIN_FLOOR_PAUSE);
                let node = Node { name, questions: None, asked: None, due, pause, silent: None };
                self.nodes.insert(number, node);
            } else if !is_one && (is_known || state == OutputPeerState::Absent) {
                order.order.leave(number);
                self.nodes.remove(&number);
            }
        }
        order.set_silent(silent);
    }

    fn take_replies(&mut self, plan: &mut PlanState) {
        let Some(order) = &mut plan.order else { return };
        let replies = std::mem::take(&mut *self.replies.lock().unwrap_or_else(PoisonError::into_inner));
        let states: HashMap<NodeId, OutputPeerState> = if replies.iter().any(|(_, reply)| reply.is_err()) {
            self.peers.nodes().into_iter().map(|peer| (peer.number, peer.state)).collect()
        } else {
            HashMap::new()
        };
        for (number, reply) in replies {
            let Some(node) = self.nodes.get_mut(&number) else { continue };
            let now = Instant::now();
            node.asked = None;
            match reply {
                Ok(answer) => {
                    node.silent = None;
                    node.due = now + node.pause;
                    node.pause = (node.pause * 2).min(MAX_FLOOR_PAUSE);
                    order.order.answered(number, answer);
                }
                // No agent has been there in this agent's time: nothing is pending there.
                Err(e)
                    if e.kind() == io::ErrorKind::ConnectionRefused
                        && states.get(&number) == Some(&OutputPeerState::Expected) =>
                {
                    self.refused.insert(number);
                    self.nodes.remove(&number);
                    order.order.leave(number);
                }
                Err(e) => {
                    node.due = now + FAILURE_PAUSE;
                    let since = node.silent.as_ref().map_or(now, |(since, _)| *since);
                    node.silent = Some((since, e.to_string()));
                }
            }
        }
    }

    /// Begins a round for new entries, and ends it when all nodes have answered or are silent.
    /// Whether entries have got keys.
    fn settle(&mut self, plan: &mut PlanState) -> bool {
        let last = plan.planner.last_seq();
        let Some(order) = &mut plan.order else { return false };
        let mut did = false;
        loop {
            order.order.begin_round(now_ns().saturating_add(ROUND_TIMEOUT.as_nanos() as u64));
            let is_silent = |number: NodeId| self.nodes.get(&number).is_none_or(|node| node.silent.is_some());
            let now = if order.order.awaited().all(is_silent) { u64::MAX } else { now_ns() };
            let Some(settled) = order.order.outcome(now) else { break };
            if let Err(e) = order.settle(&settled) {
                // Its calls wait, and the drain publishes nothing: as with a journal that cannot be
                // read.
                tracing::warn!("the log of keys cannot be written: {e}");
                break;
            }
            did = true;
        }
        order.publish_keyed(last) || did
    }

    /// The nodes that the first entry waits for.
    fn holders(&self, plan: &PlanState) -> Vec<NodeId> {
        let is_pending = !plan.planner.is_drained();
        plan.order.as_ref().filter(|_| is_pending).map_or_else(Vec::new, |order| order.order.holders())
    }

    /// Asks all nodes whose answers are needed and due. When the next question is due.
    fn ask(&mut self, plan: &mut PlanState) -> Duration {
        let is_pending = !plan.planner.is_drained();
        let Some(order) = &mut plan.order else { return MEET_EVERY };
        order.keep_clock();
        let order = &mut order.order;
        let awaited: HashSet<NodeId> = order.awaited().collect();
        let (now, mut next) = (Instant::now(), MEET_EVERY);
        let context = (self.peers.clone(), self.plan.clone(), self.replies.clone(), self.root);
        for (&number, node) in &mut self.nodes {
            let (is_awaited, is_awaiting) = (awaited.contains(&number), order.is_awaited_by(number));
            let question = order.ask(number).filter(|_| is_awaited || is_awaiting || is_pending);
            let Some(question) = question else {
                node.pause = MIN_FLOOR_PAUSE;
                continue;
            };
            if node.asked.is_some_and(|at| now - at < LOST_AFTER) {
                continue;
            }
            // A call waits for the answer, or the node for this one's floor.
            if ((is_awaited || is_awaiting) && node.silent.is_none()) || node.due <= now {
                node.asked = node.send(number, question, &context).then_some(now);
                if node.asked.is_some_and(|at| now - at < LOST_AFTER) {
                    order.asked(number);
                }
            } else {
                next = next.min(node.due - now);
            }
        }
        if awaited.is_empty() { next } else { next.min(ROUND_TIMEOUT / 10) }
    }

    fn tell(&self, held: &[NodeId]) {
        let nodes = held.iter().filter_map(|number| self.nodes.get(number));
        let waited = nodes.map(|node| WaitedNode { name: node.name.to_string(), silent: node.silent.clone() });
        *self.view.lock() = waited.collect();
    }
}

/// What a thread that asks needs.
type Context = (Arc<dyn OutputPeers>, Arc<SharedPlan>, Replies, u64);

impl Node {
    /// Hands a question to the thread that asks this node; whether that worked.
    fn send(&mut self, number: NodeId, question: Ask, context: &Context) -> bool {
        if let Some(questions) = &self.questions {
            match questions.try_send(question) {
                Ok(()) => return true,
                Err(TrySendError::Full(_)) => return false,
                Err(TrySendError::Disconnected(_)) => {}
            }
        }
        let (questions, inbox) = sync_channel(1);
        let context = context.clone();
        let thread = std::thread::Builder::new().name("outputs-ask".to_owned()).stack_size(STACK_BYTES);
        if thread.spawn(move || ask_one(number, &inbox, &context)).is_err() {
            return false;
        }
        let is_sent = questions.try_send(question).is_ok();
        self.questions = Some(questions);
        is_sent
    }
}

/// Asks one node as long as there are questions.
fn ask_one(number: NodeId, inbox: &Receiver<Ask>, (peers, plan, replies, root): &Context) {
    loop {
        let question = match inbox.recv_timeout(IDLE_TIME) {
            Ok(question) => question,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        };
        let answer = peers.ask(number, *root, &question.encode(), ROUND_TIMEOUT).and_then(|bytes| {
            let other = || io::Error::new(io::ErrorKind::InvalidData, "it runs another version of Monarch");
            Answer::decode(&bytes).ok_or_else(other)
        });
        replies.lock().unwrap_or_else(PoisonError::into_inner).push((number, answer));
        plan.staging().map().notify_agent();
    }
}
