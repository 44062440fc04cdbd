#!/usr/bin/env python3
"""Large files and every way of reading them in parts.

    large.py make [--sizes 5000000,3000001] DIR      files `l0.bin`, `l1.bin`, ... of random bytes
    large.py read [--how seq,read,...] [--times N] ROOT TRUTH

`read` compares what it reads below ROOT with the same files below TRUTH, by the kernel's own calls,
and prints one line for each way. Anything wrong is a line that begins with FAIL, and status 1.
"""
import argparse, ctypes, hashlib, io, mmap, os, random, sys, threading

libc = ctypes.CDLL(None, use_errno=True)


def names(root):
    return sorted(n for n in os.listdir(root) if n.endswith(".bin"))


class File:
    """A file, open, with the truth about it."""

    def __init__(self, root, truth, name):
        self.name, self.path = name, f"{root}/{name}"
        self.fd = os.open(self.path, os.O_RDONLY)
        self.truth = os.open(f"{truth}/{name}", os.O_RDONLY)
        self.size = os.fstat(self.truth).st_size

    def right(self, got, off, n, how):
        want = os.pread(self.truth, n, off)
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
            print(f"FAIL {how} {self.name}: {n} bytes at {off}: {len(got)} of {len(want)}, differs at {off + at}", flush=True)
            os._exit(1)

    def close(self):
        os.close(self.fd)
        os.close(self.truth)


def seq(f, rng):
    off = 0
    while got := os.pread(f.fd, 262144, off):
        f.right(got, off, 262144, "seq")
        off += len(got)


def read(f, rng):
    off = 0
    while got := os.read(f.fd, 100_001):
        f.right(got, off, 100_001, "read")
        off += len(got)
    assert os.lseek(f.fd, 0, os.SEEK_CUR) == f.size


def whole(f, rng):
    with open(f.path, "rb") as g:
        f.right(g.read(), 0, f.size + 1, "whole")


def rand(f, rng):
    for _ in range(150):
        off, n = rng.randrange(f.size + 5000), rng.choice([1, 512, 4096, 70_000, 400_000])
        f.right(os.pread(f.fd, n, off), off, n, "random")


def vector(f, rng):
    for _ in range(60):
        off = rng.randrange(f.size)
        parts = [bytearray(rng.choice([1, 0, 4096, 90_000])) for _ in range(rng.randrange(1, 9))]
        total = sum(map(len, parts))
        if rng.random() < 0.5:
            n = os.preadv(f.fd, parts, off)
        else:
            os.lseek(f.fd, off, os.SEEK_SET)
            n = os.readv(f.fd, parts)
            assert os.lseek(f.fd, 0, os.SEEK_CUR) == off + n
        f.right(b"".join(parts)[:n], off, total, "vector")


def seek(f, rng):
    for _ in range(60):
        n = rng.randrange(1, 60_000)
        off = os.lseek(f.fd, -n, os.SEEK_END)
        f.right(os.read(f.fd, n + 10), off, n + 10, "seek")
        off = os.lseek(f.fd, -rng.randrange(f.size), os.SEEK_CUR)
        f.right(os.read(f.fd, n), off, n, "seek")


def buffered(f, rng):
    with open(f.path, "rb", buffering=8192) as g:
        for _ in range(40):
            off, n = rng.randrange(f.size), rng.randrange(1, 50_000)
            g.seek(off)
            f.right(g.read(n), off, n, "buffered")


def mapped(f, rng):
    with mmap.mmap(f.fd, 0, prot=mmap.PROT_READ) as m:
        for _ in range(100):
            off, n = rng.randrange(f.size), rng.randrange(1, 50_000)
            f.right(m[off : off + n], off, n, "mapped")


def stdio(f, rng):
    libc.fopen.restype = ctypes.c_void_p
    libc.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    libc.fseek.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
    libc.fclose.argtypes = [ctypes.c_void_p]
    stream = libc.fopen(f.path.encode(), b"rb")
    buf = ctypes.create_string_buffer(70_000)
    for _ in range(40):
        off, n = rng.randrange(f.size), rng.randrange(1, 70_000)
        libc.fseek(stream, off, 0)
        got = libc.fread(buf, 1, n, stream)
        f.right(buf.raw[:got], off, n, "stdio")
    libc.fclose(stream)


def stream(f, rng):
    """fdopen and fread, as numpy does it."""
    libc.fdopen.restype = ctypes.c_void_p
    libc.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    libc.fclose.argtypes = [ctypes.c_void_p]
    libc.ftell.argtypes = [ctypes.c_void_p]
    libc.ftell.restype = ctypes.c_long
    off = rng.randrange(f.size)
    os.lseek(f.fd, off, os.SEEK_SET)
    stream = libc.fdopen(os.dup(f.fd), b"rb")
    buf = ctypes.create_string_buffer(500_000)
    got = libc.fread(buf, 1, 500_000, stream)
    f.right(buf.raw[:got], off, 500_000, "stream")
    assert libc.ftell(stream) == off + got
    libc.fclose(stream)


def sent(f, rng):
    """sendfile, by the offset of the descriptor and by one of its own."""
    out = os.memfd_create("sent")
    os.lseek(f.fd, 7000, os.SEEK_SET)
    done = 0
    while n := os.sendfile(out, f.fd, None, 1 << 20):
        done += n
    assert os.lseek(f.fd, 0, os.SEEK_CUR) == f.size and done == f.size - 7000
    f.right(os.pread(out, f.size, 0), 7000, f.size, "sent")
    n = os.sendfile(out, f.fd, 100, 5000)
    f.right(os.pread(out, n, done), 100, 5000, "sent")
    os.close(out)


def threads(f, rng):
    def work(seed):
        rng = random.Random(seed)
        for _ in range(30):
            off, n = rng.randrange(f.size), rng.choice([100, 5000, 200_000])
            f.right(os.pread(f.fd, n, off), off, n, "threads")

    all = [threading.Thread(target=work, args=(rng.random(),)) for _ in range(16)]
    [t.start() for t in all]
    [t.join() for t in all]


def shared(f, rng):
    """Four processes read records from one offset: each record exactly once."""
    size = 9973
    ends = []
    for _ in range(4):
        r, w = os.pipe()
        if os.fork() == 0:
            out = []
            while got := os.read(f.fd, size):
                out.append(hashlib.blake2b(got, digest_size=16).digest())
            with os.fdopen(w, "wb") as pipe:
                pipe.write(b"".join(out))
            os._exit(0)
        os.close(w)
        ends.append(r)
    seen = []
    for r in ends:
        with os.fdopen(r, "rb") as pipe:
            got = pipe.read()
        seen += [got[i : i + 16] for i in range(0, len(got), 16)]
    [os.wait() for _ in ends]
    want = [hashlib.blake2b(os.pread(f.truth, size, off), digest_size=16).digest() for off in range(0, f.size, size)]
    if sorted(seen) != sorted(want):
        print(f"FAIL shared {f.name}: {len(seen)} records, {len(want)} expected, {len(set(want) - set(seen))} missing")
        os._exit(1)


def dup(f, rng):
    other, off = os.dup(f.fd), 0
    for turn in range(1_000_000):
        got = os.read(other if turn % 2 else f.fd, 50_000)
        f.right(got, off, 50_000, "dup")
        off += len(got)
        if not got:
            break
    os.close(other)


def passed(f, rng):
    """A child that gets the descriptor as its standard input, after exec."""
    import subprocess

    os.lseek(f.fd, 1000, os.SEEK_SET)
    got = subprocess.run(["cat"], stdin=f.fd, capture_output=True, check=True).stdout
    f.right(got, 1000, f.size, "passed")


def odd(f, rng):
    """Wrong usage gets what the kernel says."""
    for args in [(f.fd, 10, f.size), (f.fd, 0, 5), (f.fd, 10, 1 << 60)]:
        assert os.pread(*args) == b"", args
    try:
        os.pread(f.fd, 10, -5)
        raise AssertionError("a negative offset")
    except OSError as e:
        assert e.errno == 22, e
    libc.pread.restype = ctypes.c_ssize_t
    libc.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
    assert libc.pread(f.fd, 1, 100, 0) == -1 and ctypes.get_errno() == 14
    libc.read.restype = ctypes.c_ssize_t
    libc.read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    os.lseek(f.fd, 7, os.SEEK_SET)
    assert libc.read(f.fd, 1, 100) == -1 and ctypes.get_errno() == 14
    assert os.lseek(f.fd, 0, os.SEEK_CUR) == 7, "a read that failed moved the offset"
    libc.readv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    assert libc.readv(f.fd, 8, 2) == -1 and ctypes.get_errno() == 14
    assert libc.readv(f.fd, None, -1) == -1 and ctypes.get_errno() == 22
    assert os.lseek(f.fd, 0, os.SEEK_CUR) == 7
    st = os.fstat(f.fd)
    assert (st.st_size, st.st_ino, st.st_dev) == (f.size, os.stat(f.path).st_ino, os.stat(f.path).st_dev)


def hints(f, rng):
    os.posix_fadvise(f.fd, 0, 0, os.POSIX_FADV_WILLNEED)
    os.posix_fadvise(f.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    f.right(os.pread(f.fd, 1000, 5), 5, 1000, "hints")


WAYS = dict(seq=seq, read=read, whole=whole, random=rand, vector=vector, seek=seek, buffered=buffered, mapped=mapped, stdio=stdio, stream=stream, sent=sent,
            threads=threads, shared=shared, dup=dup, passed=passed, odd=odd, hints=hints)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("command", choices=["make", "read"])
    p.add_argument("dirs", nargs="+")
    p.add_argument("--sizes", default="5000000,3000001,2097152")
    p.add_argument("--how", default=",".join(WAYS))
    p.add_argument("--times", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    if a.command == "make":
        os.makedirs(a.dirs[0], exist_ok=True)
        for i, size in enumerate(map(int, a.sizes.split(","))):
            with open(f"{a.dirs[0]}/l{i}.bin", "wb") as f:
                f.write(random.Random(i).randbytes(size))
            os.utime(f"{a.dirs[0]}/l{i}.bin", (1_700_000_000, 1_700_000_000))
        return
    root, truth = a.dirs
    for turn in range(a.times):
        for how in a.how.split(","):
            rng = random.Random(a.seed * 1000 + turn)
            for name in names(root):
                f = File(root, truth, name)
                WAYS[how](f, rng)
                f.close()
            print(f"{how} right", flush=True)


main()
