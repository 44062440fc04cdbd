#!/usr/bin/env python3
"""Benchmarks of placement policies: known orders against a static set, traces, and the simulator
against real runs.

    cargo build --release --workspace && tests/venvs.sh torch
    benches/policies.py [--turns N] [--json FILE] [NAME...]      names: clairvoyant shards ranks trace calibrate

`clairvoyant`: PyTorch over a data set twice the tier behind slowfs (1 ms a call, 100 MB/s), the
order announced, against `static`, beyond what the loop waits when all is in the tier. `shards`: the
same of 32 shards of 16 MiB, in chunks of 1 MiB, 5 ms a call. `ranks`: the files again, read by two
ranks that wait for each other. `trace`: a job whose files are all resident, with and without
`run --trace`. `calibrate`: bytes and time of real runs, against `monarch simulate`. PFS figures are
counted by the server. Medians over the turns.
"""
import argparse, json, os, shutil, subprocess, sys, tempfile
from statistics import median as med

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from bench import BIN, Slowfs
from engine import SHM, say

MONARCH = f"{BIN}/monarch"
FILES, SIZE, BATCH = int(os.environ.get("MONARCH_BENCH_FILES", 4000)), 100_000, 16


def python():
    return subprocess.run([f"{HERE}/../tests/venvs.sh", "--python", "torch"], check=True, capture_output=True, text=True).stdout.strip()


def make(root, files, size):
    for i in range(files):
        os.makedirs(f"{root}/{i % 10}", exist_ok=True)
        with open(f"{root}/{i % 10}/f{i:05}.bin", "wb") as f:
            f.write(os.urandom(size))
        os.utime(f.name, (1.6e9, 1.6e9))


class World:
    """A data set behind slowfs."""

    def __init__(self, *words, files=FILES, size=SIZE):
        self.files, self.size = files, size
        self.tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
        make(f"{self.tmp}/data", files, size)
        words = words or ("--meta-latency", "1ms", "--data-latency", "1ms", "--bandwidth", "100MB")
        self.fs = Slowfs(f"{self.tmp}/data", f"{self.tmp}/mnt", "--cache", "direct", "--attr-ttl", "600s", *words)

    def __enter__(self):
        self.fs.__enter__()
        self.root = f"{self.tmp}/mnt"
        return self

    def __exit__(self, *e):
        self.fs.__exit__(*e)
        shutil.rmtree(self.tmp, ignore_errors=True)

    def run(self, share, sets, words=(), agent=()):
        """A job with a tier for this share of the data set: its epochs, and the agent's last
        status."""
        shm = tempfile.mkdtemp(prefix="monarch-bench-", dir=SHM)
        # Space of a file: whole blocks and its name.
        room = (int(share * self.files * ((self.size + 4095) // 4096 * 4096 + 96)) + (2 << 20)) >> 10
        sets = ["dataset.min_file_age=0s", "prefetch.ahead=all", f"runtime_dir={shm}", *sets]
        out, report = f"{shm}/epochs.json", f"{shm}/report.json"
        command = [MONARCH, "run", "--quiet", "--report", report, "--root", self.root, "--tier", f"{shm}/t:{room}KiB", *agent]
        command += [w for s in sets for w in ("--set", s)] + ["--", python(), f"{HERE}/policies_job.py", self.root, out, *words]
        env = dict(os.environ, PYTHONPATH=f"{HERE}/../python")
        try:
            subprocess.run(command, check=True, env=env)
            with open(out) as f, open(report) as r:
                return json.load(f), json.load(r)
        finally:
            subprocess.run([MONARCH, "stop", "--set", f"runtime_dir={shm}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            shutil.rmtree(shm, ignore_errors=True)


def later(epochs, report, all_bytes, compute):
    """Of epochs 2 and 3: stall by compute time, and bytes from the PFS (copies and direct reads) by
    all bytes."""
    passes = report["status"]["roots"][0]["epochs"][-2:]
    return sum(e["stall"] for e in epochs[1:]) / compute, sum(p["bytes_copied"] + p["pfs_bytes"] for p in passes) / (2 * all_bytes)


def known(what, turns, world, batches, compute, words, sets=()):
    """An order that is announced, against a static set, beyond what the loop waits when all is in
    the tier. A rank takes `batches` in an epoch, and computes for `compute` ms after each."""
    rows = {"resident": [], "static": [], "clairvoyant": []}
    words = ["--compute", str(compute), "--workers", "1", *words]
    with world as w:
        for _ in range(turns):
            for name, policy, room, more in (("resident", "static", 1.1, []), ("static", "static", 0.5, []), ("clairvoyant", "clairvoyant", 0.5, ["--announce"])):
                ran = w.run(room, [f"placement.policy={policy}", *sets], [*words, *more])
                rows[name].append(later(*ran, w.files * w.size, 2 * compute / 1000 * batches))
    stall = {k: med([s for s, _ in v]) for k, v in rows.items()}
    share = {k: med([b for _, b in v]) for k, v in rows.items()}
    beyond = {k: max(0, s - stall["resident"]) for k, s in stall.items()}
    say(f"{what}, order known: stall of epochs 2 and 3 / static's, beyond all in the tier", beyond["clairvoyant"] / (beyond["static"] or 1e-9), 0.2, "x",
        f"{stall['clairvoyant']:.3f} / {stall['static']:.3f} of compute, {stall['resident']:.3f} in the tier")
    say(f"{what}, order known: bytes from the PFS / static's", share["clairvoyant"] / share["static"], 1.05, "x",
        f"{share['clairvoyant']:.3f} / {share['static']:.3f} of all")


# In each of them a part of the PFS's bandwidth is left: half of what is read comes from it.


def clairvoyant(turns):
    # 53 MB/s are read.
    known("files", turns, World(), -(-FILES // BATCH), 30, [])


def ranks(turns):
    # 160 MB/s are read, by both.
    known("files, two ranks", turns, World(), -(-FILES // (2 * BATCH)), 20, ["--ranks", "2"])


def shards(turns):
    # 70 MB/s are read.
    files, size, piece, batch = 32, 16 << 20, 256 << 10, 4
    words = ["--piece", str(piece), "--batch", str(batch)]
    sets = ["source.chunk_size=1MiB", "source.chunk_threshold=4MiB"]
    slow = ("--meta-latency", "5ms", "--data-latency", "5ms", "--bandwidth", "100MB")
    known("shards", turns, World(*slow, files=files, size=size), files * size // piece // batch, 15, words, sets)


def trace(turns):
    rows = {"plain": [], "traced": []}
    with World("--meta-latency", "0ms") as w:
        words = ["--compute", "0", "--workers", "0", "--epochs", "21"]
        for _ in range(turns):
            for name, more in (("plain", []), ("traced", ["--trace", f"{w.tmp}/job.trace"])):
                epochs, _ = w.run(1.1, [], words, more)
                rows[name].append(sum(e["seconds"] for e in epochs[1:]))
        bytes_ = os.path.getsize(f"{w.tmp}/job.trace") / (21 * FILES)
    say("run --trace, 80,000 resident opens: wall / without", med(rows["traced"]) / med(rows["plain"]), 1.01, "x",
        f"{med(rows['traced']):.3f} / {med(rows['plain']):.3f} s, {bytes_:.1f} B an open")


def simulated(policy, share, compute, hints):
    words = ["--synthetic", f"files={FILES},size={SIZE}B,epochs=3,ranks=1,workers=2,batch={BATCH},shuffle=global",
             "--policy", policy, "--capacity", f"{share:.0%}", "--nodes", "1", "--json", "--compute", f"{compute}ms",
             "--pfs-latency", "1ms", "--pfs-bandwidth", "100MB/s", "--hints", "on" if hints else "off", *SIMULATED]
    return json.loads(subprocess.run([MONARCH, "simulate", *words], check=True, capture_output=True, text=True).stdout)["rows"][0]


# Calls of a file on slowfs, by its counters: the application opens, reads, and reads once more to
# find the end; the agent opens, reads, and checks the identity.
SIMULATED = ("--app-calls", "1+1", "--agent-calls", "1+1")


def calibrate(turns):
    with World() as w:
        for policy, share, compute, hints in [("first_epoch", 0.25, 30, False), ("first_epoch", 0.5, 0, False), ("static", 0.5, 30, False),
                                              ("lru", 0.5, 30, False), ("clairvoyant", 0.5, 30, True), ("clairvoyant", 0.5, 10, True)]:
            times, shares = [], []
            for _ in range(turns):
                words = ["--compute", str(compute), "--pause", "1"] + (["--announce"] if hints else [])
                epochs, report = w.run(share, [f"placement.policy={policy}"], words)
                times.append(sum(e["seconds"] for e in epochs[1:]) / 2)
                passes = report["status"]["roots"][0]["epochs"][-2:]
                shares.append(sum(p["bytes_copied"] + p["pfs_bytes"] for p in passes) / (2 * FILES * SIZE))
            row = simulated(policy, share, compute, hints)
            told = row["epochs"][1:]
            time_ = sum(e["time_s"] for e in told) / len(told)
            bytes_ = sum(e["pfs_bytes"] for e in told) / len(told) / (FILES * SIZE)
            name = f"{policy} {share:.0%} {compute} ms"
            far = lambda a, b: max(a / b, b / a)
            say(f"simulated and real, {name}: time of a later epoch, apart", far(time_, med(times)), 1.15, "x", f"{time_:.2f} / {med(times):.2f} s")
            say(f"simulated and real, {name}: bytes from the PFS, apart", far(bytes_, med(shares)), 1.05, "x", f"{bytes_:.3f} / {med(shares):.3f} of all")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    for name in a.names or ["clairvoyant", "shards", "ranks", "trace", "calibrate"]:
        globals()[name](a.turns)


main()
