#!/usr/bin/env python3
"""Imports of PyTorch from an environment on a slow file system, with Monarch and without.

    tests/venvs.sh torch2; cargo build --release --workspace
    benches/environments.py [--turns N] [--venv DIR] [--code TEXT] [--json FILE]     4 minutes a turn; needs FUSE

The environment lies behind slowfs: 2 ms a metadata call, 1 ms a data call, 500 MB/s, attributes
believed for 1 s, the kernel keeps pages. Each mode has a mount of its own, so that nothing is cached.

| row | what is measured |
|---|---|
| direct | the import itself, twice on one mount |
| first job | the same below `monarch run` with an empty tier in memory, the scan of the root included |
| working set | again on another mount: the copies were lost, the working set of the first job is there |
| warm | an agent serves a job that holds it; imports by further jobs, all copies there |
| warm, index | the same with `dataset.absent=index` |
| local | the import from the environment on the local disk, in the page cache |

Medians over the turns (warm and local: over five imports in each); ratios are those of a turn to
its own `direct`, for warm rows to its own `local`.
"""
import argparse, glob, json, os, shutil, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import BIN
from slow_mount import Mount

PFS = ["--meta-latency", "2ms", "--data-latency", "1ms", "--bandwidth", "500MB/s", "--cache", "keep", "--attr-ttl", "1s"]
META = ("lookup", "getattr", "readlink", "opendir", "readdir", "readdirplus", "access", "statfs", "getxattr")
IMPORTS = 5


def timed(commands, env, mount=None):
    """Runs commands side by side; seconds, and what the PFS counted."""
    before, began = mount.counters() if mount else {}, time.perf_counter()
    running = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for command in commands]
    if any(p.wait() != 0 for p in running):
        sys.exit(f"environments: {commands[0]} failed")
    took, after = time.perf_counter() - began, mount.counters() if mount else {}
    since = {k: after[k] - before[k] for k in after}
    return dict(seconds=took, metadata=sum(since.get(k, 0) for k in META), opens=since.get("open", 0), reads=since.get("read", 0), bytes=since.get("bytes_read", 0))


def middle(several):
    return {k: statistics.median(of[k] for of in several) for k in several[0]}


def warm(work, mount, local, python, env, *settings):
    """Imports below an agent that another job keeps, and local ones in turns with them."""
    ours = [f"{BIN}/monarch", "run", "--quiet", "--root", mount.at, "--tier", f"{work}/tier:8GiB", *settings, "--"]
    holder = subprocess.Popen([*ours, "sh", "-c", "echo ready; cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    holder.stdout.readline()
    for _ in range(3):
        timed([[*ours, *python]], env, mount)
        time.sleep(2)
    alone, theirs = [], []
    for _ in range(IMPORTS):
        alone.append(timed([[*ours, *python]], env, mount))
        theirs.append(timed([local], env))
    four, four_local = timed([[*ours, *python]] * 4, env, mount), timed([local] * 4, env)
    holder.stdin.close()
    holder.wait()
    return middle(alone), middle(theirs), four, four_local


def turn(venv, code, work):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_")} | {"PYTHONDONTWRITEBYTECODE": "1", "MONARCH_RUNTIME_DIR": f"{work}/run"}
    local = [f"{venv}/bin/python", "-c", code]
    out = {}
    for mode in ("direct", "first job", "working set", "warm", "warm, index"):
        with Mount(venv, f"{work}/venv", PFS) as mount:
            python = [f"{mount.at}/bin/python", "-c", code]
            if mode.startswith("warm"):
                settings = ["--set", "dataset.absent=index"] if mode == "warm, index" else []
                out[mode], out["local"], out[f"{mode}, 4 at once"], out["local, 4 at once"] = warm(work, mount, local, python, env, *settings)
            else:
                ours = [f"{BIN}/monarch", "run", "--quiet", "--root", mount.at, "--tier", f"{work}/tier:8GiB", "--set", "tiers[0].persist=node", "--"]
                command = python if mode == "direct" else [*ours, *python]
                out[mode] = timed([command], env, mount)
                if mode == "direct":
                    out["direct, again"] = timed([command], env, mount)
            stop = [f"{BIN}/monarch", "stop", "--tier", f"{work}/tier"] + ["--purge"] * (mode != "first job")
            subprocess.run(stop, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for copy in glob.glob(f"{work}/tier/*/copies/*/*"):
                os.unlink(copy)
    return out


def base(mode):
    if mode.startswith(("warm", "local")):
        return "local, 4 at once" if mode.endswith("4 at once") else "local"
    return "direct, again" if mode == "direct, again" else "direct"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--venv", default=os.path.expanduser("~/.cache/monarch/venv-torch2"), help="the environment")
    p.add_argument("--code", default="import torch", help="what each process does")
    p.add_argument("--json", help="write the figures of all turns to this file")
    a = p.parse_args()
    turns = []
    for number in range(a.turns):
        work = tempfile.mkdtemp(prefix="monarch-environments-", dir="/dev/shm")
        os.makedirs(f"{work}/run", 0o700)
        try:
            turns.append(turn(a.venv, a.code, work))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        print(f"turn {number + 1}: " + "; ".join(f"{mode} {of['seconds']:.1f} s" for mode, of in turns[-1].items()), file=sys.stderr, flush=True)
    med = statistics.median
    print("| | seconds | ratio | of | metadata calls | opens | reads | MB |\n|---|---|---|---|---|---|---|---|")
    for mode in turns[0]:
        figure = lambda name: med([t[mode][name] for t in turns])
        ratio = med([t[mode]["seconds"] / t[base(mode)]["seconds"] for t in turns])
        print(f"| {mode} | {figure('seconds'):.2f} | {ratio:.2f} | {base(mode)} | {figure('metadata'):,.0f} | {figure('opens'):,.0f} | {figure('reads'):,.0f} | {figure('bytes') / 1e6:,.0f} |")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(turns, f, indent=1)


if __name__ == "__main__":
    main()
