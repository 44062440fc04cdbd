#!/usr/bin/env python3
"""Weights of a model on a slow file system, mapped and read, with Monarch and without.

    cargo build --release --workspace
    benches/weights.py [--turns N] [--cache keep,nokeep] [--size MB] [--json FILE]     1 minute a turn and cache; needs FUSE

A file of random bytes, 40 tensors, behind slowfs: 1 ms a metadata call, 1 ms a data call, 500 MB/s.
Each measurement has a mount of its own. `direct` is the reader alone; `monarch` is the same below
`monarch run` with an empty tier in memory, prefetch off, the index ready; `warm` the same again once
the copy is complete; `local` the reader on a file in memory. Seconds are those from the open to the
last byte used, of the slowest process. Medians over the turns; ratios are those of a turn to its
own `direct` (`warm`: to `local`).
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from bench import BIN, ROOT
from slow_mount import Mount

READER = os.path.join(ROOT, "target", "weights")
PFS = ["--meta-latency", "1ms", "--data-latency", "1ms", "--bandwidth", "500MB/s", "--attr-ttl", "1s"]
#: Name, processes, words of the reader behind the file.
ROWS = [("mapped, all", 1, ["40"]), ("mapped, 5 of 40 tensors", 1, ["5"]), ("mapped, all, 4 processes", 4, ["40"]), ("read, 8 MiB", 1, ["40", "read"])]


def readers(file, processes, words, env, mount=None):
    """Starts the processes, has them begin at the same time, and returns seconds, sums, reads and bytes."""
    all = [subprocess.Popen([READER, file, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) for _ in range(processes)]
    time.sleep(0.2)
    before = mount.counters() if mount else None
    for p in all:
        p.stdin.write("\n")
        p.stdin.flush()
    said = [p.communicate()[0].split() for p in all]
    after = mount.counters() if mount else None
    out = dict(seconds=max(float(s) for s, _ in said), sums=sorted({total for _, total in said}))
    if mount:
        out.update(reads=after["read"] - before["read"], bytes=after["bytes_read"] - before["bytes_read"])
    return out


class Job:
    """A job that keeps the agent; `env` is what its processes have."""

    def __init__(self, work, root, settings):
        self.work, self.runtime = work, {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_")} | {"MONARCH_RUNTIME_DIR": f"{work}/run"}
        words = [f"{BIN}/monarch", "run", "--quiet", "--root", root, "--tier", f"{work}/tier:8GiB", "--set", "dataset.min_file_age=0s"]
        for setting in settings:
            words += ["--set", setting]
        self.holder = subprocess.Popen([*words, "--", "sh", "-c", "env; echo ready; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.runtime)
        self.env = dict(self.runtime)
        for line in self.holder.stdout:
            if line.strip() == "ready":
                break
            k, _, v = line.rstrip("\n").partition("=")
            if k in ("LD_PRELOAD", "MONARCH_CTL", "MONARCH_JOB"):
                self.env[k] = v
        self.until(lambda agent: agent["roots"][0]["state"] == "ready")

    def agent(self):
        said = subprocess.run([f"{BIN}/monarch", "status", "--json"], env=self.runtime, capture_output=True, text=True).stdout
        return json.loads(said or "[]")[0]

    def until(self, holds):
        end = time.time() + 60
        while not holds(self.agent()):
            if time.time() > end:
                sys.exit(f"weights: waited in vain: {self.agent()}")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.stdin.close()
        self.holder.wait()
        subprocess.run([f"{BIN}/monarch", "stop", "--purge", "--tier", f"{self.work}/tier"], env=self.runtime, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def turn(source, work, cache, settings, rows):
    out, name = {}, "model.safetensors"
    env = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_") and k != "LD_PRELOAD"}
    for row, processes, words in rows:
        of = out[row] = {}
        with Mount(source, f"{work}/pfs", [*PFS, "--cache", cache]) as mount:
            of["direct"] = readers(f"{mount.at}/{name}", processes, words, env, mount)
        with Mount(source, f"{work}/pfs", [*PFS, "--cache", cache]) as mount, Job(work, mount.at, settings) as job:
            of["monarch"] = readers(f"{mount.at}/{name}", processes, words, job.env, mount)
            if words == ["40"]:
                job.until(lambda agent: sum(tier["files"] for tier in agent["tiers"]) >= 1)
                of["warm"] = readers(f"{mount.at}/{name}", processes, words, job.env, mount)
        if words == ["40"]:
            os.makedirs(f"{work}/local", exist_ok=True)
            shutil.copy(f"{source}/{name}", f"{work}/local/{name}")
            of["local"] = readers(f"{work}/local/{name}", processes, words, env)
            shutil.rmtree(f"{work}/local")
        if len({tuple(of[mode]["sums"]) for mode in of}) != 1:
            sys.exit(f"weights: {row}: other bytes: {of}")
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--cache", default="nokeep,keep", help="how the client of the file system keeps pages")
    p.add_argument("--size", type=int, default=1342, help="MB of the file")
    p.add_argument("--set", action="append", default=[], help="a further setting")
    p.add_argument("--rows", help="only rows whose names hold this text")
    p.add_argument("--json", help="write the figures of all turns to this file")
    a = p.parse_args()
    subprocess.run(["gcc", "-O3", "-Wall", "-o", READER, f"{HERE}/weights.c"], check=True)
    source = tempfile.mkdtemp(prefix="monarch-weights-data-")
    rows = [row for row in ROWS if not a.rows or a.rows in row[0]]
    figures = {}
    try:
        with open(f"{source}/model.safetensors", "wb") as f:
            for _ in range(a.size * 1_000_000 // (320 << 10)):
                f.write(os.urandom(320 << 10))
        os.utime(f"{source}/model.safetensors", (1e9, 1e9))
        for cache in a.cache.split(","):
            turns = figures[cache] = []
            for number in range(a.turns):
                work = tempfile.mkdtemp(prefix="monarch-weights-", dir="/dev/shm")
                os.makedirs(f"{work}/run", 0o700)
                try:
                    turns.append(turn(source, work, cache, ["prefetch.enabled=false", *a.set], rows))
                finally:
                    shutil.rmtree(work, ignore_errors=True)
                text = "; ".join(f"{row} " + " ".join(f"{m} {of['seconds']:.2f}" for m, of in modes.items()) for row, modes in turns[-1].items())
                print(f"{cache}, turn {number + 1}: {text}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(source)
    print("| cache | reader | | seconds | / direct | reads | MB | MB / file |\n|---|---|---|---|---|---|---|---|")
    for cache, turns in figures.items():
        for row in turns[0]:
            for mode in turns[0][row]:
                base = "local" if mode == "warm" else "direct"
                one = [t[row][mode] for t in turns]
                ratio = statistics.median(t[row][mode]["seconds"] / t[row][base]["seconds"] for t in turns)
                mid = lambda name: statistics.median(o[name] for o in one)
                counts = f"{mid('reads'):,.0f} | {mid('bytes') / 1e6:,.0f} | {mid('bytes') / a.size / 1e6:.2f}" if "reads" in one[0] else "| |"
                print(f"| {cache} | {row} | {mode} | {mid('seconds'):.2f} | {ratio:.2f}{' of local' if mode == 'warm' else ''} | {counts} |")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(figures, f, indent=1)


if __name__ == "__main__":
    main()
