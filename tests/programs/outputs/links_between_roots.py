"""Symbolic links in one output root that lead into another one, `SIBLING`, and back: names behind
them are those of the root where they lie. `links_between_roots.py [--no-barriers] [NAME...]`. What
`links.py` does below one root is done here, too, beside another one.
"""
import ctypes, os, shutil

from links import append, fill, use
from see import C, W, X, data, fails, get, look, main, put, replay, say, tool, tree

SIBLING = os.environ["SIBLING"]
libc = ctypes.CDLL(None, use_errno=True)


def other(name=None):
    """A new directory in the other root."""
    name = name or os.path.basename(os.getcwd())
    path = f"{SIBLING}/{name}"
    os.mkdir(path)
    return path


def pending_in(*dirs):
    """Files a to h in each, not published yet."""
    for d in dirs:
        os.makedirs(d, exist_ok=True)
        for name in "abcdefgh":
            put(f"{d}/{name}", f"{d[-3:]}/{name}".encode())


def show(*dirs):
    for d in dirs:
        names = sorted(os.listdir(d))
        say(d[-6:], [(n, get(f"{d}/{n}") if os.path.isfile(f"{d}/{n}") else "") for n in names])


def both(way, there):
    """Each call by the link, where this root has the same names."""
    use(way, there)
    show(there, ".")


@replay(needs=["busybox"])
def a_link_that_is_published():
    there = other()
    tool("busybox", "ln", "-s", there, "way")
    pending_in(there, ".")
    both("way", there)


@replay(needs=["busybox"])
def a_link_that_is_published_while_this_root_is_quiet():
    there = other()
    tool("busybox", "ln", "-s", there, "way")
    pending_in(there)
    both("way", there)


@replay(needs=["busybox"])
def a_link_that_is_published_to_what_is_published():
    there = other()
    tool("busybox", "ln", "-s", there, "way")
    fill(there, ".")
    put("before", data("before", 2000))
    put(f"{there}/before", data("before", 2000))
    both("way", there)


@replay
def a_link_that_is_pending():
    there = other()
    pending_in(there, ".")
    os.symlink(there, "way")
    both("way", there)


@replay
def a_relative_link_that_is_pending():
    there = other()
    pending_in(there, ".")
    os.symlink(os.path.relpath(there), "way")
    both("way", there)


@replay
def there_and_back():
    """The way leads to the other root, and from there to this one."""
    there = other()
    os.mkdir("home")
    pending_in(there, ".", "home")
    os.symlink(os.getcwd() + "/home", f"{there}/back")
    os.symlink(there, "way")
    both("way/back", "home")
    show("home")


@replay
def back_while_this_root_is_quiet():
    there = other()
    os.mkdir("home")
    pending_in(there)
    os.symlink(os.getcwd() + "/home", f"{there}/back")
    os.symlink(there, "way")
    fails("make", put, "way/back/x", b"x")
    fails("append", append, "way/back/x", b"y")
    fails("rename", os.rename, "way/back/x", "way/x")
    fails("rename back", os.rename, "way/a", "way/back/a")
    show(there, "home")


@replay
def three_links():
    there, second = other(), other("three_links_2")
    pending_in(there, second, ".")
    os.symlink(there, "one")
    os.symlink("one/two", "way")
    os.symlink(second, f"{there}/two")
    both("way", second)
    show(there)


@replay
def links_that_are_in_the_way_no_more():
    there, second = other(), other("no_more_2")
    pending_in(there, second, ".")
    os.symlink(there, "way")
    os.symlink(there, "gone")
    os.symlink(second, "new")
    os.replace("new", "way")
    os.unlink("gone")
    both("way", second)
    fails("gone", get, "gone/a")
    fails("gone", put, "gone/a", b"a")
    fails("gone", os.unlink, "gone/a")
    show(there)


@replay
def dots_behind_links():
    there = other()
    pending_in(f"{there}/sub", there, ".")
    os.symlink(f"{there}/sub", "way")
    fails("above", get, "way/../a")
    fails("list", lambda: sorted(os.listdir("way/..")))
    fails("remove", os.unlink, "way/../b")
    fails("rename", os.rename, "way/../c", "way/c2")
    fails("rename here", os.rename, "way/../d", "d")
    fails("new", put, "way/../new", b"new")
    fails("not here", get, "way/../before")
    both("way", f"{there}/sub")
    show(there)


@replay
def by_a_working_directory():
    there, here = other(), os.getcwd()
    pending_in(there, ".")
    os.symlink(there, "way")
    os.chdir("way")
    both(".", there)
    fails("to the other", os.rename, "h", f"{here}/h3")
    fails("up", lambda: os.listdir(".."))
    os.chdir(here)
    show(".")


@replay
def by_a_descriptor():
    there = other()
    pending_in(there, ".")
    os.symlink(there, "way")
    here, fd = os.open(".", os.O_RDONLY), os.open("way", os.O_RDONLY)
    at = {"dir_fd": fd}
    fails("stat", lambda: os.stat("a", **at).st_size)
    fails("list", lambda: sorted(os.listdir(fd)))
    fails("remove", os.unlink, "a", **at)
    fails("make", lambda: os.close(os.open("new", W | C | X, 0o644, **at)))
    fails("mode", os.chmod, "b", 0o600, **at)
    fails("rename", os.rename, "c", "c2", src_dir_fd=fd, dst_dir_fd=fd)
    fails("rename here", os.rename, "d", "d2", src_dir_fd=fd, dst_dir_fd=here)
    fails("rename there", os.rename, "way/e", "e2", src_dir_fd=here, dst_dir_fd=fd)
    fails("link", os.link, "f", "f2", src_dir_fd=fd, dst_dir_fd=fd)
    fails("directory", os.mkdir, "sub", **at)
    fails("symbolic link", os.symlink, "g", "g2", **at)
    fails("read", os.readlink, "g2", **at)
    os.close(fd)
    os.close(here)
    show(there, ".")


def by_links_to_files(there):
    for name in "abcdefgh":
        os.symlink(f"{there}/{name}", f"to_{name}")
    os.symlink(f"{there}/none", "to_none")
    os.symlink("to_a", "twice")
    fails("read", get, "to_a")
    fails("twice", get, "twice")
    fails("stat", lambda: os.stat("to_a").st_size)
    fails("lstat", os.path.islink, "to_a")
    fails("access", os.access, "to_a", os.W_OK)
    fails("real", lambda: os.path.realpath("to_a").endswith("/a"))
    fails("same", os.path.samefile, "twice", f"{there}/a")
    fails("write", put, "to_b", b"written")
    fails("append", append, "to_c", b" and more")
    fails("truncate", os.truncate, "to_d", 1)
    fails("mode", os.chmod, "to_e", 0o600)
    fails("times", os.utime, "to_e", (1_000_000_000, 1_000_000_000))
    fails("attribute", os.setxattr, "to_e", "user.a", b"1")
    fails("attribute", os.getxattr, "to_e", "user.a")
    fails("exclusive", put, "to_f", b"x", W | C | X)
    fails("hard link", os.link, "to_f", "f.linked", follow_symlinks=True)
    fails("remove the link", os.unlink, "to_g")
    fails("none", get, "to_none")
    fails("make it", put, "to_none", b"none")
    os.rename(f"{there}/h", f"{there}/h2")
    fails("renamed", get, "to_h")
    fails("renamed", append, "to_h", b"anew")
    os.unlink(f"{there}/a")
    fails("removed", get, "twice")
    fails("removed", os.truncate, "to_a", 3)
    fails("removed", put, "twice", b"again")
    look("to_a", "to_h", "twice")
    show(there, ".")
    os.unlink("f.linked")


@replay(barrier=True)
def links_to_files_that_are_pending():
    there = other()
    pending_in(there)
    by_links_to_files(there)


@replay(barrier=True, needs=["busybox"])
def links_to_files_that_are_published():
    there = other()
    fill(there)
    put("before", data("before", 2000))
    put(f"{there}/before", data("before", 2000))
    by_links_to_files(there)


@replay(barrier=True, needs=["busybox"])
def a_program_behind_links():
    there = other()
    put(f"{there}/run", b"#!/bin/sh\necho has run\n", mode=0o777)
    os.symlink(there, "way")
    os.symlink("way/run", "program")
    tool("./way/run")
    put(f"{there}/run", b"#!/bin/sh\necho has run again\n", mode=0o777)
    tool("./program")
    shutil.copy("program", "copy")
    shutil.copy("program", "way/copy")
    say(get("copy"), get("way/copy"))


@replay(barrier=True)
def directories_and_exchanges():
    there = other()
    pending_in(f"{there}/sub/deep", "mine/deep")
    os.symlink(there, "way")
    fails("move here", os.rename, "way/sub", "sub")
    fails("move there", os.rename, "mine", "way/mine")
    fails("move within", os.rename, "way/mine/deep", "way/deep")
    fails("in it", put, "way/deep/x", b"x")
    fails("not empty", os.rmdir, "way/deep")
    fails("remove", shutil.rmtree, "way/deep")
    fails("remove", os.rmdir, "way/mine")
    fails("made again", os.makedirs, "way/mine/deep")
    for name in "one", "way/two":
        put(name, name.encode())
    fails("exchange", libc.renameat2, -100, b"one", -100, b"way/two", 2)
    fails("no replace", libc.renameat2, -100, b"one", -100, b"way/two", 1)
    say(get("one"), get("way/two"))
    tree(there)
    fails("over the link", os.rename, "one", "way")
    look("way")
    fails("rename the link", os.symlink, there, "link")
    fails("rename the link", os.rename, "link", f"{there}/link")
    fails("through it", get, f"{there}/link/two")


@replay
def a_file_that_is_open():
    there = other()
    os.symlink(there, "way")
    with open("way/open", "wb") as f:
        f.write(b"one")
        fails("within", os.rename, "way/open", "way/renamed")
        f.write(b"two")
        f.flush()
        say(get("way/renamed"))
        fails("removed", os.unlink, "way/renamed")
        fails("made", put, "way/renamed", b"new")
        fails("made here", put, "renamed", b"here")
    show(there, ".")


if __name__ == "__main__":
    for entry in os.listdir(SIBLING):
        path = f"{SIBLING}/{entry}"
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    main()
