#!/usr/bin/env python3
"""Many processes read large files that do not fit, in every way and in different orders.

    streamed.py make [--files N] [--bytes N] DIR
    streamed.py replace DIR NUMBER VERSION         by another file, as a job on another node would
    streamed.py read [--processes N] [--seconds N] ROOT

A file says in each 8 bytes which file, version and offset they are of. `read` finds out the version
of the first bytes of a descriptor, and expects the same from all others. Anything wrong is a line
that begins with FAIL, and status 1.
"""
import argparse, array, mmap, os, random, sys, threading, time

VERSIONS = 4


def contents(number, version, size):
    first = (number * VERSIONS + version + 1) << 40
    return array.array("Q", range(first, first + size // 8)).tobytes()


def put(root, number, version, size):
    with open(f"{root}/new", "wb") as f:
        f.write(contents(number, version, size))
    os.utime(f"{root}/new", (1_700_000_000 + version, 1_700_000_000 + version))
    os.rename(f"{root}/new", f"{root}/s{number}.bin")


class Reader:
    """A descriptor: all its bytes are of one version."""

    known = {}

    def __init__(self, root, number):
        self.number, self.fd = number, os.open(f"{root}/s{number}.bin", os.O_RDONLY)
        self.size, self.version = os.fstat(self.fd).st_size, None

    def contents(self, version):
        key = (self.number, version)
        if key not in self.known:
            self.known[key] = contents(self.number, version, self.size)
        return self.known[key]

    def right(self, got, off, how):
        versions = range(VERSIONS) if self.version is None else [self.version]
        fit = [version for version in versions if self.contents(version)[off : off + len(got)] == got]
        if fit:
            # (A few bytes may be the same in all versions.)
            self.version = fit[0] if len(fit) == 1 else self.version
            return
        want = self.contents(self.version or 0)[off : off + len(got)]
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), 0)
        word = int.from_bytes(got[at - (off + at) % 8 :][:8], "little")
        print(f"FAIL {how} s{self.number} version {self.version}: {len(got)} bytes at {off} differ at {off + at}, found {word:#x}", flush=True)
        os._exit(1)


def in_order(r, rng):
    n, off = rng.choice([16_001, 65_536, 262_144, 1_000_000]), 0
    while got := os.read(r.fd, n):
        r.right(got, off, "in order")
        off += len(got)
    if off != r.size:
        print(f"FAIL s{r.number} ends at {off}", flush=True)
        os._exit(1)


def jumping(r, rng):
    """In order for a while, then from somewhere else on."""
    for _ in range(6):
        off = rng.randrange(r.size) & ~65_535
        for _ in range(rng.randrange(1, 12)):
            got = os.pread(r.fd, 131_072, off)
            r.right(got, off, "jumping")
            off += len(got)


def anywhere(r, rng):
    for _ in range(40):
        off, n = rng.randrange(r.size), rng.choice([1, 4096, 70_000, 400_000])
        r.right(os.pread(r.fd, n, off), off, "anywhere")


def vector(r, rng):
    off = 0
    for _ in range(12):
        parts = [bytearray(rng.choice([1, 4096, 90_000])) for _ in range(rng.randrange(1, 9))]
        n = os.readv(r.fd, parts)
        r.right(b"".join(parts)[:n], off, "vector")
        off += n


def mapped(r, rng):
    with mmap.mmap(r.fd, 0, prot=mmap.PROT_READ) as m:
        for _ in range(30):
            off, n = rng.randrange(r.size), rng.randrange(1, 50_000)
            r.right(m[off : off + n], off, "mapped")


def shared(r, rng):
    """Two processes, one offset: neither knows where it is, but each record has its place."""
    child = os.fork()
    for _ in range(40):
        # (A record of 8 bytes: it says where it is.)
        got = os.read(r.fd, 80_000)
        if len(got) < 8:
            break
        words = array.array("Q")
        words.frombytes(got[: len(got) & ~7])
        if words[-1] - words[0] != len(words) - 1:
            print(f"FAIL shared s{r.number}: {words[0]:#x} to {words[-1]:#x} in {len(words)}", flush=True)
            os._exit(1)
    if child == 0:
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        os._exit(1)


WAYS = [in_order, in_order, in_order, jumping, jumping, anywhere, vector, mapped]


def work(root, seed, until):
    rng, done = random.Random(seed), 0
    files = len([n for n in os.listdir(root) if n.startswith("s")])
    while time.monotonic() < until:
        r = Reader(root, rng.randrange(files))
        rng.choice(WAYS)(r, rng)
        os.close(r.fd)
        done += 1
    return done


def process(root, seed, until):
    done = []
    threads = [threading.Thread(target=lambda n=n: done.append(work(root, seed * 10 + n, until))) for n in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    # (After the threads: they do not live in a child.)
    rng = random.Random(seed)
    for _ in range(3):
        r = Reader(root, rng.randrange(2))
        shared(r, rng)
        os.close(r.fd)
    os._exit(0 if len(done) == 3 and all(done) else 1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what")
    p.add_argument("--files", type=int, default=8)
    p.add_argument("--bytes", type=int, default=3_000_000)
    p.add_argument("--processes", type=int, default=4)
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("root")
    p.add_argument("rest", nargs="*")
    a = p.parse_args()
    if a.what == "make":
        os.makedirs(a.root, exist_ok=True)
        [put(a.root, number, 0, a.bytes & ~7) for number in range(a.files)]
    elif a.what == "replace":
        put(a.root, int(a.rest[0]), int(a.rest[1]), a.bytes & ~7)
    else:
        print("begun", flush=True)
        until = time.monotonic() + a.seconds
        pids = []
        for n in range(a.processes):
            pids.append(os.fork())
            if pids[-1] == 0:
                process(a.root, a.seed * 100 + n, until)
        if any(os.waitpid(pid, 0)[1] for pid in pids):
            sys.exit(1)
        print("all right", flush=True)


if __name__ == "__main__":
    main()
