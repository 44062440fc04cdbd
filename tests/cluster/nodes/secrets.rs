//! Secrets of jobs and of users: what copies are called outlives both.

use super::patient;
use crate::harness::Running;
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use crate::world::Cluster;

/// A cluster whose copies stay for the next job.
fn lasting(nodes: usize) -> Option<Cluster> {
    let plan = Plan::new(nodes).files(120).disk().placement("sharded").set("tiers[0].persist=node");
    patient(plan).build()
}

/// Stages on all nodes, as a job with keys of its own if it has a number, and waits for the end of
/// the agents.
#[track_caller]
fn stage(c: &Cluster, job: Option<&str>) {
    let start = |node: usize| {
        let mut command = c.node(node).monarch("stage");
        command.args(["--quiet", "--config"]).arg(c.shared().join(format!("node{node}/monarch.yaml")));
        command.args(c.site.settings.iter().flat_map(|s| ["--set", s]));
        if let Some(job) = job {
            command.args(["--set", "cluster.job_secret=derived"]).env("MONARCH_JOB_ID", job);
        }
        Running::new(command)
    };
    let all: Vec<Running> = (0..c.len()).map(start).collect();
    for ended in all.into_iter().map(Running::end) {
        assert!(ended.status.success(), "{}{}", ended.text(), ended.errors());
    }
    wait_for("the end of the agents", || c.all().all(|n| n.agent().is_none()));
}

/// Asserts that a job on all nodes reads nothing from the PFS.
#[track_caller]
fn reads_nothing(c: &Cluster) {
    let mark = c.mark();
    c.together(&Reads::epochs(2));
    assert_eq!(c.since(&mark).bytes_read, 0, "{:#?}", c.since(&mark));
    wait_for("the end of the agents", || c.all().all(|n| n.agent().is_none()));
}

#[test]
fn after_a_rotation_copies_are_served_without_a_read_of_the_pfs() {
    let Some(c) = lasting(3) else { return };
    let mark = c.mark();
    stage(&c, None);
    assert_eq!(c.since(&mark).bytes_read, c.bytes());
    let secret = c.site.secret("secret");
    let before = std::fs::read_to_string(&secret).unwrap();
    for _ in 0..2 {
        let mut command = c.node(0).monarch("cluster");
        command.arg("rotate-secret").arg("--config").arg(c.shared().join("node0/monarch.yaml"));
        let ended = Running::new(command).end();
        assert!(ended.status.success() && ended.text().contains("holds a new secret"), "{}", ended.errors());
        let now = std::fs::read_to_string(&secret).unwrap();
        assert_eq!(now.lines().nth(1), Some(format!("former: {}", before.trim_end()).as_str()));
        reads_nothing(&c);
    }
}

#[test]
fn jobs_with_keys_of_their_own_find_each_others_copies() {
    let Some(c) = lasting(3) else { return };
    let mark = c.mark();
    stage(&c, Some("7"));
    assert_eq!(c.since(&mark).bytes_read, c.bytes());
    let mark = c.mark();
    stage(&c, Some("8"));
    assert_eq!(c.since(&mark).bytes_read, 0, "{:#?}", c.since(&mark));
    reads_nothing(&c);
}
