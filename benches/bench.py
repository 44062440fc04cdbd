#!/usr/bin/env python3
"""Benchmarks of Monarch on one machine.

    cargo build --release --workspace
    benches/bench.py [--json FILE] [NAME...]     names: instructions hit outside stat list startup demand epochs idle shuffled

Every figure is a ratio to, or a difference from, a named baseline of the same run. Bare and
preloaded processes alternate, eleven of each; the figure is the median over the turns of the best
round of a turn. Files are hot (page cache) unless a name says otherwise. `shuffled` needs 14 GB of
memory and disk and takes minutes; it runs only when named. `instructions` needs valgrind. `cargo
bench -p monarch-storage --bench index -- 1280000 10000000` measures the index alone.
"""
import argparse, glob, json, os, random, shutil, signal, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BIN = os.environ.get("MONARCH_E2E_BIN") or os.path.join(ROOT, "target", "release")
MICRO = os.path.join(ROOT, "target", "micro")
TURNS = int(os.environ.get("MONARCH_BENCH_TURNS", 11))
results = []


def say(name, value, target, unit="", note=""):
    ok = "" if target is None else ("ok" if value <= target else "MISSED")
    results.append(dict(name=name, value=value, target=target, unit=unit, note=note))
    print(f"{name:62} {value:10.3f} {unit:5} target {target if target is not None else '-':>6} {ok} {note}", flush=True)


def build():
    subprocess.run(["gcc", "-O2", "-Wall", "-o", MICRO, os.path.join(HERE, "micro.c")], check=True)


class World:
    """A root, a tier and an agent of their own; `env` is what a preloaded process needs."""

    def __init__(self, root, tier, runtime, settle="0s", extra=()):
        self.root, self.tier, self.runtime = root, tier, runtime
        self.args = [f"{BIN}/monarch", "run", "--quiet", "--root", root, "--tier", tier, "--set", f"runtime_dir={runtime}",
                     "--set", f"dataset.min_file_age={settle}", *extra]
        os.makedirs(runtime, mode=0o700, exist_ok=True)

    def __enter__(self):
        self.holder = subprocess.Popen([*self.args, "--", "sh", "-c", "env; echo ready; cat"], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True)
        self.env = {}
        for line in self.holder.stdout:
            if line.strip() == "ready":
                break
            k, _, v = line.rstrip("\n").partition("=")
            if k in ("LD_PRELOAD", "MONARCH_CTL"):
                self.env[k] = v
        return self

    def status(self):
        e = dict(os.environ, MONARCH_RUNTIME_DIR=self.runtime)
        out = subprocess.run([f"{BIN}/monarch", "status", "--json"], env=e, capture_output=True, text=True).stdout
        return [s for s in json.loads(out or "[]") if s["runtime_dir"].startswith(self.runtime)][0]

    def wait_resident(self, timeout=600):
        end = time.time() + timeout
        while time.time() < end:
            s = self.status()
            if s["roots"][0]["state"] == "ready" and sum(t["files"] for t in s["tiers"]) >= s["roots"][0]["files"]:
                return s
            time.sleep(0.1)
        raise SystemExit("not everything became resident: " + json.dumps(s))

    def __exit__(self, *_):
        self.holder.stdin.close()
        self.holder.wait()


def micro(args, env=None):
    e = dict(os.environ, **(env or {}))
    out = subprocess.run([MICRO, *args], env=e, capture_output=True, text=True, check=True).stdout.split()
    return [float(x) for x in out]


def compare(bare, ours, env):
    """Nanoseconds bare and preloaded: the median over alternating turns of the best round of each
    turn."""
    a, b = [], []
    for _ in range(TURNS):
        a.append(min(micro(bare)))
        b.append(min(micro(ours, env)))
    return statistics.median(a), statistics.median(b)


def write_list(path, names):
    with open(path, "w") as f:
        f.write("\n".join(names) + "\n")
    return path


def resolve(lst, out, env):
    text = subprocess.run([MICRO, "resolve", lst], env=dict(os.environ, **env), capture_output=True, text=True, check=True).stdout
    with open(out, "w") as f:
        f.write(text)
    return out


def scratch():
    return tempfile.mkdtemp(prefix="monarch-bench-")


def make_files(d, n, size, per_dir=1000):
    block = os.urandom(size)
    for i in range(n):
        sub = f"{d}/d{i // per_dir:05}"
        if i % per_dir == 0:
            os.makedirs(sub, exist_ok=True)
        with open(f"{sub}/sample_{i:07}.bin", "wb") as f:
            f.write(block)
    return [f"{d}/d{i // per_dir:05}/sample_{i:07}.bin" for i in range(n)]


def with_world(n, size, fn, extra=()):
    tmp = scratch()
    tier = tempfile.mkdtemp(prefix="monarch-bench-", dir="/dev/shm")
    try:
        paths = make_files(f"{tmp}/data", n, size)
        with World(f"{tmp}/data", f"{tier}:{max(64, n * (size + 8192) * 2 >> 20)}MiB", f"{tmp}/rt", extra=("--set", "prefetch.ahead=all", *extra)) as w:
            w.wait_resident()
            fn(w, tmp, paths)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
        shutil.rmtree(tier, ignore_errors=True)


def hit():
    for size, what in ((100_000, "100 KB"), (1, "1 byte")):
        def go(w, tmp, paths):
            one = write_list(f"{tmp}/one", paths[:1])
            plain = resolve(one, f"{tmp}/one.plain", w.env)
            a, b = compare(["open", plain, "10", str(size)], ["open", one, "10", str(size)], w.env)
            if size == 1:
                say("hit, one path, 1 byte: added", (b - a) / 1000, 0.1, "us", f"bare {a:.0f} ns")
            else:
                say("hit, one path, 100 KB: open+pread+close / plain", b / a, 1.03, "x", f"bare {a:.0f} ns")
            random.Random(1).shuffle(paths)
            many = write_list(f"{tmp}/many", paths)
            plain = resolve(many, f"{tmp}/many.plain", w.env)
            a, b = compare(["open", plain, "5", str(size)], ["open", many, "5", str(size)], w.env)
            say(f"hit, {len(paths)} paths shuffled, {what}: / plain", b / a, 1.05 if size > 1 else None, "x", f"added {b - a:.0f} ns")
        with_world(2000, size, go)


def count_instructions(args, env=None):
    """Instructions, data reads and data writes in user space of one operation, by callgrind: the
    difference between two rounds and one."""
    out = tempfile.mktemp(prefix="monarch-bench-")
    def total(rounds):
        preload = ["env", *(f"{k}={v}" for k, v in (env or {}).items())]
        options = ["--trace-children=yes", "--cache-sim=yes", f"--callgrind-out-file={out}"]
        cmd = ["valgrind", "--tool=callgrind", *options, *preload, MICRO, *args[:2], str(rounds), *args[2:]]
        subprocess.run(cmd, capture_output=True, check=True)
        text = open(out).read()
        os.unlink(out)
        return [int(word) for word in text.rsplit("totals:", 1)[1].split()[:3]]
    return [(two - one) / 100_000 for two, one in zip(total(2), total(1))]


def instructions():
    if not shutil.which("valgrind"):
        return print("instructions: valgrind is not installed")
    def go(w, tmp, paths):
        one = write_list(f"{tmp}/one", paths[:1])
        open(f"{tmp}/outside", "w").write("x")
        far = write_list(f"{tmp}/olist", [f"{tmp}/outside"])
        row = []
        for name, args in (("hit: open+pread+close of 1 byte", ["open", one, "1"]), ("stat of an indexed path", ["stat", one]),
                           ("open+close outside", ["openonly", far]), ("stat outside", ["stat", far])):
            bare, ours = count_instructions(args), count_instructions(args, w.env)
            added = [b - a for a, b in zip(bare, ours)]
            say(f"instructions added, {name}", added[0], None, "", f"bare {bare[0]:.0f}; data reads {added[1]:.0f}, writes {added[2]:.0f}")
            row.append(f"{added[0]:.0f}")
        commit = subprocess.run(["git", "-C", ROOT, "log", "-1", "--format=%cs | `%h`"], capture_output=True, text=True).stdout.strip()
        print(f"a row for docs/PERFORMANCE.md: | {commit} | {' | '.join(row)} |")
    with_world(10, 1, go)


def shuffled():
    n = int(os.environ.get("MONARCH_BENCH_FILES", 1_280_000))
    def go(w, tmp, paths):
        random.Random(1).shuffle(paths)
        many = write_list(f"{tmp}/many", paths)
        plain = resolve(many, f"{tmp}/many.plain", w.env)
        a, b = compare(["open", plain, "1", "1"], ["open", many, "1", "1"], w.env)
        say(f"hit, {n} paths shuffled, 1 byte: added", (b - a) / 1000, 0.35, "us", f"bare {a:.0f} ns")
        # A 100 KB read costs the same for any place of the file; its own cost is taken from `hit`.
        a, b = compare(["stat", plain, "1"], ["stat", many, "1"], w.env)
        say(f"stat, {n} paths shuffled: / plain stat of the copies", b / a, 0.5, "x", f"{b:.0f} / {a:.0f} ns")
        s = w.status()
        r = s["roots"][0]
        names = sum(len(os.path.basename(p)) for p in paths[:1000]) / 1000
        say(f"index, {n} paths: bytes per entry beside its name", r["index_bytes"] / r["entries"] - names, 96, "B")
    with_world(n, 1, go)


def outside():
    def go(w, tmp, paths):
        f = f"{tmp}/outside"
        open(f, "w").write("x")
        lst = write_list(f"{tmp}/olist", [f])
        for name, args, target in (("open+close", ["openonly", lst, "20"], 0.04), ("stat", ["stat", lst, "20"], 0.02),
                                   ("read", ["read", f, "20"], 0.02), ("dup+close", ["close", f, "20"], 0.02)):
            a, b = compare(args, args, w.env)
            say(f"outside any root, {name}, a neighbour of the root: added", (b - a) / 1000, target, "us", f"bare {a:.0f} ns")
        open("/var/tmp/bench-outside", "w").write("x")
        far = write_list(f"{tmp}/flist", ["/var/tmp/bench-outside"])
        for name, args, target in (("open+close", ["openonly", far, "20"], 0.04), ("stat", ["stat", far, "20"], 0.02)):
            a, b = compare(args, args, w.env)
            say(f"outside any root, {name}, another absolute path: added", (b - a) / 1000, target, "us", f"bare {a:.0f} ns")
        os.chdir("/var/tmp")
        rel = write_list(f"{tmp}/rlist", ["bench-outside"])
        for name, args, target in (("open+close", ["openonly", rel, "20"], 0.07), ("stat", ["stat", rel, "20"], 0.05)):
            a, b = compare(args, args, w.env)
            say(f"outside any root, {name}, relative path: added", (b - a) / 1000, target, "us", f"bare {a:.0f} ns")
        os.unlink("/var/tmp/bench-outside")
        os.chdir("/")
    with_world(10, 1000, go)


def stat():
    def go(w, tmp, paths):
        one = write_list(f"{tmp}/one", paths[:1])
        plain = resolve(one, f"{tmp}/one.plain", w.env)
        a, b = compare(["stat", plain, "20"], ["stat", one, "20"], w.env)
        say("stat, one path: / plain stat of the copy", b / a, 0.15, "x", f"{b:.0f} / {a:.0f} ns")
        local = write_list(f"{tmp}/one.local", paths[:1])
        a, b = compare(["stat", local, "20"], ["stat", one, "20"], w.env)
        say("stat, one path: / plain stat of the same path, local disk", b / a, 0.15, "x", f"{b:.0f} / {a:.0f} ns")
    with_world(2000, 1, go)


def list_():
    tmp = scratch()
    tier = tempfile.mkdtemp(prefix="monarch-bench-", dir="/dev/shm")
    try:
        make_files(f"{tmp}/data", 10_000, 1, per_dir=10_000)
        with World(f"{tmp}/data", f"{tier}:256MiB", f"{tmp}/rt", extra=("--set", "prefetch.ahead=all")) as w:
            w.wait_resident()
            args = ["list", f"{tmp}/data/d00000", "20"]
            a, b = compare(args, args, w.env)
            say("listing 10,000 files: / local disk", b / a, 0.1, "x", f"{b:.1f} / {a:.1f} ns per name")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
        shutil.rmtree(tier, ignore_errors=True)


def startup():
    code = r"""
import os, sys, time
def one(env):
    t = time.perf_counter()
    pid = os.posix_spawn("/bin/true", ["/bin/true"], env)
    os.waitpid(pid, 0)
    return time.perf_counter() - t
import json
bare = dict(os.environ); ours = dict(os.environ, **json.loads(sys.argv[1]))
a, b = [], []
for _ in range(1000):
    a.append(one(bare)); b.append(one(ours))
a.sort(); b.sort()
print(a[500] * 1e6, b[500] * 1e6)
"""
    def go(w, tmp, paths):
        out = subprocess.run([sys.executable, "-c", code, json.dumps(w.env)], capture_output=True, text=True, check=True).stdout.split()
        a, b = map(float, out)
        say("/bin/true under the preload: added", (b - a) / 1000, 0.1, "ms", f"bare {a:.0f} us")
    with_world(10, 1000, go)


class Slowfs:
    def __init__(self, source, mnt, *opts):
        os.makedirs(mnt, exist_ok=True)
        self.mnt, self.ctl = mnt, mnt + ".ctl"
        self.p = subprocess.Popen([f"{BIN}/slowfs", source, mnt, "--control", self.ctl, *opts], stdout=subprocess.PIPE, text=True)
        self.p.stdout.readline()

    def counters(self):
        return json.loads(subprocess.run([f"{BIN}/slowfs", "ctl", self.ctl, "counters"], capture_output=True, text=True).stdout)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait()


READER = r"""
import os, random, sys, time
root, epochs, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
paths = [os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs]
rng = random.Random(7)
for e in range(epochs):
    rng.shuffle(paths)
    t = time.perf_counter()
    for p in paths:
        fd = os.open(p, os.O_RDONLY)
        os.pread(fd, 1 << 20, 0)
        os.close(fd)
    print(time.perf_counter() - t, flush=True)
"""


def epochs():
    tmp = scratch()
    tier = tempfile.mkdtemp(prefix="monarch-bench-", dir="/dev/shm")
    try:
        make_files(f"{tmp}/data", 2000, 100_000)
        shutil.copytree(f"{tmp}/data", f"{tier}/plain")
        direct, ours, local = [], [], []
        for turn in range(3):
            opts = ("--meta-latency", "1ms", "--data-latency", "1ms", "--cache", "direct", "--attr-ttl", "600s")
            run = lambda cmd: [float(x) for x in subprocess.run(cmd, capture_output=True, text=True, check=True).stdout.split()]
            with Slowfs(f"{tmp}/data", f"{tmp}/mnt", *opts) as s:
                direct.append(run([sys.executable, "-c", READER, f"{tmp}/mnt", "1", "x"]))
            with Slowfs(f"{tmp}/data", f"{tmp}/mnt", *opts) as s:
                w = World(f"{tmp}/mnt", f"{tier}/t:1GiB", f"{tmp}/rt")
                ours.append(run([*w.args, "--", sys.executable, "-c", READER, f"{tmp}/mnt", "3", "x"]))
                c = s.counters()
            local.append(run([sys.executable, "-c", READER, f"{tier}/plain", "3", "x"]))
            shutil.rmtree(f"{tier}/t", ignore_errors=True)
            time.sleep(3.5)
        med = lambda rows, i: statistics.median(r[i] for r in rows)
        say("epoch 1, 2,000 x 100 KB, slowfs 1 ms, 1 reader: / direct", med(ours, 0) / med(direct, 0), 0.15, "x",
            f"{med(ours, 0):.2f} / {med(direct, 0):.2f} s")
        say("epochs 2-3: / plain local copy", (med(ours, 1) + med(ours, 2)) / (med(local, 1) + med(local, 2)), 1.03, "x",
            f"{med(ours, 1):.3f} / {med(local, 1):.3f} s")
        print("  PFS calls of the last run:", {k: v for k, v in c.items() if v})
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
        shutil.rmtree(tier, ignore_errors=True)


def demand():
    tmp = scratch()
    tier = tempfile.mkdtemp(prefix="monarch-bench-", dir="/dev/shm")
    code = r"""
import os, random, sys, time
root = sys.argv[1]
paths = sorted(os.path.join(d, f) for d, _, fs in os.walk(root) for f in fs)
random.Random(3).shuffle(paths)
time.sleep(1)
out = []
for p in paths:
    t = time.perf_counter()
    fd = os.open(p, os.O_RDONLY); os.pread(fd, 1 << 20, 0); os.close(fd)
    out.append(time.perf_counter() - t)
    time.sleep(0.002)
out.sort(); print(out[len(out) // 2] * 1e6)
"""
    try:
        make_files(f"{tmp}/data", 300, 100_000)
        a, b = [], []
        for turn in range(TURNS):
            opts = ("--meta-latency", "500us", "--data-latency", "500us", "--cache", "direct", "--attr-ttl", "600s")
            run = lambda cmd: float(subprocess.run(cmd, capture_output=True, text=True, check=True).stdout)
            with Slowfs(f"{tmp}/data", f"{tmp}/mnt", *opts):
                a.append(run([sys.executable, "-c", code, f"{tmp}/mnt"]))
            with Slowfs(f"{tmp}/data", f"{tmp}/mnt", *opts):
                w = World(f"{tmp}/mnt", f"{tier}/t:1GiB", f"{tmp}/rt", extra=("--set", "prefetch.enabled=false"))
                b.append(run([*w.args, "--", sys.executable, "-c", code, f"{tmp}/mnt"]))
            shutil.rmtree(f"{tier}/t", ignore_errors=True)
            time.sleep(3.5)
        say("demand miss, 100 KB, slowfs 0.5 ms, 1 client: / direct", statistics.median(b) / statistics.median(a), 1.4, "x",
            f"{statistics.median(b):.0f} / {statistics.median(a):.0f} us")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
        shutil.rmtree(tier, ignore_errors=True)


def idle():
    def go(w, tmp, paths):
        pid = w.status()["pid"]
        def used():
            f = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")
        a = used()
        time.sleep(10)
        say("agent with nothing to do: processor time", (used() - a) / 10 * 100, 0.5, "%")
    with_world(2000, 1000, go)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--json")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    build()
    everything = dict(instructions=instructions, hit=hit, outside=outside, stat=stat, list=list_, startup=startup, demand=demand, epochs=epochs, idle=idle, shuffled=shuffled)
    for name in a.names or [n for n in everything if n != "shuffled"]:
        everything[name]()
    if a.json:
        json.dump(results, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
