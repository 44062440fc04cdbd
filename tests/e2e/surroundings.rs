//! The surroundings of a job: descriptors, bindings and signals that it inherits, outputs without
//! readers, the commands that look for agents.

use crate::faults::{agent_pid, around, control, kill, regular, wait_for};
use crate::harness::{Job, Running, built};
use crate::sharing::{command, keeper, set, sh, world};
use monarch_core::agent::protocol::Status;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Whether the agent has a file of this name open.
fn open_in_agent(pid: i32, name: &Path) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    fds.filter_map(|e| fs::read_link(e.path()).ok()).any(|to| to == name)
}

#[test]
fn the_agent_inherits_no_descriptors_and_no_binding() {
    let w = world();
    let held = fs::canonicalize(w.scratch()).unwrap().join("held");
    let script = format!("exec 3>{0} 7>{0}; exec taskset -c 0 \"$@\"", held.display());
    let run = around(&["sh", "-c", &script, "sh"], &w.monarch_run(&sh("echo kept; cat")));
    let mut job = Running::new(run);
    job.until_written("kept");
    let pid = agent_pid(&w);
    assert!(!open_in_agent(pid, &held));
    assert!(open_in_agent(job.pid() as i32, &held), "the job's own descriptors are its own");
    let bound = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
    };
    assert_eq!(bound(job.pid()), "0");
    // No more than this test is allowed itself.
    assert_eq!(bound(pid as u32), bound(std::process::id()));
}

#[test]
fn the_agent_inherits_no_descriptors_where_close_range_is_forbidden() {
    let w = world();
    let held = fs::canonicalize(w.scratch()).unwrap().join("held");
    // A filter that answers ENOSYS to close_range (436 everywhere) and allows the rest.
    let program = "import ctypes, os, struct, sys\n\
        code = b''.join(struct.pack('HBBI', *i) for i in [(0x20,0,0,0), (0x15,0,1,436), (6,0,0,0x50026), (6,0,0,0x7fff0000)])\n\
        buf = ctypes.create_string_buffer(code)\n\
        prog = struct.pack('HxxxxxxQ', 4, ctypes.addressof(buf))\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        libc.prctl(38, 1, 0, 0, 0)\n\
        if libc.prctl(22, 2, ctypes.c_char_p(prog), 0, 0): sys.exit(99)\n\
        fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n\
        os.dup2(fd, 300)\n\
        os.set_inheritable(fd, True)\n\
        os.execvp(sys.argv[2], sys.argv[2:])\n";
    let run = around(&["python3", "-c", program, held.to_str().unwrap()], &w.monarch_run(&sh("echo kept; cat")));
    let mut job = Running::new(run);
    job.until_written("kept");
    assert!(open_in_agent(job.pid() as i32, &held));
    assert!(!open_in_agent(agent_pid(&w), &held));
}

#[test]
fn the_parent_of_run_may_ignore_the_end_of_children() {
    let w = world();
    let inner = "import signal, sys; print(signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN); sys.exit(7)";
    let job = Job::new("python3").args(["-c", inner]);
    let trap =
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp(sys.argv[1], sys.argv[1:])";
    let ended = Running::new(around(&["python3", "-c", trap], &w.monarch_run(&job))).end();
    assert_eq!((ended.status.code(), ended.errors().as_str()), (Some(7), ""));
    assert_eq!(ended.text(), "True\n", "the job inherits what its starter ignores");
}

#[test]
fn run_survives_outputs_without_readers() {
    let w = world();
    let quiet = w.monarch_run(&sh("exit 5"));
    let mut c = around(&["sh", "-c", "\"$@\" 2>/dev/full", "sh"], &quiet);
    assert_eq!(c.output().unwrap().status.code(), Some(5));
    // Loud, and with a warning at the start.
    let words: Vec<_> = quiet.get_args().filter(|a| *a != "--quiet").map(ToOwned::to_owned).collect();
    for (shim, script) in [("", "\"$@\" 2>/dev/full"), ("/nowhere.so", "\"$@\" 2>/dev/full"), ("", "\"$@\" 2>&-")] {
        let mut c = Command::new("sh");
        c.args(["-c", script, "sh"]).arg(quiet.get_program()).args(&words).current_dir(w.scratch());
        c.env("TMPDIR", w.scratch()).env_remove("LD_PRELOAD");
        if !shim.is_empty() {
            c.env("MONARCH_SHIM", shim);
        }
        assert_eq!(c.output().unwrap().status.code(), Some(5), "{script} {shim}");
    }
    // A pipe without a reader.
    let pipe = "(sleep 0.3; \"$@\"; echo $? > status) 2>&1 | true; cat status";
    let mut c = Command::new("sh");
    c.args(["-c", pipe, "sh"]).arg(quiet.get_program()).args(&words).current_dir(w.scratch());
    for _ in 0..2 {
        c.env("MONARCH_SHIM", "/nowhere.so");
        let said = c.output().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        wait_for("the status", || fs::read_to_string(w.scratch().join("status")).is_ok_and(|s| s.trim() == "5"));
        drop(said);
        c.env_remove("MONARCH_SHIM");
    }
}

#[test]
fn an_agent_of_a_configuration_file_is_found_and_a_silent_one_keeps_no_other_waiting() {
    let w = world();
    let other = set(&w, "other", 2);
    let tier = w.scratch().join("tier");
    let _one = keeper(&w, &[w.root()]);
    let mut two = command(&w, &[&other], &sh("echo kept; cat"));
    let at = two.get_args().position(|a| a == "--tier").unwrap();
    let mut words: Vec<_> = two.get_args().map(ToOwned::to_owned).collect();
    words[at + 1] = format!("{}:64MiB", tier.display()).into();
    two = Command::new(built("monarch"));
    two.args(words).current_dir(w.scratch()).env("TMPDIR", w.scratch());
    let mut two = Running::new(two);
    two.until_written("kept");
    let file = w.scratch().join("monarch.yaml");
    let tiers = format!("tiers: [{{ name: t, path: {}, capacity: 64MiB }}]", tier.display());
    fs::write(&file, format!("runtime_dir: {}\n{tiers}\n", w.runtime().display())).unwrap();
    let monarch = |words: &[&str]| {
        let mut c = Command::new(built("monarch"));
        c.args(words).env("TMPDIR", w.scratch()).env_remove("MONARCH_RUNTIME_DIR").output().unwrap()
    };
    let set = format!("runtime_dir={}", w.runtime().display());
    let pids = |words: &[&str]| {
        let all: Vec<Status> = serde_json::from_slice(&monarch(words).stdout).unwrap();
        all.into_iter().map(|s| s.pid as i32).collect::<Vec<_>>()
    };
    let both = pids(&["status", "--json", "--set", &set]);
    assert_eq!((both.len(), pids(&["status", "--json", "--config", file.to_str().unwrap()]).len()), (2, 2));
    let stopped = w.agent().unwrap().pid as i32;
    kill(stopped, libc::SIGSTOP);
    let start = Instant::now();
    let said = monarch(&["status", "--json", "--set", &set]);
    let left: Vec<Status> = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((left.len(), said.status.code()), (1, Some(0)));
    assert!(String::from_utf8_lossy(&said.stderr).contains("does not answer"));
    let said = monarch(&["stop", "--set", &set]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stdout).contains(&format!("stopped agent {}", left[0].pid)));
    assert!(start.elapsed() < Duration::from_secs(25));
    kill(stopped, libc::SIGCONT);
    assert!(monarch(&["stop", "--set", &set]).status.success());
    // No agent is there any more: the named tier is purged all the same.
    fs::create_dir_all(&tier).unwrap();
    let left = tier.join(format!("monarch-{}", uid())).join("copies/00");
    fs::create_dir_all(&left).unwrap();
    fs::set_permissions(left.ancestors().nth(2).unwrap(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(left.join("copy"), "old").unwrap();
    fs::write(left.ancestors().nth(2).unwrap().join("lock"), "1\n").unwrap();
    let said = monarch(&["stop", "--purge", "--config", file.to_str().unwrap()]);
    assert_eq!(said.status.code(), Some(0), "{said:?}");
    assert_eq!(regular(&tier), Vec::<PathBuf>::new());
}

#[test]
fn in_a_batch_job_nothing_is_left_in_memory_when_run_has_ended() {
    let w = crate::harness::World::plan().files(8).memory().args(&["--plain"]).build();
    for _ in 0..3 {
        w.run(&crate::faults::reads(&w).env("SLURM_JOB_ID", "1")).good();
        // Slurm kills all processes of a job at this moment.
        assert!(w.agent().is_none());
        assert_eq!((regular(w.tier()), regular(w.runtime())), (vec![], vec![]));
    }
}

#[test]
fn a_tier_in_memory_beside_the_runtime_directories_takes_none_of_them_along() {
    let w = world();
    // As with `--tier /dev/shm:1GiB`: copies and runtime directories lie in one directory of the
    // user's.
    let _one = keeper(&w, &[w.root()]);
    let pid = agent_pid(&w);
    let two = command(&w, &[w.root()], &sh("cat \"$0\"/* >/dev/null 2>&1; exit 4").arg(w.root()));
    let words: Vec<_> = two.get_args().map(ToOwned::to_owned).collect();
    let at = words.iter().position(|a| a == "--tier").unwrap();
    let mut again = Command::new(built("monarch"));
    again.args(&words[..=at]).arg(format!("{}:64MiB", w.runtime().display())).args(&words[at + 2..]);
    again.envs(two.get_envs().filter_map(|(k, v)| Some((k, v?)))).env("SLURM_JOB_ID", "1");
    assert_eq!(again.current_dir(w.scratch()).output().unwrap().status.code(), Some(4));
    assert!(Path::new(&control(&w)).is_file());
    assert_eq!(agent_pid(&w), pid);
    let own = control(&w).ancestors().nth(2).unwrap().to_owned();
    assert!(!own.join("copies").exists() && own.join("lock").metadata().is_err());
}

#[test]
fn an_agent_that_went_with_another_batch_job_leaves_nothing_behind() {
    let w = crate::harness::World::plan().files(8).memory().args(&["--plain"]).build();
    let report = w.scratch().join("saved.json");
    let job = sh("echo kept; read -r line").option("--report").option(&report).env("SLURM_JOB_ID", "1");
    let mut run = w.start(&job);
    run.until_written("kept");
    w.until("all copies", |s| s.tiers[0].files >= 8);
    // Slurm kills the agent with the job that started it, just before this one ends.
    kill(agent_pid(&w), libc::SIGKILL);
    run.write(b"\n");
    let ended = run.end().good();
    assert_eq!(ended.errors(), "");
    assert!(report.is_file() && w.agent().is_none());
    assert_eq!((regular(w.tier()), regular(w.runtime())), (vec![], vec![]));
}

#[test]
fn a_batch_job_does_not_wait_for_an_agent_that_other_jobs_use() {
    let w = world();
    let _one = keeper(&w, &[w.root()]);
    let mut two = command(&w, &[w.root()], &sh("exit 4"));
    let start = Instant::now();
    assert_eq!(two.env("SLURM_JOB_ID", "1").output().unwrap().status.code(), Some(4));
    assert!(start.elapsed() < Duration::from_secs(10) && w.agent().is_some());
}

#[test]
fn a_signal_to_all_processes_of_a_job_spares_its_report() {
    let w = world();
    let report = w.scratch().join("saved.json");
    // (It does not end by itself when its input does.)
    let job = sh("echo kept; exec sleep 100").option("--report").option(&report);
    let mut run = w.start(&job);
    run.until_written("kept");
    // As `scancel` and a time limit do.
    let agent = agent_pid(&w);
    kill(agent, libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    run.signal(libc::SIGTERM);
    let ended = run.end();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(libc::SIGTERM));
    assert!(serde_json::from_slice::<serde_json::Value>(&fs::read(&report).unwrap()).unwrap()["counters"].is_object());
    wait_for("the end of the agent", || w.agent().is_none());
}

#[test]
fn one_task_prints_the_summary_also_when_launchers_are_nested() {
    let w = world();
    let says = |ranks: &[(&str, &str)]| {
        let run = w.monarch_run(&sh("sleep 1.2"));
        let words: Vec<_> = run.get_args().filter(|a| *a != "--quiet").map(ToOwned::to_owned).collect();
        let mut loud = Command::new(built("monarch"));
        loud.args(words).envs(run.get_envs().filter_map(|(k, v)| Some((k, v?)))).envs(ranks.iter().copied());
        loud.current_dir(w.scratch()).output().unwrap().stderr.windows(7).any(|part| part == b"monarch")
    };
    assert!(says(&[]) && says(&[("SLURM_PROCID", "0"), ("OMPI_COMM_WORLD_RANK", "0")]));
    assert!(!says(&[("SLURM_PROCID", "1")]) && !says(&[("SLURM_PROCID", "0"), ("OMPI_COMM_WORLD_RANK", "1")]));
    assert!(says(&[("SLURM_PROCID", "1"), ("MONARCH_RANK", "0")]));
}

#[test]
fn tasks_that_end_at_once_may_write_one_report() {
    let w = world();
    let report = w.scratch().join("saved.json");
    let tasks: Vec<_> = (0..6).map(|_| w.start(&sh("sleep 0.5").option("--report").option(&report))).collect();
    for task in tasks {
        task.end().good();
        let text = fs::read(&report).unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(&text).is_ok(), "{}", String::from_utf8_lossy(&text));
    }
    let rest =
        fs::read_dir(w.scratch()).unwrap().flatten().filter(|e| e.file_name().to_string_lossy().contains("saved"));
    assert_eq!(rest.count(), 1);
    // A path that is no file is written to as it is.
    let ended = w.run(&sh("exit 0").option("--report").option("/dev/stdout")).good();
    assert!(serde_json::from_str::<serde_json::Value>(&ended.text()).is_ok(), "{}", ended.text());
}

fn uid() -> u32 {
    // SAFETY: only returns the user.
    unsafe { libc::geteuid() }
}
