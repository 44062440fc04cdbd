//! Names that the C library and the kernel look for by calls of their own: walks, libraries that
//! are loaded, programs that are executed, what a child opens before it runs, sockets.

use super::tree::differences;
use super::world::{Drain, Outputs};
use crate::harness::{Job, assert_same, cases};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Runs a program in all ways. At least `least` files are staged, and while the drain is held, with
/// what does not wait for it, at least `held`.
#[track_caller]
fn same(world: fn() -> Outputs, program: impl Fn(&Outputs) -> Job, [least, held]: [usize; 2]) {
    let w = world();
    w.same(&program(&w), cases(&[Drain::Quick], &[Drain::Quick, Drain::Slow]), least);
    w.same(&program(&w).arg("--no-barriers"), &[Drain::Held], held);
}

/// Leaves out kinds of names that the program has with other ways to name them, too.
fn few() -> Option<&'static str> {
    cases(Some("--few"), None)
}

#[test]
fn every_function_that_takes_a_path_answers_as_directly() {
    let program = |w: &Outputs| w.here(w.world().program("outputs-paths"));
    same(Outputs::new, program, [150, 60]);
    if cases(false, true) {
        same(Outputs::disk, program, [150, 60]);
    }
}

#[test]
fn what_the_kernel_refuses_for_its_words_changes_nothing_that_is_pending() {
    let w = Outputs::new();
    w.same(&w.here(w.world().program("outputs-wrong")), &[Drain::Quick, Drain::Slow], 20);
    let w = w.set("run.raw_calls=seccomp");
    w.same(&w.here(w.world().program("outputs-wrong")), &[Drain::Quick, Drain::Slow], 20);
}

/// `run` cannot know of links that the job makes.
#[test]
fn names_that_links_outside_of_the_root_lead_to_are_answered_as_directly() {
    for way in ["--alias", "--links"] {
        let program = |w: &Outputs| w.here(w.world().program("outputs-paths")).args([way]).args(few());
        same(Outputs::new, program, [150, 60]);
    }
}

/// The kernel follows them to what is open, and the overlay answers for the names there.
#[test]
fn names_through_proc_are_answered_as_directly() {
    for way in ["--proc", "--root", "--number"] {
        let few = if way == "--proc" { None } else { few() };
        let program = |w: &Outputs| w.here(w.world().program("outputs-paths")).arg(way).args(few);
        same(Outputs::new, program, [150, 60]);
    }
}

/// A path from outside leads by a link that is not published to what is, or out again: a call on
/// the path itself would not find it.
#[test]
fn what_is_published_is_found_through_links_that_are_not() {
    let script = r###"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.realpath.restype = ctypes.c_char_p
libc.opendir.restype = ctypes.c_void_p
libc.closedir.argtypes = [ctypes.c_void_p]
top = os.open(".", os.O_PATH | os.O_DIRECTORY)
with open("first", "w") as f:
    f.write("what is pending holds the links up")
# (A link that takes a name by a rename is made in its turn.)
def link(target, name):
    os.symlink(target, "new")
    os.rename("new", name)
link("d", "l")
def listed(path):
    stream, names = libc.opendir(path.encode()), ctypes.POINTER(ctypes.c_void_p)()
    if stream:
        libc.closedir(stream)
    return stream is not None, libc.scandir(path.encode(), ctypes.byref(names), None, None)
for base in f"/proc/self/fd/{top}/l", "/proc/self/cwd/l":
    print([os.access(base + name, mode) for name in ("", "/x", "/none") for mode in (os.F_OK, os.W_OK, os.X_OK)])
    print(listed(base), sorted(os.listdir(base)), os.readlink(base + "/k"), os.readlink(base))
    print(os.path.basename(libc.realpath((base + "/x").encode(), None)), os.stat(base + "/x").st_size)
    try:
        os.readlink(base + "/x")
    except OSError as e:
        print(e.errno)
    with open(base + "/x") as f:
        print(f.read(), flush=True)

# Opens that go another way than one that only reads, of what is published and what lies outside.
libc.fopen.restype = libc.freopen.restype = ctypes.c_void_p
libc.freopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p]
libc.fileno.argtypes = libc.fclose.argtypes = [ctypes.c_void_p]
outside = os.environ["OUTSIDE"]
with open(f"{outside}/x", "w") as f:
    f.write("outside")
os.symlink("k", f"{outside}/to")
link(outside, "o")
def opened(path, flags):
    try:
        fd = os.open(path, flags)
    except OSError as e:
        return e.errno
    kind, target = oct(os.fstat(fd).st_mode), None
    if flags & os.O_PATH and flags & os.O_NOFOLLOW:
        try:
            target = os.path.basename(os.readlink("", dir_fd=fd))
        except OSError as e:
            target = e.errno
    elif os.path.isfile(path):
        target = os.pread(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), 20, 0)
    os.close(fd)
    return kind, target
def opened_again(path):
    stream = libc.freopen(path.encode(), b"r", libc.fopen(b"/dev/null", b"r"))
    return stream and os.read(libc.fileno(stream), 20)
def given_to_a_child(path):
    read, write = os.pipe()
    pid = os.posix_spawn("/bin/cat", ["cat"], {}, file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    return os.waitpid(pid, 0)[1], os.read(read, 20)
for base in f"/proc/self/fd/{top}", "/proc/self/cwd":
    for name in "l", "l/", "l/x", "l/k", "l/none", "o", "o/", "o/x", "o/to", "o/none":
        ways = os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_PATH | os.O_DIRECTORY, os.O_NOATIME
        print(name, [opened(f"{base}/{name}", way) for way in ways if name not in ("l", "o") or way != ways[1]])
    for name in "l/x", "o/x":
        print(name, opened_again(f"{base}/{name}"), given_to_a_child(f"{base}/{name}"), flush=True)

# Calls that set something of it.
link("d/x", "lx")
for n, name in enumerate(("lx", "l/x", "d/x")):
    os.setxattr(name, f"user.{n}", b"set")
    os.chmod(name, 0o640 | n)
    os.chown(name, n, -1)
    os.utime(name, (1_500_000_000 + n,) * 2)
    st = os.stat(name)
    print(sorted(os.listxattr(name)), oct(st.st_mode), st.st_uid, st.st_mtime, flush=True)
    os.removexattr(name, f"user.{n}")
print("## end", flush=True)
"###;
    let w = Outputs::new();
    let outside = tempfile::Builder::new().prefix("e2e-outside-").tempdir().expect("temporary directory");
    let begin = || {
        fs::remove_file(outside.path().join("to")).ok();
        let dir = w.root().join("d");
        fs::create_dir(&dir).expect("own directory");
        fs::write(dir.join("x"), "published").expect("own file");
        std::os::unix::fs::symlink("x", dir.join("k")).expect("own link");
        w.here(Job::new("python3").arg("-c").arg(script)).env("OUTSIDE", outside.path())
    };
    let direct = w.direct(&begin());
    assert!(direct.ended.text().contains("## end"), "{}", direct.ended.errors());
    for drain in Drain::ALL {
        let staged = w.staged(&begin(), drain);
        assert_same(&direct.ended, &staged.ended);
        let differ = differences(&direct.tree, &staged.tree);
        assert!(differ.is_empty(), "{drain:?}: another tree:\n{}", differ.join("\n"));
    }
}

/// `run` finds links in the environment that lead into the root, to it and towards it; the job
/// turns one of them to another directory.
#[test]
fn known_links_mean_what_they_lead_to() {
    let script = r###"
import os
into, to, towards = (os.environ[name] for name in ("INTO", "TO", "TOWARDS"))
def put(path, text):
    with open(path, "w") as f:
        f.write(text)
def get(path):
    with open(path) as f:
        return f.read()
def turn(target):
    os.symlink(target, f"{into}.new")
    os.replace(f"{into}.new", into)
def names(top):
    return sorted(os.path.relpath(os.path.join(at, name), top) for at, _, files in os.walk(top) for name in files)
put(f"{into}/a", "into")
put(f"{to}/b", "to")
put(f"{towards}/out/c", "towards")
os.mkdir(f"{into}/d")
put(f"{into}/d/e", "deeper")
print(names("."), names(into), names(to), names(f"{towards}/out"), get("one/a"), get(f"{into}//./a"), flush=True)
turn(os.path.abspath("two"))
put(f"{into}/a", "turned")
print(get("one/a"), get("two/a"), get(f"{into}/a"), names(into), flush=True)
os.mkdir(f"{into}.outside")
turn(f"{into}.outside")
put(f"{into}/f", "outside")
print(names("."), names(into), get(f"{into}/f"), flush=True)
turn(os.path.abspath("one"))
os.rename(f"{into}/d/e", f"{to}/two/e")
os.rename(f"{to}/b", f"{into}/b")
os.unlink(f"{to}/one/a")
print(names("."), os.readlink(to) == os.getcwd(), os.path.islink(into), flush=True)
os.unlink(to)
print(os.path.lexists(to), names("."), flush=True)
print("## end", flush=True)
"###;
    let w = Outputs::new();
    let begin = |links: &Path| {
        let link = |name: &str, to: &Path| std::os::unix::fs::symlink(to, links.join(name)).expect("own link");
        ["one", "two"].iter().for_each(|dir| fs::create_dir(w.root().join(dir)).expect("own directory"));
        link("into", &w.root().join("one"));
        link("to", &w.root());
        link("towards", w.root().parent().expect("the mount"));
        let job = w.here(Job::new("python3").arg("-c").arg(script));
        [("INTO", "into"), ("TO", "to"), ("TOWARDS", "towards")]
            .iter()
            .fold(job, |job, (variable, name)| job.env(variable, links.join(name)))
    };
    let links = || tempfile::Builder::new().prefix("e2e-links-").tempdir().expect("temporary directory");
    let first = links();
    let direct = w.direct(&begin(first.path()));
    assert!(direct.ended.text().contains("## end"), "{}", direct.ended.errors());
    for drain in Drain::ALL {
        let links = links();
        let staged = w.staged(&begin(links.path()), drain);
        assert_same(&direct.ended, &staged.ended);
        let differ = differences(&direct.tree, &staged.tree);
        assert!(differ.is_empty(), "{drain:?}: another tree:\n{}", differ.join("\n"));
        assert!(w.parts() >= 4, "{drain:?}: {} files were staged", w.parts());
    }
}

/// A plain call through a link finds the version before, which the agent replaces while the call is
/// under way: nothing is pending any more when it ends.
#[test]
fn what_is_published_while_a_call_goes_through_a_link_is_found() {
    let script = r###"
import ctypes, os, random, sys, tempfile, time
libc = ctypes.CDLL(None)
libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
libc.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
def by_stream(path):
    stream, to = libc.fopen(path.encode(), b"r"), ctypes.create_string_buffer(4096)
    n = libc.fread(to, 1, 4096, stream)
    libc.fclose(stream)
    return n
def by_open(path):
    with open(path) as f:
        return len(f.read())
ways = [by_open, by_stream, lambda path: os.stat(path).st_size, lambda path: os.lstat(path).st_size]
links = tempfile.mkdtemp()
os.symlink(os.getcwd(), f"{links}/way")
rng, old = random.Random(7), []
for n in range(1, 241):
    temporary = n % 2 and "x.new" or "x"
    with open(temporary, "w") as f:
        f.write("x" * n)
    os.replace(temporary, "x")
    time.sleep(rng.random() * 0.03)
    way = n // 2 % len(ways)
    found = ways[way](f"{links}/way/x")
    if found != n:
        old.append((n, way, found))
print("old versions:", old)
"###;
    let (program, latency) = (Job::new("python3").arg("-c").arg(script), Duration::from_millis(1));
    let w = Outputs::plan(|plan| plan, |pfs| pfs.meta_latency(latency).data_latency(latency));
    let staged = w.staged(&w.here(program), Drain::Quick);
    assert_eq!(staged.ended.text(), "old versions: []\n", "{}", staged.ended.errors());
    assert!(w.parts() >= 60, "{} files were staged", w.parts());
}

#[test]
#[ignore = "fails: docs/OUTPUTS.md, Known gaps"]
fn files_that_are_open_for_writing_are_answered_as_directly() {
    let w = Outputs::new();
    w.same(&w.here(w.world().program("outputs-paths")).arg("--gaps"), &[Drain::Slow], 150);
}

#[test]
fn walks_of_the_c_library_see_what_is_pending() {
    same(Outputs::new, |w| w.here(w.world().program("outputs-walks")), [15, 14]);
}

/// The C library's own walk visits part files, and calls the files that a process writes missing.
#[test]
fn a_walk_above_the_output_root_sees_what_is_pending() {
    let script = r###"
import ctypes, os
libc, seen = ctypes.CDLL(None), []
visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
    lambda path, st, kind, walk: seen.append((os.path.relpath(path.decode(), os.getcwd()), kind)) or 0)
os.makedirs("d/e")
for name in ("f", "d/f", "d/e/f"):
    with open(name, "w") as f:
        f.write(name)
writer = open("written", "w")
for top in ("..", "../../pfs", os.path.dirname(os.getcwd())):
    print(libc.nftw(top.encode(), visit, 5, 1), sorted(seen), flush=True)
    seen.clear()
writer.close()
print("## end", flush=True)
"###;
    let w = Outputs::new();
    w.same(&w.here(Job::new("python3").arg("-c").arg(script)), &Drain::ALL, 4);
}

#[test]
fn what_was_just_written_is_loaded_executed_and_handed_to_children() {
    same(Outputs::new, |w| w.program("loading.py"), [40, 20]);
}

#[test]
fn the_same_on_a_disk_tier() {
    let w = Outputs::disk();
    w.same(&w.program("loading.py"), &[Drain::Slow], 40);
}
