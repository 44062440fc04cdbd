//! The section `cluster`: what is wrong in each field, and what is right.

use super::super::{
    Cluster, Discovery, Encryption, ErrorKind, JobSecretSource, Origin, Overrides, Spread, render_with_origins,
};
use super::{load_all, load_text, node, screen};
use ErrorKind::{Missing, OutOfBounds, Syntax, UnknownKey, WrongType, WrongUnit};

const ROOTS: &str = "dataset: { roots: [/scratch/imagenet] }\n";

#[track_caller]
fn read(yaml: &str) -> Cluster {
    let found =
        load_text(&format!("{ROOTS}{yaml}"), &node()).unwrap_or_else(|error| panic!("{}", crate::screen(&error)));
    let shown = render_with_origins(&found);
    let again = load_text(&shown, &node()).unwrap_or_else(|error| panic!("{}\n{shown}", crate::screen(&error)));
    assert_eq!(again.config.cluster, found.config.cluster, "{shown}");
    found.config.cluster
}

/// A setting of the section, on line 3.
#[track_caller]
fn wrong(setting: &str, kind: ErrorKind, line: usize, fragments: &[&str]) {
    let yaml = format!("{ROOTS}cluster:\n  {setting}\n");
    let error = load_text(&yaml, &node()).map(|found| found.config.cluster).expect_err(&yaml);
    let text = format!("{error}\n{}", error.remedy());
    assert_eq!((error.kind(), error.file_line().map(|(_, line)| line)), (kind, Some(line)), "{yaml}\n{text}");
    assert!(fragments.iter().all(|fragment| text.contains(fragment)), "not all of {fragments:?} in:\n{text}");
    let screen = screen(&error);
    assert!(screen.lines().count() <= 24 && screen.is_ascii() && !error.remedy().is_empty(), "{screen}");
}

#[test]
fn defaults_and_everything() {
    assert_eq!(read(""), Cluster::default());
    let all = "cluster: { discovery: static, nodes: [\"n[1-2]\", 10.0.0.7, \"[fd00::1]:7000\"], placement: sharded, listen: 10.0.0.0/8,\n  \
               port: 7000, secret_file: /home/me/secret, join_timeout: 5m, peer_timeout: 500ms, bandwidth_limit: 1GiB/s,\n  \
               peer_bandwidth_limit: 100MiB/s, transient_share: 25%, encryption: tls, job_secret: file,\n  \
               job_secret_file: /scratch/me/secret-7, batch_files: 16 }\n";
    let found = read(all);
    assert_eq!(found.encryption, Encryption::Tls);
    let job_secret = (found.job_secret, found.job_secret_file.as_deref());
    assert_eq!(job_secret, (JobSecretSource::File, Some(std::path::Path::new("/scratch/me/secret-7"))));
    assert_eq!(read("cluster: { discovery: slurm, job_secret: derived }\n").job_secret, JobSecretSource::Derived);
    assert_eq!(found.nodes, ["n[1-2]", "10.0.0.7", "[fd00::1]:7000"]);
    assert_eq!((found.discovery, found.placement, found.port), (Discovery::Static, Spread::Sharded, Some(7000)));
    assert_eq!((found.listen.as_deref(), found.join_timeout.as_secs()), (Some("10.0.0.0/8"), 300));
    assert_eq!((found.peer_timeout.as_millis(), found.peer_bandwidth_limit), (500, Some(100 << 20)));
    assert_eq!((found.batch_files, read("").batch_files), (16, 64));
    assert!((found.transient_share - 0.25).abs() < 1e-9 && found.members.is_empty(), "nodes are found in the job");
    assert_eq!(read("cluster:\n  discovery: static\n  nodes: node[01-08]\n").nodes, ["node[01-08]"]);
    assert_eq!(read("cluster: { discovery: dns, dns: workers.svc }\n").dns.as_deref(), Some("workers.svc"));
    for word in ["none", "auto", "slurm", "mpi", "torchrun"] {
        read(&format!("cluster: {{ discovery: {word}, bandwidth_limit: none, listen: ib0 }}\n"));
    }
}

#[test]
fn ways_to_find_nodes() {
    wrong("discovery: slurmm", WrongType, 3, &["no way to find nodes called `slurmm`", "did you mean slurm?"]);
    wrong("discovery: static", Missing, 3, &["cluster.nodes: no node is named", "node[01-08]"]);
    wrong("{ discovery: static, nodes: [] }", Missing, 3, &["no node is named"]);
    wrong("{ discovery: slurm, nodes: [a] }", OutOfBounds, 3, &["is for discovery static", "leave nodes out"]);
    wrong("nodes: [a]", OutOfBounds, 3, &["is for discovery static", "write discovery: static"]);
    wrong("{ discovery: static, nodes: [a, \"n[1-\"] }", WrongType, 3, &["cluster.nodes[1]", "bracket"]);
    wrong(
        "{ discovery: static, nodes: [a, \"n[3-1]\"] }",
        WrongType,
        3,
        &["`3-1` is not a range", "smaller number first"],
    );
    wrong("{ discovery: static, nodes: \"n[1-99999]\" }", WrongType, 3, &["cluster.nodes", "more than 65536"]);
    wrong("{ discovery: static, nodes: [\"n[1-40000]\", \"m[1-40000]\"] }", OutOfBounds, 3, &["80000 nodes", "65536"]);
    wrong("{ discovery: static, nodes: [\"\"] }", Missing, 3, &["cluster.nodes[0]", "no node is named here"]);
    wrong(
        "{ discovery: static, nodes: { a: b } }",
        WrongType,
        3,
        &["cluster.nodes: a list of nodes belongs here", "node[01-08]"],
    );
    wrong("{ discovery: static, nodes: [[a]] }", WrongType, 3, &["a single value belongs here"]);
    wrong("{ discovery: static, nodes: n[1-2] }", Syntax, 3, &["not valid YAML", "quotes"]);
    wrong("discovery: dns", Missing, 3, &["cluster.dns: no name is given"]);
    wrong("dns: workers", OutOfBounds, 3, &["is for discovery dns"]);
    wrong("{ discovery: dns, dns: \"http://x\" }", WrongType, 3, &["not a name that DNS could know", "without scheme"]);
}

#[test]
fn the_other_settings() {
    wrong("placement: shared", WrongType, 3, &["no placement over nodes called `shared`", "sharded"]);
    for all in ["0.0.0.0", "\"::\"", "0.0.0.0/0"] {
        wrong(&format!("listen: {all}"), OutOfBounds, 3, &["stands for all interfaces", "ib0", "10.0.0.0/8"]);
    }
    wrong("listen: 10.0.0.1:80", OutOfBounds, 3, &["has a port, which belongs in cluster.port"]);
    wrong("listen: 10.0.0.0/99", OutOfBounds, 3, &["is not an interface, a subnet or an address"]);
    for port in ["80", "70000", "0"] {
        wrong(&format!("port: {port}"), OutOfBounds, 3, &["is not a port from 1024 to 65535", "leave the line out"]);
    }
    wrong("port: http", WrongType, 3, &["not a whole number"]);
    wrong("secret_file: ~/secret", WrongType, 3, &["variables and ~"]);
    wrong("secret_file: secret", WrongType, 3, &["relative path"]);
    wrong("encryption: ssl", WrongType, 3, &["no encryption between nodes called `ssl`", "none, tls"]);
    wrong("join_timeout: 60", WrongUnit, 3, &["60s or 60ms"]);
    wrong("join_timeout: 2h", OutOfBounds, 3, &["above the most allowed, 1h", "default is 1m"]);
    wrong("peer_timeout: 1ms", OutOfBounds, 3, &["below the least allowed, 10ms"]);
    wrong("peer_timeout: 61s", OutOfBounds, 3, &["above the most allowed, 1m"]);
    wrong("bandwidth_limit: 1GiB", WrongUnit, 3, &["not a rate", "or none"]);
    wrong("bandwidth_limit: 1kB/s", OutOfBounds, 3, &["1MiB/s to 1TiB/s"]);
    wrong("peer_bandwidth_limit: 1kB/s", OutOfBounds, 3, &["1MiB/s to 1TiB/s"]);
    wrong("batch_files: 0", OutOfBounds, 3, &["below the least allowed, 1", "default is 64"]);
    wrong("batch_files: 65", OutOfBounds, 3, &["above the most allowed, 64"]);
    wrong("transient_share: 0", OutOfBounds, 3, &["below the least allowed, 0.01", "default is 0.125"]);
    wrong("transient_share: 95%", OutOfBounds, 3, &["95% is above the most allowed, 0.9"]);
    wrong("transient_share: some", WrongType, 3, &["`some` is not a part", "0.125"]);
    wrong("plaecment: sharded", UnknownKey, 3, &["unknown key `plaecment`", "did you mean `placement`?"]);
}

#[test]
fn a_file_of_the_job_belongs_to_job_secret_file_and_to_no_other_word() {
    wrong(
        "job_secret: shared",
        WrongType,
        3,
        &["no source of the job's secret called `shared`", "none, derived, file"],
    );
    wrong(
        "job_secret: file",
        Missing,
        3,
        &["cluster.job_secret: is file, and cluster.job_secret_file names none", "another one for each job"],
    );
    wrong(
        "{ job_secret: derived, job_secret_file: /s/x }",
        OutOfBounds,
        3,
        &["cluster.job_secret_file is for job_secret file", "write job_secret: file, or leave job_secret_file out"],
    );
    wrong("job_secret_file: /s/x", OutOfBounds, 3, &["is for job_secret file"]);
    wrong("{ job_secret: file, job_secret_file: $SCRATCH/x }", WrongType, 3, &["variables and ~"]);
    let file = [("MONARCH_CLUSTER__JOB_SECRET", "file"), ("MONARCH_CLUSTER__JOB_SECRET_FILE", "/scratch/me/7")];
    let found = load_all(ROOTS, &file, &Overrides::default(), &node()).unwrap().config.cluster;
    assert_eq!(found.job_secret_file.as_deref(), Some(std::path::Path::new("/scratch/me/7")));
    let warned = load_all(ROOTS, &[("MONARCH_CLUSTER_JOB_SECRET_FILE", "/x")], &Overrides::default(), &node());
    assert!(warned.unwrap().warnings[0].contains("MONARCH_CLUSTER__"), "settings have two underscores");
}

#[test]
fn from_the_environment_and_flags() {
    let variables = [
        ("MONARCH_CLUSTER__DISCOVERY", "static"),
        ("MONARCH_CLUSTER__NODES", "node[01-08]"),
        ("MONARCH_CLUSTER__PLACEMENT", "replicated"),
        ("MONARCH_CLUSTER_SECRET", "not a setting, and never shown"),
        ("MONARCH_CLUSTER_JOB_SECRET", "not a setting, and never shown"),
        ("MONARCH_JOB_ID", "not a setting either"),
    ];
    let flags = Overrides { set: vec![("cluster.port".into(), "7000".into())], ..Overrides::default() };
    let found = load_all(ROOTS, &variables, &flags, &node()).unwrap();
    assert_eq!(
        (found.config.cluster.nodes.as_slice(), found.config.cluster.port),
        (["node[01-08]".to_owned()].as_slice(), Some(7000))
    );
    assert_eq!(*found.origins.of("cluster.placement"), Origin::Env("MONARCH_CLUSTER__PLACEMENT".into()));
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    let shown = render_with_origins(&found);
    for line in
        ["    - \"node[01-08]\"                          # env MONARCH_CLUSTER__NODES\n", "# flag --set cluster.port\n"]
    {
        assert!(shown.contains(line), "no {line} in\n{shown}");
    }
    assert!(!shown.contains("never shown"));
    let list = [variables[0], ("MONARCH_CLUSTER__NODES", "[a, b]")];
    let found = load_all(ROOTS, &list, &Overrides::default(), &node()).unwrap();
    assert_eq!(found.config.cluster.nodes, ["a", "b"]);
    let warned = load_all(ROOTS, &[("MONARCH_CLUSTER_PORT", "7000")], &Overrides::default(), &node()).unwrap().warnings;
    assert!(warned[0].contains("MONARCH_CLUSTER__"), "{warned:?}");
}

#[test]
fn a_section_without_discovery_is_a_warning() {
    let warned = |yaml: &str| load_text(&format!("{ROOTS}{yaml}"), &node()).unwrap().warnings.join("\n");
    assert!(
        warned("cluster: { placement: sharded }\n")
            .contains("cluster.discovery: is none, so this node shares with no other node")
    );
    assert_eq!(warned("cluster: { discovery: none, placement: sharded }\n"), "");
    assert_eq!(warned("cluster: {}\n"), "");
}
