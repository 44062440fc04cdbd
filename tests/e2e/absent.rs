//! Names that are not there (`dataset.absent`): the answer of the PFS, without asking it.

use crate::harness::{Job, Plan, World};
use slowfs::{Counters, FaultKind, FaultSpec, Op};
use std::fs;
use std::time::Duration;

/// Makes an environment with links of all kinds, and a data set, in $1.
const TREE: &str = "set -e; cd \"$1\" 2>/dev/null || { mkdir \"$1\"; cd \"$1\"; }\n\
    mkdir -p env/lib/empty env/lib/sub data/sub; echo 1 > env/pyvenv.cfg; echo 1 > env/lib/a.py; echo 1 > data/1\n\
    for n in $(seq 0 9); do mkdir env/made$n; echo 1 > env/made$n/there; done\n\
    ln -s lib env/link; ln -s pyvenv.cfg env/filelink; ln -s nowhere/x env/dangling; ln -s loop env/loop\n\
    ln -s /usr env/outside; mkfifo env/pipe; touch -d '1 hour ago' env data";

fn plan() -> Plan {
    World::plan().made_by(Job::new("sh").args(["-c", TREE, "sh"])).patient()
}

fn settled(plan: Plan) -> World {
    let mut w = plan.build();
    // By its path for jobs: the mount.
    std::os::unix::fs::symlink(w.root().join("env/lib"), w.backing().join("env/abs")).unwrap();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w
}

fn asks(w: &World, words: &[&str]) -> Job {
    w.python("absent.py").arg(w.root()).args(words)
}

fn seen(w: &World, job: &Job) -> Counters {
    w.pfs().reset().unwrap();
    w.run(job).good();
    w.pfs().counters().unwrap()
}

/// Whether a program without Monarch's library, started now by the job, sees a path below the root.
fn is_there(w: &World, path: &str) -> bool {
    let code = "import os,sys; print(os.path.lexists(sys.argv[1]))";
    let said = w.run(&Job::new("python3").args(["-c", code]).arg(w.root().join(path))).good().text();
    said.trim() == "True"
}

#[test]
fn every_call_says_about_every_path_what_the_pfs_would_say() {
    for rule in ["auto", "checked", "index", "kernel"] {
        let w = settled(plan().set(&format!("dataset.absent={rule}")));
        let said = w.same(&asks(&w, &[])).good().text();
        assert!(said.contains("env/no stat ENOENT") && said.contains("env/pyvenv.cfg/x stat ENOTDIR"), "{said}");
        let hits = w.counter("absent_hits");
        assert_eq!(hits > 1000, rule != "kernel", "{rule}: {hits}");
    }
}

#[test]
fn names_that_an_import_tries_cost_a_check_of_each_directory_or_nothing() {
    let job = |w: &World| asks(w, &["--import", "20"]);
    for (set, asked) in [("dataset.absent=checked", 3), ("dataset.absent=index", 0), ("dataset.absent=auto", 3)] {
        let w = settled(plan().set(set).set("dataset.revalidate=1h"));
        w.run(&job(&w)).good();
        assert_eq!((w.counter("absent_hits"), w.counter("absent_checks")), (300, asked), "{set}");
        // The check of one process counts for the next.
        let c = seen(&w, &job(&w));
        assert_eq!((c.lookup, w.counter("absent_checks")), (0, asked), "{set}: {c:?}");
    }
    let w = settled(plan().set("dataset.absent=kernel"));
    let c = seen(&w, &job(&w));
    assert!(c.lookup >= 300 && w.counter("absent_hits") == 0, "{c:?}");
}

/// Asks for a name that is not there in each of ten directories, then, again and again after the
/// interval, in the first one, and a second later in some others.
const ASK: &str = "import os,sys,time\n\
    def ask(n):\n  print(n, os.path.lexists(f'{sys.argv[1]}/env/made{n}/no'), flush=True)\n\
    [ask(n) for n in range(10)]\n\
    for others in sys.argv[2:]:\n  time.sleep(2.6); ask(0); time.sleep(1.0); [ask(int(n)) for n in others if n != '-']\n";

fn ask_again(w: &World, others: &[&str]) -> Job {
    Job::new("python3").args(["-c", ASK]).arg(w.root()).args(others)
}

/// The first process that begins to compare directories has the agent compare those that were
/// needed since they were compared last.
#[test]
fn directories_that_are_needed_are_compared_ahead() {
    let w = settled(plan().set("dataset.revalidate=2s").set("dataset.absent=checked"));
    let said = w.run(&ask_again(&w, &["123456789", "12", "-"])).good().text();
    assert!(!said.contains("True"), "{said}");
    let (own, ahead) = (w.counter("absent_checks"), w.agent().unwrap().agent["listing_checks"]);
    // 10 of the process at first, and then one each time; of the agent 9, 9, and 2.
    assert!((10..=16).contains(&own) && (16..=22).contains(&ahead), "{own} by the process, {ahead} by the agent");
}

/// What was compared ahead would be old before a process needs it.
#[test]
fn without_an_interval_nothing_is_compared_ahead() {
    let w = settled(plan().set("dataset.revalidate=0s").set("dataset.absent=checked"));
    w.run(&ask_again(&w, &["123456789"])).good();
    assert_eq!((w.counter("absent_checks"), w.agent().unwrap().agent["listing_checks"]), (20, 0));
}

#[test]
fn what_is_made_behind_the_shim_is_found_by_comparisons_ahead_as_well() {
    let w = settled(plan().set("dataset.revalidate=2s").set("dataset.absent=checked"));
    let mut running = w.start(&ask_again(&w, &["123456789", "123456789"]));
    running.until_written("9 False\n");
    fs::write(w.backing().join("env/made5/no"), "1").unwrap();
    let said = running.end().good().text();
    let of_five: Vec<&str> = said.lines().filter(|line| line.starts_with('5')).collect();
    assert_eq!(of_five, ["5 False", "5 True", "5 True"]);
}

#[test]
fn what_the_job_makes_is_there_when_the_call_returns() {
    for rule in ["checked", "index"] {
        let w = settled(plan().set(&format!("dataset.absent={rule}")).set("dataset.revalidate=1h"));
        let said = w.run(&asks(&w, &["--make"])).good().text();
        assert_eq!(said, w.bare(&asks(&w, &["--make"])).good().text(), "{rule}");
        assert!(w.counter("absent_hits") > 0, "{rule}");
    }
}

#[test]
fn what_is_made_behind_the_shim_is_there_after_the_interval() {
    let asks = |b: slowfs::Builder| b.attr_ttl(Duration::ZERO);
    let w = settled(plan().pfs(asks).set("dataset.revalidate=0s").set("dataset.absent=checked"));
    for dir in ["env/lib", "env/lib/empty", "data"] {
        let path = format!("{dir}/new");
        assert!(!is_there(&w, &path), "{path}");
        fs::write(w.backing().join(&path), "1").unwrap();
        assert!(is_there(&w, &path), "{path}");
        fs::remove_file(w.backing().join(&path)).unwrap();
        assert!(!is_there(&w, &path), "{path}: the kernel answers from now on");
    }
    // A name that another one leads to: the link is replaced behind the shim.
    assert!(!is_there(&w, "env/link/later"));
    fs::remove_file(w.backing().join("env/link")).unwrap();
    std::os::unix::fs::symlink("../data", w.backing().join("env/link")).unwrap();
    fs::write(w.backing().join("data/later"), "1").unwrap();
    assert!(is_there(&w, "env/link/later"));
}

/// An import of Python looks for a module in a listing: a package that others installed was not
/// found before the listing was compared, too.
#[test]
fn listings_show_what_is_made_behind_the_shim_after_the_interval() {
    let asks = |b: slowfs::Builder| b.attr_ttl(Duration::ZERO);
    let w = settled(plan().pfs(asks).set("dataset.revalidate=0s").set("dataset.absent=checked"));
    let code = "import os,sys; d=sys.argv[1]; print(sorted(os.listdir(d)), os.stat(d).st_mtime_ns)";
    let list = |dir: &str| {
        let job = Job::new("python3").args(["-c", code]).arg(w.root().join(dir));
        (w.run(&job).good().text(), w.bare(&job).good().text())
    };
    for dir in ["env/lib", "env/lib/empty", "data"] {
        let (ours, bare) = list(dir);
        assert_eq!(ours, bare, "{dir}");
        fs::write(w.backing().join(dir).join("new"), "1").unwrap();
        let (ours, bare) = list(dir);
        assert!(ours == bare && ours.contains("new"), "{dir}: {ours}, {bare}");
    }
}

#[test]
fn under_index_a_name_that_others_make_is_hidden_until_a_refresh() {
    let w = settled(plan().set("dataset.absent=index"));
    fs::write(w.backing().join("env/lib/new"), "1").unwrap();
    assert!(!is_there(&w, "env/lib/new"), "as docs/SEMANTICS.md says");
    let mut refresh = w.monarch("refresh");
    assert!(refresh.args(w.words()).status().unwrap().success());
    assert!(is_there(&w, "env/lib/new"));
}

#[test]
fn outside_of_environments_the_pfs_is_asked_by_default() {
    let w = settled(plan());
    for n in 0..2 {
        assert!(!is_there(&w, &format!("data/{n}.done")));
        fs::write(w.backing().join(format!("data/{n}.done")), "1").unwrap();
        assert!(is_there(&w, &format!("data/{n}.done")));
    }
    assert_eq!(w.counter("absent_hits"), 0);
}

#[test]
fn a_directory_that_changed_just_before_its_scan_is_the_kernels() {
    let w = settled(plan().set("dataset.absent=checked").set("dataset.min_file_age=10m"));
    w.run(&asks(&w, &["--import", "1"])).good();
    assert_eq!(w.counter("absent_hits"), 0);
}

#[test]
fn when_the_pfs_fails_to_answer_a_check_the_call_is_the_kernels() {
    let w = settled(plan().set("dataset.absent=checked"));
    w.pfs().fault(FaultSpec::new(FaultKind::EIO).ops(&[Op::Getattr]).path("env/lib")).unwrap();
    let code = "import os,sys\ntry:\n  os.stat(sys.argv[1]); print('there')\nexcept OSError as e: print(e.errno)";
    let job = Job::new("python3").args(["-c", code]).arg(w.root().join("env/lib/no"));
    let said = w.run(&job).good().text();
    w.pfs().clear().unwrap();
    assert_eq!((said.trim(), w.counter("absent_hits")), ("2", 0), "the lookup itself works");
    w.run(&job).good();
    assert_eq!(w.counter("absent_hits"), 1, "nothing was marked");
}

#[test]
fn of_two_jobs_on_a_root_the_stricter_counts() {
    let w = settled(plan().set("dataset.absent=index"));
    w.run(&asks(&w, &["--import", "1"])).good();
    assert_eq!((w.counter("absent_hits"), w.counter("absent_checks")), (15, 0));
    let with = |rule: &str| asks(&w, &["--import", "1"]).option("--set").option(format!("dataset.absent={rule}"));
    w.run(&with("checked")).good();
    assert_eq!((w.counter("absent_hits"), w.counter("absent_checks")), (30, 3));
    w.run(&with("kernel")).good();
    w.run(&with("index")).good();
    assert_eq!(w.counter("absent_hits"), 30, "as long as jobs use the root");
}
