//! The harness itself: links carry, are cut, slow and lost as they should be, nodes run jobs, and
//! no process, mount or file is left behind.

use crate::harness::{Job, Running};
use crate::leftovers::identity;
use crate::net::Net;
use crate::plan::Plan;
use crate::reads::Reads;
use crate::wait::wait_for;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Receives from one connection after the other, and prints the number of bytes.
const SERVER: &str = "import socket, sys
s = socket.create_server((sys.argv[1], 7000)); print('ready', flush=True)
while True:
    c, n = s.accept()[0], 0
    while d := c.recv(1 << 16): n += len(d)
    c.sendall(b'%d' % n); c.close()";
/// Sends a megabyte and waits for the answer.
const CLIENT: &str = "import socket, sys
c = socket.create_connection((sys.argv[1], 7000), 2); c.sendall(bytes(1 << 20)); c.shutdown(1)
assert c.recv(100) == b'1048576'";

fn server(net: &Net, node: usize) -> Running {
    let mut c = net.inside(node, "python3");
    c.args(["-c", SERVER, &net.address(node)]);
    let mut server = Running::new(c);
    server.until_written("ready");
    server
}

/// Seconds that a megabyte takes from one node to another; `None`: it did not arrive.
fn send(net: &Net, from: usize, to: usize) -> Option<f64> {
    let start = Instant::now();
    let out = net.inside(from, "python3").args(["-c", CLIENT, &net.address(to)]).output().unwrap();
    out.status.success().then(|| start.elapsed().as_secs_f64())
}

/// Links, addresses and routes of the caller's namespace.
fn own_network() -> String {
    let ask = |what: &str| Command::new("ip").args(["-o", what]).output().unwrap().stdout;
    // The remaining time of a leased address changes by itself.
    let text: String = ["link", "addr", "route"].map(|w| String::from_utf8_lossy(&ask(w)).into_owned()).concat();
    text.split_whitespace().filter(|w| !w.ends_with("sec")).collect::<Vec<_>>().join(" ")
}

#[test]
fn links_carry_and_are_slow_cut_and_lost() {
    let before = own_network();
    let Some(net) = Net::up(3) else { return };
    assert_eq!(own_network(), before);
    let _servers = [server(&net, 0), server(&net, 1)];
    assert!(send(&net, 1, 0).is_some() && send(&net, 2, 0).is_some());

    net.rate(1, 10);
    let (slow, other) = (send(&net, 1, 0).unwrap(), send(&net, 2, 0).unwrap());
    assert!(slow > 0.6, "a megabyte at 10 Mbit/s took {slow} s");
    assert!(other < slow, "the link of another node took {other} s");
    assert!(send(&net, 0, 1).unwrap() > 0.6);
    net.unshaped(1);
    assert!(send(&net, 1, 0).unwrap() < 0.6);

    net.cut(1);
    assert!(send(&net, 1, 0).is_none() && send(&net, 2, 0).is_some());
    net.join(1);
    wait_for("the link", || send(&net, 1, 0).is_some());

    net.delete(1);
    assert!(net.is_deleted(1) && send(&net, 2, 1).is_none() && send(&net, 2, 0).is_some());
    drop(net);
    assert_eq!(own_network(), before);
}

#[test]
fn links_are_delayed_where_the_kernel_can() {
    let Some(net) = Net::up(2) else { return };
    let _server = server(&net, 0);
    let fast = send(&net, 1, 0).unwrap();
    if net.delay(1, 50_000) {
        let slow = send(&net, 1, 0).unwrap();
        assert!(slow > fast + 0.2, "{fast} s, then {slow} s");
        net.rate(1, 10);
        assert!(send(&net, 1, 0).unwrap() > 0.6);
    }
}

#[test]
fn nodes_that_do_not_share_read_the_data_once_each() {
    let Some(c) = Plan::new(3).files(30).alone().build() else { return };
    let mark = c.mark();
    let outcomes = c.together(&Reads::epochs(3).barrier(&c.barrier()));
    let seen = c.since(&mark);
    assert_eq!((seen.open, seen.bytes_read), (3 * c.files(), 3 * c.bytes()), "{seen:#?}");
    // Agents look at the root itself, too.
    assert!(seen.opendir >= 3 * c.dirs() && seen.opendir <= 3 * (c.dirs() + 3), "{seen:#?}");
    assert!(outcomes.iter().all(|o| o.count() == 3 && o.version("1") == 90), "{outcomes:#?}");
    assert!(outcomes.iter().all(|o| o.slowest() > 0.0 && o.seconds(1) > 0.0), "{outcomes:#?}");
    for node in c.all() {
        let report = fs::read_to_string(node.report()).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&report).unwrap().is_object());
        assert!(node.used() > c.bytes() && node.used() < 64 << 20);
    }
}

#[test]
fn a_wrong_byte_and_a_lost_file_fail_the_job() {
    let Some(c) = Plan::new(1).files(8).alone().build() else { return };
    let files = c.data().clone();
    let victim = fs::read_dir(c.backing().join("d001")).unwrap().flatten().next().unwrap().path();
    let good = fs::read(&victim).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    fs::write(&victim, &bad).unwrap();
    let job = Reads::epochs(1).job(c.root(), &files, 0, 1);
    let ended = c.node(0).start_bare(&job).end();
    assert!(ended.status.code() == Some(1) && ended.text().contains("wrong bytes"), "{}", ended.text());
    fs::remove_file(&victim).unwrap();
    let ended = c.node(0).start_bare(&job).end();
    assert!(ended.status.code() == Some(1) && ended.text().contains("No such file"), "{}", ended.text());
    // Another version as a whole is right when it is announced, and only then.
    c.make("2");
    assert_eq!(c.node(0).start_bare(&job).end().status.code(), Some(1));
    c.node(0).start_bare(&Reads::epochs(1).with(&["--seed", "1,2"]).job(c.root(), &files, 0, 1)).end().good();
}

#[test]
fn agents_are_found_and_signalled_and_a_lost_node_delays_no_other() {
    let Some(c) = Plan::new(3).files(30).alone().build() else { return };
    let over = c.shared().join("over");
    let reads = Reads::until(&over).barrier(&c.barrier());
    let mut jobs = c.skewed(&reads, Duration::from_millis(200));
    jobs.iter_mut().for_each(|job| job.until_written("\"epoch\": 0"));
    let agents: Vec<i32> = c.all().map(|n| n.agent().unwrap()).collect();
    let own = c.node(1).status().unwrap();
    assert_eq!(own.pid as i32, agents[1]);

    let old = c.node(1).signal(libc::SIGKILL);
    assert_ne!(c.node(1).successor(old), old);
    assert_eq!(c.node(0).agent(), Some(agents[0]));
    c.node(2).signal(libc::SIGSTOP);
    let state = || fs::read_to_string(format!("/proc/{}/stat", agents[2])).unwrap();
    wait_for("the stop", || state().contains(") T "));
    c.node(2).signal(libc::SIGCONT);
    wait_for("its end", || !state().contains(") T "));

    c.lose(1);
    drop(jobs.remove(1));
    assert!(c.node(1).agent().is_none());
    let epochs = |job: &Running| job.written().lines().count();
    let want = epochs(&jobs[0]) + 2;
    wait_for("the others", || epochs(&jobs[0]) >= want);
    fs::write(&over, "").unwrap();
    // Ranks may see the end an epoch apart: these files release one that waits for the next.
    fs::write(c.shared().join("barrier1/gone.0"), "").unwrap();
    fs::write(c.shared().join("barrier1/gone.2"), "").unwrap();
    c.end(jobs);
}

/// Also the program that the test runs: it brings a cluster up and is killed.
#[test]
fn a_killed_run_is_cleared_away_by_the_next() {
    if std::env::var_os("MONARCH_CLUSTER_HOLD").is_some() {
        let Some(c) = Plan::new(2).files(4).alone().build() else { return };
        let job = c.node(1).start(&Job::new("sleep").arg("1000"));
        wait_for("an agent", || c.node(1).agent().is_some());
        fs::write(std::env::var_os("MONARCH_CLUSTER_HOLD").unwrap(), c.net().name(1)).unwrap();
        drop(job.end());
        return;
    }
    let Some(first) = Net::up(1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let name_file = dir.path().join("name");
    let mut held = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "itself::a_killed_run_is_cleared_away_by_the_next"])
        .env("MONARCH_CLUSTER_HOLD", &name_file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the other cluster", || fs::read_to_string(&name_file).is_ok_and(|t| !t.is_empty()));
    let namespace = Path::new("/run/netns").join(fs::read_to_string(&name_file).unwrap());
    let pid = held.id();
    held.kill().unwrap();
    held.wait().unwrap();
    let left = || {
        let dirs = ["/tmp", "/dev/shm"].iter().flat_map(|d| fs::read_dir(d).unwrap().flatten());
        dirs.filter(|e| e.file_name().to_string_lossy().starts_with(&format!("monarch-cluster-{pid}-"))).count()
    };
    assert!(left() == 2 && identity(&namespace).is_some());
    let second = Net::up(1).unwrap();
    assert!(!namespace.exists());
    assert_eq!(left(), 0);
    // Leftovers of living processes stay.
    assert!(Path::new("/run/netns").join(first.name(0)).exists() && second.name(0) != first.name(0));
}
