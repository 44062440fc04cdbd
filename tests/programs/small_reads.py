#!/usr/bin/env python3
"""Small reads of large files, again and again, by processes that may map the copies for them.

    small_reads.py STEP... ROOT TIER

The files are those of `streamed.py make`: each 8 bytes say of which file, version and offset they
are. Each STEP prints a line; anything wrong is a line that begins with FAIL, and status 1.

    (Each step but `many` and `hammer` takes files that no other one takes.)
    mapped       a file that is read often is mapped, the bytes are right, and no descriptor stays
    closed       the mapping goes with the descriptor
    many         more files than a process maps
    forked       children, by fork and by exec, begin without mappings, and read what is right
    limited      a process whose addresses are limited maps nothing
    filtered     a seccomp filter that forbids the call, and one that kills for it: neither is met
    held         maps two files, prints `held`, waits for a line, reads, closes, prints `closed`, waits
    hammer       threads and children read all files for `--seconds`, each byte is compared
"""
import argparse, array, ctypes, os, platform, random, resource, subprocess, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
VERSIONS = 4
READS = 200
MAX_MAPPINGS = 16
PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}


def fail(what):
    print(f"FAIL {what}", flush=True)
    os._exit(1)


class File:
    """A descriptor: all its bytes are of one version."""

    def __init__(self, root, number):
        self.number, self.fd = number, os.open(f"{root}/s{number}.bin", os.O_RDONLY)
        self.size, self.version = os.fstat(self.fd).st_size, None

    def read(self, off, n):
        got = os.pread(self.fd, n, off)
        if len(got) != min(n, self.size - off):
            fail(f"s{self.number}: {len(got)} of {n} bytes at {off}")
        first = off // 8
        words = (off + len(got) + 7) // 8 - first
        for version in range(VERSIONS) if self.version is None else [self.version]:
            start = ((self.number * VERSIONS + version + 1) << 40) + first
            want = array.array("Q", range(start, start + words)).tobytes()[off % 8 :][: len(got)]
            if got == want:
                # (A few bytes may be the same in all versions.)
                self.version = version if len(got) >= 16 else self.version
                return
        fail(f"s{self.number} version {self.version}: {n} bytes at {off} are {got[:24].hex()}")

    def small_reads(self, rng, times=READS):
        for _ in range(times):
            n = rng.choice([1, 8, 512, 4096, 16384])
            self.read(rng.randrange(self.size - n), n)

    def all(self):
        for off in range(0, self.size, 65_536):
            self.read(off, 65_536)

    def close(self):
        os.close(self.fd)


def maps(tier):
    return sum(tier in line for line in open("/proc/self/maps"))


def check_descriptors(tier):
    for fd in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if tier in path:
            fail(f"descriptor {fd} is {path}")


def expect(got, want, what):
    if got != want:
        fail(f"{what}: {got}, expected {want}")


def some(root, number, rng):
    f = File(root, number)
    f.all()
    f.small_reads(rng)
    return f


def mapped(root, tier, rng):
    f = some(root, first, rng)
    expect(maps(tier), 1, "mappings")
    check_descriptors(tier)
    f.small_reads(rng)
    f.all()
    f.close()


def closed(root, tier, rng):
    f = some(root, first + 1, rng)
    g = some(root, first + 2, rng)
    expect(maps(tier), 2, "mappings")
    f.close()
    expect(maps(tier), 1, "mappings after the close of one")
    os.closerange(g.fd, g.fd + 1)
    expect(maps(tier), 0, "mappings after the close of both")


def many(root, tier, rng):
    files = [File(root, n) for n in range(MAX_MAPPINGS + 4)]
    [f.all() for f in files]
    for _ in range(10):
        [f.small_reads(rng, 20) for f in files]
    expect(maps(tier), MAX_MAPPINGS, "mappings")
    # A file that is read alone from here on gets the place of another one.
    files[-1].small_reads(rng, 2000)
    files[-2].small_reads(rng, 2000)
    expect(maps(tier), MAX_MAPPINGS, "mappings")
    [f.close() for f in files]
    expect(maps(tier), 0, "mappings after all closes")


def forked(root, tier, rng):
    f = some(root, first + 3, rng)
    expect(maps(tier), 1, "mappings")
    child = os.fork()
    if child == 0:
        expect(maps(tier), 0, "mappings of a child")
        f.read(4096, 512)
        f.small_reads(rng)
        expect(maps(tier), 1, "mappings of a child that reads")
        os._exit(0)
    expect(os.waitpid(child, 0)[1], 0, "status of a child")
    expect(subprocess.run(["true"], close_fds=True).returncode, 0, "true")
    f.small_reads(rng)
    expect(maps(tier), 1, "mappings of the parent")
    f.close()


def limited(root, tier, rng):
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, old[1]))
    f = some(root, first + 4, rng)
    expect(maps(tier), 0, "mappings")
    resource.setrlimit(resource.RLIMIT_AS, old)
    f.small_reads(rng)
    expect(maps(tier), 1, "mappings without a limit")
    f.close()


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter))]


def install(action, by_number):
    """A filter that answers process_vm_readv with `action`."""
    number = PROCESS_VM_READV[platform.machine()]
    code = (Filter * 4)(Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, number), Filter(0x06, 0, 0, action), Filter(0x06, 0, 0, 0x7FFF0000))
    program = Program(4, code)
    expect(libc.prctl(38, 1, 0, 0, 0), 0, "no_new_privs")
    done = libc.syscall(317 if platform.machine() == "x86_64" else 277, 1, 0, ctypes.byref(program)) if by_number else libc.prctl(22, 2, ctypes.byref(program), 0, 0)
    expect(done, 0, "seccomp")


def filtered(root, tier, rng):
    errno_perm, kill, number = 0x00050001, 0x80000000, first
    for action in (errno_perm, kill):
        for mapped_before in (False, True):
            for by_number in (False, True):
                child = os.fork()
                if child == 0:
                    f = some(root, number, rng) if mapped_before else File(root, number)
                    expect(maps(tier), int(mapped_before), "mappings")
                    install(action, by_number)
                    f.all()
                    f.small_reads(rng)
                    expect(maps(tier), int(mapped_before), "mappings under a filter")
                    # A program that begins under the filter.
                    os.execv(sys.executable, [sys.executable, __file__, "--first", str(number + 1), "unmapped", root, tier])
                expect(os.waitpid(child, 0)[1], 0, f"status under a filter ({action:#x}, {mapped_before}, {by_number})")
                number += 2


def unmapped(root, tier, rng):
    some(root, first, rng)
    expect(maps(tier), 0, "mappings of a program that began under a filter")


def held(root, tier, rng):
    # Of one all chunks, of the other some.
    f, g = some(root, first, rng), File(root, first + 1)
    for _ in range(READS):
        g.read(rng.randrange(60_000), 512)
    expect(maps(tier), 2, "mappings")
    print("held", flush=True)
    sys.stdin.readline()
    f.small_reads(rng)
    for _ in range(READS):
        g.read(rng.randrange(60_000), 512)
    f.close()
    g.close()
    print("closed", flush=True)
    sys.stdin.readline()


def work(root, seed, until, done):
    rng, files = random.Random(seed), sorted(n for n in os.listdir(root) if n.startswith("s"))
    open_files = []
    while time.monotonic() < until:
        if len(open_files) < 4 or rng.random() < 0.05:
            open_files.append(File(root, rng.randrange(len(files))))
        if len(open_files) > 6:
            open_files.pop(rng.randrange(len(open_files))).close()
        f = rng.choice(open_files)
        # Around one place, as chunks of streamed files are there only near a reader in order.
        at = rng.randrange(f.size - 200_000) & ~65_535
        [f.read(at + n * 32_768, 32_768) for n in range(4)] if rng.random() < 0.3 else None
        for _ in range(60):
            n = rng.choice([1, 8, 512, 4096, 16_384])
            f.read(at + rng.randrange(131_072), n)
            done[0] += 1
    [f.close() for f in open_files]


def hammer(root, tier, rng, seconds):
    until, children = time.monotonic() + seconds, []
    print("begun", flush=True)
    for _ in range(3):
        child = os.fork()
        if child == 0:
            seen, done = 0, [0]
            threads = [threading.Thread(target=work, args=(root, rng.random(), until, done)) for _ in range(2)]
            [t.start() for t in threads]
            while any(t.is_alive() for t in threads):
                seen = max(seen, maps(tier))
                if seen > MAX_MAPPINGS:
                    fail(f"{seen} mappings")
                # A child in the middle of all this.
                grandchild = os.fork()
                if grandchild == 0:
                    File(root, rng.randrange(2)).small_reads(rng, 40)
                    os._exit(0)
                expect(os.waitpid(grandchild, 0)[1], 0, "status of a child")
                time.sleep(0.05)
            expect(maps(tier), 0, "mappings after all closes")
            os._exit(0 if seen and done[0] > 100 else 2)
        children.append(child)
        rng.random()
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        fail(f"children ended with {statuses}")


STEPS = dict(mapped=mapped, closed=closed, many=many, forked=forked, limited=limited, filtered=filtered, unmapped=unmapped, held=held)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, default=0, help="number of the first file: a step needs files of which there is no copy")
    p.add_argument("steps", nargs="+")
    p.add_argument("root")
    p.add_argument("tier")
    a = p.parse_args()
    global first
    first = a.first
    for step in a.steps:
        rng = random.Random(a.seed)
        hammer(a.root, a.tier, rng, a.seconds) if step == "hammer" else STEPS[step](a.root, a.tier, rng)
        print(f"{step} is right", flush=True)


if __name__ == "__main__":
    main()
