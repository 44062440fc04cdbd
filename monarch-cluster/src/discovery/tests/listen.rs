//! Where a node listens.

use super::super::*;
use super::strings;

fn cluster(listen: Option<&str>, members: &[&str]) -> Cluster {
    Cluster { listen: listen.map(str::to_owned), members: strings(members), ..Cluster::default() }
}

/// The node `a`, with Ethernet and InfiniBand; its name leads to the former.
fn local() -> FakeLocal {
    FakeLocal::default()
        .interface("lo", "127.0.0.1")
        .interface("eth0", "192.168.0.7")
        .interface("ib0", "fe80::7")
        .interface("ib0", "10.1.2.3")
        .name("a", &["127.0.1.1", "192.168.0.7"])
        .name("b", &["192.168.0.8"])
        .name("localhost", &["127.0.0.1"])
}

#[track_caller]
fn at(listen: Option<&str>, members: &[&str], local: &FakeLocal) -> String {
    listen_address(&cluster(listen, members), local).map_or_else(|error| error.to_string(), |found| found.to_string())
}

/// A pod has its own name in `/etc/hosts`; DNS has those of all pods some seconds later.
#[test]
fn where_its_host_name_leads_while_its_name_among_the_nodes_leads_nowhere() {
    let pod = FakeLocal::default().called("train-1").interface("eth0", "10.244.1.9").name("train-1", &["10.244.1.9"]);
    let mut job =
        Cluster { discovery: Discovery::Static, nodes: strings(&["train-[0-3].train"]), ..Cluster::default() };
    discover(&mut job, &|_| None, &pod).unwrap();
    assert_eq!((job.members[3].as_str(), job.me), ("train-3.train", 1));
    assert_eq!(listen_address(&job, &pod).unwrap().to_string(), "10.244.1.9");
}

#[test]
fn where_it_is_told_to() {
    for (listen, address) in [
        ("ib0", "10.1.2.3"),
        ("eth0", "192.168.0.7"),
        ("10.0.0.0/8", "10.1.2.3"),
        ("10.1.2.3/32", "10.1.2.3"),
        ("192.168.0.7", "192.168.0.7"),
        ("fe80::/10", "fe80::7"),
    ] {
        assert_eq!(at(Some(listen), &["a", "b"], &local()), address, "{listen}");
    }
    for listen in ["ib1", "10.2.0.0/16", "172.16.0.1", "fd00::/8"] {
        let said = at(Some(listen), &["a", "b"], &local());
        assert!(said.contains("this node has 127.0.0.1 (lo), 192.168.0.7 (eth0)"), "{said}");
    }
}

#[test]
fn where_its_name_leads() {
    assert_eq!(at(None, &["a", "b"], &local()), "192.168.0.7");
    let debian = local().name("a", &["127.0.1.1"]);
    assert_eq!(at(None, &["a", "b"], &debian.clone().route("192.168.0.7")), "192.168.0.7", "as it reaches the others");
    let said = at(None, &["a", "b"], &debian);
    assert!(said.contains("the name of this node, a, leads to no address of its own"), "{said}");
    let said = at(None, &["a", "b"], &debian.route("127.0.0.1"));
    assert!(said.contains("set cluster.listen"), "{said}");
    assert_eq!(at(None, &[], &local()), "127.0.0.1", "alone");
}

#[test]
fn loopback_only_among_themselves() {
    assert_eq!(at(None, &["localhost"], &local()), "127.0.0.1");
    assert_eq!(at(None, &["127.0.0.2", "127.0.0.3"], &local()), "127.0.0.2");
    assert_eq!(at(Some("127.0.0.3"), &["127.0.0.2", "127.0.0.3"], &local()), "127.0.0.3");
    let said = at(Some("lo"), &["a", "b"], &local());
    assert!(said.contains("127.0.0.1 cannot be reached from other nodes"), "{said}");
}

#[test]
fn never_everywhere() {
    use ListenError::{All, Neither, Port};
    for all in ["0.0.0.0", "::", "0.0.0.0/0", "::/0"] {
        assert_eq!(Listen::parse(all), Err(All(all.to_owned())));
        assert!(at(Some(all), &["a", "b"], &local()).contains("stands for all interfaces"));
    }
    for port in ["10.0.0.1:80", "node1:80", "[::1]:80"] {
        assert_eq!(Listen::parse(port), Err(Port(port.to_owned())));
    }
    for bad in ["", "10.0.0.0/33", "10.0.0.0/-1", "::/129", "x/8", "sixteen-letters-", "a b"] {
        assert_eq!(Listen::parse(bad), Err(Neither(bad.to_owned())));
    }
}

/// The whole way on this very machine, with nothing made up.
#[test]
fn this_machine_finds_itself() {
    let mut config =
        Cluster { discovery: Discovery::Static, nodes: strings(&["192.0.2.1", "127.0.0.1"]), ..Cluster::default() };
    discover(&mut config, &|_| None, &SystemLocal).unwrap();
    assert_eq!(config.me, 1);
    let lo = cluster(Some("127.0.0.0/8"), &["127.0.0.1", "127.0.0.2"]);
    assert!(listen_address(&lo, &SystemLocal).unwrap().is_loopback());
}
