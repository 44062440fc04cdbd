#!/usr/bin/env python3
"""Benchmarks of the copy engines: how fast an agent fills a tier, against cp, fio, and one file at
a time.

    cargo build --release --workspace
    benches/engine.py [--turns N] [--json FILE] [NAME...]     names: latency small large idle

Every agent copies the files that a request names, so that neither its start nor its scan is in the
figure. Engines and baselines take turns; a figure is a median over the turns, a ratio is that of
medians of one run. Sources are hot (page cache) and tiers in memory unless a name says otherwise.
The agent's processor time includes the kernel's workers (they are threads of its process).
"""
import argparse, json, os, resource, shutil, signal, socket, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import BIN, Slowfs, make_files

TICKS = os.sysconf("SC_CLK_TCK")
SHM = "/dev/shm"
ENGINES = {"threads": ["io.engine=threads"], "uring": ["io.engine=uring"]}
DIRECT = {"uring, direct": ["io.engine=uring", "io.direct=true"]}
results = []


def say(name, value, target=None, unit="", note="", least=False):
    ok = "" if target is None else "ok" if (value >= target if least else value <= target) else "MISSED"
    results.append(dict(name=name, value=value, target=target, unit=unit, note=note))
    bound = "-" if target is None else f"{'>=' if least else '<='} {target}"
    print(f"{name:66} {value:9.3f} {unit:8} {bound:>8} {ok:6} {note}", flush=True)


class Agent:
    """An agent over `root` that copies nothing until a request, and the job that keeps it."""

    def __init__(self, root, settings=(), capacity="8GiB", tier_in=SHM, job=("cat",), output=subprocess.DEVNULL):
        self.tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir=tier_in)
        self.runtime = tempfile.mkdtemp(prefix="monarch-bench-rt-", dir=SHM)
        sets = ["prefetch.enabled=false", "dataset.min_file_age=0s", f"runtime_dir={self.runtime}", *settings]
        words = [w for s in sets for w in ("--set", s)]
        cmd = [f"{BIN}/monarch", "run", "--quiet", "--root", root, "--tier", f"{self.tmp}/t:{capacity}", *words, "--", *job]
        self.job = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=output)
        self.sock = None
        while True:
            try:
                s = self.status()
                if s["roots"] and s["roots"][0]["state"] == "ready":
                    break
            except (OSError, ValueError, IndexError):
                self.sock = None
            time.sleep(0.02)
        self.pid, self.files, self.bytes = s["pid"], s["roots"][0]["files"], s["roots"][0]["bytes"]
        self.entries = s["roots"][0]["entries"]

    def ask(self, request):
        if self.sock is None:
            path = [os.path.join(d, "agent.sock") for d, _, fs in os.walk(self.runtime) if "agent.sock" in fs][0]
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(path)
            self.lines = self.sock.makefile("rw")
        self.lines.write(json.dumps(request) + "\n")
        self.lines.flush()
        return json.loads(self.lines.readline())

    def status(self):
        return self.ask({"op": "status"})

    def cpu(self):
        fields = open(f"/proc/{self.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def fill(self):
        """Seconds and processor seconds until everything is resident."""
        cpu, start = self.cpu(), time.perf_counter()
        self.ask({"op": "prefetch", "ranges": [{"segment": 0, "from": 0, "end": self.entries + 1}]})
        while True:
            a = self.status()["agent"]
            if a["copied_ahead"] + a["refused"] + a["changed"] >= self.files:
                break
            time.sleep(0.004)
        took = time.perf_counter() - start, self.cpu() - cpu
        assert a["copied_ahead"] == self.files, a
        return took

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.job.stdin.close()
        self.job.wait()
        end = time.time() + 10
        while os.path.exists(f"/proc/{self.pid}") and time.time() < end:
            time.sleep(0.02)
        shutil.rmtree(self.tmp, ignore_errors=True)
        shutil.rmtree(self.runtime, ignore_errors=True)


def timed(cmd):
    """Seconds and processor seconds of a command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(cmd, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def agent_fill(root, settings, **kw):
    with Agent(root, settings, **kw) as a:
        return a.fill()


def cp(root):
    to = tempfile.mkdtemp(prefix="monarch-bench-", dir=SHM)
    try:
        return timed(["cp", "-r", root, f"{to}/c"])
    finally:
        shutil.rmtree(to)


def fio(files, size, jobs):
    """Seconds that fio needs to create files of these sizes, with one job for each processor."""
    to = tempfile.mkdtemp(prefix="monarch-bench-", dir=SHM)
    try:
        each = files // jobs
        out = subprocess.run(["fio", "--name=w", f"--directory={to}", "--rw=write", f"--bs={min(size, 1 << 20)}", f"--filesize={size}",
                              f"--nrfiles={each}", f"--size={size * each}", f"--numjobs={jobs}", "--ioengine=psync", "--openfiles=1",
                              "--file_service_type=sequential", "--create_on_open=1", "--fallocate=none", "--group_reporting",
                              "--output-format=json", "--thread"], capture_output=True, text=True, check=True).stdout
        w = json.loads(out[out.index("{"):])["jobs"][0]
        return w["write"]["runtime"] / 1000, 0.0
    finally:
        shutil.rmtree(to)


def med(rows, i=0):
    return statistics.median(r[i] for r in rows)


def latency(turns):
    """Files a second with 1 ms a call, against one file at a time."""
    tmp = tempfile.mkdtemp(prefix="monarch-bench-")
    opts = ("--cache", "direct", "--attr-ttl", "600s")
    slow = ("--meta-latency", "1ms", "--data-latency", "1ms")
    try:
        sets = {n: tempfile.mkdtemp(dir=tmp) for n in (300, 2000, 6000)}
        for n, d in sets.items():
            make_files(f"{d}/data", n, 100_000)

        def rate(n, settings, inflight, latency=slow):
            with Slowfs(f"{sets[n]}/data", f"{tmp}/mnt", *opts, *latency):
                with Agent(f"{tmp}/mnt", [*settings, f"source.max_inflight={inflight}"], capacity="2GiB") as a:
                    return n / a.fill()[0]

        for engine, settings in ENGINES.items():
            rows = {k: [] for k in ("1", "8", "64", "limit")}
            for _ in range(turns):
                rows["1"].append(rate(300, ENGINES["threads"], 1))
                rows["8"].append(rate(2000, settings, 8))
                rows["64"].append(rate(6000, settings, 64))
                rows["limit"].append(rate(6000, settings, 64, latency=()))
            one, eight, all_, limit = (statistics.median(rows[k]) for k in ("1", "8", "64", "limit"))
            note = f"{eight:.0f} / {one:.0f} files/s"
            say(f"slowfs 1 ms, {engine}: max_inflight 8 / 1", eight / one, 6, "x", note, least=True)
            say(f"slowfs 1 ms, {engine}: max_inflight 64 / 1", all_ / one, 20, "x",
                f"{all_:.0f} files/s; without latency the stand-in gives {limit:.0f}", least=True)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def against_cp(name, root, files, size, turns, engines, source="hot"):
    rows = {k: [] for k in ["cp", "fio", *engines]}
    total = files * size / 1e9
    for _ in range(turns):
        rows["cp"].append(cp(root))
        if shutil.which("fio"):
            rows["fio"].append(fio(files, size, min(2, os.cpu_count())))
        for engine, settings in engines.items():
            rows[engine].append(agent_fill(root, settings))
    for engine in engines:
        wall, cpu = med(rows[engine]), med(rows[engine], 1)
        say(f"{name} ({source}), {engine}: wall / cp -r", wall / med(rows["cp"]), 1.0, "x", f"{wall:.2f} / {med(rows['cp']):.2f} s")
        say(f"{name} ({source}), {engine}: processor s per GB / cp -r", cpu / med(rows["cp"], 1), 1.4, "x",
            f"{cpu / total:.2f} / {med(rows['cp'], 1) / total:.2f} s/GB")
        if rows["fio"]:
            say(f"{name} ({source}), {engine}: throughput / fio creating them", med(rows["fio"]) / wall, 0.9, "x",
                f"fio {med(rows['fio']):.2f} s", least=True)


def small(turns):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
    try:
        make_files(f"{tmp}/data", 10_000, 100_000)
        against_cp("10,000 x 100 KB", f"{tmp}/data", 10_000, 100_000, turns, ENGINES)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def large(turns):
    size = int(os.environ.get("MONARCH_BENCH_LARGE", 512 << 20))
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
    try:
        make_files(f"{tmp}/data", 8, size)
        against_cp(f"8 x {size >> 20} MiB", f"{tmp}/data", 8, size, turns, ENGINES)
        against_cp(f"8 x {size >> 20} MiB", f"{tmp}/data", 8, size, turns, DIRECT, "cp hot, disk read past the cache")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def idle(_turns):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-")
    try:
        make_files(f"{tmp}/data", 1000, 1000)
        for engine, settings in ENGINES.items():
            with Agent(f"{tmp}/data", settings) as a:
                a.fill()
                time.sleep(6)
                cpu = a.cpu()
                time.sleep(20)
                say(f"idle agent, {engine}: processor time", (a.cpu() - cpu) / 20 * 100, 0.2, "% core")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    args.add_argument("--turns", type=int, default=5)
    args.add_argument("--json")
    args.add_argument("names", nargs="*")
    args = args.parse_args()
    for f in [globals()[n] for n in args.names or ["latency", "small", "large", "idle"]]:
        f(args.turns)
    if args.json:
        json.dump(results, open(args.json, "w"), indent=1)
