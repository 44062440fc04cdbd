//! Shared libraries from copies: what the loader maps, and what programs are told about it.

use crate::harness::{Job, Plan, World, assert_same, has_command, sources};
use slowfs::{FaultKind, FaultSpec, Op};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What `load` of the extension prints: 4 * 10 + (1 * 10 + (2 * 10 + 3)).
const VALUE: &str = "value 73";

/// A world with the libraries of tests/programs/libraries.sh.
fn plan() -> Plan {
    World::plan().made_by(Job::new("sh").arg(sources().join("libraries.sh"))).pfs(|b| b).set("run.libraries=on")
}

/// Such a world when every file has a copy.
fn settled(plan: Plan) -> World {
    let mut w = plan.build();
    let stage = |w: &World| w.monarch("stage").args(w.words()).output().unwrap().status.success();
    w.keep();
    assert!(stage(&w), "not staged");
    w.settle();
    w
}

fn world() -> World {
    settled(plan())
}

fn at(w: &World, name: &str) -> PathBuf {
    w.root().join("app").join(name)
}

/// A command of the program `libraries` on some libraries.
fn job(w: &World, command: &str, names: &[&str]) -> Job {
    w.program("libraries").arg(command).args(names.iter().map(|name| at(w, name)))
}

/// How often libraries were opened on the PFS since the counters were reset.
fn opens(w: &World) -> u64 {
    let paths = w.pfs().paths().unwrap();
    paths.iter().filter(|(path, _)| path.contains(".so")).map(|(_, n)| n.opens).sum()
}

/// Runs a job bare and under `monarch run`, which must print the same; the PFS's opens of
/// libraries of the latter, and what it printed.
#[track_caller]
fn compared(w: &World, job: &Job) -> (u64, String) {
    let bare = w.bare(job);
    w.pfs().reset().unwrap();
    let ours = w.run(job);
    let opens = opens(w);
    assert_same(&bare, &ours);
    (opens, ours.text())
}

#[test]
fn three_levels_of_search_paths_are_mapped_from_copies_under_their_own_names() {
    let w = world();
    let (opens, said) = compared(&w, &job(&w, "load", &["ext/libplug.so"]));
    assert!(said.contains(VALUE) && said.matches("\n origin ").count() == 4, "{said}");
    assert_eq!(opens, 0, "{said}");
    // By a link, by a relative name, by the name of a hard link.
    let (opens, _) = compared(&w, &job(&w, "load", &["ext/alias.so", "ext/hard.so"]));
    assert_eq!(opens, 0);
    let relative = w.program("libraries").args(["load", "./ext/../ext/libplug.so"]).dir(at(&w, ""));
    assert_eq!(compared(&w, &relative).0, 0);
    // They are counted as any open from a copy: plug and three that it needs, by four names.
    assert!(w.counter("hits") >= 12, "{:?}", w.agent().unwrap().counters);
}

#[test]
fn a_program_below_a_root_finds_its_libraries_in_copies() {
    let w = world();
    let (opens, _) = compared(&w, &Job::new(at(&w, "bin/program")));
    assert_eq!(opens, 0);
}

#[test]
fn the_search_goes_on_where_it_would_without() {
    let w = world();
    // LD_LIBRARY_PATH wins over RUNPATH, and not over RPATH.
    let preferred = job(&w, "load", &["ext/libplug.so"]).env("LD_LIBRARY_PATH", at(&w, "preferred"));
    let (opens, said) = compared(&w, &preferred);
    assert!(said.contains("preferred/libfirst.so.1"), "{said}");
    assert_eq!(opens, 0, "{said}");
    for name in ["libalone.so", "libfirst.so.1", "libnothing.so"] {
        let bare_name = w.program("libraries").args(["load", name]).env("LD_LIBRARY_PATH", at(&w, "lib"));
        compared(&w, &bare_name);
    }
}

#[test]
fn names_that_are_known_not_to_exist_cost_the_pfs_nothing() {
    let w = settled(plan().set("dataset.absent=index"));
    let searches = job(&w, "load", &["ext/libplug.so", "lib/liblacks.so"]);
    // Where LD_LIBRARY_PATH names directories, the loader itself asks for each directory of a
    // search path, and of the variants in it, once whether it is there.
    for paths in ["", "preferred:lib:bin:other"] {
        let dirs: Vec<_> = paths.split(':').filter(|dir| !dir.is_empty()).map(|dir| at(&w, dir)).collect();
        let search = searches.clone().env("LD_LIBRARY_PATH", std::env::join_paths(dirs).unwrap());
        let (opens, said) = compared(&w, &search);
        assert_eq!(opens, 0, "{said}");
        let seen = w.pfs().counters().unwrap();
        assert!((seen.errors == 0 || !paths.is_empty()) && seen.opens() == 0, "{paths:?}: {seen:?}");
    }
}

/// The loader asks the kernel for the directories of a search path, and of the variants in them,
/// unless it is shown what the index knows.
#[test]
fn directories_of_a_search_path_cost_the_pfs_nothing() {
    let w = settled(plan().set("dataset.absent=index"));
    for name in ["libsystem.so", "libouter.so", "libmissing.so"] {
        let (opens, said) = compared(&w, &job(&w, "load", &[&format!("system/{name}")]));
        let seen = w.pfs().counters().unwrap();
        assert_eq!((opens, seen.errors), (0, 0), "{name}: {said} {:?}", w.pfs().paths());
        assert_eq!(said.contains("libmissing.so.9: cannot open"), name == "libmissing.so", "{said}");
    }
}

/// A world with a library of `mib` MiB, in software, and a file as large that is none.
fn heavy(mib: u32) -> Plan {
    let script = "sh \"$0\" \"$2\" && truncate -s \"$1\"M \"$2/app/lib/libalone.so\" \"$2/app/plain.bin\" && touch \"$2/app/pyvenv.cfg\"";
    let maker = Job::new("sh").args(["-c", script]).arg(sources().join("libraries.sh")).arg(mib.to_string());
    plan().made_by(maker).set("prefetch.ahead=auto").tier_size("1GiB")
}

/// One that is not worth a wait is mapped from the PFS, and fetched once there is a second process:
/// then all that follow have the copy.
#[test]
fn a_library_that_a_second_process_maps_from_the_pfs_is_fetched() {
    // A copy takes 3 s, the faults 120 times the latency: on a busy machine, too, that is less.
    let mut w = heavy(30).pfs(|b| b.bandwidth(10_000_000)).build();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    // (A library waits at the rate that was measured, and before that, at one of 1 GiB a second.)
    w.run(&Job::new("cat").arg(at(&w, "plain.bin"))).good();
    w.until("the copy of what is no library", |s| (s.tiers[0].files, s.tiers[0].reserved) == (1, 0));
    let load = |w: &World| w.run(&job(w, "load", &["lib/libalone.so"])).good();
    load(&w);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((w.counter("absent"), w.agent().unwrap().tiers[0].files), (1, 1), "not worth a wait, and one process");
    load(&w);
    w.until("its copy", |s| (s.tiers[0].files, s.tiers[0].reserved) == (2, 0));
    let before = w.counter("hits") + w.counter("waited");
    load(&w);
    // (The tier's account may be a moment ahead of the index: then the process waits that moment.)
    let counters = w.agent().unwrap().counters;
    assert_eq!((w.counter("absent"), w.counter("hits") + w.counter("waited") - before), (2, 1), "{counters:?}");
}

/// A library that is mapped before its root has an index is on the list of what the job opened. The
/// next job waits for an index that is a moment away, and maps the copy.
#[test]
fn an_index_that_is_a_moment_away_is_waited_for_where_the_last_job_mapped_libraries() {
    let slow = |b: slowfs::Builder| b.meta_latency(Duration::from_millis(5));
    // Its faults would take several times as long as the index.
    let mut w = heavy(300).set("tiers[0].persist=node").pfs(slow).build();
    let names = ["lib/libalone.so", "ext/libplug.so"];
    let held = |w: &mut World| {
        let slow = FaultSpec::new(FaultKind::Stall(Some(Duration::from_secs(1))));
        w.pfs().fault(slow.ops(&[Op::Opendir]).path("app/preferred").count(1)).unwrap();
        let mut running = w.start(&job(w, "hold", &names));
        running.until_written("ready");
        w.until("the index", |s| s.roots[0].state == "ready");
        let opened = w.counter("hits") + w.counter("waited");
        running.write(b"\n");
        running.end().good();
        crate::faults::wait_for("the end of the agent", || w.agent().is_none());
        crate::faults::regular(w.tier()).iter().filter(|f| f.to_string_lossy().contains("/copies/")).for_each(|copy| {
            fs::remove_file(copy).unwrap();
        });
        opened
    };
    assert_eq!(held(&mut w), 0, "the PFS's, without an index");
    assert_eq!(held(&mut w), 1, "the copy");
}

#[test]
fn errors_name_the_library_that_the_program_named() {
    let w = world();
    for name in ["lib/libtext.so", "lib/libshort.so", "lib/liblacks.so", "lib/libnothing.so", "lib"] {
        let (_, said) = compared(&w, &job(&w, "load", &[name]));
        assert!(said.contains("app/lib") && !said.contains("/proc/"), "{said}");
    }
}

#[test]
fn two_names_of_a_library_are_one_mapping() {
    let w = world();
    for second in ["ext/alias.so", "ext/hard.so", "ext/../ext/libplug.so", "lib/../ext/./alias.so"] {
        let (opens, said) = compared(&w, &job(&w, "twice", &["ext/libplug.so", second]));
        assert_eq!(said, "same 1, values 73 73, 1 mapped\n", "{second}");
        assert_eq!(opens, 0, "{second}");
    }
}

#[test]
fn a_library_that_was_mapped_from_the_pfs_is_not_mapped_from_its_copy_too() {
    let mut w = plan().set("prefetch.enabled=false").build();
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    let mut running = w.start(&job(&w, "hold", &["ext/libplug.so", "ext/alias.so"]).announced());
    running.until_written("ready");
    // An agent that does not run: libraries are opened on the PFS, and asked for.
    let agent = w.agent().unwrap().pid;
    signal(agent, 19);
    running.begin();
    running.until_written("value 73");
    signal(agent, 18);
    let staged = w.monarch("stage").args(w.words()).output().unwrap();
    assert!(staged.status.success(), "{staged:?}");
    running.write(b"go\n");
    let said = running.end().good().text();
    assert!(said.contains("value 73, then 73, same 1"), "{said}");
}

/// Sends a signal.
fn signal(pid: u32, signal: i32) {
    let done = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_thousand_times_opened_and_unloaded_leaves_nothing() {
    let w = world();
    let many = job(&w, "loop", &["ext/libplug.so"]).arg("1000");
    let (opens, said) = compared(&w, &many);
    assert!(said.starts_with("1000 good, 1000 unloaded"), "{said}");
    assert_eq!(opens, 0);
    compared(&w, &job(&w, "descriptors", &["ext/libplug.so"]));
}

#[test]
fn other_namespaces_and_libraries_that_are_not_to_be_loaded() {
    let w = world();
    compared(&w, &job(&w, "space", &["ext/libplug.so"]));
    let (opens, said) = compared(&w, &job(&w, "noload", &["ext/libplug.so"]));
    assert_eq!((opens, said.as_str()), (0, "before 0\nafter 1, same 1\n"));
}

#[test]
fn setuid_and_static_programs_run_as_without() {
    let w = world();
    for program in ["bin/setuid", "bin/static"] {
        if at(&w, program).exists() {
            w.same(&Job::new(at(&w, program)));
        }
    }
}

#[test]
fn monarch_disable_and_off_leave_the_loader_alone() {
    let w = world();
    let load = job(&w, "load", &["ext/libplug.so"]);
    for job in [load.clone().env("MONARCH_DISABLE", "1"), load.option("--set").option("run.libraries=off")] {
        w.pfs().reset().unwrap();
        let said = w.run(&job).good().text();
        assert!(said.contains(VALUE), "{said}");
        assert_eq!(opens(&w), 4);
    }
}

#[test]
fn auto_loads_the_audit_library_where_there_are_libraries() {
    let asks = Job::new("sh").args(["-c", "echo \"${LD_AUDIT-none}\""]);
    let auto = |plan: Plan| plan.set("run.libraries=auto").pfs(|b| b);
    let w = settled(auto(World::plan().files(4)));
    assert_eq!(w.run(&asks).good().text(), "none\n", "a data set");
    // A program below the root, before there is an index.
    let w = auto(plan()).build();
    let program = Job::new("sh").args(["-c", "echo \"${LD_AUDIT-none}\""]).env("VIRTUAL_ENV", at(&w, ""));
    assert!(w.run(&program).good().text().contains("libmonarch_audit.so"));
    let w = settled(auto(plan()));
    let said = w.run(&asks).good().text();
    assert!(said.ends_with("libmonarch_audit.so\n"), "{said}");
}

#[test]
fn audit_libraries_of_the_user_stay_and_see_the_names_of_libraries() {
    let w = world();
    let library = w.scratch().join("audit.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/neighbours/audit.c");
    let made = Command::new("gcc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status().unwrap();
    assert!(made.success());
    let log = w.scratch().join("log");
    let load = job(&w, "load", &["ext/libplug.so"]).env("LD_AUDIT", &library).env("AUDIT_LOG", &log);
    let (opens, said) = compared(&w, &load);
    assert_eq!(opens, 0, "{said}");
    let log = fs::read_to_string(&log).unwrap();
    for name in ["/app/ext/libplug.so", "/app/ext/../lib/libfirst.so.1"] {
        assert!(log.contains(name), "{log}");
    }
}

#[test]
fn a_tier_that_may_not_be_executed_leaves_libraries_to_the_pfs() {
    let dir = tempfile::Builder::new().prefix("monarch-e2e-noexec-").tempdir().unwrap();
    let mount = |words: &[&str]| Command::new("mount").args(words).arg(dir.path()).status().unwrap().success();
    if !mount(&["-t", "tmpfs", "-o", "noexec,size=2g,mode=700", "none"]) {
        eprintln!("skipped: no tmpfs can be mounted");
        return;
    }
    let w = settled(plan().tier_dir(dir.path().join("tier")));
    let (opens, said) = compared(&w, &job(&w, "load", &["ext/libplug.so"]));
    let log = w.log();
    drop(w);
    let _ = Command::new("umount").arg(dir.path()).status();
    assert!(said.contains(VALUE), "{said}");
    assert_eq!(opens, 4);
    assert_eq!(log.matches("noexec: shared libraries are left to the PFS").count(), 1, "{log}");
}

#[test]
fn an_agent_that_is_killed_in_the_middle_of_imports_is_not_missed() {
    let mut w = world();
    let hold = job(&w, "hold", &["lib/libalone.so", "ext/libplug.so"]);
    let mut running = w.start(&hold);
    running.until_written("ready");
    signal(w.agent().unwrap().pid, 9);
    running.write(b"go\n");
    let said = running.end().good().text();
    assert!(said.contains("then 73, same 0"), "{said}");
    w.release();
}

/// Replaces the library $2 as pip does: written beside it, and renamed. A second name leads there.
const REPLACE: &str = "printf 'int value(void) { return 99; }' > $1/n.c; gcc -shared -fPIC -o $2.part $1/n.c && \
    mv $2.part $2 && ln -s libalone.so $2.new";

#[test]
fn a_library_that_is_replaced_while_it_is_mapped() {
    let w = world();
    let hold = job(&w, "hold", &["lib/libalone.so", "lib/libalone.so.new"]);
    let mut running = w.start(&hold);
    running.until_written("ready");
    let build = Job::new("sh").args(["-c", REPLACE, "sh"]).arg(w.scratch()).arg(at(&w, "lib/libalone.so"));
    w.run(&build).good();
    running.write(b"go\n");
    let said = running.end().good().text();
    assert!(said.contains("value 3, then 99, same 0"), "{said}");
}

#[test]
fn python_knows_its_extensions_by_their_own_names() {
    if !has_command("python3") {
        return;
    }
    let w = world();
    let script = "import sys, ctypes, importlib.machinery as m, importlib.util as u\n\
        path = sys.argv[1]\n\
        library = ctypes.CDLL(path)\n\
        print(library.value(), library._name)\n\
        try:\n    m.ExtensionFileLoader('plug', path).create_module(u.spec_from_file_location('plug', path))\n\
        except ImportError as e:\n    print(e, e.path)\n";
    let (opens, said) = compared(&w, &Job::new("python3").args(["-c", script]).arg(at(&w, "ext/libplug.so")));
    assert!(said.contains("73 ") && said.contains("app/ext/libplug.so"), "{said}");
    assert_eq!(opens, 0);
}

#[test]
fn a_debugger_finds_symbols() {
    if !has_command("gdb") {
        eprintln!("skipped: there is no gdb");
        return;
    }
    let w = world();
    let debug = Job::new("gdb")
        .args([
            "-q",
            "-batch",
            "-ex",
            "set breakpoint pending on",
            "-ex",
            "break third_value",
            "-ex",
            "run",
            "-ex",
            "bt",
            "--args",
        ])
        .args(job(&w, "load", &["ext/libplug.so"]).words());
    let said = w.run(&debug).text();
    let frames = ["third_value", "second_value", "first_value", "plug_value"];
    assert!(frames.iter().all(|f| said.contains(f)), "{said}");
}
