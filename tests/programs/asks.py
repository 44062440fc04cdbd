#!/usr/bin/env python3
"""Obeys lines on standard input, with a line of output for each: for tests in which files change
between two calls.

    read PATH      length and CRC-32 of the file's bytes
    open PATH      opens it and keeps it open; rest: the bytes of what was opened last, as above
    stat PATH      size
    lstat PATH     size
    there PATH     whether access(2) finds it
    link PATH      where a symbolic link leads
    kind PATH      type, as lstat and stat have it
    more PATH      appends a byte
    list PATH      the names in a directory
    again PATH     the same from a stream that is rewound (opened by the first `again`)

Errors are answered by their names.
"""
import ctypes, errno, os, stat, sys, zlib

libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.opendir.argtypes, libc.readdir.argtypes, libc.rewinddir.argtypes = [ctypes.c_char_p], [ctypes.c_void_p], [ctypes.c_void_p]
held, stream = -1, None


def all_of(fd):
    n = crc = 0
    while part := os.read(fd, 1 << 20):
        n, crc = n + len(part), zlib.crc32(part, crc)
    return f"{n} bytes, {crc:08x}"


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        return all_of(fd)
    finally:
        os.close(fd)


def again(path):
    global stream
    if stream is None:
        stream = libc.opendir(path.encode())
    libc.rewinddir(stream)
    names = []
    while entry := libc.readdir(stream):
        names.append(ctypes.string_at(entry + 19).decode())
    return " ".join(sorted(n for n in names if n not in (".", "..")))


def more(path):
    with open(path, "ab") as f:
        f.write(b"+")
    return "written"


def do(what, path):
    global held
    if what == "open":
        held = os.open(path, os.O_RDONLY)
        return "opened"
    return {
        "read": lambda: read(path),
        "rest": lambda: all_of(held),
        "stat": lambda: os.stat(path).st_size,
        "lstat": lambda: os.lstat(path).st_size,
        "link": lambda: os.readlink(path),
        "kind": lambda: f"{stat.S_IFMT(os.lstat(path).st_mode):o} {stat.S_IFMT(os.stat(path).st_mode):o}",
        "more": lambda: more(path),
        "there": lambda: os.access(path, os.F_OK),
        "list": lambda: " ".join(sorted(os.listdir(path))),
        "again": lambda: again(path),
    }[what]()


for line in sys.stdin:
    what, _, path = line.rstrip("\n").partition(" ")
    try:
        print("=", do(what, path), flush=True)
    except OSError as e:
        print("=", errno.errorcode[e.errno], flush=True)
