//! `monarch run` as a guest: the job gets signals, descriptors, limits and its place among
//! processes as without Monarch, less the secret; it ends with a `run` that is killed; a hanging
//! agent delays no process. Files that the job can write from its start.

use crate::faults::{around, wait_for};
use crate::harness::{Job, World, has_command};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn world() -> World {
    World::plan().files(8).args(&["--plain"]).build()
}

fn sh(script: &str) -> Job {
    Job::new("sh").args(["-c", script])
}

/// Sets up the state that its first word names and runs the other words.
const SETUP: &str = "import os, resource, signal, sys\n\
    how, words = sys.argv[1].split(), sys.argv[2:]\n\
    for s in (signal.SIGPIPE, signal.SIGXFSZ): signal.signal(s, signal.SIG_DFL)\n\
    for word in how:\n\
    \x20   what, _, of = word.partition(':')\n\
    \x20   if what == 'ignore': signal.signal(int(of), signal.SIG_IGN)\n\
    \x20   if what == 'block': signal.pthread_sigmask(signal.SIG_BLOCK, {int(of)})\n\
    \x20   if what == 'close': os.close(int(of))\n\
    \x20   if what == 'open': os.set_inheritable(os.open('/dev/null', os.O_RDWR), True)\n\
    \x20   if what == 'umask': os.umask(int(of, 8))\n\
    \x20   if what == 'nice': os.nice(int(of))\n\
    \x20   if what == 'files': resource.setrlimit(resource.RLIMIT_NOFILE, (int(of), int(of) + 100))\n\
    \x20   if what == 'core': resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n\
    os.environ['GROUP'] = f'{os.getpgid(0)} {os.getsid(0)}'\n\
    os.execvp(words[0], words)\n";

/// Writes the state that it finds to a file.
const FOUND: &str = "import os, resource, sys\n\
    fds = sorted(int(f) for f in os.listdir('/proc/self/fd'))[:-1]\n\
    limits = {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith('RLIMIT')}\n\
    mask = os.umask(0); os.umask(mask)\n\
    found = [fds, limits, oct(mask), os.nice(0), os.getcwd(), os.environ['GROUP'] == f'{os.getpgid(0)} {os.getsid(0)}',\n\
    \x20   sorted(os.sched_getaffinity(0)), open('/proc/self/oom_score_adj').read(), sys.argv[2:]]\n\
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)\n\
    os.write(fd, repr(found).encode())\n";

/// Runs a job in this state, bare and under `run`; returns what it wrote each time.
fn both(w: &World, how: &str, job: &Job, out: &Path) -> [String; 2] {
    let mut bare = Command::new(&job.words()[0]);
    bare.args(&job.words()[1..]).current_dir(w.scratch());
    [bare, w.monarch_run(job)].map(|command| {
        let _ = fs::remove_file(out);
        let mut command = around(&["python3", "-c", SETUP, how], &command);
        let ended = command.stdin(Stdio::null()).output().unwrap();
        assert!(ended.status.success(), "{how}: {ended:?}");
        fs::read_to_string(out).unwrap()
    })
}

/// Signals 32 and 33, which glibc keeps to itself: it handles them from the first thread on, and no
/// program can ask for them.
const OF_GLIBC: u64 = 0b11 << 31;

#[test]
fn the_job_gets_signals_as_run_found_them() {
    let mut w = world();
    w.keep();
    let out = w.scratch().join("out");
    let job = Job::new("cp").arg("/proc/self/status").arg(&out);
    for how in
        ["", "ignore:13", "ignore:1 ignore:2 ignore:17", "block:10 block:15 block:34", "ignore:13 block:13 block:17"]
    {
        let signals = |text: String| -> Vec<(String, u64)> {
            text.lines()
                .filter_map(|l| l.split_once(":\t"))
                .filter(|(name, _)| ["SigBlk", "SigIgn", "SigCgt", "SigPnd"].contains(name))
                .map(|(name, mask)| (name.to_owned(), u64::from_str_radix(mask, 16).unwrap() & !OF_GLIBC))
                .collect()
        };
        let [bare, run] = both(&w, how, &job, &out).map(signals);
        assert_eq!(bare, run, "{how}");
        assert_eq!(bare.len(), 4);
    }
}

#[test]
fn the_job_gets_descriptors_limits_and_process_group_as_run_found_them() {
    let mut w = world();
    w.keep();
    let out = w.scratch().join("out");
    let job = Job::new("python3").args(["-c", FOUND]).arg(&out).args(["a b", "", "--", "-x"]);
    for how in [
        "",
        "close:0",
        "close:1",
        "close:2",
        "close:0 close:1 close:2",
        "open:1 open:2",
        "umask:077 nice:3 files:300 core:1",
    ] {
        let [bare, run] = both(&w, how, &job, &out);
        assert_eq!(bare, run, "{how}");
    }
}

#[test]
fn a_killed_run_takes_the_job_with_it() {
    let w = world();
    let mut job = w.start(&sh("echo pid $$ end; while :; do sleep 0.1; done"));
    job.until_written("end");
    let pid: i32 = job.written().split(' ').nth(1).unwrap().parse().unwrap();
    let lives = || {
        Path::new(&format!("/proc/{pid}/fd/0")).exists()
            || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
    };
    assert!(lives());
    job.signal(libc::SIGKILL);
    wait_for("the end of the job", || !lives());
}

#[test]
fn an_agent_that_hangs_holds_up_the_end_for_two_seconds_at_most() {
    for batch in [None, Some("1")] {
        let mut w = world();
        w.keep();
        w.until("an index", |s| s.roots[0].state == "ready");
        let agent = w.agent().unwrap().pid as i32;
        let mut job = sh("echo ready; read -r line; echo done");
        if let Some(id) = batch {
            job = job.env("SLURM_JOB_ID", id);
        }
        let mut running = w.start(&job.option("--trace").option(w.scratch().join("trace")));
        running.until_written("ready");
        // SAFETY: the agent of this world.
        unsafe { libc::kill(agent, libc::SIGSTOP) };
        running.write(b"\n");
        running.until_written("done");
        let begun = Instant::now();
        let ended = running.end();
        let took = begun.elapsed();
        // SAFETY: as above.
        unsafe { libc::kill(agent, libc::SIGCONT) };
        assert!(ended.status.success() && took < Duration::from_millis(4500), "{took:?} {}", ended.errors());
        assert!(ended.errors().contains("does not answer, there are no figures"), "{}", ended.errors());
    }
}

#[test]
fn the_secret_stays_out_of_the_jobs_environment() {
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    let w = world();
    let with = |job: Job| job.env("MONARCH_CLUSTER_SECRET", SECRET).env("MONARCH_CLUSTER_JOB_SECRET", SECRET);
    let ended = w.run(&with(sh("env; tr '\\0' '\\n' < /proc/self/environ"))).good();
    assert!(!ended.text().contains(SECRET) && ended.text().contains("MONARCH_CTL="), "{}", ended.text());
    let ended = w.run(&with(sh("env")).env("MONARCH_DISABLE", "1")).good();
    assert!(!ended.text().contains(SECRET), "{}", ended.text());
    // The agent, which proves itself by the secret, has it.
    let mut job = w.start(&with(sh("echo ready; read -r line; true")));
    job.until_written("ready");
    let agent = w.agent().unwrap().pid;
    let has = fs::read(format!("/proc/{agent}/environ")).unwrap();
    assert!(has.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()));
    job.end().good();
    // A script that evaluates `monarch env` does not have the secret any more, either.
    let script = "eval \"$(\"$@\")\"; env; test -n \"$MONARCH_CTL\"";
    let mut env = w.monarch("env");
    env.args(w.words()).env("MONARCH_CLUSTER_SECRET", SECRET).env("MONARCH_CLUSTER_JOB_SECRET", SECRET);
    let out = around(&["sh", "-c", script, "sh"], &env).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && !text.contains(SECRET), "{text}");
}

/// Files that a job writes through descriptors that it was given: a root without an index yet, a
/// root with one, a file with two names, a file opened by another name, a file that was not there
/// before.
#[test]
fn the_job_sees_writes_through_an_inherited_descriptor() {
    let mut w = World::plan().files(8).args(&["--plain"]).disk().build();
    let root = w.root().to_owned();
    for name in ["log", "f", "one"] {
        fs::write(root.join(name), "before\n").unwrap();
    }
    fs::hard_link(root.join("one"), root.join("two")).unwrap();
    fs::hard_link(root.join("one"), w.scratch().join("outside")).unwrap();
    let outer = "exec >> \"$R/log\" 3<> \"$R/f\" 4>> \"$S/outside\" 5> \"$R/new\"; shift; exec \"$@\"";
    let job = sh("ls \"$R\" > /dev/null; cat \"$R\"/log \"$R\"/f \"$R\"/one \"$R\"/two > /dev/null; sleep 0.5\n\
         echo more; echo changed >&3; echo more >&4; echo new >&5\n\
         { cat \"$R/log\" \"$R/f\" \"$R/one\" \"$R/two\" \"$R/new\"; ls \"$R\" | grep new; stat -c %s \"$R/log\" \"$R/two\"; } >&2");
    let want = "before\nmore\nchanged\nbefore\nmore\nbefore\nmore\nnew\nnew\n12\n12\n";
    for round in ["without an index", "with one"] {
        for name in ["log", "f", "one"] {
            fs::write(root.join(name), "before\n").unwrap();
        }
        let _ = fs::remove_file(root.join("new"));
        if round == "with one" {
            w.settle();
        }
        let mut run = around(&["sh", "-c", outer, "sh", "-"], &w.monarch_run(&job));
        run.env("R", &root).env("S", w.scratch()).stdin(Stdio::null());
        let out = run.output().unwrap();
        assert!(out.status.success(), "{out:?}");
        assert_eq!(String::from_utf8_lossy(&out.stderr), want, "{round}");
    }
}

#[test]
fn the_descriptors_of_a_shell_count_for_the_commands_that_it_evaluates() {
    let mut w = World::plan().files(8).args(&["--plain"]).disk().build();
    let log = w.root().join("log");
    fs::write(&log, "before\n").unwrap();
    w.settle();
    let script = "exec 3>> \"$L\"; eval \"$(\"$@\")\"; test -n \"$MONARCH_CTL\" || exit 9; cat \"$L\"; echo more >&3; cat \"$L\"";
    let mut env = w.monarch("env");
    env.args(w.words()).env("L", &log);
    let out = around(&["sh", "-c", script, "sh"], &env).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "before\nbefore\nmore\n", "{out:?}");
}

#[test]
fn a_squatted_name_in_shared_memory_hides_no_agent() {
    let w = world();
    // SAFETY: only returns the user.
    let uid = unsafe { libc::geteuid() };
    symlink("/nowhere/at/all", w.runtime().join(format!("monarch-{uid}"))).unwrap();
    let mut job = w.start(&sh("echo ready; read -r line"));
    job.until_written("ready");
    let out = w.monarch("status").output().unwrap();
    assert!(out.status.success(), "{out:?}");
    let second = w.run(&sh("echo $MONARCH_CTL")).good();
    assert!(second.text().contains(&format!("monarch-{uid}.1/")) && second.errors().is_empty(), "{second:?}");
    drop(job);
}

#[test]
fn a_process_with_another_view_gets_nothing_but_the_status() {
    if !has_command("unshare") {
        return;
    }
    let mut w = World::plan().files(8).args(&["--plain"]).disk().build();
    w.settle();
    let before = w.agent().unwrap().pid;
    let views: [&[&str]; 2] = [&["unshare", "-m"], &["unshare", "-U", "--map-current-user"]];
    for view in views {
        let run = |command: &Command| around(view, command).stdin(Stdio::null()).output().unwrap();
        if !run(&Command::new("true")).status.success() {
            continue;
        }
        let ended = run(&w.monarch_run(&sh("echo ran; test -z \"$MONARCH_CTL\"")));
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success() && errors.contains("namespace than the agent"), "{view:?}: {ended:?}");
        assert!(run(w.monarch("status").arg("--json")).status.success(), "{view:?}");
        let mut evict = w.monarch("evict");
        evict.arg("--all");
        run(&evict);
        run(&w.monarch("stop"));
        let now = w.agent().expect("still there");
        assert_eq!(now.pid, before, "{view:?}");
        assert!(now.tiers[0].files > 0, "{view:?}");
    }
}

#[test]
fn a_trace_is_written_by_the_user_who_asked_and_over_no_file() {
    let mut w = world();
    w.keep();
    let trace = w.scratch().join("job.trace");
    fs::write(&trace, "an older one").unwrap();
    w.run(&sh("true").option("--trace").option(&trace)).good();
    assert!(fs::read(&trace).unwrap().starts_with(b"MON"), "not a trace");
    assert_eq!(fs::metadata(&trace).unwrap().permissions().mode() & 0o777, 0o600);
    // A link that another user has made.
    let (link, victim) = (w.scratch().join("link"), w.scratch().join("victim"));
    fs::write(&victim, "mine").unwrap();
    symlink(&victim, &link).unwrap();
    let ended = w.run(&sh("echo ran").option("--trace").option(&link)).good();
    assert!(ended.text() == "ran\n" && ended.errors().contains("symbolic link"), "{}", ended.errors());
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
}

#[test]
fn control_characters_in_file_names_are_escaped_wherever_people_read_them() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let mut w = World::plan().files(4).args(&["--plain"]).disk().build();
    let dir = w.root().join(OsStr::from_bytes(b"d\x1b[31m\xff"));
    fs::create_dir(&dir).unwrap();
    let file = dir.join("a\nmonarch: forged\u{202e}gpj");
    fs::write(&file, "text").unwrap();
    w.settle();
    w.run(&Job::new("cat").arg(&file)).good();
    let explain = |words: &[&str]| {
        let out = w.monarch("explain").args(words).arg(&file).output().unwrap();
        String::from_utf8(out.stdout).expect("text")
    };
    let said = explain(&[]);
    assert!(said.contains("d\\x1b[31m\\xff/a\\nmonarch: forged\\u{202e}gpj"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&explain(&["--json"])).expect("JSON");
    assert!(json[0]["path"].as_str().unwrap().ends_with("/a\nmonarch: forged\u{202e}gpj"), "{json}");
    let mut others = vec![w.monarch("status"), w.monarch("du"), w.monarch("stage"), w.monarch("report")];
    others[1].arg(&dir);
    others[2].args(w.words()).arg(&file);
    for mut command in others {
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\u{fffd}']) && !text.contains("\nmonarch: forged"), "{text}");
        assert!(out.status.success(), "{:?}: {text}", command.get_args());
    }
    for json in [["status", "--json"], ["report", "--json"]] {
        let out = w.monarch(json[0]).arg(json[1]).output().unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&out.stdout).is_ok(), "{out:?}");
    }
}

#[test]
fn a_program_built_with_address_sanitizer_starts_and_is_served() {
    let mut w = World::plan().files(8).args(&["--plain"]).disk().build();
    let source = w.scratch().join("asan.c");
    fs::write(
        &source,
        "#include <stdio.h>\nint main(int c, char **v) { char b[9] = \"\"; FILE *f = fopen(v[1], \"r\"); \
                        if (!f || !fgets(b, 9, f)) return 1; puts(b); return 0; }\n",
    )
    .unwrap();
    let program = w.scratch().join("asan");
    let made = Command::new("gcc").arg("-fsanitize=address").arg("-o").arg(&program).arg(&source).output();
    if !made.is_ok_and(|m| m.status.success()) {
        return;
    }
    let file = w.root().join("text");
    fs::write(&file, "text\n").unwrap();
    w.settle();
    let hits = w.counter("hits");
    let direct = Job::new(&program).arg(&file);
    let nested = sh(&format!("timeout 100 '{}' '{}'", program.display(), file.display()));
    for (job, env) in [(direct.clone(), ""), (nested, "detect_leaks=0")] {
        let job = if env.is_empty() { job } else { job.env("ASAN_OPTIONS", env) };
        assert_eq!(w.run(&job).good().text(), "text\n\n");
    }
    assert!(w.counter("hits") >= hits + 2);
    // And none of it in the environment of other programs.
    assert_eq!(w.run(&sh("echo ${ASAN_OPTIONS-none}")).good().text(), "none\n");
}
