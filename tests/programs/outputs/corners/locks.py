"""Locks that one process holds while another opens the file, perhaps a new version of it.
`locks.py [NAME...]` in the directory where they go.
"""
import errno, fcntl, os, sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import C, RW, T, W, data, look, main, put, replay, say

NOW = fcntl.LOCK_EX | fcntl.LOCK_NB


def tried(lock, fd):
    """Whether a lock can be had at once."""
    try:
        lock(fd, NOW)
        return "granted"
    except OSError as e:
        return errno.errorcode[e.errno]


def elsewhere(what, flags, *locks):
    """Another process opens the file and tries to lock it."""
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        fd = os.open("f", flags, 0o644)
        os.write(telling, " ".join(tried(lock, fd) for lock in locks).encode())
        os._exit(0)
    os.close(telling)
    os.waitpid(child, 0)
    say(what, os.read(told, 100).decode())
    os.close(told)


def opens(locks):
    """All ways to open a file that is there."""
    for what, flags in [("r", os.O_RDONLY), ("r+", RW), ("a", W | os.O_APPEND), ("w", W | C | T), ("w+", RW | C | T)]:
        # A lock for writing needs a descriptor for writing, but for flock.
        elsewhere(what, flags, *[lock for lock in locks if lock is fcntl.flock or flags & os.O_ACCMODE])


@replay
def of_a_writer():
    for lock in (fcntl.flock, fcntl.lockf):
        fd = os.open("f", RW | C | T, 0o644)
        os.write(fd, data("f", 1000))
        lock(fd, NOW)
        # Something else stands between its opens.
        put("marker", b"marker")
        opens([lock])
        os.close(fd)
        elsewhere("after it", RW, fcntl.flock, fcntl.lockf)
    look("f", "marker")


@replay
def of_a_writer_of_a_new_version():
    put("f", data("f", 1000))
    put("marker", b"marker")
    fd = os.open("f", RW | C | T, 0o644)
    fcntl.flock(fd, NOW)
    opens([fcntl.flock])
    os.close(fd)
    look("f", "marker")


@replay
def of_a_reader():
    put("f", data("f", 1000))
    fd = os.open("f", os.O_RDONLY)
    fcntl.flock(fd, NOW)
    elsewhere("r", os.O_RDONLY, fcntl.flock)
    elsewhere("r+", RW, fcntl.flock)
    os.close(fd)
    look("f")


@replay
def of_a_reader_of_the_version_before():
    put("f", data("f", 1000))
    put("marker", b"marker")
    fd = os.open("f", os.O_RDONLY)
    fcntl.flock(fd, NOW)
    elsewhere("w", W | C | T, fcntl.flock)
    os.close(fd)
    look("f", "marker")


if __name__ == "__main__":
    main()
