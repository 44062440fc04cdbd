//! What each kind of job says about its nodes.

use super::super::*;
use super::{env, strings};

#[track_caller]
fn found(config: Cluster, variables: &[(&str, &str)], local: &FakeLocal) -> Cluster {
    let mut config = config;
    discover(&mut config, &env(variables), local).unwrap_or_else(|error| panic!("{error}"));
    config
}

#[track_caller]
fn fails(config: Cluster, variables: &[(&str, &str)], local: &FakeLocal, fragments: &[&str]) {
    let mut config = config;
    let error = discover(&mut config, &env(variables), local).unwrap_err().to_string();
    for fragment in fragments {
        assert!(error.contains(fragment), "no `{fragment}` in {error}");
    }
}

fn by(discovery: Discovery) -> Cluster {
    Cluster { discovery, ..Cluster::default() }
}

fn nodes(nodes: &[&str]) -> Cluster {
    Cluster { nodes: strings(nodes), ..by(Discovery::Static) }
}

fn called(name: &str) -> FakeLocal {
    FakeLocal::default().called(name)
}

#[test]
fn slurm_the_step_before_the_job() {
    let job = ("SLURM_JOB_NODELIST", "node[01-04]");
    let me = ("SLURMD_NODENAME", "node03");
    for discovery in [Discovery::Slurm, Discovery::Auto] {
        let all = found(by(discovery), &[job, me], &called("other"));
        assert_eq!(
            (all.members, all.me, all.expected, all.partial),
            (strings(&["node01", "node02", "node03", "node04"]), 2, 4, false)
        );
    }
    let step = ("SLURM_STEP_NODELIST", "node[03-04]");
    let some = found(by(Discovery::Slurm), &[job, step, me], &called("other"));
    assert_eq!((some.members, some.me), (strings(&["node03", "node04"]), 0));
    // A node that Slurm knows by another name than its own.
    let number = found(by(Discovery::Slurm), &[job, ("SLURM_NODEID", "1")], &called("host-of-2.x.org"));
    assert_eq!(number.me, 1);
    // mpirun on node01 has started its daemons on the others as a step of theirs.
    let mpirun = [job, step, me, ("SLURM_NODEID", "0"), ("OMPI_COMM_WORLD_SIZE", "8")];
    let all = found(by(Discovery::Auto), &mpirun, &called("other"));
    assert_eq!((all.members.len(), all.me), (4, 2));
    let one = found(by(Discovery::Slurm), &[("SLURM_JOB_NODELIST", "node07")], &called("login"));
    assert!(one.is_alone() && one.members == ["node07"]);
}

#[test]
fn a_job_with_keys_of_its_own_is_known_by_its_number() {
    let derived = Cluster { job_secret: monarch_config::JobSecretSource::Derived, ..by(Discovery::Slurm) };
    let (list, me) = (("SLURM_JOB_NODELIST", "node[01-02]"), ("SLURMD_NODENAME", "node02"));
    let job = [list, me, ("SLURM_JOB_ID", "7"), ("SLURM_JOB_START_TIME", "1767225600")];
    let config = found(derived.clone(), &job, &called("other"));
    assert_eq!(config.job.as_deref(), Some("SLURM_JOB_ID=7 SLURM_JOB_START_TIME=1767225600"));
    assert_eq!(found(by(Discovery::Slurm), &job, &called("other")).job, None);
    fails(derived.clone(), &[list, me], &called("other"), &["cluster.job_secret is derived", "MONARCH_JOB_ID"]);
    // A node that is alone has no keys.
    assert_eq!(found(derived, &[("SLURM_JOB_NODELIST", "node07")], &called("login")).job, None);
}

#[test]
fn slurm_that_is_not_there_or_says_nothing_of_use() {
    let local = called("login1");
    fails(by(Discovery::Slurm), &[], &local, &["cluster.discovery is slurm", "SLURM_STEP_NODELIST", "or set"]);
    fails(by(Discovery::Slurm), &[("SLURM_JOB_NODELIST", "n[1")], &local, &["SLURM_JOB_NODELIST: `n[1` has a bracket"]);
    fails(by(Discovery::Auto), &[("SLURM_JOB_NODELIST", ",")], &local, &["SLURM_JOB_NODELIST names no node"]);
    let list = ("SLURM_JOB_NODELIST", "n[1-100]");
    let said = ["n1, n2, n3, n4, n5, n6, ... (100 in all)", "looked for as login1", "cluster.nodes"];
    fails(by(Discovery::Auto), &[list], &local, &said);
}

#[test]
fn nothing_is_alone() {
    for config in [by(Discovery::None), by(Discovery::Auto)] {
        let alone = found(config, &[("SLURM_JOB_NODELIST", " ")], &FakeLocal::default());
        assert!(alone.is_alone() && alone.members.is_empty() && alone.expected == 0);
    }
    let again = Cluster { members: strings(&["old"]), me: 7, ..by(Discovery::None) };
    assert!(found(again, &[], &FakeLocal::default()).members.is_empty());
}

#[test]
fn lists_of_schedulers_and_mpi_launchers() {
    let local = called("b.x.org")
        .file("/pbs", "a.x.org\nb.x.org\na.x.org\n")
        .file("/mpi", "# all\na slots=4 max_slots=4\n\nb:2\n")
        .file("/sge", "a.x.org 4 all.q@a.x.org UNDEFINED\nb.x.org 4 all.q@b.x.org UNDEFINED\n")
        .file("/empty", "# nobody\n");
    for (variable, text) in [
        ("PBS_NODEFILE", "/pbs"),
        ("LSB_MCPU_HOSTS", "a 40 b 40"),
        ("LSB_HOSTS", "a a b b"),
        ("PE_HOSTFILE", "/sge"),
        ("OAR_NODEFILE", "/pbs"),
        ("OMPI_MCA_orte_default_hostfile", "/mpi"),
        ("I_MPI_HYDRA_HOST_FILE", "/mpi"),
    ] {
        for discovery in [Discovery::Mpi, Discovery::Auto] {
            let job = found(by(discovery), &[(variable, text)], &local);
            assert_eq!((job.members.len(), job.me, job.members[1].starts_with('b')), (2, 1, true), "{variable}");
        }
    }
    fails(by(Discovery::Mpi), &[("OMPI_COMM_WORLD_SIZE", "8")], &local, &["PBS_NODEFILE", "static"]);
    fails(by(Discovery::Auto), &[("PBS_NODEFILE", "/gone")], &local, &["PBS_NODEFILE", "/gone", "cluster.nodes"]);
    fails(by(Discovery::Mpi), &[("PBS_NODEFILE", "/empty")], &local, &["PBS_NODEFILE names no node"]);
    assert!(found(by(Discovery::Auto), &[("OMPI_COMM_WORLD_SIZE", "8")], &local).is_alone());
}

#[test]
fn torchrun_knows_the_first_and_itself() {
    let job = |rank: &'static str| [("MASTER_ADDR", "first"), ("GROUP_WORLD_SIZE", "4"), ("GROUP_RANK", rank)];
    let first = FakeLocal::default().called("first").name("first", &["10.0.0.1"]).interface("ib0", "10.0.0.1");
    let found_first = found(by(Discovery::Torchrun), &job("0"), &first);
    assert_eq!((found_first.members.as_slice(), found_first.me), (strings(&["first"]).as_slice(), 0));
    let other = called("other").name("first", &["10.0.0.1"]).interface("ib0", "10.0.0.2").route("10.0.0.2");
    let found_other = found(by(Discovery::Auto), &job("3"), &other);
    assert_eq!((found_other.members.as_slice(), found_other.me), (strings(&["first", "10.0.0.2"]).as_slice(), 1));
    for one in [&found_first, &found_other] {
        assert!(one.partial && one.expected == 4 && !one.is_alone() && one.agreed() == ["first"]);
    }
    let elastic = [("PET_MASTER_ADDR", "first"), ("PET_NNODES", "2:8"), ("PET_NODE_RANK", "1")];
    assert_eq!(found(by(Discovery::Torchrun), &elastic, &other).expected, 8);
    let one = [("MASTER_ADDR", "localhost"), ("GROUP_WORLD_SIZE", "1"), ("GROUP_RANK", "0")];
    assert!(found(by(Discovery::Auto), &one, &other).is_alone());
    assert!(found(by(Discovery::Auto), &[("MASTER_ADDR", "first")], &other).is_alone());
    fails(by(Discovery::Torchrun), &[("MASTER_ADDR", "first")], &other, &["GROUP_WORLD_SIZE", "GROUP_RANK"]);
    let bad = [("MASTER_ADDR", "first"), ("NNODES", "many"), ("NODE_RANK", "0")];
    fails(by(Discovery::Torchrun), &bad, &other, &["NNODES is `many`"]);
    fails(
        by(Discovery::Torchrun),
        &job("1"),
        &first,
        &["MASTER_ADDR is first, which is this node, and GROUP_RANK is 1"],
    );
    fails(by(Discovery::Torchrun), &job("1"), &called("x"), &["no address is known for the node first"]);
}

#[test]
fn dns_gives_addresses() {
    let dns = || Cluster { dns: Some("workers".to_owned()), ..by(Discovery::Dns) };
    let local = called("w-1")
        .name("workers", &["10.0.0.3", "10.0.0.2", "fd00::2", "10.0.0.3"])
        .name("six", &["fd00::2", "fd00::3"])
        .name("nobody", &[])
        .name("early", &["10.0.0.2"])
        .interface("eth0", "10.0.0.3");
    let job = found(dns(), &[], &local);
    assert_eq!((job.members.as_slice(), job.me), (strings(&["10.0.0.2", "10.0.0.3"]).as_slice(), 1));
    assert_eq!(job.agreed(), ["workers"]);
    let late = || local.clone().names_after(3);
    assert_eq!(found(dns(), &[], &late()).me, 1, "it leads there some seconds after the start");
    fails(dns(), &[], &local.clone().names_after(60), &["no address is known for the node workers"]);
    fails(dns(), &[], &called("x"), &["no address is known for the node workers"]);
    fails(Cluster { dns: Some("six".into()), ..dns() }, &[], &local, &["not among the nodes", "fd00::2, fd00::3"]);
    fails(Cluster { dns: Some("early".into()), ..dns() }, &[], &local, &["not among the nodes", "10.0.0.2"]);
    fails(Cluster { dns: Some("nobody".into()), ..dns() }, &[], &local, &["cluster.dns nobody names no node"]);
}

#[test]
fn who_this_node_is() {
    let at = |names: &[&str], local: &FakeLocal| found(nodes(names), &[], local).me;
    assert_eq!(at(&["n[1-3]"], &called("n2")), 1);
    assert_eq!(at(&["n[1-3]"], &called("N3.x.org")), 2, "the short form of its name");
    assert_eq!(at(&["n1.x.org", "n2.x.org"], &called("n2")), 1, "the short form of theirs");
    assert_eq!(at(&["10.0.0.1", "10.0.0.2"], &called("10").interface("ib0", "10.0.0.2")), 1, "by address");
    let aliased = called("x").name("a", &["10.0.0.1"]).name("b", &["10.0.0.2"]).interface("ib0", "10.0.0.1");
    assert_eq!(at(&["a", "b"], &aliased), 0, "by the address of a name");
    assert_eq!(at(&["n1:7000", "n2:7000"], &called("n2")), 1);
    let full = called("n2.y.org");
    fails(nodes(&["n1.x.org", "n2.x.org"]), &[], &full, &["n1.x.org, n2.x.org", "looked for as n2.y.org"]);
    fails(nodes(&["a", "b"]), &[], &FakeLocal::default(), &["it was looked for as nothing, as it has no name"]);
    let twice = called("n1").interface("ib0", "10.0.0.1").interface("eth0", "10.1.0.1");
    fails(
        nodes(&["10.0.0.1", "10.1.0.1"]),
        &[],
        &twice,
        &["10.0.0.1 and 10.1.0.1 both lead to this node", "cluster.listen"],
    );
}

#[test]
fn several_agents_on_one_machine_are_told_apart() {
    let loopback = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
    let listen = Cluster { listen: Some("127.0.0.2".to_owned()), ..nodes(&loopback) };
    assert_eq!(found(listen, &[], &called("x")).me, 1);
    let port = Cluster { port: Some(7001), ..nodes(&["x:7000", "x:7001"]) };
    assert_eq!(found(port, &[], &called("x")).me, 1);
    fails(nodes(&loopback), &[], &called("x"), &["127.0.0.1 and 127.0.0.2 both lead to this node"]);
}
