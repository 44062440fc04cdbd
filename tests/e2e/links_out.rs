//! Links below a root that lead out of it, as in Hugging Face's cache.

use crate::faults::wait_for;
use crate::harness::{Ended, Job, Running, World};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Makes a cache with one model: six blobs, all of them in revision r1, two in r2.
const HUB: &str = "set -e; d=$1/hub/models--org--net; mkdir -p $d/blobs $d/refs $d/snapshots/r1/sub $d/snapshots/r2\n\
    for n in 1 2 3 4 5 6; do head -c 5000$n /dev/urandom > $d/blobs/$n; ln -s ../../blobs/$n $d/snapshots/r1/f$n; done\n\
    ln -s ../../../blobs/6 $d/snapshots/r1/sub/deep; ln -s ../../blobs/1 $d/snapshots/r2/f1; ln -s ../../blobs/2 $d/snapshots/r2/f2\n\
    printf r1 > $d/refs/main";

fn hub() -> World {
    World::plan().made_by(Job::new("sh").args(["-c", HUB, "sh"])).patient().build()
}

fn snapshot(w: &World, revision: &str) -> PathBuf {
    w.root().join("hub/models--org--net/snapshots").join(revision)
}

/// A job below `monarch run` with this root, which begins when the index is ready.
fn run(w: &World, root: &Path, settings: &[&str], roots: usize, script: &str) -> (Ended, Value) {
    let report = w.scratch().join("links.json");
    let mut command = w.monarch("run");
    command.arg("--root").arg(root).args(w.words().into_iter().skip(2)).arg("--report").arg(&report);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command.args(["--", "sh", "-c", &format!("echo ready; read -r line; {script}")]).arg(root);
    let mut running = Running::new(command);
    running.until_written("ready");
    wait_for("the index", || {
        w.agent().is_some_and(|s| s.roots.len() == roots && s.roots.iter().all(|r| r.state == "ready"))
    });
    w.pfs().reset().unwrap();
    running.begin();
    let ended = running.end().good();
    let report = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    (ended, report)
}

fn counter(report: &Value, name: &str) -> u64 {
    report["counters"][name].as_u64().unwrap()
}

const READ_TWICE: &str = "cat \"$0\"/f* \"$0\"/sub/deep | sha256sum; cat \"$0\"/f* \"$0\"/sub/deep | sha256sum";

/// Nothing was served of such a directory, and nobody was told.
#[test]
fn a_snapshot_of_links_to_blobs_is_served_from_copies() {
    let w = hub();
    let root = snapshot(&w, "r1");
    let bare = w.bare(&Job::new("sh").args(["-c", READ_TWICE]).arg(&root)).good().text();
    let (ended, report) = run(&w, &root, &[], 2, READ_TWICE);
    assert_eq!(ended.text(), format!("ready\n{bare}"));
    let blobs = w.root().join("hub/models--org--net/blobs");
    let line = format!("monarch: links of {} lead to {}, which is served, too", root.display(), blobs.display());
    assert!(ended.errors().contains(&line), "{ended:?}");
    let served = counter(&report, "hits") + counter(&report, "waited");
    assert_eq!((served, counter(&report, "unknown")), (14, 0), "{report:#}");
    // The agent opens each blob once; the job opens none.
    let opens = w.pfs().counters().unwrap().opens();
    assert!(opens <= 6, "{opens}");
}

#[test]
fn a_snapshot_of_few_of_the_blobs_has_those_copied_that_are_read() {
    let w = hub();
    let root = snapshot(&w, "r2");
    let (_, report) = run(&w, &root, &[], 2, "cat \"$0\"/f* > /dev/null; cat \"$0\"/f* > /dev/null");
    assert_eq!(counter(&report, "hits") + counter(&report, "waited"), 4, "{report:#}");
    assert_eq!(report["status"]["tiers"][0]["files"], 2, "the others belong to other revisions");
}

#[test]
fn links_are_not_followed_where_that_is_switched_off() {
    let w = hub();
    let root = snapshot(&w, "r1");
    let (ended, report) = run(&w, &root, &["dataset.follow=off"], 1, READ_TWICE);
    assert!(ended.errors().contains("which is read from the PFS: dataset.follow is off; add --root"), "{ended:?}");
    assert_eq!(counter(&report, "hits") + counter(&report, "waited"), 0, "{report:#}");
    assert_eq!(w.pfs().counters().unwrap().opens(), 14);
}

/// Links and blobs that the job changes: what it sees is what the kernel would show.
#[test]
fn what_a_job_does_to_links_and_blobs_is_seen_through_the_links() {
    let text = "import os, sys, errno, time\n\
        root = sys.argv[1]\n\
        f = lambda n: os.path.join(root, f'f{n}')\n\
        blob = lambda n: os.path.normpath(os.path.join(root, '../../blobs', str(n)))\n\
        read = lambda path: open(path, 'rb').read()\n\
        for turn in range(2):\n    \
            assert [len(read(f(n))) for n in range(1, 7)] == [50001 + n - 1 for n in range(1, 7)]\n    \
            assert all(read(f(n)) == read(blob(n)) for n in range(1, 7))\n\
        try: os.open(f(1), os.O_RDONLY | os.O_NOFOLLOW); print('opened')\n\
        except OSError as e: print(errno.errorcode[e.errno])\n\
        print(os.readlink(f(1)), os.path.realpath(f(1)) == blob(1), os.stat(f(1)).st_ino == os.stat(blob(1)).st_ino)\n\
        os.unlink(f(1)); os.symlink('../../blobs/2', f(1))\n\
        print(read(f(1)) == read(blob(2)))\n\
        open(blob('new'), 'w').write('new'); os.rename(blob('new'), blob(3))\n\
        print(read(f(3)))\n\
        open(f(4), 'w').write('through the link')\n\
        print(read(f(4)), read(blob(4)))\n\
        os.unlink(blob(5))\n\
        try: read(f(5)); print('read')\n\
        except OSError as e: print(errno.errorcode[e.errno])\n\
        print(os.path.exists(f(5)), os.path.lexists(f(5)))\n\
        print(len(read(os.path.join(root, '..', 'r2', '..', '..', 'blobs', '6'))))\n";
    let expected = "ELOOP\n../../blobs/1 True True\nTrue\nb'new'\nb'through the link' b'through the link'\nENOENT\nFalse True\n50006\n";
    let w = hub();
    let job = |w: &World| Job::new("python3").args(["-c", text]).arg(snapshot(w, "r1"));
    assert_eq!(w.bare(&job(&w)).good().text(), expected);
    let w = hub();
    let program = w.scratch().join("job.py");
    std::fs::write(&program, text).unwrap();
    let script = format!("python3 {} \"$0\"", program.display());
    let (ended, report) = run(&w, &snapshot(&w, "r1"), &[], 2, &script);
    assert_eq!(ended.text(), format!("ready\n{expected}"));
    assert!(counter(&report, "hits") > 6, "{report:#}");
}

#[test]
fn a_link_to_another_file_system_is_named_with_what_to_add() {
    let w = hub();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("f"), "text").unwrap();
    let link = "hub/models--org--net/snapshots/r1/elsewhere";
    std::os::unix::fs::symlink(elsewhere.path().join("f"), w.backing().join(link)).unwrap();
    let (ended, _) = run(&w, &snapshot(&w, "r1"), &[], 2, "cat \"$0\"/elsewhere");
    assert_eq!(ended.text(), "ready\ntext");
    let dir = elsewhere.path().canonicalize().unwrap();
    let line =
        format!("lead to {0}, which is read from the PFS: it is on another file system; add --root {0}", dir.display());
    assert!(ended.errors().contains(&line), "{ended:?}");
}

#[test]
fn explain_says_where_a_link_leads_that_is_not_followed() {
    let w = hub();
    let root = snapshot(&w, "r1");
    let explain = format!("{} explain \"$0\"/f1 || true", w.monarch("explain").get_program().to_string_lossy());
    let (ended, _) = run(&w, &root, &["dataset.follow=off"], 1, &explain);
    let blob = w.root().join("hub/models--org--net/blobs/1");
    assert!(
        ended.text().contains(&format!("a link leads out of the roots, to {}: read from the PFS", blob.display())),
        "{ended:?}"
    );
    let check =
        w.monarch("config").arg("check").arg("--root").arg(&root).args(w.words().into_iter().skip(2)).output().unwrap();
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.status.success() && said.contains("blobs, which is served, too"), "{said}");
}

#[test]
fn the_second_job_of_an_agent_lists_nothing_and_is_served_all_the_same() {
    let w = hub();
    let root = snapshot(&w, "r1");
    let command = |script: &str| {
        let mut command = w.monarch("run");
        command.arg("--root").arg(&root).args(w.words().into_iter().skip(2));
        command.args(["--", "sh", "-c", script]).arg(&root);
        command
    };
    let mut first = Running::new(command("echo ready; read -r line"));
    first.until_written("ready");
    wait_for("copies", || w.agent().is_some_and(|s| s.roots.len() == 2 && s.tiers[0].files == 6));
    w.pfs().reset().unwrap();
    let second = Running::new(command(READ_TWICE)).end().good();
    let seen = w.pfs().counters().unwrap();
    assert_eq!((seen.opens(), seen.opendir, seen.readlink), (0, 0, 0), "{seen:?}");
    assert!(second.errors().contains("blobs, which is served, too"), "{second:?}");
    assert_eq!(second.text(), w.bare(&Job::new("sh").args(["-c", READ_TWICE]).arg(&root)).good().text());
    first.begin();
    first.end().good();
}

#[test]
fn links_deeper_below_a_root_are_named_with_what_to_add() {
    let farm =
        "set -e; mkdir -p $1/farm/train/a $1/store; echo text > $1/store/x; ln -s ../../../store/x $1/farm/train/a/x";
    let w = World::plan().made_by(Job::new("sh").args(["-c", farm, "sh"])).patient().build();
    let (root, store) = (w.root().join("farm"), w.root().join("store"));
    let (ended, _) = run(&w, &root, &[], 1, "cat \"$0\"/train/a/x");
    assert_eq!(ended.text(), "ready\ntext\n");
    let line = format!("links lead out of the root to {0}, which is not served (1); add --root {0}", store.display());
    assert!(ended.errors().contains(&line), "{ended:?}");
    let check =
        w.monarch("config").arg("check").arg("--root").arg(&root).args(w.words().into_iter().skip(2)).output().unwrap();
    let said = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(check.status.success() && said.contains("store, which is served, too"), "{said}");
}
