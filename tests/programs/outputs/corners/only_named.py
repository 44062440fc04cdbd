"""Descriptors that only name what they are of (`O_PATH`), and opens that would only make a file."""
import errno
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from see import C, RW, T, W, fails, look, main, put, replay, say


def named(path, flags=0):
    return os.open(path, os.O_PATH | flags)


@replay
def files():
    put("kept", b"pending")
    put("file", b"pending")
    os.setxattr("file", "user.mark", b"1")
    os.symlink("file", "link")
    writer = os.open("written", RW | C | T)
    for path in ("file", "link", "written"):
        for pause in (0, 0.3):
            time.sleep(pause)
            fd = named(path)
            for what, call, *words in (
                ("mode", os.fchmod, 0o600), ("owner", os.fchown, -1, -1), ("cut", os.ftruncate, 1), ("mark", os.setxattr, "user.mark", b"2"),
                ("no mark", os.removexattr, "user.mark"), ("marks", os.listxattr), ("sync", os.fsync), ("read", os.read, 1), ("write", os.write, b"x"),
            ):
                fails(f"{path} {what}", call, fd, *words)
            os.close(fd)
    os.close(writer)
    look("file", "written")


@replay
def directories():
    put("kept", b"pending")
    for name in ("there", "removed"):
        os.mkdir(name)
    put("there/in", b"pending")
    fds = {name: named(name, os.O_DIRECTORY) for name in ("there", "removed")}
    os.rmdir("removed")
    for name, fd in fds.items():
        fails(f"list {name}", os.listdir, fd)
        fails(f"mode of {name}", os.fchmod, fd, 0o700)
    fails("stat", lambda: str(os.stat("in", dir_fd=fds["there"]).st_size))


@replay
def above_a_removed_directory():
    """`../x` by its descriptor, and in it, is what lies beside it, pending or not."""
    writer = os.open("written", RW | C | T)
    put("file", b"pending")
    here = os.open(".", os.O_PATH)
    for name in ("soon", "later"):
        os.makedirs(f"{name}/in")
        fds = [os.open(path, os.O_RDONLY) for path in (name, f"{name}/in")]
        os.rmdir(f"{name}/in")
        os.rmdir(name)
        time.sleep(0.3 * (name == "later"))
        for fd in fds:
            for path in ("../file", "../written", "../none", "../soon", ".."):
                fails(f"{name} {path}", lambda: bool(os.stat(path, dir_fd=fd)))
                say("access", os.access(path, os.R_OK, dir_fd=fd))
                fails("open", lambda: os.close(os.open(path, os.O_RDONLY, dir_fd=fd)))
            fails("make", lambda: os.close(os.open(f"../new {name}", W | C, dir_fd=fd)))
            os.fchdir(fd)
            fails("stat here", lambda: str(os.stat("../file").st_size))
            fails("open here", lambda: os.close(os.open("../written", os.O_RDONLY)))
            os.fchdir(here)
    os.close(writer)


@replay(barrier=True)
def above_a_directory_whose_parent_was_made_again():
    """`..` is the one that was removed."""
    writer = os.open("written", RW | C | T)
    os.makedirs("above/in")
    fd = os.open("above/in", os.O_RDONLY)
    here = os.open(".", os.O_PATH)
    os.rmdir("above/in")
    os.rmdir("above")
    os.mkdir("above")
    put("above/file", b"another")
    fails("stat", lambda: str(os.stat("../file", dir_fd=fd).st_size))
    fails("make", lambda: os.close(os.open("../new", W | C, dir_fd=fd)))
    os.fchdir(fd)
    fails("stat here", lambda: str(os.stat("../file").st_size))
    fails("cut here", os.truncate, "../file", 1)
    fails("make here", lambda: os.close(os.open("../new", W | C | T)))
    os.fchdir(here)
    os.close(writer)
    look("above", "above/file", "above/new")


@replay
def links():
    """A descriptor of a link to a directory is none of the directory."""
    writer = os.open("written", RW | C | T)
    os.mkdir("there")
    put("there/in", b"pending")
    os.symlink("there", "way")
    for pause in (0, 0.3):
        time.sleep(pause)
        try:
            fd = named("way", os.O_NOFOLLOW)
        except OSError as e:
            say(errno.errorcode[e.errno])
            continue
        fails("open", lambda: os.close(os.open("in", os.O_RDONLY, dir_fd=fd)))
        fails("create", lambda: os.close(os.open("new", W | C, dir_fd=fd)))
        fails("stat", lambda: str(os.stat("in", dir_fd=fd).st_size))
        fails("mkdir", os.mkdir, "dir", dir_fd=fd)
        fails("list", os.listdir, fd)
    os.close(writer)
    say(sorted(os.listdir("there")))


@replay
def opened_as_if_to_make_it():
    """`O_RDONLY | O_CREAT` of what is there is an open for reading, whose process may end at any time."""
    for round in range(20):
        name = f"file{round}"
        put("new", b"old")
        os.rename("new", name)
        writer = os.open(name, RW | C | T)
        # In the middle of a publication, or after it.
        time.sleep(0.003 * (round % 5))
        if (child := os.fork()) == 0:
            fd = os.open(name, os.O_RDONLY | os.O_CREAT, 0o600)
            os._exit(os.fstat(fd).st_size)
        say(os.waitpid(child, 0)[1])
        os.write(writer, b"new content")
        os.close(writer)
        fd = os.open(name, os.O_RDONLY | os.O_CREAT)
        say(os.read(fd, 100))
        os.close(fd)


@replay(barrier=True)
def renamed_links():
    """A link to which an owner or a time was given keeps them under another name."""
    for n, change in enumerate((
        lambda name: os.chown(name, 77, -1, follow_symlinks=False), lambda name: os.chown(name, -1, 77, follow_symlinks=False),
        lambda name: os.utime(name, (1_400_000_000,) * 2, follow_symlinks=False), lambda name: None,
    )):
        name = f"link{n}"
        os.symlink("nowhere", name)
        change(name)
        writer = os.open("written", RW | C | T)
        os.rename(name, f"{name}.new")
        look(f"{name}.new")
        os.close(writer)
        os.rename(f"{name}.new", name)
        look(name)


main()
