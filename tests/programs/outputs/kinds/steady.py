"""What a process finds by every way stays as it is while the agent publishes it."""
import os, stat, time

from kinds.choices import DIRS, NAMES, TOP
from see import digest, say

# Where the agent removes a part file a moment later: docs/OUTPUTS.md, known gaps.
PART = ".monarch-part-"


def of(st):
    """(A link gets another inode with its publication, a directory another time.)"""
    facts = [st.st_mode, st.st_uid, st.st_gid]
    if not stat.S_ISLNK(st.st_mode):
        facts.append(st.st_ino)
    if stat.S_ISREG(st.st_mode):
        facts += [st.st_size, st.st_mtime_ns]
    return facts


def entries(d):
    with os.scandir(d) as found:
        return sorted((e.name, e.is_dir(follow_symlinks=False), e.is_symlink(), e.is_symlink() or e.inode()) for e in found if not e.name.startswith(PART))


def listed(d):
    return sorted(name for name in os.listdir(d) if not name.startswith(PART))


def content(path):
    if not stat.S_ISREG(os.stat(path).st_mode):
        return None
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return of(os.fstat(fd)), digest(os.read(fd, 1 << 20))
    finally:
        os.close(fd)


WAYS = {
    "lstat": lambda path: of(os.lstat(path)),
    "stat": lambda path: of(os.stat(path)),
    "access": lambda path: os.access(path, os.R_OK),
    "exists": os.path.exists,
    "below": lambda path: os.path.exists(f"{path}/two"),
    "readlink": os.readlink,
    "realpath": os.path.realpath,
    "list": listed,
    "scan": entries,
    "attributes": lambda path: sorted(os.listxattr(path)),
    "read": content,
}


def answer(way, path):
    try:
        return way(path)
    except OSError as e:
        return e.errno


def facts():
    here = os.open(".", os.O_PATH)
    os.fchdir(TOP)
    found = {f"walk {at}": (sorted(dirs), sorted(name for name in files if not name.startswith(PART))) for at, dirs, files in os.walk(".")}
    for path in [*(d.rstrip("/") or "." for d in DIRS), *(d + name for d in DIRS for name in NAMES)]:
        found.update({f"{what} {path}": answer(way, path) for what, way in WAYS.items()})
    os.fchdir(here)
    os.close(here)
    return found


def look(n, seconds):
    """Looks at everything again and again, and says what has changed."""
    first, end = facts(), time.monotonic() + seconds
    while time.monotonic() < end:
        now = facts()
        for key in sorted(first.keys() | now.keys()):
            if first.get(key) != now.get(key):
                say(n, "NOT STEADY", key, first.get(key), now.get(key))
        first = now
