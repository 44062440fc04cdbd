//! Changes made by the job reach the PFS and are seen at once by every process of the job on the
//! node.

use crate::harness::{Job, World, cases};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Runs both changer programs with `root` and, if given, an alias of it; with one every day only
/// the first.
fn change(w: &World, root: &Path, alias: Option<&Path>) {
    let both = [w.program("changer"), w.python("changer.py")];
    let programs = if alias.is_some() { cases(1, 2) } else { 2 };
    for job in both.into_iter().take(programs) {
        let mut job = job.arg("run").arg(root);
        if let Some(a) = alias {
            job = job.arg("--alias").arg(a);
        }
        w.run(&job).good();
    }
}

fn world() -> World {
    World::plan().files(8).fodder().build()
}

#[test]
fn changes_by_the_path_of_the_root() {
    let mut w = world();
    w.settle();
    change(&w, w.root(), None);
}

#[test]
fn changes_while_copies_are_made() {
    let w = world();
    change(&w, w.root(), None);
}

#[test]
fn changes_on_a_plain_disk() {
    let mut w = World::plan().files(8).fodder().disk().build();
    w.settle();
    change(&w, w.root(), None);
}

#[test]
fn changes_through_a_symlink_to_the_root() {
    let mut w = world();
    let alias = w.scratch().join("alias");
    symlink(w.root(), &alias).unwrap();
    w.settle();
    change(&w, w.root(), Some(&alias));
}

#[test]
fn changes_through_a_symlink_into_a_subdirectory() {
    let w = World::plan().files(8).build();
    let inner = w.root().join("data/inner");
    fs::create_dir(&inner).unwrap();
    w.bare(&w.program("changer").arg("prepare").arg(&inner)).good();
    w.bare(&w.python("changer.py").arg("prepare").arg(&inner)).good();
    let alias = w.scratch().join("alias");
    symlink(&inner, &alias).unwrap();
    let mut w = w;
    w.settle();
    change(&w, &inner, Some(&alias));
}

/// This spelling of the root is announced nowhere: it is not in the arguments, the environment or
/// the working directory.
#[test]
fn changes_through_a_symlink_that_was_not_announced() {
    let mut w = world();
    let (alias, note) = (w.scratch().join("deep/er/alias"), w.scratch().join("note"));
    fs::create_dir_all(alias.parent().unwrap()).unwrap();
    symlink(w.root(), &alias).unwrap();
    fs::write(&note, alias.as_os_str().as_encoded_bytes()).unwrap();
    w.settle();
    for job in [w.program("changer"), w.python("changer.py")].into_iter().take(cases(1, 2)) {
        let words = job.arg("run").arg(w.root()).arg("--alias");
        w.run(&with_hidden(&words, &note)).good();
    }
}

/// `job` with the content of a file as its last argument.
fn with_hidden(job: &Job, note: &Path) -> Job {
    Job::new("sh").args(["-c", "n=$1; shift; exec \"$@\" \"$(cat \"$n\")\"", "sh"]).arg(note).args(job.words())
}

#[test]
fn changes_through_a_bind_mount() {
    let mut w = world();
    let Some(bind) = Bind::new(w.root(), w.scratch().join("bind")) else {
        eprintln!("note: no bind mounts here");
        return;
    };
    w.settle();
    change(&w, w.root(), Some(&bind.0));
}

/// A bind mount that ends with the test.
struct Bind(PathBuf);

impl Bind {
    fn new(from: &Path, to: PathBuf) -> Option<Self> {
        fs::create_dir(&to).unwrap();
        let done = std::process::Command::new("mount").arg("--bind").arg(from).arg(&to).output().ok()?;
        done.status.success().then_some(Self(to))
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn another_job_sees_a_change_at_once() {
    let mut w = World::plan().files(8).args(&["--plain", "--exact"]).build();
    w.settle();
    let file = fs::read_dir(w.root().join("data/d00")).unwrap().flatten().find(|e| e.path().is_file()).unwrap().path();
    let script = "echo ready; while read line; do cat \"$1\" | wc -c; ls \"$2\"; stat -c %s \"$1\"; echo .; done";
    let mut reader = w.start(&Job::new("bash").args(["-c", script, "_"]).arg(&file).arg(file.parent().unwrap()));
    reader.until_written("ready");
    reader.write(b"\n");
    reader.until_written(".");
    assert!(reader.written().contains("\n40000\n"), "{}", reader.written());
    let writer = Job::new("sh").args(["-c", "echo x >> \"$1\"; echo > \"$1.new\"", "_"]).arg(&file);
    w.run(&writer).good();
    reader.write(b"\n");
    let ended = reader.end().good().text();
    assert!(ended.contains("\n40002\n") && ended.contains(".new\n"), "{ended}");
    assert_eq!(fs::metadata(w.backing().join(file.strip_prefix(w.root()).unwrap())).unwrap().len(), 40002);
}

/// Runs a Python script with the first data file and its directory; a failed assertion fails the
/// job.
fn script(w: &World, text: &str) {
    let file = fs::read_dir(w.root().join("data/d00")).unwrap().flatten().map(|e| e.path()).find(|p| p.is_file());
    w.run(&Job::new("python3").args(["-c", text]).arg(file.unwrap()).arg(w.root())).good();
}

/// The name in the index is that of a regular file; meanwhile it leads to another file of the root.
#[test]
fn a_write_through_a_link_that_replaced_a_file() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    w.settle();
    script(
        &w,
        "import os, sys\n\
         a, d = sys.argv[1], os.path.join(sys.argv[2], 'data')\n\
         b = next(os.path.join(p, n) for p, _, ns in os.walk(d) for n in ns if os.path.join(p, n) != a)\n\
         c = [os.path.join(p, n) for p, _, ns in os.walk(d) for n in ns if os.path.join(p, n) not in (a, b)][0]\n\
         for target, change in ((b, lambda: open(a, 'w').write('new')), (c, lambda: os.truncate(a, 3))):\n\
         \x20   assert len(open(target, 'rb').read()) > 3\n\
         \x20   os.unlink(a)\n\
         \x20   os.symlink(target, a)\n\
         \x20   change()\n\
         \x20   assert len(open(target, 'rb').read()) == 3 == os.stat(target).st_size\n",
    );
}

/// `ln -s . root/data/again`: the job makes a further way to files that the index does not know.
#[test]
fn changes_through_a_link_that_the_job_made() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    w.settle();
    script(
        &w,
        "import os, sys\n\
         a, root = sys.argv[1:]\n\
         link = os.path.join(root, 'again')\n\
         os.symlink('data', link)\n\
         b = os.path.join(link, os.path.relpath(a, os.path.join(root, 'data')))\n\
         assert os.path.exists(a)\n\
         open(b, 'a').write('more')\n\
         assert open(a, 'rb').read().endswith(b'more')\n\
         os.unlink(b)\n\
         assert not os.path.exists(a)\n",
    );
}

/// A copy that is opened for writing by its descriptor: root may write, and must not reach the
/// copy.
#[test]
fn a_write_through_proc_reaches_the_pfs() {
    let mut w = World::plan().files(8).args(&["--plain"]).build();
    w.settle();
    script(
        &w,
        "import ctypes, os, sys\n\
         path, root = sys.argv[1:]\n\
         libc = ctypes.CDLL(None)\n\
         libc.fopen.restype = ctypes.c_void_p\n\
         libc.fclose.argtypes = [ctypes.c_void_p]\n\
         fd = os.open(path, os.O_RDONLY)\n\
         proc = f'/proc/self/fd/{fd}'\n\
         n = os.fstat(fd).st_size\n\
         with open(proc, 'r+b') as f: f.write(b'abc')\n\
         assert open(path, 'rb').read(3) == b'abc' and os.path.getsize(path) == n\n\
         fd = os.open([os.path.join(d, n) for d, _, ns in os.walk(root) for n in ns if os.path.join(d, n) != path][0], os.O_RDONLY)\n\
         stream = libc.fopen(f'/dev/fd/{fd}'.encode(), b'w')\n\
         assert stream\n\
         libc.fclose(stream)\n\
         assert os.path.getsize(os.readlink(f'/proc/self/fd/{fd}')) > 0, 'the copy was cut'\n",
    );
}
