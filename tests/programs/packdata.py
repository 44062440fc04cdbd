#!/usr/bin/env python3
"""Makes a data set of which most gets smaller when it is compressed: text, tables, arrays of
numbers, pictures.

    packdata.py [--files N] [--size BYTES] [--large N] DIR

    text/NNNN.txt csv/NNNN.csv array/NNNN.npy    N of each, of about BYTES (compressible)
    image/NNNN.jpg                               N of them, noise behind a JPEG header
    large/NNNN.txt                               --large of them, 20 times that size
    odd/empty.txt odd/one.txt odd/plain          nothing, one byte, no suffix

Same arguments, same bytes. `packdata.py --read DIR [--rounds N] [--procs P] [--order]` reads
everything, each round in another order (or, with --order, in which the directories list them),
checks that every round gives the same, and prints a checksum of all.
"""
import argparse, hashlib, os, random, struct, sys, time

WORDS = ("the of training sample neural and gradient loss epoch file system a to in batch learning rate "
         "token vector sum layer weight node store tier").split()


def text(rng, size):
    parts, n = [], 0
    while n < size:
        line = " ".join(rng.choices(WORDS, k=rng.randint(4, 14))) + ".\n"
        parts.append(line)
        n += len(line)
    return "".join(parts).encode()[:size]


def table(rng, size):
    parts, n, t = [b"time,sensor,value,flag\n"], 0, 1_700_000_000
    while n < size:
        t += rng.randint(1, 3)
        row = b"%d,sensor-%02d,%.3f,%d\n" % (t, rng.randint(0, 9), rng.gauss(20, 2), rng.random() < 0.1)
        parts.append(row)
        n += len(row)
    return b"".join(parts)[:size]


def array(rng, size):
    # A padded sequence of 32-bit numbers, as recurrent networks are given: the tail of each row is
    # zeros.
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 64), }" % (size // 256)
    parts = [header.ljust(127) + b"\n"]
    for _ in range(size // 256):
        used = rng.randint(8, 48)
        row = [round(rng.gauss(0, 1), 2) for _ in range(used)] + [0.0] * (64 - used)
        parts.append(struct.pack("<64f", *row))
    return b"".join(parts)


def noise(rng, size):
    return b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + rng.randbytes(size - 11)


def make(args):
    kinds = {"text": (text, "txt"), "csv": (table, "csv"), "array": (array, "npy"), "image": (noise, "jpg")}

    def put(rel, data):
        path = os.path.join(args.dir, rel)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(data)
        t = 1_600_000_000 + len(data)
        os.utime(path, (t, t))

    for kind, (maker, suffix) in kinds.items():
        for n in range(args.files):
            rng = random.Random(f"{kind}{n}")
            put(f"{kind}/{n:04}.{suffix}", maker(rng, int(args.size * rng.uniform(0.5, 1.5))))
    for n in range(args.large):
        put(f"large/{n:04}.txt", text(random.Random(f"large{n}"), args.size * 20))
    put("odd/empty.txt", b"")
    put("odd/one.txt", b"x")
    put("odd/plain", b"no suffix " * 2000)


def work(paths, args, number):
    sums, rng, slowest = {}, random.Random(number), 0.0
    for k in range(args.rounds):
        if not args.order:
            rng.shuffle(paths)
        for path in paths:
            if args.pause:
                time.sleep(args.pause)
            start = time.monotonic()
            with open(path, "rb", buffering=0) as f:
                h = hashlib.md5()
                while part := f.read(1 << 18):
                    h.update(part)
            slowest = max(slowest, time.monotonic() - start)
            if sums.setdefault(path, h.hexdigest()) != h.hexdigest():
                print(f"FAIL {path}: other bytes in round {k}")
                return 1
    if number == 0:
        every = "".join(f"{os.path.relpath(p, args.dir)} {s}\n" for p, s in sorted(sums.items()))
        print(len(sums), hashlib.md5(every.encode()).hexdigest(), flush=True)
    return 0


def read(args):
    paths = [os.path.join(b, n) for b, _, names in os.walk(args.dir) for n in names]
    children = []
    for number in range(1, args.procs):
        pid = os.fork()
        if pid == 0:
            os._exit(work(list(paths), args, number))
        children.append(pid)
    bad = work(list(paths), args, 0)
    for pid in children:
        bad |= os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return bad


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--files", type=int, default=20)
    p.add_argument("--size", type=int, default=100_000)
    p.add_argument("--large", type=int, default=0)
    p.add_argument("--read", action="store_true")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--procs", type=int, default=1)
    p.add_argument("--order", action="store_true")
    p.add_argument("--pause", type=float, default=0.0)
    p.add_argument("dir")
    args = p.parse_args()
    return read(args) if args.read else make(args)


if __name__ == "__main__":
    sys.exit(main())
