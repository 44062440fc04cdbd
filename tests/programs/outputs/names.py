"""Names: created, renamed, removed, linked, listed, by every way of naming them, while they are
pending and when they are published. `names.py [--no-barriers] [NAME...]` in the directory where
they go.
"""
import glob, os, pathlib, shutil, subprocess, tempfile, time

from see import C, LONG_AGO, RW, T, W, X, data, digest, fails, get, look, main, put, replay, same, say, tool, tree


@replay
def a_temporary_that_is_renamed():
    for n in range(4):
        fd, tmp = tempfile.mkstemp(prefix="tmp", dir=".")
        with os.fdopen(fd, "wb") as f:
            f.write(data(n, 10_000 + n))
        os.chmod(tmp, 0o644)
        os.replace(tmp, "state.bin")
        look("state.bin")
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as f:
        f.write("text")
    os.rename(f.name, "named.txt")
    with tempfile.TemporaryDirectory(dir=".") as d:
        put(f"{d}/inside", b"gone soon")
    look("named.txt")


@replay(barrier=True)
def over_one_of_several_names():
    """The other names tell at once how many there are."""
    for is_open in (False, True):
        put("one", b"old")
        os.link("one", "two")
        os.link("one", "three")
        fd = os.open("new", W | C | T)
        os.write(fd, b"new")
        if not is_open:
            os.close(fd)
        os.rename("new", "two")
        look("one", "two", "three", "new")
        again = os.open("three", W)
        say(os.fstat(again).st_nlink)
        os.close(again)
        if is_open:
            os.write(fd, b"er")
            os.rename("two", "three")
            look("one", "two", "three")
            os.close(fd)
        put("new", b"newest")
        os.rename("new", "one")
        look("one", "two", "three")
        for name in os.listdir("."):
            os.unlink(name)


@replay
def exclusive_creation():
    put("first", b"1", W | C | X)
    fails("again", put, "first", b"2", W | C | X)
    fails("again, open", os.open, "first", RW | C | X | T)
    os.unlink("first")
    put("first", b"3", W | C | X)
    look("first")
    os.symlink("nowhere", "dangling")
    fails("over a dangling link", put, "dangling", b"4", W | C | X)
    fails("through a dangling link", put, "dangling", b"5", W | C | T)
    look("dangling", "nowhere")


@replay
def stat_and_fstat_agree():
    fd = os.open("f", RW | C | T, 0o640)
    st = os.fstat(fd)
    say("new", same(st, os.stat("f"), "stat"), same(st, os.lstat("f"), "lstat"), st.st_size, oct(st.st_mode))
    os.write(fd, data("f", 5000))
    first = os.fstat(fd)
    say("written", same(first, os.stat("f"), "stat"), "one inode" if first.st_ino == st.st_ino else "ANOTHER INODE")
    again = os.open("f", os.O_RDONLY)
    say("opened again", same(first, os.fstat(again), "fstat"), os.path.samefile("f", fd), os.path.sameopenfile(fd, again))
    os.close(fd)
    say("closed", "one inode" if os.stat("f").st_ino == first.st_ino else "ANOTHER INODE", os.stat("f").st_dev == first.st_dev)
    os.rename("f", "g")
    say("renamed", same(os.fstat(again), os.stat("g"), "stat"), os.path.samefile("g", again))
    with os.scandir(".") as it:
        entry, = it
        say(entry.name, entry.inode() == os.stat("g").st_ino, same(entry.stat(), os.stat("g"), "entry"))
    say(os.stat("g").st_dev == os.stat(".").st_dev, same(os.stat("g", dir_fd=None), os.stat(pathlib.Path("g").resolve()), "resolved"))
    say("statvfs", os.fstatvfs(again).f_namemax == os.statvfs(".").f_namemax)
    os.close(again)
    os.unlink("g")
    fails("stat", os.stat, "g")


@replay
def listings_while_pending():
    os.makedirs("a/b/c")
    for name in ("a/1", "a/2", "a/b/1", "a/b/c/1", "top", "a/.hidden"):
        put(name, data(name, 100))
    os.symlink("1", "a/link")
    os.symlink("..", "a/b/up")
    tree("a/b/c")
    say(sorted(glob.glob("a/*")), sorted(glob.glob("a/b/*/1")), sorted(p.name for p in pathlib.Path("a").iterdir()))
    say(sorted(str(p) for p in pathlib.Path(".").rglob("1")))
    fd = os.open("a", os.O_RDONLY | os.O_DIRECTORY)
    say(sorted(os.listdir(fd)), os.access("1", os.R_OK, dir_fd=fd), os.readlink("link", dir_fd=fd), os.stat("b/1", dir_fd=fd).st_size)
    put("a/3", b"later")
    os.unlink("a/1")
    say(sorted(os.listdir(fd)))
    fails("through the link", os.stat, "a/link")
    os.close(fd)
    os.unlink("a/b/up")
    tool("ls", "-1A", "a")
    tool("find", ".", "-name", "1")
    tool("sh", "-c", "echo a/* a/.h*")
    for path in ("a/1", "a/2", "a/nothing", "a/b/c/1/x"):
        say(path, os.path.exists(path), os.path.isfile(path), os.access(path, os.R_OK), os.access(path, os.W_OK))


@replay(barrier=True)
def removed_while_pending():
    for _ in range(3):
        os.makedirs("tree/a/b")
        for n in range(12):
            put(f"tree/a/{n}", data(n, 1000))
            put(f"tree/a/b/{n}", data(n, 10))
        fails("a full directory", os.rmdir, "tree/a/b")
        shutil.rmtree("tree")
        look("tree", "tree/a/1")
    put("kept", b"kept")


@replay(barrier=True)
def a_directory_that_empties():
    os.mkdir("d")
    put("d/f", b"f")
    fails("not empty", os.rmdir, "d")
    os.unlink("d/f")
    os.rmdir("d")
    look("d")
    fails("no directory", put, "d/f", b"f")
    os.mkdir("d")
    look("d", "d/f")
    put("d/g", b"g")
    os.rename("d/g", "g")
    os.rmdir("d")
    put("d", b"a file of the same name")
    look("d", "g")
    os.unlink("d")
    os.mkdir("d")
    put("d/h", b"h")
    look("d")


@replay
def made_and_removed_twice():
    for n in range(5):
        put("f", data(n, 5000 - n))
        look("f")
        os.unlink("f")
        look("f")
    put("f", b"last")
    put("g", b"between")
    os.unlink("f")
    put("f", b"again", W | C | X)
    look("f", "g")


@replay
def renames():
    os.mkdir("dir")
    put("a", b"a")
    put("b", b"bb")
    os.rename("a", "b")
    look("a", "b")
    os.rename("b", "b")
    os.rename("b", "dir/c")
    look("b", "dir/c")
    fails("onto a directory", os.rename, "dir/c", "dir")
    put("x", b"x")
    fails("onto a directory", os.rename, "x", "dir")
    fails("below a file", os.rename, "x", "dir/c/x")
    fails("into nothing", os.rename, "x", "nothing/x")
    fails("of nothing", os.rename, "nothing", "x")
    fails("directory onto a file", os.rename, "dir", "x")
    os.mkdir("empty")
    os.rmdir("empty")
    for n in range(6):
        os.rename("x" if n == 0 else f"x{n - 1}", f"x{n}")
    look("x", "x3", "x5")
    put("x", b"a new one of the old name")
    os.rename("x5", "x")
    look("x", "x5")
    put("p", b"p" * 3)
    put("q", b"q" * 4)
    os.rename("p", "t")
    os.rename("q", "p")
    os.rename("t", "q")
    look("p", "q", "t")


@replay
def published_then_changed():
    """What earlier calls have made, changed again: by then some of it is published."""
    for name in "abcefg":
        put(name, data(name, 3000))
    os.mkdir("d")
    time.sleep(0.4)
    put("a", b"replaced")
    os.unlink("b")
    os.rename("c", "d/c")
    with open("d/c", "ab") as f:
        f.write(b"appended")
    with open("e", "r+b") as f:
        f.seek(100)
        f.write(b"patched")
    put("f.tmp", b"over it")
    os.rename("f.tmp", "f")
    look("a", "b", "c", "d/c", "e", "f")
    put("b", b"made again", W | C | X)
    os.rename("a", "b")
    look("a", "b")
    put("c", b"of the old name")
    tree()


@replay(barrier=True)
def hard_links():
    put("one", data("one", 4000))
    os.link("one", "two")
    look("one", "two")
    say(os.path.samefile("one", "two"))
    os.unlink("one")
    look("one", "two")
    os.link("two", "three")
    put("three", b"written through one of its names", W | C | T)
    look("two", "three")
    fails("over a name", os.link, "two", "three")
    fails("of nothing", os.link, "nothing", "four")


@replay(barrier=True)
def renamed_directories():
    os.makedirs("out.tmp/sub")
    for n in range(10):
        put(f"out.tmp/{n}", data(n, 2000))
        put(f"out.tmp/sub/{n}", data(n, 20))
    os.rename("out.tmp", "out")
    look("out.tmp", "out", "out/sub/3")
    put("out/more", b"more")
    os.mkdir("new")
    fails("onto a full one", os.rename, "new", "out")
    os.rename("out", "moved")
    os.makedirs("out")
    put("out/3", b"another of that name")
    look("out/3", "moved/3", "moved/more")
    fails("into itself", os.rename, "moved", "moved/sub/x")
    shutil.move("moved/sub", "out/sub")
    look("out", "moved")


@replay(barrier=True)
def programs_just_written():
    put("run.sh", b"#!/bin/sh\necho it runs $1\n", W | C | T, 0o755)
    tool("./run.sh", "once")
    put("later.sh", b"#!/bin/sh\necho later; exit 3\n")
    fails("not executable", subprocess.run, ["./later.sh"])
    os.chmod("later.sh", 0o700)
    tool("./later.sh")
    shutil.copy("/bin/true", "true")
    tool("./true")
    look("run.sh", "later.sh")


@replay
def scripts_read_by_programs():
    put("script.py", b"print('a script')\n")
    tool("python3", "script.py")
    put("script.sh", b"echo sourced\n")
    tool("sh", "-c", ". ./script.sh; sh script.sh; cat script.sh | wc -c; sha256sum script.py < script.py | cut -c1-8")
    put("module.py", b"VALUE = 7\n")
    tool("python3", "-B", "-c", "import sys; sys.path.insert(0, ''); import module; print(module.VALUE)")
    tool("cmp", "script.py", "script.sh")


@replay
def errors_by_name():
    put("file", b"content")
    os.mkdir("dir")
    fails("open a directory", os.open, "dir", W | C | T)
    fails("below a file", put, "file/x", b"")
    fails("no directory", put, "no/x", b"")
    fails("an empty name", os.open, "", W | C | T)
    fails("too long", put, "n" * 256, b"")
    fails("the longest", put, "n" * 255, b"long")
    fails("trailing slash", os.open, "fresh/", W | C | T)
    fails("trailing slash of a file", os.open, "file/", os.O_RDONLY)
    fails("as a directory", os.open, "file", os.O_RDONLY | os.O_DIRECTORY)
    fails("list a file", os.listdir, "file")
    fails("readlink of a file", os.readlink, "file")
    fails("mkdir over a file", os.mkdir, "file")
    fails("rmdir of a file", os.rmdir, "file")
    fails("unlink of a directory", os.unlink, "dir")
    fails("chdir to a file", os.chdir, "file")
    fails("symlink over a file", os.symlink, "x", "file")
    os.symlink("loop", "loop")
    fails("a loop", put, "loop", b"")
    os.symlink("file", "link")
    fails("not followed", os.open, "link", W | C | T | os.O_NOFOLLOW)
    fails("write to a reader", os.write, os.open("file", os.O_RDONLY), b"x")
    fails("read from a writer", os.read, os.open("new", W | C | T), 1)
    fails("bad flags", os.open, "never", W | C | X | os.O_DIRECTORY)
    fails("truncate nothing", os.truncate, "nothing", 1)
    fails("chmod nothing", os.chmod, "nothing", 0o600)
    fails("utime nothing", os.utime, "nothing")
    look("file", "new", "never", "fresh")


@replay
def many_ways_to_name_a_file():
    os.makedirs("a/b")
    here = os.getcwd()
    put(f"{here}/a/absolute", b"1")
    put("./a/../a/./b//dots", b"2")
    fd = os.open("a", os.O_RDONLY)
    os.close(os.open("by_descriptor", W | C | T, dir_fd=fd))
    os.close(os.open("b/below", W | C | X, dir_fd=fd))
    put(f"/proc/self/fd/{fd}/by_proc", b"3")
    os.rename("by_descriptor", "b/renamed", src_dir_fd=fd, dst_dir_fd=fd)
    os.symlink("a", "alias")
    put("alias/through_a_link", b"4")
    os.symlink(here, "a/b/whole")
    put("a/b/whole/a/far", b"5")
    os.unlink("a/b/whole")
    os.chdir("a/b")
    put("in_cwd", b"6")
    put("../../above", b"7")
    os.chdir(here)
    os.fchdir(fd)
    put("in_fchdir", b"8")
    os.unlink("b/below", dir_fd=fd)
    os.chdir(here)
    tree()
    pid = os.fork()
    if not pid:
        os.chdir("a")
        put("of_a_child", b"9")
        os._exit(0)
    os.waitpid(pid, 0)
    look("a/of_a_child", "a/absolute", "a/by_proc", "above", "alias", "alias/b/dots")
    os.close(fd)


@replay
def odd_names():
    names = ["with space", "new\nline", "*", "?[x]", "-rf", "ümläut", ".hidden", "..dots", "a\\b", "'\"", "F00", "-", "L", "C", "trailing.", os.fsdecode(b"\xff\xfe bytes"),
             ".monarch", "journal", "tree", "state"]
    for n, name in enumerate(names):
        put(name, data(n, 50 + n))
    say(sorted(os.fsencode(n) for n in os.listdir()))
    for name in names[::2]:
        os.rename(name, f"{name}.new")
    for name in names[1::4]:
        os.unlink(name)
    say([(os.fsencode(n), os.path.getsize(n)) for n in sorted(os.listdir())])
    # (What is left is listed by their bytes, above: names of lines are not lines of output.)
    for name in os.listdir():
        if "\n" in name or "\udcff" in name:
            os.unlink(name)


@replay(barrier=True)
def names_by_which_the_overlay_knows_removed_directories():
    own = ".monarch-removed"

    def show(d):
        say(d, sorted(os.listdir(d)), get(f"{d}/x"))

    for d in "abcdef":
        os.mkdir(d)
        for name in "xyz":
            put(f"{d}/{name}", f"{d}/{name}".encode())
    fails("symlink", os.symlink, "x", f"a/{own}")
    show("a")
    fails("through it", get, f"a/{own}")
    fails("rename", os.rename, "b/y", f"b/{own}")
    show("b")
    fails("read", get, f"b/{own}")
    fails("rename it", os.rename, f"b/{own}", "b/again")
    fails("over it", os.replace, "b/z", f"b/{own}")
    show("b")
    fails("write", put, f"c/{own}", b"own")
    fails("hard link", os.link, "c/y", f"d/{own}")
    fails("chmod", os.chmod, f"c/{own}", 0o600)
    show("c")
    fails("unlink", os.unlink, f"c/{own}")
    show("c")
    show("d")
    fails("mkdir", os.mkdir, f"e/{own}")
    for name in "x", "y":
        fails("write", put, f"e/{own}/{name}", b"below")
    fails("unlink", os.unlink, f"e/{own}/y")
    show(f"e/{own}")
    show("e")
    fails("rename a directory", os.rename, "f", f"e/{own}/f")
    os.mkdir("g")
    put("g/x", b"x")
    for path in f"g/../g/{own}", f"./g//{own}", f"{os.getcwd()}/g/../g/{own}":
        fails("by dots", put, path, path[-20:].encode())
        show("g")
        fails("by dots", get, path)
        fails("by dots", os.unlink, path)
    os.mkdir("h")
    put("h/x", b"x")
    os.mkdir(f"h/{own}")
    os.symlink(f"h/{own}", "way")
    for way in "way", f"h/{own}", f"h/../h/{own}":
        fails("by a link", put, f"{way}/y", way.encode())
        fails("by a link", lambda: [get(f"{way}/y") for way in ("way", f"h/{own}", "way/../" + own)])
        fails("by a link", os.rename, f"{way}/y", f"{way}/z")
        fails("by a link", lambda: sorted(os.listdir(way)))
        fails("by a link", os.unlink, f"{way}/z")
    show("h")
    show(f"e/{own}/f")
    for d in "a", "b", "c", "d", "e", "g", "h":
        fails(d, shutil.rmtree, d)
        fails(d, os.listdir, d)


@replay
def links_to_what_is_pending():
    put("target", data("t", 7000))
    os.symlink("target", "link")
    os.symlink(os.path.abspath("target"), "absolute")
    os.symlink("no such", "dangling")
    say(os.path.islink("absolute"), os.path.samefile("absolute", "target"), digest(get("link")))
    look("link", "dangling")
    put("link", b"written through the link")
    look("target", "link")
    os.unlink("target")
    look("link")
    put("target", b"back")
    os.symlink("other", "link2")
    os.replace("link2", "link")
    look("link", "link2")
    os.unlink("link")
    os.mkdir("d")
    os.symlink("d", "to_d")
    put("to_d/f", b"f")
    say(os.listdir("to_d"), os.readlink("to_d"))
    os.unlink("to_d")
    look("d/f", "to_d")


@replay
def over_the_edge_of_the_root():
    """Renames out of the output root and into it; `OUTSIDE` is on another file system."""
    outside = os.environ["TMPDIR"]
    put(f"{outside}/from_outside", b"from outside")
    fails("in", os.rename, f"{outside}/from_outside", "in")
    put("out", b"going out")
    fails("out", os.rename, "out", f"{outside}/out")
    fails("link out", os.link, "out", f"{outside}/out")
    look("in", "out")
    shutil.move("out", f"{outside}/out")
    shutil.move(f"{outside}/from_outside", "in")
    say(get(f"{outside}/out"))
    os.unlink(f"{outside}/out")
    os.symlink(os.path.abspath("in"), f"{outside}/link_to_in")
    say(get(f"{outside}/link_to_in"))
    put(f"{outside}/link_to_in", b"through a link from outside")
    os.unlink(f"{outside}/link_to_in")
    look("in", "out")


@replay(barrier=True)
def to_a_sibling_of_the_root():
    """The same file system, not below the output root."""
    sibling = os.environ["SIBLING"]
    put("leaves", data("leaves", 3000))
    os.rename("leaves", f"{sibling}/arrived")
    say(digest(get(f"{sibling}/arrived")))
    look("leaves")
    os.rename(f"{sibling}/arrived", "back")
    look("back")
    put(f"{sibling}/not_staged", b"plain")
    os.link("back", f"{sibling}/second_name")
    say(os.stat("back").st_nlink, os.path.samefile("back", f"{sibling}/second_name"))
    for name in ("second_name", "not_staged"):
        os.unlink(f"{sibling}/{name}")


@replay
def directories_that_are_renamed_to_themselves():
    os.makedirs("d/e")
    put("d/pending", data(1, 1000))
    fd = os.open("d/e/open", RW | C | T)
    os.write(fd, b"written")
    os.rename("d", "d")
    os.rename("d/pending", "d/./pending")
    fails("below itself", os.rename, "d", "d/e/open")
    look("d", "d/pending", "d/e", "d/e/open")
    os.close(fd)
    look("d/e/open")


@replay(barrier=True)
def names_that_open_files_have_left():
    """A file is open while it is renamed; its old name goes to something else."""
    put("other", b"other")
    put("published", b"published")
    made = {
        "directory": os.mkdir, "pipe": os.mkfifo, "link": lambda name: os.link("other", name), "symlink": lambda name: os.symlink("other", name),
        "appended": lambda name: put(name, b"new", W | C), "renamed": lambda name: os.rename("published", name),
        "read": lambda name: os.close(os.open(name, os.O_RDONLY | C)), "exclusive": lambda name: put(name, b"new", W | C | X),
    }
    for what, make in made.items():
        for is_published in (False, True):
            old, new = f"{what} {is_published}", f"{what} {is_published}, its file"
            if is_published:
                put(old, data(old, 5000))
                os.link(old, "for a moment")
                os.unlink("for a moment")
            fd = os.open(old, W | C, 0o644)
            os.write(fd, b"W")
            os.utime(fd, (LONG_AGO, LONG_AGO))
            os.rename(old, new)
            put("published", b"published")
            make(old)
            look(old, new)
            os.close(fd)
            look(old, new)


@replay(barrier=True)
def directories_that_open_files_have_left():
    for is_published in (False, True):
        top = f"top {is_published}"
        os.makedirs(f"{top}/in/deep")
        if is_published:
            put(f"{top}/in/deep/f", b"old")
            os.link(f"{top}/in/deep/f", "for a moment")
            os.unlink("for a moment")
        fd = os.open(f"{top}/in/deep/f", W | C | T, 0o644)
        os.write(fd, b"new")
        os.rename(f"{top}/in/deep/f", f"{top} f")
        shutil.rmtree(f"{top}/in/deep")
        look(f"{top}/in")
        second = os.open(f"{top}/in/g", W | C | T, 0o644)
        os.rename(f"{top}/in/g", f"{top} g")
        os.rename(f"{top}/in", f"{top}/moved")
        os.close(second)
        os.close(fd)
        look(f"{top}/moved", f"{top} f", f"{top} g")
    tree()


@replay(barrier=True)
def something_else_where_two_open_files_have_been():
    """What one has left there is not removed with it."""
    for end in ("removed", "closed"):
        name = f"name {end}"
        put(name, b"published")
        os.link(name, "published by now")
        os.unlink("published by now")
        first = os.open(name, W | C | T)
        os.write(first, b"first")
        os.rename(name, f"moved {end}")
        second = os.open("other", W | C | T)
        os.rename("other", name)
        os.mkfifo("pipe")
        os.rename("pipe", name)
        os.close(second)
        if end == "removed":
            os.unlink(f"moved {end}")
        os.close(first)
        put(f"marker {end}", b"comes after it")
        os.link(f"marker {end}", f"marker {end} is published")
        look(name, f"moved {end}")


def on_pfs(name):
    """Has all that is pending published."""
    os.link(name, f"{name}, a moment")
    os.unlink(f"{name}, a moment")


@replay(barrier=True)
def something_else_where_a_link_and_an_open_file_have_been():
    """What has got the name since stays, whether the removal of the link was still pending or not."""
    made = {
        "pipe": os.mkfifo, "directory": os.mkdir, "link": lambda name: os.link("other", name), "renamed": lambda name: os.rename("published", name),
        "appended": lambda name: put(name, b"new", W | C | os.O_APPEND), "renamed pipe": lambda name: os.rename("one", name),
    }
    for what, make in made.items():
        for is_removed, is_settled in ((False, False), (False, True), (True, False), (True, True)):
            name = f"{what} {'removed' if is_removed else 'moved'} {'settled' if is_settled else 'at once'}"
            put("other", b"other")
            put("published", b"published")
            on_pfs("published")
            os.mkfifo("one")
            put("before", b"is published first")
            put("before, too", b"this as well")
            os.symlink("before", name)
            os.unlink(name)
            fd = os.open(name, W | C | X, 0o644)
            os.write(fd, b"open")
            if is_settled:
                on_pfs("other")
            if is_removed:
                os.unlink(name)
            else:
                os.rename(name, f"{name}, its file")
            make(name)
            look(name)
            os.close(fd)
            put("marker", b"comes after it")
            on_pfs("marker")
            look(name, f"{name}, its file")
            for left in ("one", "published", "other", "marker"):
                if os.path.lexists(left):
                    os.unlink(left)


@replay
def removals_and_links_that_are_refused():
    put("file", b"1")
    os.mkdir("directory")
    os.symlink("directory", "link")
    os.symlink("nowhere", "dangling")
    fd = os.open("open", W | C | T)
    for name in ("file", "link", "dangling", "file/below", "nothing", "directory/nothing", "open"):
        fails(f"rmdir {name}", os.rmdir, name)
    fails("link of an open file to a name that is there", os.link, "open", "file")
    fails("in a directory that is not", os.link, "open", "nowhere/name")
    fails("link of nothing", os.link, "nothing", "file")
    os.close(fd)
    look("file", "directory", "link", "dangling", "open")


if __name__ == "__main__":
    main()
