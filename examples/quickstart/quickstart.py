#!/usr/bin/env python3
"""Trains a small network twice, directly from a slow file system and under `monarch run`, and
compares.

    quickstart.py [--images 1600] [--latency 3ms] [--json FILE] [--build | --bin DIRECTORY]

`./quickstart` calls this after it has installed missing packages. Everything happens in one
directory below $TMPDIR, which is removed at the end. `slowfs` simulates the parallel file system
(PFS) and counts its calls; the counters are read whenever the training script has printed an epoch.
"""
import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time

sys.dont_write_bytecode = True
# Until the guard runs there is nothing to clean up: Ctrl-C ends this process.
if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
import guard  # noqa: E402
import make_data  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EPOCHS = 3
SHARDS = 4
# Calls that clients of a real PFS do not wait for, and sums that are no calls.
NOT_CALLS = {"forget", "release", "releasedir", "flush", "ioctl", "bytes_read", "bytes_written", "errors", "faults"}
# How long the kernel caches names and attributes; NFS: 3 s and more.
ATTRIBUTES = "3s"
# Sockets below the directory add up to 34 bytes to its path, and 107 are the limit.
LONGEST = 68
NO_BREAK = "\u00a0"


class Failed(Exception):
    """An error that is printed to the user in one line."""


def environment(directory):
    """Environment of programs: no settings for another Monarch, temporary files in this
    directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MONARCH") and name != "LD_PRELOAD"}
    return dict(kept, TMPDIR=directory, PYTHONDONTWRITEBYTECODE="1")


# ---- steps


class Steps:
    """Prints the current step, and on a terminal its progress."""

    def __init__(self, total):
        self.number, self.total, self.live = 0, total, sys.stdout.isatty()

    def begin(self, text):
        self.number += 1
        lines = textwrap.wrap(text, 70, break_long_words=False, break_on_hyphens=False)
        print(f"[{self.number}/{self.total}] " + " \\\n          ".join(lines).replace(NO_BREAK, " "), flush=True)

    def progress(self, text):
        if self.live:
            print(f"\r      {text}\033[K", end="", flush=True)

    def note(self, text):
        print(f"{chr(13) if self.live else ''}      {text}{chr(27) + '[K' if self.live else ''}", flush=True)


def build(directory):
    command = ["cargo", "build", "--release", "--workspace"]
    if subprocess.run(command, cwd=ROOT, env=environment(directory), stdin=subprocess.DEVNULL, check=False).returncode:
        raise Failed("the build failed, see above; without network the crates cannot be fetched the first time")


def make(steps, directory, images):
    os.makedirs(directory)
    total, step = images + images // 4, max(1, images // 40)

    def progress(done):
        if done % step == 0:
            steps.progress(f"{100 * done // total} %")

    data = make_data.make(directory, images, SHARDS, progress)
    steps.note(f"{images:,} JPEG files in {make_data.CLASSES} directories, {SHARDS} TFRecord shards, {data / 1e6:.1f} MB")
    return data


# ---- the file system


class Pfs:
    """A mount of slowfs that ends with this process."""

    def __init__(self, binaries, source, mount, latency, env):
        self.control = f"{mount}.sock"
        os.makedirs(mount, exist_ok=True)
        options = ["--meta-latency", latency, "--data-latency", latency, "--cache", "nokeep", "--attr-ttl", ATTRIBUTES]
        command = [f"{binaries}/slowfs", source, mount, "--control", self.control, *options, "--until-stdin-closes"]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        if not self.server.stdout.readline():
            said = self.server.stderr.read().strip()
            raise Failed(f"cannot mount the simulated PFS: {said}\n    in a container: docker run --device /dev/fuse --cap-add SYS_ADMIN ...")

    def counters(self):
        """Calls and bytes so far."""
        # As `slowfs ctl`, without starting a process: the next epoch has begun already.
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(self.control)
            stream.sendall(b'{"cmd":"counters"}\n')
            values = json.loads(stream.makefile().readline())["counters"]
        return {"calls": sum(n for name, n in values.items() if name not in NOT_CALLS), "bytes": values["bytes_read"]}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stdin.close()
        self.server.wait()


# ---- training


def train(steps, pfs, command, directory, env):
    """Runs a training command. Returns its epochs with time, calls and bytes, its losses, the
    trained weights, and the whole job."""
    epochs, losses, model, before = [], [], None, pfs.counters()
    start, first, since = time.monotonic(), before, time.monotonic()
    errors = os.path.join(directory, "errors")
    with open(errors, "w+", encoding="utf-8", errors="replace") as said:
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, stdin=subprocess.DEVNULL, text=True, env=env, cwd=directory)
        for line in job.stdout:
            words = line.split()
            if words[0] == "epoch":
                now, counted = time.monotonic(), pfs.counters()
                epochs.append({"seconds": now - since, **{k: counted[k] - before[k] for k in counted}})
                losses.append(words[3])
                steps.note(f"epoch {words[1]} of {EPOCHS}: {now - since:5.1f} s, loss {float(words[3]):.4f}, accuracy {float(words[5]):.1%}")
                before, since = counted, now
            elif words[0] == "model":
                model = words[1]
        status = job.wait()
        took, counted = time.monotonic() - start, pfs.counters()
        said.seek(0)
        text = said.read().strip()
    if status or model is None or len(epochs) != EPOCHS:
        raise Failed(f"the training ended with status {status}:\n{text[-2000:]}")
    for line in text.splitlines():
        steps.note(line)
    job_figures = {"seconds": took, **{k: counted[k] - first[k] for k in counted}}
    return {"epochs": epochs, "job": job_figures, "losses": losses, "model": model}


def shown(command, directory):
    """A command for people: programs by their names, options beside their values."""
    words = [os.path.basename(w) if w.endswith(("/monarch", "/train.py")) or w == sys.executable else w for w in command]
    text = " ".join(words).replace(directory, "$DIR")
    for option in ("--root", "--tier", "--set", "--epochs"):
        text = text.replace(option + " ", option + NO_BREAK)
    return text


def both(args, steps, directory):
    """Trains directly and under `monarch run`."""
    data, mount = os.path.join(directory, "data"), os.path.join(directory, "pfs")
    env = environment(directory)
    script = [sys.executable, os.path.join(HERE, "train.py"), mount, "--epochs", str(EPOCHS)]
    # A runtime directory for this agent; new files are copied at once.
    private = ["--set", f"runtime_dir={directory}/run", "--set", "dataset.min_file_age=0s"]
    os.mkdir(f"{directory}/run", 0o700)
    monarch = [f"{args.bin}/monarch", "run", "--root", mount, "--tier", f"{directory}/tier:{args.tier}", *private, "--", *script]
    results = {}
    for name, command in (("direct", script), ("monarch", monarch)):
        steps.begin(shown(command, directory))
        with Pfs(args.bin, data, mount, args.latency, env) as pfs:
            results[name] = train(steps, pfs, command, directory, env)
    return results


# ---- the table


def paint(code, text):
    return f"\033[{code}m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def cells(figures):
    return f"{figures['seconds']:5.1f} s {figures['calls']:9,} {figures['bytes'] / 1e6:7.1f} MB"


def table(results):
    """Lines of the table, less than 80 columns wide."""
    direct, ours = results["direct"], results["monarch"]
    width = len(cells(direct["job"]))
    yield paint(1, f"{'':9}  {' direct '.center(width, '-')}  {' under monarch run '.center(width, '-')}")
    heads = f"{'time':>7} {'PFS calls':>9} {'PFS bytes':>10}"
    yield paint(1, f"{'':9}  {heads}  {heads}   ratio")
    names = [f"epoch {n + 1}" for n in range(EPOCHS)] + ["whole job"]
    for name, a, b in zip(names, [*direct["epochs"], direct["job"]], [*ours["epochs"], ours["job"]]):
        right = cells(b)
        line = f"{name:9}  {cells(a)}  {paint(32, right) if b['calls'] == 0 else right}  {a['seconds'] / b['seconds']:5.1f}x"
        yield paint(1, line) if name == "whole job" else line


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def explain(args, results, data, place):
    direct, ours = results["direct"], results["monarch"]
    later = [mean(e["seconds"] for e in r["epochs"][1:]) for r in (direct, ours)]
    return f"""
Wall clock; epoch 1 includes the start of Python. Calls and bytes as counted by
the file system's server: under Monarch a file costs it an open, a read and a
check, once. Ratio of times, direct / monarch.
Losses and trained weights are bit-identical.

The PFS is simulated by slowfs: {args.latency} for each metadata call and each read,
nothing kept in the page cache from one open to the next (as when a data set is
larger than memory), attributes believed for {ATTRIBUTES}, unlimited bandwidth.
Data set: {data / 1e6:.1f} MB; copies were on {place}.
Without PFS calls an epoch takes {later[1]:.1f} s (computing, decoding): {later[1] / later[0]:.0%} of the
direct one. The more of your epochs is computing, the smaller your ratio.
Once more: ./quickstart --images {args.images} --latency {args.latency}
"""


def advice(binaries):
    monarch = os.path.join(binaries, "monarch")
    return f"""{paint(1, 'Your own job, unchanged:')}

    {monarch} run --root /path/to/your/data -- python train.py

In a Slurm script (the tasks of a node share its copies, on the node's own disk):

    srun {monarch} run \\
        --root /path/to/your/data -- python train.py

--tier DIR:SIZE names another place for the copies, e.g. --tier /dev/shm:8GiB.
MONARCH_DISABLE=1 turns Monarch off; `monarch status` shows what is held meanwhile.
More: README.md, configs/ (commented examples), docs/SEMANTICS.md (the promises).
Next: ./test runs the test suite."""


def file_system(directory):
    """The parent of a directory, and the type of its file system (unknown in a chroot)."""
    best = ("", "")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, rest = line.split(" - ", 1)
            point = fields.split()[4]
            if (directory + "/").startswith(point.rstrip("/") + "/"):
                best = max(best, (point, rest.split()[0]), key=lambda b: len(b[0]))
    return os.path.dirname(directory) + (f" ({best[1]})" if best[1] else "")


def verdict(results):
    """Lines about wrong results."""
    direct, ours = results["direct"], results["monarch"]
    if (direct["losses"], direct["model"]) != (ours["losses"], ours["model"]):
        yield f"losses differ: {direct['losses']} directly, {ours['losses']} under monarch run"
    for number, epoch in enumerate(ours["epochs"][1:], 2):
        if epoch["calls"]:
            yield f"epoch {number} under monarch run made {epoch['calls']} PFS calls instead of none"


# ---- all of it


def work(args, directory):
    steps = Steps(4 if args.build else 3)
    print(f"Everything happens in {directory} ($DIR), which is gone at the end.", flush=True)
    try:
        if args.build:
            steps.begin("cargo build --release --workspace")
            build(directory)
        steps.begin("making a data set")
        data = make(steps, os.path.join(directory, "data"), args.images)
        results = both(args, steps, directory)
    except BrokenPipeError:
        raise
    except (Failed, OSError) as failure:
        print(f"\nquickstart: {failure}", file=sys.stderr)
        return 1
    wrong = list(verdict(results))
    print("\n" + "\n".join(table(results)))
    if not wrong:
        print(explain(args, results, data, file_system(directory)))
        print(advice(args.bin), flush=True)
    for line in wrong:
        print(f"quickstart: {line}", file=sys.stderr)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(dict(results, data=data, wrong=wrong), file, indent=1)
    return 1 if wrong else 0


def working_directory(images):
    """A name for a directory below $TMPDIR, with enough space. It must be short: it will contain
    Unix sockets, whose paths have at most 107 bytes."""
    base = os.path.realpath(os.environ.get("TMPDIR") or "/tmp")
    other = "name another directory: TMPDIR=/path ./quickstart"
    if not os.path.isdir(base) or not os.access(base, os.W_OK | os.X_OK):
        raise Failed(f"{base} is no directory that can be written; {other}")
    directory = os.path.join(base, f"monarch-quickstart-{random.SystemRandom().randrange(1 << 32):08x}")
    if len(os.fsencode(directory)) > LONGEST:
        raise Failed(f"the path {base} is too long for the sockets below it; {other}")
    # Data, copies, and the space that the agent leaves free: 5 %, at most 1 GiB.
    usage = os.statvfs(base)
    reserve = min(1 << 30, usage.f_blocks * usage.f_frsize // 20)
    wanted, free = images * 100_000 + (64 << 20) + reserve, usage.f_bavail * usage.f_frsize
    if free < wanted:
        raise Failed(f"{base} has {free >> 20} MiB free, {wanted >> 20} MiB are needed; {other}")
    return directory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1600)
    parser.add_argument("--latency", default="3ms")
    parser.add_argument("--json", type=os.path.abspath)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--bin", type=os.path.abspath, default=os.path.join(ROOT, "target", "release"))
    args = parser.parse_args()
    if args.images < 64:
        parser.error("--images: at least 64")
    if args.json and not os.access(os.path.dirname(args.json), os.W_OK):
        parser.error(f"--json: {os.path.dirname(args.json)} cannot be written")
    args.tier = f"{64 + args.images // 10}MiB"
    try:
        directory = working_directory(args.images)
        return guard.run(lambda directory: work(args, directory), directory)
    except (Failed, OSError) as failure:
        print(f"quickstart: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
