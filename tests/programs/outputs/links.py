"""Symbolic links to directories on the way to a name: pending, removed or made anew, behind others
and in front of `..`. `links.py [--no-barriers] [NAME...]` in the directory where they go.
"""
import ctypes, os, shutil

from see import data, fails, get, look, main, put, replay, say, tool, tree


def on_the_pfs(script):
    """By a program that Monarch does not see."""
    tool("busybox", "sh", "-c", script)


libc = ctypes.CDLL(None, use_errno=True)


def exchange(one, other):
    if libc.renameat2(-100, one.encode(), -100, other.encode(), 2):
        raise OSError(ctypes.get_errno(), one)


def append(path, text):
    with open(path, "ab") as f:
        f.write(text)


def use(way, other):
    """Every kind of call by a way to a directory with the files a to h."""
    fails("read", get, f"{way}/a")
    fails("stat", lambda: os.stat(f"{way}/a").st_size)
    fails("access", os.access, f"{way}/a", os.R_OK)
    fails("list", lambda: sorted(os.listdir(way)))
    fails("scan", lambda: sorted(e.name for e in os.scandir(way)))
    fails("real", lambda: os.path.relpath(os.path.realpath(f"{way}/a")))
    fails("same", os.path.samefile, way, other)
    fails("remove", os.unlink, f"{way}/a")
    fails("write", put, f"{way}/b", b"written")
    fails("append", append, f"{way}/c", b" and more")
    fails("truncate", os.truncate, f"{way}/d", 1)
    fails("rename", os.rename, f"{way}/e", f"{way}/e2")
    fails("rename out", os.rename, f"{way}/f", "f.out")
    fails("new", put, f"{way}/new", b"new")
    fails("mode", os.chmod, f"{way}/g", 0o600)
    fails("times", os.utime, f"{way}/g", (1_000_000_000, 1_000_000_000))
    fails("link", os.symlink, "new", f"{way}/newer")
    fails("directory", os.mkdir, f"{way}/sub")
    fails("in it", put, f"{way}/sub/x", b"x")
    fails("hard link", os.link, f"{way}/h", f"{way}/h2")


def fill(*dirs):
    on_the_pfs(f"mkdir -p {' '.join(dirs)}; for d in {' '.join(dirs)}; do for f in a b c d e f g h; do echo $d > $d/$f; done; done")


@replay(needs=["busybox"])
def behind_a_link_that_is_pending():
    fill("one")
    put("before", data("before", 2000))
    os.symlink("one", "cur")
    os.symlink("cur", "way")
    os.symlink("way", "far")
    os.symlink(f"{os.getcwd()}/cur", "absolute")
    os.symlink("far/new", "to_a_file")
    fails("absolute", get, "absolute/a")
    use("far", "one")
    fails("by a link to a file", get, "to_a_file")
    tree("one")


@replay(needs=["busybox"])
def behind_a_link_that_is_made_anew():
    fill("one", "two")
    on_the_pfs("ln -s one cur; ln -s cur way")
    put("before", data("before", 2000))
    os.unlink("cur")
    os.symlink("two", "cur")
    say(get("cur/a"), get("way/a"))
    use("way", "two")
    for d in "one", "two":
        say(d, [(n, get(f"{d}/{n}")) for n in sorted(os.listdir(d)) if os.path.isfile(f"{d}/{n}")])


@replay(needs=["busybox"])
def behind_a_link_that_is_replaced():
    fill("one", "two")
    on_the_pfs("ln -s one cur; ln -s cur way")
    put("two/young", b"young")
    os.symlink("two", "cur.new")
    os.replace("cur.new", "cur")
    fails("pending there", get, "way/young")
    use("way", "two")
    tree()


@replay(needs=["busybox"])
def behind_a_link_that_is_removed():
    fill("one")
    on_the_pfs("ln -s one cur; ln -s cur way; ln -s one moved; ln -s moved way2")
    put("before", data("before", 2000))
    os.unlink("cur")
    os.rename("moved", "moved2")
    use("way", "one")
    fails("renamed", get, "way2/a")
    fails("by its name now", get, "moved2/a")
    tree()


@replay(needs=["busybox"])
def dots_behind_a_link():
    fill("v1", "v2")
    on_the_pfs("mkdir v1/sub v2/sub; ln -s v1/sub now")
    put("before", data("before", 2000))
    os.symlink("v2/sub", "other")
    fails("pending", get, "other/../a")
    os.unlink("now")
    os.symlink("v2/sub", "now")
    use("now/..", "v2")
    fails("down again", get, "now/../sub/../b")
    for d in "v1", "v2":
        say(d, [(n, get(f"{d}/{n}")) for n in sorted(os.listdir(d)) if os.path.isfile(f"{d}/{n}")])


@replay
def links_in_a_circle():
    put("before", data("before", 2000))
    os.symlink("b", "a")
    os.symlink("a", "b")
    os.symlink("a/x", "c")
    for path in "a/x", "b/../x", "c", "c/y":
        fails(path, get, path)
        fails(path, put, path, b"x")
        fails(path, os.unlink, f"{path}/z")
    look("a", "b", "c")


@replay
def what_was_never_published():
    os.mkdir("one")
    put("one/x", b"one")
    os.symlink("one", "cur")
    os.symlink("cur", "way")
    os.symlink("way/x", "file")
    os.symlink("../cur", "one/up")
    for path in "way/x", "file", "one/up/x", "way/../one/x", "way/up/up/x":
        fails(path, get, path)
    put("way/y", b"y")
    os.rename("way/y", "way/z")
    shutil.copy("file", "copy")
    os.unlink("one/up")
    tree()


@replay
def attributes_of_a_directory_by_a_pending_link():
    put("before", data("before", 2000))
    for name in "one", "two":
        os.mkdir(name)
        put(f"{name}/x", b"x")
    os.symlink("one", "cur")
    os.symlink("cur", "way")
    os.symlink("two", "other")
    os.utime("way", (1_000_000_000, 1_000_000_000))
    os.chmod("other", 0o700)
    os.utime("other", (1_100_000_000, 1_100_000_000))
    look("one", "two")
    for path in "cur", "way", "other":
        fails(path, lambda: os.statvfs(path).f_namemax)
        fails(path, os.pathconf, path, "PC_NAME_MAX")


@replay(barrier=True)
def a_rename_by_a_link_while_nothing_is_pending():
    os.mkdir("one")
    for name in "wxyz":
        put(f"one/{name}", name.encode())
    os.symlink("one", "way")
    os.symlink("way", "far")
    put("mark", b"mark")
    os.link("mark", "all is published")
    os.rename("one/x", "way/x2")
    os.rename("way/y", "far/y2")
    os.rename("far/z", "one/z2")
    os.unlink("way/w")
    put("pending", b"pending")
    say([(name, os.path.islink(name)) for name in ("one", "way", "far")])
    use("far", "one")
    tree()


@replay(barrier=True)
def an_exchange_by_a_link():
    for name in "one", "two", "one/d", "one/e":
        os.mkdir(name)
    os.symlink("one", "way")
    for name in "one/d/x", "one/e/x", "two/x":
        put(name, name.encode())
    os.link("two/x", "two/all is published")
    with open("way/d/open", "wb") as f:
        f.write(b"open")
        fails("exchange", exchange, "one/d", "way/e")
        fails("exchange", exchange, "way/d", "two")
    say([(name, os.path.islink(name)) for name in ("one", "way")])
    say(sorted(os.listdir("way")), sorted(os.listdir("way/e")), get("way/e/x"))
    tree()


@replay
def targets_as_long_as_a_path_may_be():
    os.mkdir("one")
    put("one/x", b"x")
    for length in 128, 1000, 1012, 1013, 1014, 1024, 4000, 4083, 4084, 4085, 4086, 4094, 4095, 4096:
        way, target = f"way{length}", "./" * ((length - 3) // 2) + "/" * ((length - 3) % 2) + "one"
        fails(length, os.symlink, target, way)
        fails(length, lambda: (len(os.readlink(way)), os.lstat(way).st_size == length, get(f"{way}/x")))
        fails(length, os.rename, way, f"{way}.moved")
        fails(length, lambda: (len(os.readlink(f"{way}.moved")), os.lstat(f"{way}.moved").st_size == length))
        fails(length, os.unlink, f"{way}.moved")
    tree()


@replay
def directories_that_are_named_like_what_the_overlay_says():
    os.mkdir("one")
    for name in "Lone", "-", "L/one", "Lcur":
        os.makedirs(name)
        put(f"{name}/x", b"another file")
        os.symlink("x", f"{name}/l")
    put("one/y", b"y")
    put("gone", b"gone")
    for name, target in ("way", "one"), ("cur", "one"), ("far", "cur"), ("root", "/one"), ("gone link", "one"):
        os.symlink(target, name)
    for name in "gone", "gone link":
        os.unlink(name)
    for way in "way", "far", "root", "gone", "gone link":
        fails(way, get, f"{way}/x")
        fails(way, os.readlink, f"{way}/l")
        fails(way, os.path.exists, f"{way}/y")
        fails(way, lambda: sorted(os.listdir(way)))
        fails(way, os.rename, f"{way}/x", "moved")
        fails(way, os.unlink, f"{way}/l")
        fails(way, os.chmod, f"{way}/x", 0o600)
        fails(way, put, f"{way}/of {way}", way.encode())
    tree()


if __name__ == "__main__":
    main()
