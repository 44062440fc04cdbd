//! A client without the secret gets nothing from an agent's port, a client with it gets indexed
//! files only, and running jobs do not notice.

use super::{Steady, account, all_hold, patient};
use crate::harness::sources;
use crate::node::Node;
use crate::plan::Plan;
use crate::world::Cluster;
use monarch_core::cluster::secret::{JobSecret, UserSecret};
use serde_json::Value;
use std::fs;

/// The port to ask, and the secret of a member of the job.
pub struct Door {
    pub port: u16,
    key: String,
}

pub fn door(c: &Cluster) -> Door {
    let secret = JobSecret::of_user(&UserSecret::load(Some(&c.site.secret("secret")), &|_| None).unwrap());
    let members: Vec<String> = c.all().map(|n| n.address()).collect();
    let key = secret.connections().iter().map(|b| format!("{b:02x}")).collect();
    Door { port: secret.port(&members), key }
}

fn log(node: Node<'_>) -> String {
    let inside = |dir| fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path());
    let logs = inside(node.runtime()).flat_map(inside).map(|dir| dir.join("agent.log"));
    logs.filter_map(|path| fs::read_to_string(path).ok()).collect()
}

/// Answers to `stranger.py`, run in the namespace of one node, by the agent of another.
fn strange(c: &Cluster, from: usize, to: usize) -> Value {
    let (door, index) = (door(c), account(c.node(to)).indexes[0].clone());
    let mut command = c.net().inside(from, "python3");
    let (at, port, me) = (c.node(to).address(), door.port.to_string(), c.node(from).address());
    command.arg(sources().join("stranger.py")).args([&at, &port, &door.key, &index, &me]);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn expected(case: &str) -> &'static [u64] {
    match case {
        "and is shut" | "silent" => &[0],
        "head too large" | "many headers" => &[431],
        "body too large" | "member large body" => &[413],
        // The hello of TLS, to a node that does not encrypt.
        "garbage" => &[426],
        "no host" | "two lengths" | "no sense" => &[400, 401],
        "chunked" => &[501],
        "old version" => &[505],
        "another method" => &[405],
        "member range" => &[416],
        "member index" | "member nothing" => &[404],
        "member probe" | "member short index" => &[400],
        _ if case.contains(" path ") => &[400],
        _ if case.starts_with("stranger") || case.starts_with("replayed") => &[401],
        _ if case.starts_with("changed") => &[401],
        "wrong key" | "asked three times" => &[401],
        "rogue member" => &[403],
        "member good file" => &[200],
        // No number of a file; a number beyond the index; a directory.
        _ if case.starts_with("member file") => &[400, 404],
        _ => &[400],
    }
}

#[test]
fn strangers_get_nothing_and_members_get_files_only() {
    let Some(c) = patient(Plan::new(3).files(60).placement("hybrid")).build() else { return };
    let steady = Steady::start(c);
    steady.more(1);
    let c = &steady.c;
    all_hold(c, c.files());
    let (mark, agents) = (c.mark(), c.all().map(|n| n.agent()).collect::<Vec<_>>());
    let answers = strange(c, 2, 0);
    let mut wrong = String::new();
    for (case, answer) in answers.as_object().unwrap() {
        let (status, body) = (answer["status"].as_u64().unwrap(), answer["body"].as_str().unwrap());
        let bad = !expected(case).contains(&status) || answer["odd"] != serde_json::json!([]) || body.contains("root:");
        // A refusal is a line; no refusal contains the name of an index or of a node of the job.
        if bad || (status == 401 && body.contains("10.")) {
            wrong += &format!("{case}: {answer}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(answers["member good file"]["tag"], true);
    let seconds: f64 = answers["silent"]["body"].as_str().unwrap().parse().unwrap();
    assert!(seconds < 6.0, "connections that say nothing were kept for {seconds} s");
    // The jobs did not notice.
    steady.more(2);
    assert_eq!(c.since(&mark).open, 0);
    assert_eq!(c.all().map(|n| n.agent()).collect::<Vec<_>>(), agents);
    refusals_are_logged_once(c);
    steady.end();
}

/// A line for each kind of refusal and address, however often it happens.
#[track_caller]
fn refusals_are_logged_once(c: &Cluster) {
    let log = log(c.node(0));
    let lines = |kind: &str| {
        let of = |l: &&str| l.contains("refused") && l.contains(&format!("kind=\"{kind}\""));
        log.lines().filter(of).filter(|l| l.contains(&c.node(2).address())).count()
    };
    for kind in ["unauthenticated", "bad_proof", "replayed", "malformed", "path", "head_too_large", "body_too_large"] {
        assert_eq!(lines(kind), 1, "{kind}:\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
    assert!(!log.contains(&door(c).key), "the key is in the log");
}

/// Files that other nodes own come encrypted, and each byte leaves the PFS once as without; a node
/// that does not encrypt is told so.
#[test]
fn nodes_that_encrypt_read_each_byte_once_and_take_no_plain_request() {
    let plan = Plan::new(3).files(120).tier_size("4MiB").placement("sharded").cluster("encryption: tls");
    let Some(c) = patient(plan).build() else { return };
    let mark = c.mark();
    let steady = Steady::start(c);
    steady.more(2);
    let c = &steady.c;
    assert_eq!(c.since(&mark).bytes_read, c.bytes());
    let (at, port) = (c.node(0).address(), door(c).port);
    let script =
        format!("exec 3<>/dev/tcp/{at}/{port}; printf 'HEAD / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; cat <&3");
    let out = c.net().inside(2, "bash").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.starts_with("HTTP/1.1 426 ") && text.contains("cluster.encryption: tls"), "{text}");
    let log = log(c.node(0));
    assert_eq!(log.matches("kind=\"unencrypted\"").count(), 1, "{log}");
    steady.end();
}
