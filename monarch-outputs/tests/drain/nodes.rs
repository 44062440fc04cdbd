//! Several nodes with one PFS: agents that ask each other by calls.

use super::shim::Shim;
use monarch_abi::outputs::question::{self, Subject};
use monarch_outputs::outputs::{AttachedRoot, OutputRootSpec, Outputs, OutputsOptions};
use monarch_outputs::room::TierSpace;
use monarch_outputs::target::DirTarget;
use monarch_outputs::target::doubles::{Call, Fault, Faults, FaultyTarget};
use monarch_storage::sharing::{OutputPeer, OutputPeerState, OutputPeers};
use monarch_storage::tier::Ledger;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long names of other nodes are waited for.
const PEER_WAIT: Duration = Duration::from_secs(10);

/// What carries questions between agents of this process.
#[derive(Default)]
struct Wire {
    agents: Mutex<HashMap<u64, Arc<Outputs>>>,
    states: Mutex<HashMap<u64, OutputPeerState>>,
    cut: Mutex<HashSet<u64>>,
}

struct PeersOf {
    me: u64,
    wire: Arc<Wire>,
}

impl OutputPeers for PeersOf {
    fn me(&self) -> u64 {
        self.me
    }

    fn nodes(&self) -> Vec<OutputPeer> {
        let states = self.wire.states.lock().unwrap();
        let others = states.iter().filter(|(number, _)| **number != self.me);
        others.map(|(&number, &state)| OutputPeer { number, name: format!("node{number}").into(), state }).collect()
    }

    fn ask(&self, node: u64, root: u64, question: &[u8], timeout: Duration) -> io::Result<Vec<u8>> {
        let is_cut = {
            let cut = self.wire.cut.lock().unwrap();
            cut.contains(&node) || cut.contains(&self.me)
        };
        if is_cut {
            std::thread::sleep(timeout);
            return Err(io::ErrorKind::TimedOut.into());
        }
        let agent = self.wire.agents.lock().unwrap().get(&node).cloned();
        let agent = agent.ok_or(io::ErrorKind::ConnectionRefused)?;
        agent.answer(self.me, root, question).ok_or_else(|| io::Error::other("no answer"))
    }
}

/// Nodes 1 to n.
struct Nodes {
    dir: tempfile::TempDir,
    wire: Arc<Wire>,
    faults: Vec<Arc<Faults>>,
    attached: HashMap<u64, AttachedRoot>,
}

impl Nodes {
    fn new(count: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pfs")).unwrap();
        let faults = (0..=count).map(|_| Arc::default()).collect();
        let mut this = Self { dir, wire: Arc::default(), faults, attached: HashMap::new() };
        for number in 1..=count {
            std::fs::create_dir(this.dir.path().join(format!("tier{number}"))).unwrap();
            this.wire.states.lock().unwrap().insert(number, OutputPeerState::Up);
        }
        (1..=count).for_each(|number| this.start(number));
        this
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("pfs")
    }

    fn faults(&self, number: u64) -> &Arc<Faults> {
        &self.faults[number as usize]
    }

    fn spec(&self, number: u64, peer_wait: Duration) -> OutputRootSpec {
        let ledger = Arc::new(Ledger::new(1 << 30, 4096));
        OutputRootSpec {
            root: self.root(),
            tier: "disk".into(),
            outputs_dir: self.dir.path().join(format!("tier{number}/outputs")),
            is_volatile: false,
            is_left: false,
            through: Vec::new(),
            flags: 0,
            max_pending: None,
            peer_wait,
            space: TierSpace {
                reserve: Arc::new(move |bytes| ledger.reserve_bytes(bytes)),
                make_room: Arc::new(|_| false),
            },
        }
    }

    fn start(&mut self, number: u64) {
        let spec = self.spec(number, PEER_WAIT);
        let peers: Arc<dyn OutputPeers> = Arc::new(PeersOf { me: number, wire: self.wire.clone() });
        let outputs = Outputs::new(OutputsOptions { peers: Some(peers), ..OutputsOptions::default() });
        let target = FaultyTarget::new(DirTarget::open(&spec.root).unwrap(), self.faults(number).clone());
        self.attached.insert(number, outputs.attach_to(&spec, Arc::new(target)).unwrap());
        self.wire.agents.lock().unwrap().insert(number, Arc::new(outputs));
    }

    /// The agent of a node is killed.
    fn kill(&self, number: u64) {
        let agent = self.wire.agents.lock().unwrap().remove(&number);
        let began = Instant::now();
        // Others may be asking it.
        let mut agent = agent.unwrap();
        while Arc::get_mut(&mut agent).is_none() {
            assert!(began.elapsed() < Duration::from_secs(5));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn shim(&self, number: u64) -> Shim {
        Shim::new(&self.root(), &self.attached[&number].staging)
    }

    fn agent(&self, number: u64) -> Arc<Outputs> {
        self.wire.agents.lock().unwrap()[&number].clone()
    }

    fn drained(&self, number: u64) {
        let deadline = Some(Instant::now() + Duration::from_secs(60));
        let status = self.agent(number).wait_drained(&self.root(), deadline, |_| ControlFlow::Continue(())).unwrap();
        assert!(!status.is_pending(), "{status:?}");
    }

    fn is_published(&self, name: &str) -> bool {
        self.root().join(name).exists()
    }

    /// Looks on, while `work` runs and until all nodes are drained: whatever is there, all that was
    /// written before is there, too.
    fn in_order(&self, names: &[String], work: impl FnOnce()) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let look = scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let Some(last) = names.iter().rposition(|name| self.is_published(name)) else { continue };
                    let missing: Vec<_> = names[..last].iter().filter(|name| !self.is_published(name)).collect();
                    assert!(missing.is_empty(), "{} is there, and not {missing:?}", names[last]);
                }
            });
            work();
            (1..self.faults.len() as u64).for_each(|number| self.drained(number));
            is_over.store(true, Ordering::Release);
            look.join().unwrap();
        });
        assert!(names.iter().all(|name| self.is_published(name)));
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("f{at:03}")).collect()
}

#[test]
fn what_one_node_has_written_is_published_before_what_another_writes_afterwards() {
    let nodes = Nodes::new(3);
    let names = names(90);
    let shims = [nodes.shim(1), nodes.shim(2), nodes.shim(3)];
    // One has a slow way to the PFS, one an error that passes.
    nodes.faults(2).delay(Call::Write, Duration::from_millis(20));
    nodes.faults(3).add(Fault { call: Call::Rename, after: 5, times: 2, errno: Errno::IO });
    nodes.in_order(&names, || {
        for (at, name) in names.iter().enumerate() {
            shims[at * 7 % 5 % 3].write(name, b"x");
        }
    });
}

#[test]
fn a_file_that_is_closed_without_a_record_comes_before_the_marker_of_another_node() {
    let nodes = Nodes::new(2);
    let names = names(20);
    let (data, marker) = (nodes.shim(1), nodes.shim(2));
    nodes.faults(1).delay(Call::Write, Duration::from_millis(10));
    nodes.in_order(&names, || {
        for pair in names.chunks(2) {
            let mut handle = data.create(&pair[0]);
            handle.file.write_all(b"x").unwrap();
            // As by the end of a process.
            drop(handle);
            marker.write(&pair[1], b"x");
        }
    });
}

#[test]
fn a_silent_node_holds_what_comes_after_it_and_no_call() {
    let nodes = Nodes::new(2);
    let shim = nodes.shim(1);
    nodes.wire.cut.lock().unwrap().insert(2);
    let began = Instant::now();
    for at in 0..5 {
        shim.write(&format!("a{at}"), b"x");
    }
    assert!(began.elapsed() < Duration::from_secs(4), "one wait of a second, not one a call");
    std::thread::sleep(Duration::from_millis(3500));
    assert!(!nodes.is_published("a0"));
    let status = nodes.agent(1).status().remove(0);
    assert_eq!(status.waits_for, ["node2"]);
    assert!(status.held.as_ref().is_some_and(|held| held.contains("node node2")), "{status:?}");
    nodes.wire.cut.lock().unwrap().clear();
    nodes.drained(1);
    assert!(nodes.is_published("a4") && nodes.agent(1).status()[0].held.is_none());
}

#[test]
fn agents_that_are_killed_keep_the_order() {
    let mut nodes = Nodes::new(2);
    let names = names(12);
    let shims = [nodes.shim(1), nodes.shim(2)];
    // Nothing of the first node gets through.
    nodes.faults(1).add(Fault { call: Call::Rename, after: 0, times: u64::MAX, errno: Errno::STALE });
    for (at, name) in names.iter().enumerate() {
        shims[at % 2].write(name, b"x");
    }
    nodes.kill(2);
    nodes.start(2);
    std::thread::sleep(Duration::from_millis(300));
    nodes.kill(1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(names.iter().all(|name| !nodes.is_published(name)));
    nodes.start(1);
    nodes.in_order(&names, || nodes.faults(1).clear());
}

#[test]
fn nodes_that_have_left_or_never_came_are_not_waited_for() {
    let nodes = Nodes::new(3);
    nodes.kill(2);
    nodes.kill(3);
    let states = [(2, OutputPeerState::Absent), (3, OutputPeerState::Expected)];
    nodes.wire.states.lock().unwrap().extend(states);
    let began = Instant::now();
    nodes.shim(1).write("a", b"x");
    nodes.drained(1);
    assert!(began.elapsed() < Duration::from_secs(5) && nodes.is_published("a"));
}

/// What a process on a node gets that asks for a name of other nodes.
fn asks(nodes: &Nodes, number: u64, subject: Subject, path: &str) -> u8 {
    let mut socket = UnixStream::connect(nodes.attached[&number].staging.join(question::SOCKET)).unwrap();
    socket.write_all(&question::head(subject, path.len()).unwrap()).unwrap();
    socket.write_all(path.as_bytes()).unwrap();
    let mut answer = [0xff];
    socket.read_exact(&mut answer).unwrap();
    answer[0]
}

fn holding(nodes: &Nodes, number: u64) -> u32 {
    nodes.shim(number).state().holding_nodes.load(Ordering::Acquire)
}

#[test]
fn a_name_that_another_node_has_written_is_there_when_the_answer_comes() {
    let nodes = Nodes::new(2);
    let writer = nodes.shim(2);
    // Before anything is known of the others, they may have something: then it is known.
    assert_eq!(asks(&nodes, 1, Subject::Name, "other"), question::NOT_THERE);
    assert_eq!(holding(&nodes, 1), 0);
    nodes.faults(2).add(Fault { call: Call::Rename, after: 0, times: 3, errno: Errno::IO });
    let mut open = writer.create("open");
    open.file.write_all(b"half").unwrap();
    writer.write("shard", b"data");
    // The call of the writer has returned: this node was told.
    assert_eq!(holding(&nodes, 1), 1);
    assert!(!nodes.is_published("shard"));
    assert_eq!(asks(&nodes, 1, Subject::Name, "open"), question::NOT_THERE, "it is still written");
    assert_eq!(asks(&nodes, 1, Subject::Name, "shards"), question::NOT_THERE);
    assert_eq!(asks(&nodes, 1, Subject::Name, "shard"), question::PUBLISHED);
    assert!(nodes.is_published("shard"));
    assert_eq!(holding(&nodes, 1), 0, "its floor has risen");
    writer.close(open);
    // It may be published by then.
    asks(&nodes, 1, Subject::Names, "");
    assert!(nodes.is_published("open"));
}

#[test]
fn whether_a_name_is_there_is_unknown_where_its_node_cannot_publish_it_in_time() {
    let nodes = Nodes::new(2);
    let writer = nodes.shim(2);
    nodes.faults(2).add(Fault { call: Call::Rename, after: 0, times: u64::MAX, errno: Errno::IO });
    writer.write("shard", b"data");
    nodes.agent(1).attach(&nodes.spec(1, Duration::from_millis(300))).unwrap();
    let began = Instant::now();
    assert_eq!(asks(&nodes, 1, Subject::Name, "shard"), question::UNKNOWN);
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
    assert_eq!(holding(&nodes, 1), 1);
    // It has published nothing since: no other call waits.
    nodes.agent(1).attach(&nodes.spec(1, Duration::from_secs(60))).unwrap();
    writer.write("another", b"data");
    assert_eq!(asks(&nodes, 1, Subject::Name, "another"), question::UNKNOWN);
    assert!(began.elapsed() < Duration::from_secs(20));
    // A node that has died is not waited for.
    nodes.kill(2);
    assert_eq!(asks(&nodes, 1, Subject::Name, "shard"), question::UNKNOWN);
}
