//! An agent in threads of a process that goes on after the agent has ended.

use monarch_core::config::{self, Config, Overrides, SystemProbe};
use monarch_core::session::Session;
use monarch_core::tier::TierDir;
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the threads of an agent may take to end on a busy machine.
const MAX_END_TIME: Duration = Duration::from_secs(30);

/// The configuration of a session with one root and one tier below `dir`.
fn config(dir: &Path) -> Config {
    let make = |name: &str| {
        let path = dir.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path).expect("a directory of the test");
        path
    };
    let (root, tier, runtime) = (make("root"), make("tier"), make("runtime"));
    std::fs::write(root.join("file"), "data").expect("a file of the test");
    let overrides =
        Overrides { roots: vec![root], tiers: vec![format!("{}:64MiB", tier.display())], ..Overrides::default() };
    let mut config = config::load(None, std::iter::empty(), &overrides, &SystemProbe).expect("it is valid").config;
    config.runtime_dir = Some(runtime);
    config
}

/// Starts a session, ends it, and opens its tier again.
fn assert_tier_is_released(config: &Config) {
    let tier = config.tiers.first().expect("one tier");
    let open = || TierDir::open(&tier.name, &tier.path, tier.capacity, tier.keep_free);
    let session = Session::start(config).expect("an agent in this process");
    if let Some(port) = config.cluster.port {
        assert!(TcpListener::bind(("127.0.0.1", port)).is_err(), "the node listens");
    }
    session.wait_for_index(MAX_END_TIME).expect("an index");
    assert!(open().is_err(), "the running agent holds the lock of its tier");
    drop(session);
    let ended = Instant::now();
    while let Err(e) = open() {
        assert!(ended.elapsed() < MAX_END_TIME, "the tier is still locked: {e}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_agent_that_has_ended_releases_its_tiers_while_its_process_runs() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_tier_is_released(&config(dir.path()));
}

/// The tiering engine and the node held each other, so that neither was ever dropped.
#[test]
fn an_agent_of_several_nodes_releases_its_tiers_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let secret = dir.path().join("secret");
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&secret).expect("a file");
    std::io::Write::write_all(&mut file, "5e".repeat(32).as_bytes()).expect("written");
    let mut config = config(dir.path());
    config.cluster.members = vec!["127.0.0.1".to_owned(), "127.0.0.2".to_owned()];
    config.cluster.expected = 2;
    config.cluster.listen = Some("127.0.0.1".to_owned());
    config.cluster.secret_file = Some(secret);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    config.cluster.port = Some(free.port());
    config.cluster.join_timeout = Duration::from_millis(100);
    assert_tier_is_released(&config);
}
