//! The operator's view of the nodes of a job: `monarch status --cluster` and `monarch cluster
//! check`.

use super::{Steady, account, accounts, all_hold, patient};
use crate::harness::{Running, built};
use crate::node::Node;
use crate::plan::Plan;
use crate::wait::wait_for;
use crate::world::Cluster;
use monarch_core::cluster::node::{Link, NodeStatus, Said};
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;
use std::time::{Duration, Instant};

/// Three nodes that have read everything and continue to read.
fn running(placement: &str) -> Option<Steady> {
    let c = patient(Plan::new(3).files(90).placement(placement)).build()?;
    let steady = Steady::start(c);
    steady.more(2);
    Some(steady)
}

fn check(node: Node<'_>, words: &[&str]) -> Output {
    node.monarch("cluster").arg("check").args(words).output().unwrap()
}

fn said(out: &Output) -> (String, String) {
    (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
}

fn addresses(c: &Cluster) -> BTreeSet<String> {
    c.all().map(|n| n.address()).collect()
}

fn statuses(node: Node<'_>) -> Vec<NodeStatus> {
    accounts(node).into_iter().map(|s| s.said.unwrap()).collect()
}

#[test]
fn every_node_says_what_it_owns_and_holds() {
    let Some(steady) = running("hybrid") else { return };
    let c = &steady.c;
    all_hold(c, c.files());
    for node in c.all() {
        let all = statuses(node);
        assert_eq!(all[0].name, node.address(), "this node comes first");
        assert_eq!(all.iter().map(|s| s.name.clone()).collect::<BTreeSet<_>>(), addresses(c));
        let sum = |of: fn(&NodeStatus) -> u64| all.iter().map(of).sum::<u64>();
        assert_eq!(
            (sum(|s| s.owned.0), sum(|s| s.owned.1)),
            (c.files(), c.bytes()),
            "each file has one owner: {all:#?}"
        );
        for s in &all {
            assert!(s.owned.0 > 0 && s.held == (c.files(), c.bytes()), "{s:#?}");
            assert_eq!(s.held_of_others.0 + s.owned.0, c.files(), "{s:#?}");
            assert!(s.capacity.0 == 64 << 20 && s.capacity.1 > c.bytes() && s.damaged == 0, "{s:#?}");
            assert!(s.indexes.len() == 1 && s.indexes == all[0].indexes && s.peers.len() == 2, "{s:#?}");
            assert!(s.peers.iter().all(|p| p.state == "up" && p.address.is_some()), "{s:#?}");
        }
        // A node got the files that it does not own from peers, once.
        let of_peers = |of: fn(&monarch_core::cluster::node::Traffic) -> u64| {
            all.iter().flat_map(|s| &s.peers).map(|p| of(&p.traffic)).sum::<u64>()
        };
        assert_eq!(of_peers(|t| t.received_bytes), 2 * c.bytes(), "{all:#?}");
        // (On a busy machine a node may be asked before it has the index.)
        assert!(of_peers(|t| t.failed) <= 6, "{all:#?}");
        assert_eq!(of_peers(|t| t.sent_bytes), 2 * c.bytes(), "{all:#?}");
    }
    let (text, _) = said(&c.node(1).monarch("status").arg("--cluster").output().unwrap());
    assert!(text.lines().count() == 4 && addresses(c).iter().all(|a| text.contains(a.as_str())), "{text}");
    assert!(text.contains("here") && text.matches(" up ").count() == 2, "{text}");
    steady.end();
}

#[test]
fn under_sharded_what_passes_through_is_counted_as_traffic() {
    let Some(steady) = running("sharded") else { return };
    let c = &steady.c;
    let all = statuses(c.node(0));
    assert_eq!(all.iter().map(|s| s.owned.0).sum::<u64>(), c.files());
    for s in &all {
        assert!(s.held.0 >= s.owned.0, "{s:#?}");
        assert!(s.peers.iter().all(|p| p.traffic.received_bytes > 0 && p.traffic.sent_bytes > 0), "{s:#?}");
    }
    steady.end();
}

#[test]
fn a_check_of_a_sound_cluster_finds_all_links_good() {
    let Some(steady) = running("hybrid") else { return };
    let c = &steady.c;
    let out = check(c.node(1), &["--json"]);
    let (text, errors) = said(&out);
    assert_eq!((out.status.code(), errors.as_str()), (Some(0), ""), "{text}");
    let all: Vec<Said<Vec<Link>>> = serde_json::from_str(&text).unwrap();
    assert_eq!(all.iter().map(|s| s.node.clone()).collect::<BTreeSet<_>>(), addresses(c));
    for of in &all {
        let links = of.said.as_ref().unwrap();
        let mut ends: BTreeSet<String> = links.iter().map(|l| l.to.clone()).collect();
        ends.insert(of.node.clone());
        assert!(ends == addresses(c) && links.len() == 2, "{of:#?}");
        for l in links {
            assert!(l.error.is_none() && (1..1_000_000).contains(&l.round_trip_us), "{l:#?}");
            assert!(l.bytes_per_second > 1 << 20 && l.clock_ahead_ms.abs() < 1000, "{l:#?}");
            assert!(l.version == env!("CARGO_PKG_VERSION") && l.indexes.len() == 1, "{l:#?}");
        }
    }
    let out = check(c.node(0), &[]);
    let (text, _) = said(&out);
    assert!(out.status.success() && addresses(c).iter().all(|a| text.contains(a.as_str())), "{text}");
    steady.end();
}

#[test]
fn a_node_that_is_cut_off_is_named() {
    cut_off(Plan::new(3).files(90));
}

/// Longer than the command itself waits for its agent.
#[test]
fn a_node_that_is_cut_off_is_named_with_long_timeouts() {
    cut_off(Plan::new(3).files(90).cluster("peer_timeout: 20s"));
}

#[track_caller]
fn cut_off(plan: Plan) {
    let Some(c) = plan.build() else { return };
    let steady = Steady::start(c);
    steady.more(2);
    let c = &steady.c;
    c.net().cut(2);
    let all = accounts(c.node(0));
    let start = Instant::now();
    let out = check(c.node(0), &[]);
    let ((text, errors), lost) = (said(&out), c.node(2).address());
    assert_eq!(out.status.code(), Some(3), "{text}{errors}");
    assert!(errors.contains(&format!("{lost} does not answer")), "{errors}");
    assert!(errors.contains(&format!("{} cannot reach {lost}", c.node(1).address())), "{errors}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    // The other nodes are listed, and it with the reason: before any peer has noticed, and after.
    for all in [all, accounts(c.node(0))] {
        assert_eq!(all.iter().map(|s| s.node.clone()).collect::<BTreeSet<_>>(), addresses(c), "{all:#?}");
        assert!(all.iter().all(|s| s.said.is_err() == (s.node == lost)), "{all:#?}");
    }
    c.net().join(2);
    wait_for("a good check", || check(c.node(0), &[]).status.success());
    steady.end();
}

#[test]
fn without_an_agent_there_is_nothing_to_check() {
    let Some(c) = Plan::new(2).files(4).build() else { return };
    let out = check(c.node(0), &[]);
    assert_eq!(out.status.code(), Some(4), "{:?}", said(&out));
    let out = c.node(0).monarch("status").arg("--cluster").output().unwrap();
    assert_eq!(out.status.code(), Some(4), "{:?}", said(&out));
}

#[test]
fn check_says_how_an_agent_that_works_alone_can_join() {
    let Some(c) = Plan::new(1).files(4).alone().build() else { return };
    let steady = Steady::start(c);
    for out in [check(steady.c.node(0), &[]), steady.c.node(0).monarch("status").arg("--cluster").output().unwrap()] {
        let (text, errors) = said(&out);
        assert_eq!((out.status.code(), text.as_str()), (Some(3), ""), "{errors}");
        assert!(errors.contains("works alone") && errors.contains("discovery: auto"), "{errors}");
    }
    steady.end();
}

/// A job on the first node, with its standard error.
#[track_caller]
fn run(c: &Cluster, words: &[&str], command: &[&str]) -> String {
    let mut run = c.node(0).monarch("run");
    let config = c.shared().join("node0/monarch.yaml");
    let ended = Running::new({
        run.arg("--config").arg(config).args(words).arg("--").args(command);
        run
    })
    .end();
    assert!(ended.status.success(), "{}", ended.errors());
    ended.errors()
}

/// A secret that others could read is refused: `run` says so, not only the agent's log, and so do
/// the commands that ask for the nodes. At the end it names the nodes that it never heard of.
#[test]
fn a_job_is_told_why_its_node_cannot_share() {
    let Some(c) = Plan::new(2).files(4).build() else { return };
    let secret = c.site.secret("secret");
    std::fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let monarch = built("monarch");
    let config = c.shared().join("node0/monarch.yaml");
    let script = format!(
        "{0} cluster check --config {1}; {0} status --cluster --config {1}",
        monarch.display(),
        config.display()
    );
    for quiet in [&[][..], &["--quiet"]] {
        let errors = run(&c, quiet, &["sh", "-c", &format!("{script}; true")]);
        let said = "warning: this node shares nothing with the others of its job: ";
        let lines: Vec<&str> = errors.lines().filter(|line| line.contains(said)).collect();
        assert!(lines.len() == 3 && lines.iter().all(|line| line.contains("chmod 600")), "{errors}");
    }
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    wait_for("the end of the agent", || c.node(0).agent().is_none());
    for quiet in [&["--set", "cluster.join_timeout=1s"][..], &["--set", "cluster.join_timeout=1s", "--quiet"]] {
        let errors = run(&c, quiet, &["sleep", "3"]);
        let other = c.node(1).address();
        let said = format!("has shared nothing with 1 of the job's 1 other node, of which it never heard ({other})");
        assert!(errors.contains(&said), "{errors}");
        wait_for("the end of the agent", || c.node(0).agent().is_none());
    }
}

#[test]
fn a_node_that_was_not_started_yet_is_expected() {
    let Some(c) = Plan::new(2).files(8).build() else { return };
    let over = c.shared().join("over");
    let jobs = c.start_indexed([0], &crate::reads::Reads::until(&over));
    let mine = account(c.node(0));
    assert_eq!(mine.peers[0].state, "expected", "{mine:#?}");
    let out = check(c.node(0), &[]);
    let (text, errors) = said(&out);
    assert!(out.status.code() == Some(3) && errors.contains(&c.node(1).address()), "{text}{errors}");
    std::fs::write(&over, "").unwrap();
    c.end(jobs);
}
