//! Agents and jobs that die, a PFS that fails, wrong words of the command line.

use super::tree::{Tree, differences, tree};
use super::world::{Drain, Outputs, PART_OPS, PARTS, is_built, is_own};
use crate::faults::{agent_pid, kill, wait_for};
use crate::harness::{Job, built, sources};
use slowfs::{FaultKind, FaultSpec, Op};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// The exit status of `monarch run` when something could not be published.
const NOT_PUBLISHED: i32 = 5;
/// Bytes of a file of a checkpoint.
const SIZE: usize = 300_000;

fn saves(w: &Outputs, steps: usize) -> Job {
    w.program("checkpoints.py").args(["hf", &steps.to_string(), &SIZE.to_string(), "0.05"])
}

/// Everything that is published of what a job has written.
fn published(w: &Outputs) -> Tree {
    tree(&w.published()).into_iter().filter(|(path, _)| !is_own(path)).collect()
}

/// Part files and markers on the PFS.
pub fn leftovers(w: &Outputs) -> Vec<String> {
    let all = tree(&w.published()).into_keys();
    all.filter(|path| is_own(path)).map(|path| path.display().to_string()).collect()
}

#[track_caller]
fn same_as(direct: &Tree, w: &Outputs) {
    let differ = differences(direct, &published(w));
    assert!(differ.is_empty(), "another tree:\n{}", differ.join("\n"));
    assert_eq!(leftovers(w), [""; 0], "left on the PFS");
}

/// Rounds of tests/outputs.py: the job, the agent or both are killed at a random moment, then
/// `monarch recover`; the PFS must hold a state that the job had, then its last one.
fn killed(how: &str, rounds: &str) {
    if !is_built() {
        return;
    }
    let mut trial = Command::new("python3");
    let monarch = built("monarch");
    trial.arg(sources().join("../outputs.py")).args(["kills", "--how", how, "--rounds", rounds]);
    let out = trial.env("MONARCH_E2E_BIN", monarch.parent().expect("a directory")).output().expect("python3");
    let said = String::from_utf8_lossy(&out.stdout);
    let passed = format!("{rounds} passed, 0 failed");
    assert!(out.status.success() && said.contains(&passed), "{said}{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
#[ignore = "random: tests/outputs.py kills"]
fn everything_is_killed_at_random_moments() {
    killed("all", "8");
}

#[test]
#[ignore = "random: tests/outputs.py kills"]
fn jobs_are_killed_at_random_moments() {
    killed("job", "6");
}

#[test]
#[ignore = "random: tests/outputs.py kills"]
fn agents_are_killed_at_random_moments() {
    killed("agent", "6");
}

#[test]
fn an_agent_is_killed_again_and_again_while_checkpoints_are_saved() {
    let w = Outputs::new();
    let direct = w.direct(&saves(&w, 160));
    assert!(direct.ended.status.success(), "{}", direct.ended.errors());
    if !is_built() {
        return;
    }
    // (On a busy machine a job may have ended before three agents were there to be killed.)
    for _ in 0..4 {
        w.slow_down(Drain::Slow);
        let running = w.start(&saves(&w, 160));
        let mut killed = 0;
        while killed < 6 && !running.written().contains("## end") {
            let Some(status) = w.world().agent() else { continue };
            killed += u32::from(kill(status.pid as i32, libc::SIGKILL));
            std::thread::sleep(Duration::from_millis(60));
        }
        w.pfs().clear().unwrap();
        let ended = running.end().good();
        assert!(ended.text().contains("## end"), "{killed} agents killed: {}", ended.text());
        same_as(&direct.tree, &w);
        w.clear();
        if killed >= 3 {
            return;
        }
    }
    panic!("no job has lost three agents");
}

/// The PFS takes nothing for a while: the job does not notice.
#[test]
fn a_stalled_pfs_costs_the_job_nothing() {
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    w.pfs().fault(FaultSpec::new(FaultKind::STALL).ops(PART_OPS).path(PARTS)).unwrap();
    let mut running = w.start(&saves(&w, 5));
    let start = Instant::now();
    running.until_written("## end");
    let took = start.elapsed();
    std::thread::sleep(Duration::from_secs(3));
    assert!(published(&w).keys().all(|path| !w.published().join(path).is_file()), "published while nothing was taken");
    w.pfs().clear().unwrap();
    let ended = running.end().good();
    // (Five saves of a megabyte.)
    assert!(took < Duration::from_secs(20), "the job took {took:?}");
    assert!(ended.text().contains("longest"), "{}", ended.text());
    assert!(w.published().join("checkpoint-5/trainer_state.json").exists());
}

/// Errors that pass are tried again until all is published, in order.
#[test]
fn passing_errors_of_the_pfs_are_tried_again() {
    let w = Outputs::new();
    let direct = w.direct(&saves(&w, 3));
    if !is_built() {
        return;
    }
    for (kind, op) in [
        (FaultKind::EIO, Op::Write),
        (FaultKind::EIO, Op::Fsync),
        (FaultKind::EIO, Op::Rename),
        (FaultKind::ESTALE, Op::Write),
        (FaultKind::Errno(libc::ENOSPC), Op::Write),
        (FaultKind::Errno(libc::EDQUOT), Op::Fsync),
        (FaultKind::Errno(libc::EDQUOT), Op::Rename),
        (FaultKind::Errno(libc::EACCES), Op::Rename),
        (FaultKind::Errno(libc::ETIMEDOUT), Op::Fsync),
    ] {
        w.pfs().fault(FaultSpec::new(kind).ops(&[op]).path(PARTS).after(2).count(2)).unwrap();
        let ended = w.start(&saves(&w, 3)).end();
        let hit: u64 = w.pfs().faults().unwrap().iter().map(|f| f.hit).sum();
        w.pfs().clear().unwrap();
        assert_eq!(hit, 2, "{kind} of {op} did not happen");
        assert!(ended.status.success(), "{kind} of {op}: {}\n{}{}", ended.status, ended.text(), ended.errors());
        same_as(&direct.tree, &w);
        w.clear();
    }
}

/// A PFS that is full: later creates get its error, the data are kept, `recover` publishes them.
#[test]
fn a_full_pfs_holds_the_root_until_there_is_space() {
    let w = Outputs::disk().set("run.output_wait=2s");
    if !is_built() {
        return;
    }
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        w.pfs()
            .fault(FaultSpec::new(FaultKind::Errno(errno)).ops(&[Op::Write, Op::CopyFileRange]).path(PARTS))
            .unwrap();
        let script = "echo one > one; echo two > two; i=0; while echo x > three.$i; do i=$((i+1)); sleep 0.2; done 2> \"$TMPDIR/said\"; echo '## end'";
        let ended = w.start(&w.here(Job::new("sh").args(["-c", script]))).end();
        assert_eq!(ended.status.code(), Some(NOT_PUBLISHED), "{}{}", ended.text(), ended.errors());
        let said = fs::read_to_string(w.world().scratch().join("said")).unwrap();
        let wanted = if errno == libc::ENOSPC { "No space left" } else { "quota exceeded" };
        assert!(said.contains(wanted), "the job was told: {said:?}");
        let errors = ended.errors();
        assert!(errors.contains("one") && errors.contains("recover"), "no list of what is pending: {errors}");
        assert!(!w.published().join("one").exists(), "published on a full PFS");
        let held = w.monarch("outputs").output().unwrap();
        let listed = String::from_utf8_lossy(&held.stdout).into_owned();
        assert!(listed.contains("one") && listed.contains("two"), "not listed: {listed}");
        w.pfs().clear().unwrap();
        let recovered = w.monarch("recover").output().unwrap();
        assert!(recovered.status.success(), "{recovered:?}");
        assert_eq!(fs::read_to_string(w.published().join("one")).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(w.published().join("two")).unwrap(), "two\n");
        assert_eq!(leftovers(&w), [""; 0]);
        w.clear();
    }
}

/// Errors that a direct create gives are those of the staged one.
#[test]
fn a_create_is_answered_by_the_pfs() {
    let w = Outputs::new();
    let errnos = [libc::ENOSPC, libc::EDQUOT, libc::EACCES, libc::EROFS, libc::ENAMETOOLONG];
    let job = w.here(Job::new("sh").args(["-c", "echo x > f; echo $?; ls; echo '## end'"]));
    for errno in errnos {
        let fault = || FaultSpec::new(FaultKind::Errno(errno)).ops(&[Op::Create, Op::Mknod, Op::Open]);
        w.pfs().fault(fault()).unwrap();
        let direct = w.direct(&job);
        w.pfs().clear().unwrap();
        if !is_built() {
            continue;
        }
        w.pfs().fault(fault().path("out/**")).unwrap();
        let staged = w.start(&job).end();
        w.pfs().clear().unwrap();
        crate::harness::assert_same(&direct.ended, &staged);
    }
}

/// A process that is killed while it writes: a new name is published as it is, an old one keeps its
/// content, and what was written lies beside it.
#[test]
fn a_killed_writer_never_tears_what_was_published() {
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    fs::write(w.published().join("old"), "what was published before\n").unwrap();
    let script =
        "sh -c 'exec 3> new; exec 4> old; echo half >&3; echo half >&4; kill -9 $$'; echo 'killed'; echo '## end'";
    let ended = w.start(&w.here(Job::new("sh").args(["-c", script]))).end();
    assert!(ended.text().contains("## end"), "{}", ended.errors());
    assert_eq!(fs::read_to_string(w.published().join("new")).unwrap(), "half\n");
    assert_eq!(fs::read_to_string(w.published().join("old")).unwrap(), "what was published before\n");
    let names = published(&w);
    let partial: Vec<_> = names.keys().filter(|path| path.to_string_lossy().starts_with("old.partial-")).collect();
    assert_eq!(partial.len(), 1, "{names:?}");
    assert_eq!(fs::read_to_string(w.published().join(partial[0])).unwrap(), "half\n");
}

/// While something waits, a file on the PFS says so; a job elsewhere, or a person, can know.
#[test]
fn what_is_pending_is_told_on_the_pfs_and_by_commands() {
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    w.slow_down(Drain::Held);
    let script = "echo checkpoint > model; echo '## end'; cat";
    let mut running = w.start(&w.here(Job::new("sh").args(["-c", script])));
    running.until_written("## end");
    let marker = || leftovers(&w).into_iter().find(|name| name.starts_with(".monarch-pending-"));
    // It is new for a moment before it is whole.
    let text = || marker().and_then(|name| fs::read_to_string(w.published().join(name)).ok()).unwrap_or_default();
    wait_for("the marker", || text().contains("recover"));
    assert!(text().contains("model"), "{}", text());
    let listed = w.monarch("outputs").output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("model"), "{listed}");
    let status = w.world().agent().expect("an agent");
    assert!(status.pid > 0);
    w.pfs().clear().unwrap();
    let flushed = w.monarch("flush").arg(w.root()).output().unwrap();
    assert!(flushed.status.success(), "{flushed:?}");
    assert_eq!(fs::read_to_string(w.published().join("model")).unwrap(), "checkpoint\n");
    wait_for("the marker's end", || marker().is_none());
    running.end().good();
    assert_eq!(leftovers(&w), [""; 0]);
}

/// Part files that no journal knows are removed; what is not a part file stays.
#[test]
fn part_files_without_an_owner_are_removed_by_recover() {
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    let orphan = format!(".monarch-part-{:016x}-{:016x}", 0xabcd, 7);
    fs::create_dir(w.published().join("d")).unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(2 * 3600);
    for name in [&orphan, "d/.monarch-part-of-somebody", "kept", &format!("d/{orphan}")] {
        fs::write(w.published().join(name), "x").unwrap();
        fs::File::options().write(true).open(w.published().join(name)).unwrap().set_modified(old).unwrap();
    }
    // Another node may be about to write into a part file that was just made.
    let young = format!(".monarch-part-{:016x}-{:016x}", 0xabcd, 8);
    fs::write(w.published().join(&young), "").unwrap();
    let left = || -> Vec<String> { tree(&w.published()).into_keys().map(|p| p.display().to_string()).collect() };
    let before = left();
    // Only directories that are named are searched; where none is named, the tier has to be there.
    fs::create_dir_all(w.world().tier()).unwrap();
    let out = w.monarch("recover").output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(left(), before);
    fs::remove_dir_all(w.world().tier()).unwrap();
    let out = w.monarch("recover").arg(w.root()).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stdout).contains("2 part files removed"), "{out:?}");
    assert_eq!(left(), [young.as_str(), "d", "d/.monarch-part-of-somebody", "kept"]);
}

/// A time limit: `run` is told to end, passes it on, and says what is pending; `recover` does it.
#[test]
fn a_job_that_is_told_to_end_leaves_what_is_pending_to_recover() {
    let w = Outputs::disk();
    if !is_built() {
        return;
    }
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGKILL] {
        w.slow_down(Drain::Held);
        let script = "echo checkpoint > model; echo marker > latest; echo '## end'; sleep 100";
        let mut running = w.start(&w.here(Job::new("sh").args(["-c", script])));
        running.until_written("## end");
        let agent = agent_pid(w.world());
        let group = -(running.pid() as i32);
        kill(group, signal);
        std::thread::sleep(Duration::from_millis(500));
        kill(group, libc::SIGKILL);
        kill(agent, libc::SIGKILL);
        w.pfs().clear().unwrap();
        drop(running);
        let out = w.monarch("recover").output().unwrap();
        assert!(out.status.success(), "{out:?}");
        assert_eq!(fs::read_to_string(w.published().join("model")).unwrap(), "checkpoint\n", "signal {signal}");
        assert_eq!(fs::read_to_string(w.published().join("latest")).unwrap(), "marker\n", "signal {signal}");
        assert_eq!(leftovers(&w), [""; 0], "signal {signal}");
        w.clear();
    }
}

/// A tier that is too small for what is written: slower, complete, in order, no error of the tier.
#[test]
fn a_tier_without_room_makes_the_job_wait_or_go_through() {
    let w = Outputs::plan(|plan| plan.tier_size("4MiB"), |pfs| pfs.bandwidth(40_000_000));
    let job = w.program("checkpoints.py").args(["hf", "4", "1500000"]);
    let direct = w.direct(&job);
    assert!(direct.ended.status.success(), "{}", direct.ended.errors());
    if !is_built() {
        return;
    }
    let ended = w.start(&job).end();
    assert!(ended.status.success(), "{}{}", ended.text(), ended.errors());
    same_as(&direct.tree, &w);
}

/// A second job, and a program without the shim, see whole published files only.
#[test]
fn others_see_only_what_is_published() {
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    w.slow_down(Drain::Held);
    let mut first = w.start(&w.here(Job::new("sh").args(["-c", "echo one > f; echo '## end'; read -r l; cat f g"])));
    first.until_written("## end");
    let bare = w.world().bare(&w.here(Job::new("sh").args(["-c", "ls; cat f"])));
    assert_eq!(bare.text(), "", "seen without the shim");
    // On this node there is one journal: a second job sees what the first has written.
    let mut second = w.start(&w.here(Job::new("sh").args(["-c", "cat f; echo two > g; echo '## end'"])));
    second.until_written("## end");
    assert!(second.written().starts_with("one\n"), "{}", second.written());
    first.write(b"\n");
    first.until_written("two");
    w.pfs().clear().unwrap();
    second.end().good();
    first.end().good();
    assert_eq!(fs::read_to_string(w.published().join("g")).unwrap(), "two\n");
}

/// Wrong words are refused before the command starts, and say what to do.
#[test]
fn wrong_words_are_refused_with_a_reason() {
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    let file = w.root().join("file");
    fs::write(&file, "").unwrap();
    let missing = w.root().join("missing").display().to_string();
    let (root, file) = (w.root().display().to_string(), file.display().to_string());
    let volatile = ["--set", "outputs.0.volatile=true"];
    for (words, said) in [
        (vec!["--output", &missing, volatile[0], volatile[1]], "missing"),
        (vec!["--output", &file, volatile[0], volatile[1]], "file"),
        (vec!["--output", "relative", volatile[0], volatile[1]], "relative"),
        (vec!["--output", "/", volatile[0], volatile[1]], "/"),
        (vec!["--output", &root, "--output", &root, volatile[0], volatile[1]], "outputs"),
        (vec!["--output", &root], "volatile"),
        (vec!["--output", &root, volatile[0], volatile[1], "--set", "outputs.0.fsync=sometimes"], "sometimes"),
        (vec!["--output", &root, volatile[0], volatile[1], "--set", "outputs.0.max_pending=lots"], "lots"),
    ] {
        let job = words.iter().fold(w.here(Job::new("echo").arg("started")), Job::option);
        let ended = w.world().run(&job.option("--strict"));
        let errors = ended.errors();
        assert!(!ended.status.success() && !ended.text().contains("started"), "{words:?}: {}{errors}", ended.text());
        assert!(errors.contains(said), "{words:?}: {errors}");
    }
    for (command, words, code) in [("flush", vec!["/nonexistent"], 2), ("recover", vec!["--nonsense"], 2)] {
        let out = w.world().monarch(command).args(words).output().unwrap();
        assert!(!out.status.success(), "{command}: {out:?}, not {code}");
        assert!(!out.stderr.is_empty(), "{command} said nothing");
    }
}

/// A staging directory is the owner's alone, and a foreign one is not used.
#[test]
fn what_is_staged_is_private() {
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    w.slow_down(Drain::Held);
    let mut running = w.start(&w.here(Job::new("sh").args(["-c", "umask 0; echo secret > f; echo '## end'"])));
    running.until_written("## end");
    let dirs = crate::faults::below(w.world().tier());
    let staged = dirs.iter().find(|path| path.ends_with("data")).expect("a staging directory");
    let closed = staged.ancestors().take_while(|dir| dir.starts_with(w.world().tier()));
    let modes = closed.map(|dir| fs::metadata(dir).unwrap().permissions().mode() & 0o077);
    assert!(modes.into_iter().any(|mode| mode == 0), "{} can be entered by others", staged.display());
    w.pfs().clear().unwrap();
    running.end().good();
    assert_eq!(fs::metadata(w.published().join("f")).unwrap().permissions().mode() & 0o7777, 0o666);
}

/// The calls of the drain are counted: three more a file than writing it directly, and no byte
/// twice.
#[test]
fn the_pfs_gets_each_byte_once_and_few_more_calls() {
    let w = Outputs::new();
    let job = w.here(
        Job::new("sh")
            .args(["-c", "for i in 1 2 3 4 5 6 7 8; do head -c 3000000 /dev/urandom > f$i; done; echo '## end'"]),
    );
    w.pfs().reset().unwrap();
    w.direct(&job).ended.good();
    let direct = w.pfs().counters().unwrap();
    if !is_built() {
        return;
    }
    w.pfs().reset().unwrap();
    w.start(&job).end().good();
    let staged = w.pfs().counters().unwrap();
    let payload: u64 = 8 * 3_000_000;
    // (The marker of what is pending is a small file.)
    assert!(staged.bytes_written >= payload && staged.bytes_written < payload + 10_000, "{}", staged.bytes_written);
    assert_eq!(staged.bytes_read, 0, "read back");
    let calls = |c: &slowfs::Counters| c.calls() - c.write - c.getattr - c.lookup - c.readdir - c.readdirplus;
    println!("direct {direct:?}\nstaged {staged:?}");
    assert!(calls(&staged) <= calls(&direct) + 3 * 8 + 40, "{} calls, {} direct", calls(&staged), calls(&direct));
}

/// A job of which the output root lies in, or holds, the output root of a job that still runs.
#[test]
fn run_waits_for_what_is_staged_in_the_output_root_of_another_job() {
    let name = "sub/x";
    for outer_first in [true, false] {
        let w = Outputs::new();
        if !is_built() {
            return;
        }
        let sub = w.root().join("sub");
        fs::create_dir(&sub).unwrap();
        let outer = Job::new("sh").args(["-c", "echo started; read -r line"]);
        let inner =
            Job::new("sh").args(["-c", &format!("head -c 3000000 /dev/zero > '{}/{name}'", w.root().display())]);
        let (first, second) = if outer_first { (w.root(), sub) } else { (sub, w.root()) };
        let below = |job: Job, root: &std::path::Path| {
            job.option("--output").option(root).option("--set").option("outputs.0.volatile=true")
        };
        let mut running = w.world().start(&below(outer, &first));
        running.until_written("started");
        w.slow_down(Drain::Slow);
        let ended = w.world().start(&below(inner, &second)).end();
        let size = fs::metadata(w.published().join(name)).map(|meta| meta.len()).ok();
        assert_eq!((ended.status.code(), size), (Some(0), Some(3_000_000)), "{outer_first}: {}", ended.errors());
        running.write(b"\n");
        running.end().good();
    }
}

/// Array jobs with a tier each: there is no common view, so the second one writes to the PFS.
#[test]
fn a_job_with_other_tiers_does_not_stage_below_the_output_root_of_a_job_that_runs() {
    let w = Outputs::new();
    if !is_built() {
        return;
    }
    let mut running = w.start(&w.here(Job::new("sh").args(["-c", "echo 1 > a; echo started; read -r line"])));
    running.until_written("started");
    let other = tempfile::tempdir().unwrap();
    let second = |words: &[&str]| {
        let mut c = w.world().monarch("run");
        c.arg("--tier").arg(format!("{}:64MiB", other.path().display())).args(words).args(w.words());
        c.args(["--", "sh", "-c"]).arg(format!("cat '{0}/a'; echo 2 > '{0}/b'", w.root().display()));
        c.output().unwrap()
    };
    let ended = second(&[]);
    let said = String::from_utf8_lossy(&ended.stderr);
    for words in ["files are written to the PFS at once", "another agent of yours on this node", "the same tiers"] {
        assert!(said.contains(words), "no `{words}` in\n{said}");
    }
    assert_eq!((ended.status.code(), fs::read(w.published().join("b")).ok()), (Some(0), Some(b"2\n".to_vec())));
    let strict = second(&["--strict"]);
    assert_eq!(strict.status.code(), Some(3), "{}", String::from_utf8_lossy(&strict.stderr));
    running.write(b"\n");
    running.end().good();
    // The first agent has nothing to do any more.
    let ended = second(&[]);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && !said.contains("at once"), "{said}");
}

/// Leaves a file pending on a PFS that does not answer any more: job and agent are killed.
fn left_on_a_stalled_pfs() -> Outputs {
    let w = Outputs::new();
    if !is_built() {
        return w;
    }
    w.slow_down(Drain::Held);
    let mut running = w.start(&w.here(Job::new("sh").args(["-c", "echo 1 > left; echo started; read -r line"])));
    running.until_written("started");
    let agent = agent_pid(w.world());
    running.signal(libc::SIGKILL);
    kill(agent, libc::SIGKILL);
    let _ = running.end();
    w.pfs().clear().unwrap();
    w.pfs().fault(FaultSpec::new(FaultKind::STALL)).unwrap();
    w
}

#[test]
fn a_stalled_pfs_of_an_earlier_job_delays_no_job_with_another_output_root() {
    let w = left_on_a_stalled_pfs();
    if !is_built() {
        return;
    }
    let other = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let script = format!("echo 2 > '{}/f'", other.path().display());
    let job = Job::new("sh").arg("-c").arg(script).option("--output").option(other.path());
    let ended = w.world().start(&job.option("--set").option("outputs.0.volatile=true")).end();
    let took = start.elapsed();
    assert!(ended.status.success() && !ended.errors().contains("without Monarch"), "{}", ended.errors());
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(fs::read(other.path().join("f")).unwrap(), b"2\n");
    w.pfs().clear().unwrap();
}

#[test]
fn commands_about_outputs_answer_while_the_pfs_does_not() {
    let w = left_on_a_stalled_pfs();
    if !is_built() {
        return;
    }
    let start = Instant::now();
    let shown = w.monarch("outputs").arg(w.root()).output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.code() == Some(3) && text.contains("left"), "{shown:?}");
    let flushed = w.monarch("flush").arg(w.root()).args(["--timeout", "1s"]).output().unwrap();
    assert!(!flushed.status.success(), "{flushed:?}");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    w.pfs().clear().unwrap();
}

/// Two commands that publish what an earlier job has left: the second one waits.
#[test]
fn a_recover_waits_for_another_one() {
    let w = left_on_a_stalled_pfs();
    if !is_built() {
        return;
    }
    w.pfs().clear().unwrap();
    w.slow_down(Drain::Held);
    let first = w.monarch("recover").stderr(std::process::Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let second = w.monarch("recover").stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    w.pfs().clear().unwrap();
    let ended = [first, second].map(|recover| recover.wait_with_output().unwrap());
    assert!(ended.iter().all(|ended| ended.status.success()), "{ended:?}");
    let said = String::from_utf8_lossy(&ended[1].stderr);
    assert!(said.contains("waiting for it"), "{said}");
    assert_eq!(fs::read(w.published().join("left")).unwrap(), b"1\n");
}
