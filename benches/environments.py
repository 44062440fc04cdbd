#!/usr/bin/env python3
"""The first import of PyTorch from an environment on a slow file system, with Monarch and without.

    tests/venvs.sh torch2; cargo build --release --workspace
    benches/environments.py [--turns N] [--venv DIR] [--code TEXT] [--json FILE]     3 minutes a turn; needs FUSE

The environment lies behind slowfs: 2 ms a metadata call, 1 ms a data call, 500 MB/s, attributes
believed for 1 s, the kernel keeps pages. Each measurement has a mount of its own, so that nothing is
cached. `direct` is the import itself; `monarch` is the same below `monarch run` with an empty tier
in memory, the scan of the root included; `working set` the same again on another mount, after the
copies were lost and with the working set of the jobs before. `same mount` is a second import, by a
process of its own, on the mount of the first. Medians over the turns; ratios are those of a turn to
its own `direct`.
"""
import argparse, glob, json, os, shutil, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import BIN

PFS = ["--meta-latency", "2ms", "--data-latency", "1ms", "--bandwidth", "500MB/s", "--cache", "keep", "--attr-ttl", "1s"]
META = ("lookup", "getattr", "readlink", "opendir", "readdir", "readdirplus", "access", "statfs", "getxattr")


class Mount:
    def __init__(self, source, at):
        self.at, self.socket = at, f"{at}.sock"
        os.makedirs(at, exist_ok=True)
        self.server = subprocess.Popen([f"{BIN}/slowfs", "--until-stdin-closes", "--control", self.socket, *PFS, source, at], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        while not os.path.ismount(at):
            if self.server.poll() is not None:
                sys.exit("environments: slowfs did not start")
            time.sleep(0.05)

    def counters(self):
        said = subprocess.run([f"{BIN}/slowfs", "ctl", self.socket, "counters"], capture_output=True, text=True, check=True)
        return json.loads(said.stdout)["counters"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stdin.close()
        self.server.wait()


def timed(mount, command, env):
    before, began = mount.counters(), time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - began, mount.counters()
    since = {k: after[k] - before[k] for k in after}
    return dict(seconds=took, metadata=sum(since.get(k, 0) for k in META), opens=since["open"], reads=since["read"], bytes=since["bytes_read"])


def turn(venv, code, work):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_")} | {"PYTHONDONTWRITEBYTECODE": "1", "MONARCH_RUNTIME_DIR": f"{work}/run"}
    out = {}
    for mode in ("direct", "monarch", "working set"):
        with Mount(venv, f"{work}/venv") as mount:
            python = [f"{mount.at}/bin/python", "-c", code]
            ours = [f"{BIN}/monarch", "run", "--quiet", "--root", mount.at, "--tier", f"{work}/tier:8GiB", "--set", "tiers[0].persist=node", "--"]
            command = python if mode == "direct" else [*ours, *python]
            out[mode] = timed(mount, command, env)
            out[f"{mode}, same mount"] = timed(mount, command, env)
            stop = [f"{BIN}/monarch", "stop", "--tier", f"{work}/tier"] + ["--purge"] * (mode == "working set")
            subprocess.run(stop, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for copy in glob.glob(f"{work}/tier/*/copies/*/*"):
                os.unlink(copy)
    return out


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
    med = lambda of: statistics.median(of)
    print("| | seconds | / direct | metadata calls | opens | reads | MB | MB / direct |\n|---|---|---|---|---|---|---|---|")
    for mode in turns[0]:
        base = "direct, same mount" if mode.endswith("same mount") else "direct"
        figure = lambda name: med([t[mode][name] for t in turns])
        ratio = lambda name: med([t[mode][name] / max(1, t[base][name]) if name == "bytes" else t[mode][name] / t[base][name] for t in turns])
        print(f"| {mode} | {figure('seconds'):.1f} | {ratio('seconds'):.2f} | {figure('metadata'):,.0f} | {figure('opens'):,.0f} | {figure('reads'):,.0f} | "
              f"{figure('bytes') / 1e6:,.0f} | {ratio('bytes'):.2f} |")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(turns, f, indent=1)


if __name__ == "__main__":
    main()
