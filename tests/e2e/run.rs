//! `monarch run` as a wrapper: signals, status, environment, output, report, and errors that
//! prevent a job from starting.

use crate::faults::{reads, wait_for};
use crate::harness::{Job, World};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn sh(script: &str) -> Job {
    Job::new("sh").args(["-c", script])
}

fn world() -> World {
    World::plan().files(8).args(&["--plain"]).build()
}

#[test]
fn run_ends_as_the_job_ends() {
    let w = world();
    for status in [0, 1, 77, 255] {
        assert_eq!(w.run(&sh(&format!("exit {status}"))).status.code(), Some(status));
    }
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGINT, libc::SIGSEGV] {
        let ended = w.run(&sh(&format!("ulimit -c 0; kill -{signal} $$")));
        assert_eq!(ended.status.signal(), Some(signal));
    }
}

#[test]
fn a_missing_command_is_reported_as_a_shell_reports_it() {
    let w = world();
    let missing = w.run(&Job::new("no-such-command-anywhere"));
    assert_eq!(missing.status.code(), Some(127), "{}", missing.errors());
    assert!(missing.errors().contains("no-such-command-anywhere"), "{}", missing.errors());
    let no_program = w.run(&Job::new(w.scratch()));
    assert_eq!(no_program.status.code(), Some(126), "{}", no_program.errors());
}

#[test]
fn signals_of_a_process_reach_the_job_once() {
    let w = world();
    let script = "n=0; trap 'n=$((n+1)); echo got $n' USR1; trap 'echo end; exit 7' TERM; echo ready; \
                  while :; do sleep 0.05; done";
    let job = w.start(&sh(script));
    let mut job = job;
    job.until_written("ready");
    job.signal(libc::SIGUSR1);
    job.until_written("got 1");
    std::thread::sleep(Duration::from_millis(200));
    job.signal(libc::SIGTERM);
    let ended = job.end();
    assert_eq!((ended.status.code(), ended.text()), (Some(7), "ready\ngot 1\nend\n".to_owned()));
}

#[test]
fn the_terminals_interrupt_reaches_the_job_once() {
    // `script` runs it on a terminal of its own, whose ^C goes to the whole foreground group.
    let w = world();
    let inner = "n=0; trap 'n=$((n+1)); echo got $n' INT; echo ready; i=0; while [ $n = 0 ] && [ $i -lt 1200 ]; do sleep 0.05; i=$((i+1)); done; sleep 0.5; echo n=$n";
    let run = w.monarch_run(&sh(inner));
    let program = "import os, pty, sys, time\n\
        pid, fd = pty.fork()\n\
        if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])\n\
        out = b''\n\
        sent = False\n\
        while True:\n\
        \x20   try: part = os.read(fd, 4096)\n\
        \x20   except OSError: break\n\
        \x20   if not part: break\n\
        \x20   out += part\n\
        \x20   if b'ready' in out and not sent:\n\
        \x20       sent = True\n\
        \x20       os.write(fd, b'\\x03')\n\
        status = os.waitpid(pid, 0)[1]\n\
        sys.stdout.write(out.decode(errors='replace'))\n\
        sys.exit(os.waitstatus_to_exitcode(status))\n";
    let out = crate::faults::around(&["python3", "-c", program], &run).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("n=1"), "{:?} {text}", out.status);
}

#[test]
fn an_existing_preload_stays_in_front() {
    let w = world();
    let ended = w.run(&sh("echo \"$LD_PRELOAD\"").env("LD_PRELOAD", "/nowhere/other.so"));
    let text = ended.text();
    assert!(text.starts_with("/nowhere/other.so:/") && text.trim_end().ends_with("libmonarch_shim.so"), "{text}");
}

#[test]
fn with_monarch_disabled_nothing_is_served() {
    let mut w = world();
    w.settle();
    let before = w.counter("hits");
    w.run(&reads(&w).env("MONARCH_DISABLE", "1")).good();
    assert_eq!(w.counter("hits"), before);
    w.run(&reads(&w)).good();
    assert_eq!(w.counter("hits"), before + 8);
}

/// `monarch run` without `--quiet`.
fn loud(w: &World, job: &Job, env: &[(&str, &str)]) -> std::process::Output {
    let quiet = w.monarch_run(job);
    let mut c = std::process::Command::new(quiet.get_program());
    c.args(quiet.get_args().filter(|a| *a != "--quiet")).stdin(Stdio::null()).current_dir(w.scratch());
    c.env_remove("MONARCH_RANK").envs(env.iter().copied()).output().unwrap()
}

#[test]
fn a_summary_of_ten_lines_goes_to_stderr_of_rank_0_only() {
    let w = world();
    let job = reads(&w).args(["--rounds", "3"]);
    let bare = w.bare(&job).text();
    let strip = |t: &str| t.lines().filter(|l| l.starts_with("round")).map(str::to_owned).collect::<Vec<_>>();
    let out = loud(&w, &job, &[]);
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(strip(&text), strip(&bare));
    assert!((3..=10).contains(&errors.lines().count()) && errors.contains("monarch"), "{errors}");
    for rank in ["SLURM_PROCID", "RANK", "OMPI_COMM_WORLD_RANK"] {
        let out = loud(&w, &job, &[(rank, "1")]);
        assert_eq!(String::from_utf8_lossy(&out.stderr), "", "{rank}");
    }
}

#[test]
fn a_report_is_written() {
    let w = world();
    let file = w.scratch().join("report.json");
    w.start_indexed(&reads(&w).args(["--rounds", "3"]).option("--report").option(&file)).end().good();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let hits = report.pointer("/counters/hits").or_else(|| report.pointer("/job/hits"));
    assert!(hits.and_then(serde_json::Value::as_u64).is_some_and(|n| n > 0), "{report:#}");
    // A report that cannot be written is reported and does not change the job's status.
    let ended = w.run(&sh("exit 3").option("--report").option("/nowhere/report.json"));
    assert_eq!(ended.status.code(), Some(3));
    let said = ended.errors();
    assert!(said.contains("cannot write the report /nowhere/report.json"), "{said}");
    // It is reported before the job begins, too.
    let ended = w.run(&sh("echo begun >&2").option("--report").option("/nowhere/report.json")).good();
    let said = ended.errors();
    let reported =
        said.find("the report /nowhere/report.json will not be written: /nowhere: No such file or directory");
    assert!(reported.is_some_and(|at| said.find("begun").is_some_and(|begun| at < begun)), "{said}");
}

#[test]
fn a_report_says_where_the_opens_went_and_is_shown_again() {
    // Room for half of the files.
    let plan = World::plan().files(40).size(100_000).args(&["--plain", "--exact"]).tier_size("2300KiB");
    let mut w = plan.build();
    w.keep();
    w.until("a full tier", |s| s.agent["refused"] > 0 && s.prefetch == monarch_core::agent::protocol::Ahead::Idle);
    let file = w.scratch().join("report.json");
    let copied = w.agent().unwrap().agent["copied_ahead"];
    w.pfs().reset().unwrap();
    let script = "for epoch in 1 2 3; do find \"$0\" -type f -exec cat {} + > /dev/null || exit 1; done";
    let job = Job::new("sh").args(["-c", script]).arg(w.root());
    w.run(&job.option("--report").option(&file)).good();
    let from_pfs = w.pfs().counters().unwrap().opens();
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let number = |at: &str| report.pointer(at).and_then(serde_json::Value::as_u64).unwrap_or(u64::MAX);
    // The opens that the server counted are those without room in a tier.
    assert_eq!((number("/opens_pfs"), number("/counters/no_room")), (from_pfs, from_pfs), "{report:#}");
    assert_eq!(number("/opens_local"), 120 - from_pfs);
    // By epochs, too.
    let epochs = report.pointer("/status/roots/0/epochs").and_then(serde_json::Value::as_array).unwrap();
    let why: Vec<u64> = epochs.iter().map(|e| e["why"]["no_room"].as_u64().unwrap()).collect();
    assert!(why.iter().sum::<u64>() == from_pfs && why.len() == 3, "{epochs:#?}");
    let directories = report.pointer("/status/roots/0/directories").and_then(serde_json::Value::as_array).unwrap();
    let pfs: u64 = directories.iter().map(|d| d["pfs"].as_u64().unwrap()).sum();
    assert_eq!(pfs, from_pfs, "{directories:#?}");
    let opens: u64 = report["pfs_opens"].as_array().unwrap().iter().map(|o| o["opens"].as_u64().unwrap()).sum();
    assert_eq!(opens, 0, "nothing was copied while the job ran, {copied} files were before");
    assert_eq!(report["command"][0], "sh");
    let said = report["advice"][0].as_str().unwrap().to_owned();
    assert!(said.starts_with("the tiers hold 5") && said.contains("more would hold all of it"), "{said}");
    // The same again, for people: lines and a page.
    let shown = w.monarch("report").arg(&file).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        text.contains(&format!("monarch: advice: {said}"))
            && text.contains("monarch: 2 jobs together: the PFS sent ")
            && text.contains(" of 120 opens; readers waited "),
        "{text}"
    );
    let page = w.scratch().join("report.html");
    assert!(w.monarch("report").arg(&file).arg("-o").arg(&page).status().unwrap().success());
    // What is printed, or written, as JSON is a report again.
    let (printed, copy) = (w.scratch().join("printed.json"), w.scratch().join("copy.json"));
    std::fs::write(&printed, w.monarch("report").arg(&file).arg("--json").output().unwrap().stdout).unwrap();
    assert!(w.monarch("report").arg(&printed).arg("-o").arg(&copy).status().unwrap().success());
    let copy: serde_json::Value = serde_json::from_slice(&std::fs::read(&copy).unwrap()).unwrap();
    assert_eq!(copy, report);
    let again = w.scratch().join("again.html");
    w.run(&Job::new("true").option("--report").option(&again)).good();
    for (page, opens) in [(&page, "<b>120</b>opens below the roots"), (&again, "No file below the roots was opened")] {
        let html = std::fs::read_to_string(page).unwrap();
        assert!(html.starts_with("<!DOCTYPE html>") && html.contains(opens) && html.ends_with("</html>\n"), "{html}");
    }
    // Without a file: the report of the agent that runs. A page is no report that can be read.
    let now = w.monarch("report").arg("--json").output().unwrap();
    let now: serde_json::Value = serde_json::from_slice(&now.stdout).unwrap();
    assert!(now[0]["opens_local"].as_u64() >= Some(120 - from_pfs), "{now:#}");
    let wrong = w.monarch("report").arg(&page).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("cannot be read again"));
}

#[test]
fn opens_of_files_that_the_job_has_written_are_counted_separately() {
    let mut w = world();
    w.settle();
    let file = crate::faults::regular(w.root()).into_iter().next().unwrap();
    w.run(&sh(&format!("echo new > {0} && cat {0} {0} > /dev/null", file.display()))).good();
    assert_eq!((w.counter("written"), w.counter("changed"), w.counter("refused"), w.counter("no_room")), (2, 0, 0, 0));
    w.run(&sh(&format!("cat {}", file.display()))).good();
    assert_eq!(w.counter("written"), 3);
}

#[test]
fn without_the_shim_the_job_runs_all_the_same() {
    let w = world();
    let ended = w.run(&reads(&w).env("MONARCH_SHIM", "/nowhere/libmonarch_shim.so"));
    assert!(ended.status.success(), "{}", ended.errors());
    assert!(ended.errors().contains("running without Monarch"), "{}", ended.errors());
}

#[test]
fn a_root_that_is_missing_is_one_error_before_the_job_starts() {
    let w = world();
    let ended = w.run(&sh("echo ran").option("--root").option("/nowhere/data"));
    assert_eq!((ended.status.code(), ended.text()), (Some(2), String::new()));
    assert!(ended.errors().contains("/nowhere/data"), "{}", ended.errors());
}

#[test]
fn a_killed_wrapper_takes_the_job_along_and_leaves_no_agent() {
    let w = world();
    let out = w.scratch().join("out");
    let script = format!("echo ready; sleep 1; echo done > {}", out.display());
    let mut job = w.start(&sh(&script));
    job.until_written("ready");
    let agent = crate::faults::agent_pid(&w);
    let start = Instant::now();
    job.signal(libc::SIGKILL);
    wait_for("the agent's end", || !crate::faults::kill(agent, 0));
    assert!(!out.exists(), "the job went on without its wrapper");
    assert!(start.elapsed() < Duration::from_secs(20));
}
