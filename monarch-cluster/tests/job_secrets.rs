//! Real nodes in one process: those of two jobs of a user refuse each other, and call copies alike.

use monarch_cluster::http::{Key, Peer, PeerOptions, Refusal, Senders, Tls, WireError};
use monarch_cluster::node::Node;
use monarch_cluster::secret::{JobSecret, UserSecret};
use monarch_config::{Config, Encryption, JobSecretSource, Overrides, SystemProbe};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Names of the nodes, which have one port.
const NAMES: [&str; 3] = ["127.0.0.5", "127.0.0.6", "127.0.0.7"];
/// How long nodes may take to see each other on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// The configuration of a node of a job.
fn config(dir: &Path, me: usize, port: u16, job: &str) -> Config {
    let file = dir.join("monarch.yaml");
    let text =
        format!("dataset: {{ roots: [{0}/root] }}\ntiers: [{{ path: {0}/tier, capacity: 1GiB }}]\n", dir.display());
    std::fs::create_dir_all(dir.join("root")).unwrap();
    std::fs::write(&file, text).unwrap();
    let loaded = monarch_config::load(Some(&file), std::iter::empty(), &Overrides::default(), &SystemProbe);
    let mut config = loaded.unwrap().config;
    let cluster = &mut config.cluster;
    (cluster.members, cluster.me, cluster.expected) = (NAMES.map(str::to_owned).to_vec(), me, NAMES.len());
    (cluster.port, cluster.secret_file) = (Some(port), Some(dir.join("secret")));
    cluster.job_secret = JobSecretSource::Derived;
    cluster.job = Some(format!("SLURM_JOB_ID={job}"));
    config
}

/// Whether a node has heard these nodes and no other.
fn has_heard(node: &Node, me: &str, names: &[&str]) -> bool {
    let view = node.view();
    let is_up = |name: &&&str| view.number(name).is_some_and(|number| view.is_up(number));
    NAMES.iter().filter(|name| **name != me).filter(is_up).copied().eq(names.iter().copied())
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is() {
        assert!(began.elapsed() < MAX_WAIT, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Two nodes of job 7 and one of job 8, with the same list, the same port and the same user.
fn two_jobs(encryption: Encryption) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap();
    let port = std::net::TcpListener::bind((NAMES[0], 0)).unwrap().local_addr().unwrap().port();
    let start = |me: usize, job: &str| {
        let mut config = config(&dir, me, port, job);
        config.cluster.encryption = encryption;
        Node::start(&config).unwrap().expect("one of several")
    };
    let nodes = [start(0, "7"), start(1, "7"), start(2, "8")];
    until("the two nodes of job 7 to hear each other", || {
        has_heard(&nodes[0], NAMES[0], &[NAMES[1]]) && has_heard(&nodes[1], NAMES[1], &[NAMES[0]])
    });
    // Gossip: the node of job 8 sends to both, which take it for a forger.
    let bound = Instant::now() + Duration::from_secs(2);
    while Instant::now() < bound {
        assert!(has_heard(&nodes[0], NAMES[0], &[NAMES[1]]) && has_heard(&nodes[2], NAMES[2], &[]));
        std::thread::sleep(Duration::from_millis(50));
    }
    // Connections: the node of job 8 refuses proofs and keys of job 7, and takes those of its own.
    let user = UserSecret::load(Some(&dir.join("secret")), &|_| None).unwrap();
    let ask = |job: &str| {
        let secret = JobSecret::numbered(&user, &format!("SLURM_JOB_ID={job}"));
        let tls = (encryption == Encryption::Tls).then(|| Tls::new(&secret.tls()).unwrap());
        let (my_name, its_name) = (NAMES[0].to_owned(), NAMES[2].to_owned());
        let (key, peer_timeout) = (Key::new(secret.connections()), Duration::from_secs(2));
        let addr = (NAMES[2].parse::<IpAddr>().unwrap(), port).into();
        let peer = Peer::new(PeerOptions {
            encryption: tls,
            senders: Senders::default(),
            idle: 1,
            addr,
            my_name,
            its_name,
            key,
            peer_timeout,
        });
        peer.unwrap().get("/v1/status", None, 0, MAX_WAIT).map(drop)
    };
    let refused = ask("7");
    assert!(matches!(refused, Err(WireError::Unauthenticated { .. })), "{refused:?}");
    ask("8").unwrap();
    until("the refusal to be counted", || {
        nodes[2].server_metrics().is_some_and(|metrics| metrics.refused(Refusal::BadProof) > 0)
    });
    // Names of copies are those of the user.
    assert!(nodes.iter().all(|node| node.seed() == nodes[0].seed()));
    nodes.iter().for_each(Node::stop);
}

#[test]
fn nodes_of_two_jobs_of_a_user_refuse_each_other_and_call_copies_alike() {
    two_jobs(Encryption::None);
}

#[test]
fn nodes_of_two_jobs_of_a_user_refuse_each_other_with_encryption_too() {
    two_jobs(Encryption::Tls);
}
