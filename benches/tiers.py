#!/usr/bin/env python3
"""Benchmarks of copies that outlive a job: staging against cp, and the start of a job with copies.

    cargo build --release --workspace
    benches/tiers.py [--turns N] [--json FILE] [NAME...]      names: slow local warm

`slow`, `local`: `monarch stage` with all its parts (agent, scan, copies, end) against `cp -r` of
the same files, in turns. `warm`: time from `monarch run` until 1.28 M copies are served, with a
saved index (5 GB in memory, about three minutes). Medians over the turns.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import engine
from bench import BIN, Slowfs, make_files
from engine import SHM, cp, med, say, timed

MONARCH = f"{BIN}/monarch"


def stage(root, extra=()):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir=SHM)
    sets = ["dataset.min_file_age=0s", "prefetch.ahead=all", f"runtime_dir={tmp}", "tiers[0].persist=node", *extra]
    try:
        return timed([MONARCH, "stage", "--quiet", "--root", root, "--tier", f"{tmp}/t:4GiB", *(w for s in sets for w in ("--set", s))])
    finally:
        # The agent ends three seconds after its last job.
        subprocess.run([MONARCH, "stop", "--set", f"runtime_dir={tmp}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(tmp, ignore_errors=True)


def against_cp(name, root, turns, target):
    rows = {"cp": [], "stage": []}
    for _ in range(turns):
        rows["cp"].append(cp(root))
        rows["stage"].append(stage(root))
    ours, theirs = med(rows["stage"]), med(rows["cp"])
    say(f"stage 10,000 x 100 KB, {name}: wall / cp -r", ours / theirs, target, "x", f"{ours:.2f} / {theirs:.2f} s")


def slow(turns):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
    try:
        make_files(f"{tmp}/data", 10_000, 100_000)
        with Slowfs(f"{tmp}/data", f"{tmp}/mnt", "--cache", "direct", "--attr-ttl", "600s", "--meta-latency", "1ms", "--data-latency", "1ms"):
            against_cp("slowfs 1 ms", f"{tmp}/mnt", turns, 0.1)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def local(turns):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
    try:
        make_files(f"{tmp}/data", 10_000, 100_000)
        against_cp("disk to memory, hot", f"{tmp}/data", turns, 1.0)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def warm(turns):
    tmp = tempfile.mkdtemp(prefix="monarch-bench-", dir=SHM)
    files = int(os.environ.get("MONARCH_BENCH_FILES", 1_280_000))
    env = dict(os.environ, MONARCH_RUNTIME_DIR=f"{tmp}/run")
    os.mkdir(f"{tmp}/run")
    try:
        for d in range(files // 1000):
            os.makedirs(f"{tmp}/data/{d:05}")
            for i in range(1000):
                with open(f"{tmp}/data/{d:05}/{i:04}.bin", "wb") as f:
                    f.write(b"%d %d" % (d, i))
        index = f"{tmp}/set.idx"
        subprocess.run([MONARCH, "index", "build", "-o", index, f"{tmp}/data"], check=True, stdout=subprocess.DEVNULL)
        sets = ["dataset.min_file_age=0s", "prefetch.ahead=all", "tiers[0].persist=node", f"index.file={index}", "index.trust=frozen"]
        words = ["--root", f"{tmp}/data", "--tier", f"{tmp}/t:16GiB", *(w for s in sets for w in ("--set", s))]
        subprocess.run([MONARCH, "stage", "--quiet", *words], env=env, check=True, stdout=subprocess.DEVNULL)
        took, memory = [], []
        for _ in range(turns):
            time.sleep(5)
            start = time.perf_counter()
            job = subprocess.Popen([MONARCH, "run", "--quiet", *words, "--", "cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            while True:
                said = subprocess.run([MONARCH, "status", "--json"], env=env, capture_output=True, text=True).stdout
                status = json.loads(said) if said.startswith("[") else []
                if status and status[0]["roots"] and status[0]["roots"][0]["state"] == "ready":
                    break
                time.sleep(0.02)
            took.append(time.perf_counter() - start)
            assert status[0]["agent"]["adopted"] == files, status[0]["agent"]
            own = [l.split() for l in open(f"/proc/{status[0]['pid']}/status") if l.startswith("RssAnon")]
            memory.append(int(own[0][1]) / 1024)
            job.stdin.close()
            job.wait()
        say(f"warm start, {files:,} copies", statistics.median(took), 3, "s")
        say("its agent's memory beside the index", statistics.median(memory), 200, "MiB")
        time.sleep(5)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--json")
    p.add_argument("names", nargs="*", default=["slow", "local", "warm"])
    args = p.parse_args()
    for name in args.names:
        {"slow": slow, "local": local, "warm": warm}[name](args.turns)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(engine.results, f, indent=1)


if __name__ == "__main__":
    main()
