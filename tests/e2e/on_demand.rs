//! Directories that the index has no memory for (`index.distributed`): what the agent says of them
//! is what the PFS says, at once after each way to change something there.

use crate::harness::{Ended, Job, World};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Names that fill an index of 1 MiB, in the root itself: what lies in its directories is beyond.
const FILLERS: usize = 6000;
const FILLER_BYTES: usize = 200;

/// Prints what each name in some directories is, twice, as lstat and listings say.
const WALK: &str = "
import os, sys, time
for turn in range(2):
    for at, dirs, files in (found for top in sys.argv[1:] for found in os.walk(top)):
        dirs.sort()
        for name in sorted(os.listdir(at)):
            s = os.lstat(os.path.join(at, name))
            print(at, name, s.st_mode, s.st_ino, s.st_nlink, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_blocks)
    time.sleep(0.3)
";

fn world() -> World {
    let plan = World::plan().files(8).fodder().set("index.max_memory=1MiB").set("index.distributed=auto");
    let mut w = plan.set("prefetch.enabled=false").pfs(|b| b.attr_ttl(Duration::ZERO)).build();
    (0..FILLERS).for_each(|n| fs::write(w.backing().join(format!("{n:0>FILLER_BYTES$}")), "").unwrap());
    w.keep();
    w.until("the index", |s| s.roots.iter().all(|r| r.state == "ready"));
    w
}

fn walk(w: &World) -> Job {
    Job::new("python3").args(["-c", WALK]).args(["change", "changepy", "data"].map(|dir| w.root().join(dir)))
}

/// Metadata calls of the PFS that a job makes.
fn calls(w: &World, run: impl FnOnce() -> Ended) -> u64 {
    let before = w.pfs().counters().unwrap();
    run().good();
    let seen = w.pfs().counters().unwrap() - before;
    seen.lookup + seen.getattr + seen.opendir + seen.readdir + seen.readdirplus
}

#[test]
fn what_lies_beyond_the_index_is_as_the_pfs_has_it_and_is_asked_for_once() {
    let w = world();
    let job = walk(&w);
    let names = w.same(&job).text().lines().count() as u64 / 2;
    assert!(names > 200, "{names} names");
    let without = calls(&w, || w.bare(&job));
    w.same(&job);
    // (Files with several names, and directories above them, are the kernel's.)
    let with = calls(&w, || w.run(&job));
    assert!(with < without / 4, "{with} calls of the PFS, {without} without Monarch");
}

/// Changes by a path of the root, in all ways.
fn change_in_every_way(w: &World, top: &Path) {
    w.run(&walk(w)).good();
    let list = w.bare(&w.program("changer").arg("list")).good().text();
    // Directories that move, or lose rights, leave all to the kernel: they come last.
    let others = ["mv_dir", "mkdtemp_new", "chmod_dir", "failed_changes"];
    let moves = |op: &&str| op.contains("rename_dir") || op.ends_with("_dirs") || others.contains(op);
    let (last, first): (Vec<&str>, Vec<&str>) = list.split_whitespace().partition(moves);
    assert!(first.len() > 60 && last.len() > 3, "{list}");
    let change = |ops: &[&str]| w.run(&w.program("changer").arg("run").arg(top).args(ops)).good();
    change(&first);
    let untouched = Job::new("python3").args(["-c", WALK]).arg(w.root().join("changepy"));
    w.same(&untouched);
    let (without, with) = (calls(w, || w.bare(&untouched)), calls(w, || w.run(&untouched)));
    assert!(with < without / 4, "{with} calls of the PFS for what has not changed, {without} without Monarch");
    change(&last);
    w.same(&untouched);
}

#[test]
fn every_way_to_change_something_beyond_the_index_is_seen_at_once() {
    let w = world();
    change_in_every_way(&w, w.root());
}

#[test]
fn so_it_is_by_a_path_through_another_mount() {
    let w = world();
    let dir = tempfile::tempdir().unwrap();
    let Some(bound) = Bound::new(w.root(), dir.path()) else { return };
    change_in_every_way(&w, &bound.0);
}

/// The table of mounts still has the one that is covered.
#[test]
fn a_change_by_a_mount_over_another_one_is_seen() {
    let w = world();
    w.run(&walk(&w)).good();
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("changepy");
    fs::create_dir(&inner).unwrap();
    let Some(_covered) = Bound::new(&w.root().join("data"), &inner) else { return };
    let _bound = Bound::new(w.root(), dir.path()).unwrap();
    w.run(&Job::new("sh").args(["-c", "mkdir $0/new && mv $0/new $0/newer"]).arg(&inner)).good();
    w.same(&walk(&w));
}

#[test]
fn a_directory_of_the_root_that_is_bound_below_another_one_is_seen_by_both_names() {
    let w = world();
    let top = w.root().join("changepy/inner");
    fs::create_dir(w.backing().join("changepy/inner")).unwrap();
    let Some(_bound) = Bound::new(&w.root().join("data"), &top) else { return };
    w.run(&walk(&w)).good();
    w.run(&Job::new("sh").args(["-c", "mkdir $0/data/new $0/changepy/inner/newer"]).arg(w.root())).good();
    w.same(&walk(&w));
}

/// A directory at another place, for all processes.
struct Bound(std::path::PathBuf);

impl Bound {
    /// `None` where this machine lets a test mount nothing.
    fn new(from: &Path, to: &Path) -> Option<Self> {
        let done = std::process::Command::new("mount").arg("--bind").args([from, to]).output();
        done.is_ok_and(|done| done.status.success()).then(|| Self(to.to_owned()))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Every name that a job made or removed by any path turned all of it off.
#[test]
fn a_file_system_that_is_mounted_twice_keeps_what_has_not_changed() {
    let w = world();
    let dir = tempfile::tempdir().unwrap();
    let Some(bound) = Bound::new(w.root(), dir.path()) else { return };
    let there = &bound.0;
    w.run(&walk(&w)).good();
    // By the root's path, by the other one, and beside what the root has.
    let script = "import os, sys\n\
        for top in sys.argv[1:]:\n\
        \x20   at = top + '/change'\n\
        \x20   os.mkdir(at + '/made')\n\
        \x20   os.symlink('x', at + '/link')\n\
        \x20   os.rename(at + '/link', at + '/link2')\n\
        \x20   with open(at + '/file', 'w') as f: f.write('x')\n\
        \x20   os.rename(at + '/file', at + '/file.' + str(len(top)))\n\
        \x20   os.rmdir(at + '/made')\n\
        \x20   os.unlink(at + '/link2')\n";
    w.run(&Job::new("python3").args(["-c", script]).arg(w.root()).arg(there)).good();
    w.same(&walk(&w));
    let untouched = Job::new("python3").args(["-c", WALK]).arg(w.root().join("changepy"));
    let (without, with) = (calls(&w, || w.bare(&untouched)), calls(&w, || w.run(&untouched)));
    assert!(with < without / 4, "{with} calls of the PFS for what has not changed, {without} without Monarch");
    // A directory of the root, at another place: names there are names in the root.
    let part = tempfile::tempdir().unwrap();
    let script =
        "unshare -m sh -c 'mount --bind $0/changepy $1 && cd $1 && touch new && mkdir dir && mv new dir/' $0 $1";
    w.run(&Job::new("sh").args(["-c", script]).arg(w.root()).arg(part.path())).good();
    w.same(&untouched);
}

#[test]
fn changes_beyond_the_index_by_python() {
    let w = world();
    w.run(&walk(&w)).good();
    w.run(&w.python("changer.py").arg("run").arg(w.root())).good();
    w.same(&walk(&w));
}
