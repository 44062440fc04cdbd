//! `monarch env`: a script whose own commands read copies, for as long as its shell lives.

use crate::faults::wait_for;
use crate::harness::{Job, World, built};

fn world() -> World {
    World::plan().files(8).args(&["--plain"]).build()
}

/// A script that evaluates `monarch env` where it says `$enter`.
fn script(w: &World, text: &str) -> Job {
    let command = |c: &str| format!("\"$MONARCH\" {c} \"$@\"");
    let text = text.replace("$enter", &format!("eval \"$({})\"", command("env")));
    let name = format!("set -eu\n{text}");
    Job::new("sh").args(["-c", &name, "sh"]).args(w.words()).env("MONARCH", built("monarch")).env("ROOT", w.root())
}

const READ_ALL: &str = "find \"$ROOT\" -type f -exec cat {} +";

#[test]
fn the_commands_of_a_script_read_copies() {
    let w = world();
    let report = w.scratch().join("saved.json");
    let text = format!("$enter\n{READ_ALL}\necho entered; read -r line; {READ_ALL}");
    let bare = w.bare(&script(&w, &format!("{READ_ALL}\necho entered; {READ_ALL}"))).good();
    let job = script(&w, &text).arg("--report").arg(&report);
    let mut shell = w.start_bare(&job);
    shell.until_written("entered");
    w.until("all copies", |s| s.tiers[0].files >= 8 && s.jobs == 1);
    let before = w.counter("hits");
    shell.write(b"\n");
    let ended = shell.end().good();
    assert_eq!(ended.text(), bare.text());
    assert_eq!(ended.errors(), "");
    wait_for("the report", || report.is_file());
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert!(saved["counters"]["hits"].as_u64().unwrap() >= before + 8, "{saved}");
    wait_for("the end of the agent", || w.agent().is_none());
}

#[test]
fn the_root_is_scanned_once() {
    let w = world();
    let listings = |job: &dyn Fn()| {
        w.pfs().reset().unwrap();
        job();
        wait_for("the end of the agent", || w.agent().is_none());
        w.pfs().counters().unwrap().opendir
    };
    let run = listings(&|| drop(w.run(&Job::new("sleep").arg("0.5")).good()));
    let env = listings(&|| drop(w.bare(&script(&w, "$enter\nsleep 0.5")).good()));
    assert!(run > 0 && env == run, "{env} {run}");
}

#[test]
fn the_agent_is_started_again_under_a_script() {
    let w = world();
    let mut shell = w.start_bare(&script(&w, &format!("$enter\necho entered; read -r line; {READ_ALL} >&2")));
    shell.until_written("entered");
    w.until("all copies", |s| s.tiers[0].files >= 8);
    let first = w.agent().unwrap().pid;
    // SAFETY: the agent of this world.
    unsafe { libc::kill(first as i32, libc::SIGKILL) };
    w.until("another agent", |s| s.pid != first && s.jobs == 1);
    assert_eq!(w.agent().map(|s| s.incarnation), Some(2));
    shell.write(b"\n");
    shell.end().good();
}

#[test]
fn a_killed_shell_takes_the_agent_along() {
    let w = world();
    let mut shell = w.start_bare(&script(&w, "$enter\necho entered; read -r line"));
    shell.until_written("entered");
    w.until("the job", |s| s.jobs == 1);
    shell.signal(libc::SIGKILL);
    wait_for("the end of the agent", || w.agent().is_none());
}

#[test]
fn a_script_continues_when_it_cannot_be_served() {
    let w = world();
    let text = format!("$enter\n{READ_ALL}; echo \"preload ${{LD_PRELOAD-none}}\"");
    let bare = w.bare(&script(&w, READ_ALL)).good().text();
    let expected = format!("{bare}preload none\n");
    std::fs::remove_dir_all(w.runtime()).unwrap();
    std::fs::write(w.runtime(), "not a directory").unwrap();
    let ended = w.bare(&script(&w, &text)).good();
    assert_eq!(ended.text(), expected);
    assert!(ended.errors().contains("running without Monarch"), "{}", ended.errors());
    // Turned off.
    let off = w.bare(&script(&w, &text).env("MONARCH_DISABLE", "1")).good();
    assert_eq!((off.text(), off.errors()), (expected.clone(), String::new()));
}

/// It continued, hours long, on the PFS.
#[test]
fn a_script_with_a_mistake_ends_where_run_would_have_ended() {
    let w = world();
    for mistake in [&["--set", "no.such=1"][..], &["--rooot", "x"]] {
        let wrong = w.bare(&script(&w, "$enter\necho continued").args(mistake));
        assert_eq!((wrong.status.code(), wrong.text()), (Some(2), String::new()), "{wrong:?}");
        assert!(wrong.errors().contains(mistake[0].trim_start_matches("--set")), "{}", wrong.errors());
        let run = w.run(&Job::new("echo").arg("continued").option(mistake[0]).option(mistake[1]));
        assert_eq!((run.status.code(), run.text()), (Some(2), String::new()), "{run:?}");
    }
}

/// The setting was obeyed by `run` alone.
#[test]
fn a_strict_script_ends_where_it_cannot_be_served() {
    let w = world();
    let strict = |text: &str| script(&w, text).args(["--set", "run.strict=true"]);
    w.bare(&strict(&format!("$enter\n{READ_ALL}"))).good();
    wait_for("the end of the agent", || w.agent().is_none());
    std::fs::remove_dir_all(w.runtime()).unwrap();
    std::fs::write(w.runtime(), "not a directory").unwrap();
    let ended = w.bare(&strict("$enter\necho continued"));
    assert_eq!((ended.status.code(), ended.text()), (Some(3), String::new()), "{ended:?}");
    let said = "monarch: the command was not started, as Monarch cannot serve it (run.strict): ";
    assert!(ended.errors().contains(said), "{ended:?}");
}

#[test]
fn env_off_restores_the_environment() {
    let w = world();
    let text = "LD_PRELOAD=libm.so.6; export LD_PRELOAD\n$enter\necho \"$LD_PRELOAD\"\neval \"$(\"$MONARCH\" env --off)\"\n\
                echo \"$LD_PRELOAD ${MONARCH_CTL-none}\"";
    let ended = w.bare(&script(&w, text)).good();
    let shim = built("libmonarch_shim.so").canonicalize().unwrap();
    assert_eq!(ended.text(), format!("libm.so.6:{}\nlibm.so.6 none\n", shim.display()));
}

#[test]
fn a_job_below_run_is_not_served_twice() {
    let w = world();
    let ended = w.run(&script(&w, "$enter\necho \"$LD_PRELOAD\"")).good();
    assert_eq!(ended.text().matches("libmonarch_shim.so").count(), 1, "{}", ended.text());
}

#[test]
fn a_batch_script_can_end_its_job_itself() {
    // Slurm kills every process of a script when it ends: the report is there before.
    let w = world();
    let report = w.scratch().join("saved.json");
    let text = format!(
        "$enter\n{READ_ALL} >&2\neval \"$(\"$MONARCH\" env --end)\"\necho \"${{LD_PRELOAD-none}}\"; cat \"$REPORT\""
    );
    let job = script(&w, &text).arg("--report").arg(&report).env("REPORT", &report).env("SLURM_JOB_ID", "1");
    let ended = w.bare(&job).good();
    let (first, saved) = ended.text().split_once('\n').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    assert_eq!(first, "none");
    assert!(serde_json::from_str::<serde_json::Value>(&saved).unwrap()["counters"].is_object());
    assert!(w.agent().is_none());
    // Another process's job is not ended, and where there is no job it is no error.
    w.bare(&script(&w, "eval \"$(\"$MONARCH\" env --end)\"")).good();
}

#[test]
fn the_end_of_a_script_within_is_not_the_end_of_the_script() {
    let w = world();
    let text = "$enter\nsh -c 'eval \"$(\"$MONARCH\" env --end)\"'; echo entered; read -r line";
    let mut shell = w.start_bare(&script(&w, text));
    shell.until_written("entered");
    assert!(w.agent().is_some_and(|s| s.jobs == 1));
    shell.write(b"\n");
    shell.end().good();
}
