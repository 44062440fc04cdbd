#!/usr/bin/env python3
"""Obeys lines about a data set and prints the result of each: for tests that look from two nodes at
one change.

    obey.py ROOT
    read REL | stat REL | list REL | write REL SEED | append REL | delete REL | rename REL TO | mkdir REL

Answers `#N TEXT` to line N: the seed whose bytes a file has (`?`: no version's), its size, sorted
names, `done`, or the error's name. `write` replaces the bytes in place, or makes the file.
"""
import errno, os, sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mkdata


def read(path, rel):
    with open(path, "rb") as f:
        data = f.read()
    if data.endswith(b"appended"):
        return "appended"
    return next((str(s) for s in (1, 2, 3) if data == mkdata.expected(rel.encode(), s)), "?")


def write(path, rel, seed):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, mkdata.expected(rel.encode(), int(seed)))
    os.close(fd)


def append(path):
    with open(path, "ab") as f:
        f.write(b"appended")


def does(root, what, rel, *more):
    path = f"{root}/{rel}"
    if what == "read":
        return read(path, rel)
    if what == "stat":
        return str(os.stat(path).st_size)
    if what == "list":
        return " ".join(sorted(os.listdir(path)))
    acts = dict(write=lambda: write(path, rel, *more), append=lambda: append(path), delete=lambda: os.unlink(path),
                rename=lambda: os.rename(path, f"{root}/{more[0]}"), mkdir=lambda: os.mkdir(path))
    acts[what]()
    return "done"


print("ready", flush=True)
for number, line in enumerate(sys.stdin):
    try:
        answer = does(sys.argv[1], *line.split())
    except OSError as e:
        answer = errno.errorcode[e.errno]
    print(f"#{number} {answer}\n", end="", flush=True)
