#!/usr/bin/env python3
"""Benchmarks of compressed tiers: capacity, first read of a compressed file, epochs of readers that
compute.

    cargo build --release --workspace
    benches/packed.py [--turns N] [--json FILE] [--codecs lz4,zstd,auto] [NAME...]
                                       names: capacity first epoch    (root, for cold reads; needs lz4, zstd)

For each value of `tiers[].compression`. `capacity`: bytes of files in a full compressed tier,
against the same tier without compression, against the ratio of `lz4 -1` or `zstd -1` on the same
files (auto: of the better one). `first`: open, read and close of 1 MB files whose copies are
compressed on a disk, caches dropped, against the same of plain files on that disk; then a second
read, against files in memory. `epoch`: four readers that sleep 10 ms after each 100 KB file, in
place of training: time of the epoch beyond the sleeping, in listing order and shuffled, also with
plain copies. Medians over the turns.
"""
import argparse, array, glob, json, os, random, shutil, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import engine
from bench import BIN
from engine import SHM, say

MONARCH = f"{BIN}/monarch"
MB = 1_000_000


def text_pool(size=24 << 20):
    """Text from this machine: sources and documentation."""
    parts, n = [], 0
    for pattern in ("/usr/lib/python3*/**/*.py", "/usr/include/**/*.h", "/usr/share/doc/**/*"):
        for path in sorted(glob.glob(pattern, recursive=True)):
            if os.path.isfile(path) and not path.endswith((".gz", ".png", ".xz")):
                parts.append(open(path, "rb").read())
                n += len(parts[-1])
                if n >= size:
                    return b"".join(parts)
    return b"".join(parts)


def float_pool(rows=40_000):
    """Padded sequences of 32-bit numbers with two decimals, 64 a row."""
    rng, out = random.Random(5), array.array("f")
    for _ in range(rows):
        used = rng.randint(8, 48)
        out.extend([round(rng.gauss(0, 1), 2) for _ in range(used)] + [0.0] * (64 - used))
    return out.tobytes()


def make(dir, kind, files, size):
    pool = text_pool() if kind == "text" else float_pool()
    os.makedirs(f"{dir}/{kind}", exist_ok=True)
    unit = 32768 if kind == "text" else 256 * 32
    for n in range(files):
        rng, left = random.Random(n), size
        with open(f"{dir}/{kind}/{n:05}.{'txt' if kind == 'text' else 'f32'}", "wb") as f:
            while left > 0:
                at = rng.randrange((len(pool) - unit) // 256) * 256
                f.write(pool[at : at + min(unit, left)])
                left -= unit


class Agent:
    """Files below `root` under Monarch, with a second tier on a disk that is compressed as `codec`
    says, while this object lives. Without a codec: only the tier on the disk."""

    def __init__(self, root, ram, disk, *sets, codec=None):
        self.tmp, self.run = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp"), tempfile.mkdtemp(prefix="monarch-bench-", dir=SHM)
        sets = ["dataset.min_file_age=0s", "prefetch.ahead=all", f"runtime_dir={self.run}", *sets]
        tiers = [f"{self.run}/ram:{ram}", f"{self.tmp}/disk:{disk}"] if codec else [f"{self.tmp}/disk:{disk}"]
        if codec:
            sets += [f"tiers[1].compression={codec}", "tiers[1].keep_free=0", "tiers[0].decompression_share=100%"]
        self.words = ["--root", root, *(w for t in tiers for w in ("--tier", t)), *(w for s in sets for w in ("--set", s))]
        self.env = dict(os.environ, MONARCH_RUNTIME_DIR=self.run)
        self.job = subprocess.Popen([MONARCH, "run", "--quiet", *self.words, "--", "cat"], stdin=subprocess.PIPE)

    def status(self):
        said = subprocess.run([MONARCH, "status", "--json"], env=self.env, capture_output=True, text=True).stdout
        return next(iter(json.loads(said) if said.startswith("[") else []), {})

    def settled(self):
        """Waits until no file is copied or compressed any more."""
        last, since = None, time.monotonic()
        while True:
            s = self.status()
            now = s and s.get("roots") and (s.get("prefetch"), [(t["files"], t["used"]) for t in s["tiers"]], s["roots"][0]["state"])
            if now != last:
                last, since = now, time.monotonic()
            elif now and now[2] == "ready" and time.monotonic() - since > 1.5:
                return s
            time.sleep(0.1)

    def job_of(self, *command):
        out = subprocess.run([MONARCH, "run", "--quiet", *self.words, "--", *command], capture_output=True, text=True)
        assert out.returncode == 0, out.stderr
        return json.loads(out.stdout)

    def end(self):
        self.job.stdin.close()
        self.job.wait()
        subprocess.run([MONARCH, "stop", "--purge"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        shutil.rmtree(self.tmp, ignore_errors=True)
        shutil.rmtree(self.run, ignore_errors=True)


def capacity(turns, codecs):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
    try:
        for kind in ("text", "floats"):
            make(tmp, kind, 600, MB)
            files = sorted(glob.glob(f"{tmp}/{kind}/*"))
            program = {p: sum(len(subprocess.run([p, "-1", "-c", f], capture_output=True).stdout) for f in files) for p in ("lz4", "zstd")}
            program["auto"], ratios = min(program.values()), {}
            for codec in codecs:
                own, cap = 600 * MB / program[codec], int(program[codec] * 0.6) >> 20 << 20
                held = {}
                for as_ in (codec, None):
                    agent = Agent(f"{tmp}/{kind}", "64MiB", f"{cap}B", codec=as_)
                    try:
                        tier = agent.settled()["tiers"][-1]
                        held[as_] = tier["packed"]["bytes"] if as_ else tier["files"] * MB
                    finally:
                        agent.end()
                ratio = ratios[codec] = held[codec] / held[None]
                say(f"effective capacity, {kind}: {codec} / plain tier, / ratio of the program -1", ratio / own, 0.98, "x",
                    f"{ratio:.3f} / {own:.3f}, {held[codec] // MB} and {held[None] // MB} files in {cap >> 20} MiB", least=True)
            if "lz4" in ratios and "zstd" in ratios:
                say(f"effective capacity, {kind}: zstd / lz4", ratios["zstd"] / ratios["lz4"], 1.3, "x", f"{ratios['zstd']:.3f} / {ratios['lz4']:.3f}", least=True)
            shutil.rmtree(f"{tmp}/{kind}")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


READ = r"""
import glob, json, os, statistics, sys, time
files = sorted(glob.glob(sys.argv[1] + "/*"))
def one(path):
    t = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    buf = bytearray(1 << 20)
    while os.readv(fd, [buf]):
        pass
    os.close(fd)
    return time.perf_counter() - t
if "drop" in sys.argv:
    os.sync()
    open("/proc/sys/vm/drop_caches", "w").write("1")
rounds = [[one(f) for f in files] for _ in range(2)]
print(json.dumps([statistics.median(r) for r in rounds]))
"""


def first(turns, codecs):
    for codec in codecs:
        first_of(turns, codec)


def first_of(turns, codec):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
    shm = tempfile.mkdtemp(prefix="monarch-bench-", dir=SHM)
    try:
        for kind in ("text", "floats"):
            make(tmp, kind, 60, MB)
            shutil.copytree(f"{tmp}/{kind}", f"{shm}/{kind}")
            agent = Agent(f"{tmp}/{kind}", "256MiB", "1GiB", "prefetch.enabled=false", codec=codec)
            try:
                words = [MONARCH, "stage", "--quiet", *agent.words]
                subprocess.run(words, check=True)
                agent.settled()
                rows = {"cold": [], "first": [], "memory": [], "second": []}
                for _ in range(turns):
                    plain = json.loads(subprocess.run(["python3", "-c", READ, f"{tmp}/{kind}", "drop"], capture_output=True, text=True, check=True).stdout)
                    memory = json.loads(subprocess.run(["python3", "-c", READ, f"{shm}/{kind}"], capture_output=True, text=True, check=True).stdout)
                    # Another agent, so that no decompressed copy of the turn before is left.
                    agent.job.stdin.close()
                    agent.job.wait()
                    time.sleep(4)
                    agent.job = subprocess.Popen([MONARCH, "run", "--quiet", *agent.words, "--", "cat"], stdin=subprocess.PIPE)
                    agent.settled()
                    before = agent.status()["counters"]
                    ours = agent.job_of("python3", "-c", READ, f"{tmp}/{kind}", "drop")
                    after = agent.status()["counters"]
                    assert after["waited"] - before["waited"] == 60 and after["hits"] - before["hits"] == 60, (before, after)
                    for name, value in zip(("cold", "first", "memory", "second"), (plain[0], ours[0], memory[1], ours[1])):
                        rows[name].append(value)
                us = {k: statistics.median(v) * 1e6 for k, v in rows.items()}
                say(f"1 MB of {kind}, {codec}: first read / cold local read", us["first"] / us["cold"], 2.0, "x", f"{us['first']:.0f} / {us['cold']:.0f} us")
                say(f"1 MB of {kind}, {codec}: second read / file in memory", us["second"] / us["memory"], 1.1, "x", f"{us['second']:.0f} / {us['memory']:.0f} us")
            finally:
                agent.end()
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)


EPOCH = r"""
import json, os, random, sys, time
root, shuffled, epochs = sys.argv[1], sys.argv[2] == "shuffled", 3
files = [os.path.join(b, n) for b, _, ns in os.walk(root) for n in ns]
workers, pause, took = 4, 0.01, []
for epoch in range(epochs):
    if shuffled:
        random.Random(epoch).shuffle(files)
    start, children = time.perf_counter(), []
    for w in range(workers):
        pid = os.fork()
        if pid == 0:
            slept = 0.0
            for path in files[w::workers]:
                with open(path, "rb", buffering=0) as f:
                    f.read()
                t = time.perf_counter()
                time.sleep(pause)
                slept += time.perf_counter() - t
            total = time.perf_counter() - start
            os._exit(min(255, round((total - slept) / slept * 1000)))
        children.append(pid)
    took.append([os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) / 10 for p in children])
print(json.dumps([sum(t) / len(t) for t in took]))
"""


def epoch(turns, codecs):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
    try:
        make(tmp, "text", 3000, 100_000)
        for order in ("listed", "shuffled"):
            rows = {}
            for codec in (None, *codecs):
                # Space for an eighth of the files decompressed; or for all plain files.
                agent = Agent(f"{tmp}/text", "40MiB", "1GiB", codec=codec)
                try:
                    agent.settled()
                    stalls = [agent.job_of("python3", "-c", EPOCH, f"{tmp}/text", order) for _ in range(turns)]
                    # The first epoch finds the copies of the turn before.
                    rows[codec] = statistics.median(s for turn in stalls for s in turn[1:])
                finally:
                    agent.end()
            for codec in codecs:
                say(f"stall of an epoch over text, {codec}, {order}", rows[codec], 3.0, "%", f"with plain copies {rows[None]:.1f} %")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--json")
    p.add_argument("--codecs", default="lz4,zstd,auto")
    p.add_argument("names", nargs="*", default=["capacity", "first", "epoch"])
    args = p.parse_args()
    for name in args.names:
        {"capacity": capacity, "first": first, "epoch": epoch}[name](args.turns, args.codecs.split(","))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(engine.results, f, indent=1)


if __name__ == "__main__":
    main()
