"""A process that becomes another user and comes back, while files of its own are pending. Needs root.
"""
import ctypes
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from see import fails, get, main, put, replay, say

OTHER = 65534


def as_other(*calls):
    """Each call is (what, function, arguments)."""
    os.seteuid(OTHER)
    try:
        for what, call, *words in calls:
            fails(what, call, *words)
    finally:
        os.seteuid(0)


def owners(*paths):
    for path in paths:
        fails(f"owner of {path}", lambda: (os.stat(path).st_uid, oct(os.stat(path).st_mode), get(path)))


def ground():
    os.chmod(".", 0o755)
    for name, mode in (("all", 0o777), ("sticky", 0o1777), ("mine", 0o755), ("closed", 0o700)):
        os.mkdir(name)
        os.chmod(name, mode)


def cut(path):
    os.truncate(path, 1)


def descriptor(path, flags):
    os.close(os.open(path, flags, 0o666))


@replay(barrier=True)
def files_of_root_in_a_directory_of_all():
    ground()
    for name in ("a", "b", "c", "d", "e", "f"):
        put(f"all/{name}", name.encode())
    os.chmod("all/b", 0o600)
    os.chmod("all/c", 0o666)
    as_other(
        ("read", get, "all/a"), ("read 0600", get, "all/b"), ("stat", lambda: os.stat("all/a").st_size),
        ("write", put, "all/a", b"x"), ("write 0666", put, "all/c", b"yes"),
        ("exclusive", descriptor, "all/a", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        ("append", descriptor, "all/a", os.O_APPEND | os.O_WRONLY), ("cut", cut, "all/a"),
        ("mode", os.chmod, "all/a", 0o666), ("access", os.access, "all/b", os.R_OK),
        ("list", lambda: sorted(os.listdir("all"))),
        ("rename", os.rename, "all/d", "all/d2"), ("over", os.rename, "all/d2", "all/e"),
        ("remove", os.unlink, "all/f"), ("link", os.symlink, "a", "all/l"), ("mkdir", os.mkdir, "all/a"),
    )
    owners("all/a", "all/b", "all/c", "all/d", "all/d2", "all/e", "all/f")
    say(sorted(os.listdir("all")))


@replay(barrier=True)
def files_of_root_where_others_may_not():
    ground()
    for dir in ("sticky", "mine", "closed"):
        put(f"{dir}/a", dir.encode())
        put(f"{dir}/b", dir.encode())
    for dir in ("sticky", "mine", "closed"):
        as_other(
            (f"{dir} read", get, f"{dir}/a"), ("write", put, f"{dir}/a", b"x"), ("new", put, f"{dir}/new", b"n"),
            ("remove", os.unlink, f"{dir}/a"), ("rename", os.rename, f"{dir}/b", f"{dir}/c"),
            ("list", lambda: sorted(os.listdir(dir))),
        )
        say(dir, sorted(os.listdir(dir)))


@replay(barrier=True)
def there_and_back_again():
    ground()
    for n in range(10):
        put("all/state.new", b"root %d" % n)
        os.rename("all/state.new", f"all/state{n}")
        as_other(("read", get, f"all/state{n}"), ("own", put, f"all/own{n}", b"own"), ("stat", os.path.exists, "all/state.new"))
        put(f"all/own{n}", b"by root")
        os.unlink(f"all/state{n}")
        as_other(("gone", get, f"all/state{n}"), ("own again", get, f"all/own{n}"))
    owners(*(f"all/own{n}" for n in range(10)))


@replay(barrier=True)
def closed_as_another_user():
    ground()
    f = open("all/a", "wb")
    f.write(b"begun")
    f.flush()
    os.seteuid(OTHER)
    f.write(b" and ended")
    f.close()
    fails("read", get, "all/a")
    fails("rename", os.rename, "all/a", "all/b")
    os.seteuid(0)
    owners("all/a", "all/b")


@replay(barrier=True)
def a_child_that_has_given_up_its_rights():
    ground()
    put("all/a", b"a")
    os.chmod("all/a", 0o600)
    put("all/b", b"b")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(OTHER)
        os.setuid(OTHER)
        fails("read 0600", get, "all/a")
        fails("read", get, "all/b")
        fails("write", put, "all/b", b"x")
        fails("new", put, "all/c", b"c")
        fails("rename", os.rename, "all/c", "all/a")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    owners("all/a", "all/b", "all/c")


@replay(barrier=True)
def a_thread_that_is_another_user_for_files():
    ground()
    put("all/a", b"a")
    libc = ctypes.CDLL(None)
    libc.setfsuid(OTHER)
    fails("read", get, "all/a")
    fails("write", put, "all/a", b"x")
    fails("new", put, "all/b", b"b")
    libc.setfsuid(0)
    owners("all/a", "all/b")
    put("all/c", b"c")
    os.rename("all/c", "all/a")
    owners("all/a", "all/c")


if __name__ == "__main__":
    main()
