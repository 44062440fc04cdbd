#!/usr/bin/env python3
"""What a job of several nodes does: every rank reads the files of a data set, each epoch in an
order of its own.

    nodes.py make ROOT [--files N] [--dirs N] [--size B] [--seed S]
    nodes.py read ROOT [the same] --rank R --world N [--epochs E | --until FILE] [--barrier DIR] [--part] [--workers W]

The names of the files follow from their number, so that nothing is listed; the bytes from name and
seed (mkdata.py). Every read is checked; with several seeds (`--seed 1,2`) a file may be of any one
version, but of one as a whole. The order is that of (order seed, epoch, rank); with --part the
ranks share one order and each reads its part. With --barrier an epoch begins when all ranks have
ended the one before; a rank that is known to be gone is named by a file `gone.RANK` in that
directory.

A line of JSON for each epoch, and one at the end; status 1 when a byte was wrong or a read failed.
"""
import argparse, json, mmap, os, random, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mkdata


def name(i, a):
    """Of file `i`: its size is within a quarter of the mean and follows from its number."""
    size = a.size if a.exact else a.size * 3 // 4 + mkdata.mix(i) % (a.size // 2 + 1)
    return f"d{i % a.dirs:03}/s{i:06}.z{size}.bin"


def make(a):
    for d in range(a.dirs):
        os.makedirs(f"{a.root}/d{d:03}", exist_ok=True)
    for i in range(a.files):
        rel = name(i, a)
        # Beside it, then renamed: as another version arrives while readers are there.
        with open(f"{a.root}/{rel}.new", "wb") as f:
            f.write(mkdata.expected(rel.encode(), a.seeds[0]))
        os.rename(f"{a.root}/{rel}.new", f"{a.root}/{rel}")


def read_one(a, rel):
    """Milliseconds, bytes, seed (None: bytes that no version has)."""
    start = time.perf_counter()
    fd = os.open(f"{a.root}/{rel}", os.O_RDONLY)
    try:
        parts = []
        if a.map:
            with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:
                parts.append(m[:])
        while not a.map and (part := os.read(fd, 1 << 20)):
            parts.append(part)
    finally:
        os.close(fd)
    took = (time.perf_counter() - start) * 1000
    data = b"".join(parts)
    if not a.seeds:
        return took, len(data), 0
    return took, len(data), next((s for s in a.seeds if data == mkdata.expected(rel.encode(), s)), None)


class Tally:
    """The results of an epoch."""

    def __init__(self):
        self.lock, self.times, self.bytes = threading.Lock(), [], 0
        self.slowest, self.wrong, self.errors, self.versions = (0, ""), [], [], {}

    def add(self, a, rel):
        try:
            took, size, seed = read_one(a, rel)
        except OSError as e:
            with self.lock:
                self.errors.append(f"{rel}: {e.strerror}")
            return
        with self.lock:
            self.times.append(took)
            self.bytes += size
            self.slowest = max(self.slowest, (took, rel))
            if seed is None:
                self.wrong.append(rel)
            else:
                self.versions[str(seed)] = self.versions.get(str(seed), 0) + 1

    def line(self, epoch, seconds):
        times = sorted(self.times) or [0.0]
        return dict(epoch=epoch, seconds=round(seconds, 4), files=len(self.times), bytes=self.bytes,
                    quartiles_ms=[round(times[len(times) * q // 4], 4) for q in (1, 2, 3)], slowest_ms=round(self.slowest[0], 3), slowest=self.slowest[1],
                    wrong=self.wrong[:10], errors=self.errors[:10], versions=self.versions)


def order(a, epoch):
    rng = random.Random(f"{a.order_seed} {0 if a.same_order else epoch} {'' if a.part else a.rank}")
    ids = list(range(a.files))
    rng.shuffle(ids)
    return ids[a.rank::a.world] if a.part else ids


def barrier(a, epoch):
    """Waits for the other ranks; false when they did not come in time."""
    open(f"{a.barrier}/epoch.{epoch}.{a.rank}", "w").close()
    deadline = time.monotonic() + a.patience
    missing = set(range(a.world))
    while time.monotonic() < deadline:
        missing = {r for r in missing if not os.path.exists(f"{a.barrier}/epoch.{epoch}.{r}") and not os.path.exists(f"{a.barrier}/gone.{r}")}
        if not missing:
            return True
        time.sleep(0.002)
    return False


def over(a, epoch):
    return os.path.exists(a.until) if a.until else epoch >= a.epochs


def one_epoch(a, epoch, pool):
    late = bool(a.barrier) and not barrier(a, epoch)
    tally, start = Tally(), time.perf_counter()

    def one(i):
        tally.add(a, name(i, a))
        time.sleep(a.pause / 1000)

    if pool:
        list(pool.map(one, order(a, epoch)))
    else:
        for i in order(a, epoch):
            one(i)
    line = dict(tally.line(epoch, time.perf_counter() - start), rank=a.rank, late=late)
    print(json.dumps(line), flush=True)
    return line


def read(a):
    pool = ThreadPoolExecutor(a.workers) if a.workers > 1 else None
    bad, slowest, epoch = [], 0.0, 0
    while not over(a, epoch):
        line = one_epoch(a, epoch, pool)
        slowest = max(slowest, line["slowest_ms"])
        bad += line["errors"] + [f"{rel}: wrong bytes" for rel in line["wrong"]] + (["a barrier was not reached"] if line["late"] else [])
        epoch += 1
    print(json.dumps(dict(end=True, rank=a.rank, epochs=epoch, slowest_ms=slowest, bad=bad[:20])), flush=True)
    return 1 if bad else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("make", "read"))
    p.add_argument("root")
    p.add_argument("--files", type=int, default=100, metavar="N")
    p.add_argument("--dirs", type=int, default=4, metavar="N")
    p.add_argument("--size", type=int, default=40_000, metavar="B", help="mean size of a file")
    p.add_argument("--exact", action="store_true", help="all files are of that size")
    p.add_argument("--seed", default="1", help="of the bytes; reading: a comma list of the versions that are right, empty: not compared")
    p.add_argument("--order-seed", type=int, default=7)
    p.add_argument("--rank", type=int, default=0)
    p.add_argument("--world", type=int, default=1, help="how many ranks there are")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--until", metavar="FILE", help="read until that file exists")
    p.add_argument("--barrier", metavar="DIR")
    p.add_argument("--patience", type=float, default=60, metavar="S", help="how long a barrier waits")
    p.add_argument("--part", action="store_true")
    p.add_argument("--same-order", action="store_true", help="every epoch in the order of the first")
    p.add_argument("--map", action="store_true", help="files are read by mmap")
    p.add_argument("--workers", type=int, default=1, help="threads that read")
    p.add_argument("--pause", type=float, default=0, metavar="MS", help="after each read")
    a = p.parse_args()
    a.seeds = [int(s) for s in a.seed.split(",") if s]
    sys.exit(make(a) if a.what == "make" else read(a))


if __name__ == "__main__":
    main()
