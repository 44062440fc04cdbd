#!/usr/bin/env python3
"""Output roots: what a job that writes waits for, and what the drain costs the PFS.

    cargo build --release --workspace
    benches/outputs.py [--turns N] [--json FILE] [NAME...]     NAME: a figure below; without any, all: 15 minutes; needs FUSE

| name | what is measured |
|---|---|
| save | a save of 1 GiB, staged, against the same calls in the tier's directory: memory and disk |
| slow | a save of 256 MiB, staged, against direct, PFS of 100 MB/s and 2 ms a metadata call; its drain against `cp` |
| link | the drain of four files against the bandwidth of the link |
| calls | bytes and calls at the PFS for each file, against direct |
| small | files of 4 KiB at 2 ms a metadata call: the job's calls, against direct and the tier's directory |
| many | the drain of 10,000 such files |
| restart | reads by the next job |
| through | calls outside of the output root, and of files that go through: added |
| start | `monarch run` with an output root and nothing pending: added |
| recover | `monarch recover` of 10,000 entries, after a kill |
| stall | writing while the PFS answers nothing |

Staged and baseline alternate in one run; medians of --turns pairs. The PFS is slowfs on a directory in
memory, its attributes and names believed for 1 s. Saves are those of torch.save where --python has
PyTorch (by default an environment of tests/venvs.sh, if there is one), else plain writes of 64 MiB. Each
row ends with the load of the machine. MONARCH_E2E_BIN names another directory of binaries.
"""
import argparse, functools, json, os, shutil, signal, statistics, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path[:0] = [HERE, f"{ROOT}/tests/programs/outputs/trials"]
import bench
from place import BIN, ENVIRONMENT, Place

bench.BIN = BIN
MIB = 1 << 20
BLOCK = 64 * MIB
LINK = 100e6
SLOW = ("--meta-latency", "2ms", "--bandwidth", "100MB/s")
META = 0.002
# What no client waits for, and what moves data.
FREE = ("forget", "release", "flush", "releasedir", "ioctl", "bytes_read", "bytes_written", "errors", "faults")
DATA = ("read", "write", "copy_file_range")
# An open and close, and a write, of files that are written: nanoseconds, one round a line.
WRITER = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int main(int argc, char **argv) {
    int flags = O_WRONLY | O_CREAT | (strcmp(argv[1], "trunc") ? O_APPEND : O_TRUNC), rounds = atoi(argv[3]), count = 20000;
    for (int r = 0; r < rounds; r++) {
        int fd = open(argv[2], flags, 0644);
        if (fd < 0) { perror(argv[2]); return 1; }
        char none[4096]; struct stat st;
        snprintf(none, sizeof none, "%s-none", argv[2]);
        stat(argv[4], &st);
        double t = now();
        for (int i = 0; i < count; i++) {
            if (!strcmp(argv[1], "missing")) { if (!stat(none, &st)) return 1; continue; }
            if (!strcmp(argv[1], "exclusive")) {
                int other = open(none, O_WRONLY | O_CREAT | O_EXCL, 0644);
                if (other < 0 || close(other) || unlink(none)) return 1;
                continue;
            }
            if (!strcmp(argv[1], "write")) { if (pwrite(fd, "x", 1, 0) != 1) return 1; continue; }
            int other = open(argv[2], flags, 0644);
            if (other < 0 || write(other, "", 0) < 0 || close(other)) return 1;
        }
        printf("%.1f\n", (now() - t) / count);
        close(fd); truncate(argv[2], 0);
    }
}
"""
results = []


# What the job does: the words of a line of JSON are a function of these and its arguments.


@functools.cache
def state():
    """What is saved, 64 MiB: tensors where there is PyTorch."""
    try:
        import torch
        return torch, {f"layer{i}": torch.ones(MIB, dtype=torch.float32) for i in range(BLOCK // MIB // 4)}
    except ImportError:
        return None, memoryview(os.urandom(MIB) * (BLOCK // MIB))


def save(path, size):
    """Seconds of a save, and when it ended."""
    torch, block = state()
    if torch:
        whole = {f"{name}.{n}": tensor.clone() for n in range(size // BLOCK) for name, tensor in block.items()}
    began = time.monotonic()
    if torch:
        torch.save(whole, path)
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        for _ in range(size // BLOCK):
            os.write(fd, bytes(64))
            if os.write(fd, block) != BLOCK:
                sys.exit("outputs: a short write")
        os.close(fd)
    ended = time.monotonic()
    return ended - began, ended


def remove(*paths):
    """Removes files; what the disk has not written yet is written first."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        os.unlink(path)


def read(path):
    """Seconds in which a file is read."""
    began = time.monotonic()
    with open(path, "rb", buffering=0) as f:
        while f.read(16 * MIB):
            pass
    return time.monotonic() - began


def small(top, count, size, renames, threads):
    """Writes files as zarr does; seconds in each call, and in all, by one thread's clock."""
    spent, lock, block = dict.fromkeys(("open", "write", "close", "rename"), 0.0), threading.Lock(), os.urandom(size)
    for n in range((count + 99) // 100):
        os.makedirs(f"{top}/c/{n}")

    def write(first):
        clock, own = time.perf_counter, [0.0] * 4
        for i in range(first, count, threads):
            path = f"{top}/c/{i // 100}/{i % 100}"
            t0 = clock()
            fd = os.open(f"{path}.part" if renames else path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            t1 = clock()
            os.write(fd, block)
            t2 = clock()
            os.close(fd)
            t3 = clock()
            if renames:
                os.rename(f"{path}.part", path)
            own = [a + b for a, b in zip(own, (t1 - t0, t2 - t1, t3 - t2, clock() - t3))]
        with lock:
            for name, seconds in zip(spent, own):
                spent[name] += seconds

    began = time.monotonic()
    workers = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
    [t.start() for t in workers]
    [t.join() for t in workers]
    return spent | {"wall": time.monotonic() - began}


def hold(path):
    """Opens a file that `finish` writes."""
    state()
    hold.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)


def finish(path, size):
    """Seconds of what is done with an open file, and with another one that is pending."""
    torch, block = state()
    block = bytes(BLOCK) if torch else block
    spent, clock = {}, time.monotonic

    def step(name, call):
        began = clock()
        call()
        spent[name] = clock() - began

    step("write", lambda: [os.write(hold.fd, block) for _ in range(size // BLOCK)])
    step("close", lambda: os.close(hold.fd))
    step("open to read", lambda: os.close(os.open(path, os.O_RDONLY)))
    step("stat", lambda: os.stat(path))
    return spent


def rename(old, new):
    began = time.monotonic()
    os.rename(old, new)
    return time.monotonic() - began


def serve():
    for line in sys.stdin:
        name, *words = json.loads(line)
        print(json.dumps(globals()[name](*words)), flush=True)


class Worker:
    """A process that does what it is asked: bare, or below `monarch run`."""

    def __init__(self, env, before=()):
        words = [*before, a.python, os.path.abspath(__file__), "--worker"]
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.ask("state_is_made")

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"outputs: a job ended at {words}")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()


def state_is_made():
    state()


# What measures.


def say(name, value, target=None, unit="x", note="", least=False):
    ok = "" if target is None else ("ok" if (value >= target if least else value <= target) else "MISSED")
    load = os.getloadavg()[0]
    results.append(dict(name=name, value=value, target=target, unit=unit, ok=ok, note=note, load=load))
    wanted = "-" if target is None else f"{'>=' if least else '<='} {target}"
    print(f"{name:66} {value:9.3f} {unit:4} target {wanted:>8} {ok:6} {note}; load {load:.1f}", flush=True)


def ms(seconds):
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def turns(*calls):
    """What each call returned, in turns: in one order and then in the other."""
    out = [[] for _ in calls]
    for turn in range(a.turns):
        for at in range(len(calls)) if turn % 2 else reversed(range(len(calls))):
            out[at].append(calls[at]())
    return out


def ratio(ours, theirs):
    return statistics.median(ours) / statistics.median(theirs)


def against(ours, theirs):
    return f"{ms(statistics.median(ours))} / {ms(statistics.median(theirs))} ({ms(min(ours))} to {ms(max(ours))}, {ms(min(theirs))} to {ms(max(theirs))})"


class World(Place):
    """A PFS in memory, a tier, and jobs that are asked."""

    def __init__(self, pfs=(), on_disk=False, size="6GiB"):
        super().__init__(pfs=pfs, tier=size, memory=not on_disk)
        self.beside = f"{self.shm}/beside"
        if on_disk:
            self.disk = tempfile.mkdtemp(prefix="monarch-outputs-", dir=a.disk)
            self.tier, self.beside = f"{self.disk}/tier", f"{self.disk}/beside"
            self.words[self.words.index("--tier") + 1] = f"{self.tier}:{size}"
        os.mkdir(self.beside)
        self.ctl("set", "attr_ttl=1s", "entry_ttl=1s")

    def __exit__(self, *how):
        super().__exit__(*how)
        if hasattr(self, "disk"):
            shutil.rmtree(self.disk, ignore_errors=True)

    def job(self):
        return Worker(self.env, self.staged())

    def bare(self):
        return Worker(self.env)

    def counters(self):
        return self.ctl("counters")["counters"]

    def since(self, before):
        return {name: value - before[name] for name, value in self.counters().items()}

    def wait_published(self, *names, pause=0.001):
        """When all of these were there."""
        for name in names:
            while not os.path.lexists(f"{self.published}/{name}"):
                time.sleep(pause)
        return time.monotonic()

    def left(self):
        """Part files that are there."""
        return sum(name.startswith(".monarch-part-") for _, _, files in os.walk(self.published) for name in files)

    def wait_drained(self, limit=170):
        end = time.monotonic() + limit
        while True:
            began = time.monotonic()
            if not self.left():
                return True
            if began > end:
                return False
            # (To look takes a part of a processor.)
            time.sleep(max(0.02, 20 * (time.monotonic() - began)))


def saves(world, job, bare, size):
    """Calls for `turns`: a save staged, one in the tier's directory, and one on the PFS."""

    def staged():
        took, ended = job.ask("save", f"{world.root}/save.pt", size)
        drained = world.wait_published("save.pt") - ended
        job.ask("remove", f"{world.root}/save.pt")
        return took, drained

    def direct(top):
        took, _ = bare.ask("save", f"{top}/direct.pt", size)
        bare.ask("remove", f"{top}/direct.pt")
        return took

    return staged, lambda: direct(world.beside), lambda: direct(world.root)


def figure_save():
    for what, on_disk in (("memory", False), ("disk", True)):
        with World(on_disk=on_disk) as world, world.job() as job, world.bare() as bare:
            staged, beside, _ = saves(world, job, bare, a.save)
            staged(), beside()
            ours, theirs = turns(staged, beside)
            ours = [took for took, _ in ours]
            more = statistics.median(ours) - 0.01
            say(f"save of {a.save // MIB} MiB, tier on {what}: (staged - 10 ms) / in its directory", more / statistics.median(theirs), 1.10, note=against(ours, theirs))


def figure_slow():
    size = 256 * MIB
    for what, on_disk, target in (("memory", False, 0.1), ("disk", True, 1 / 3)):
        with World(SLOW, on_disk) as world, world.job() as job, world.bare() as bare:
            staged, _, direct = saves(world, job, bare, size)
            source = f"{world.shm}/source"
            bare.ask("save", source, size)

            def copy(*words):
                began = time.monotonic()
                subprocess.run([word.format(source, f"{world.root}/copy") for word in words], check=True, stderr=subprocess.DEVNULL)
                took = time.monotonic() - began
                os.unlink(f"{world.root}/copy")
                return took

            # (Each write of `cp`, of 128 KiB, asks this PFS for an attribute, which costs 2 ms.)
            plain = lambda: copy("dd", "bs=4M", "if={0}", "of={1}")
            ours, theirs, copied = turns(staged, direct, plain)
            by_cp = copy("cp", "{0}", "{1}")
            took, drained = [t for t, _ in ours], [t for _, t in ours]
            say(f"save of 256 MiB, 100 MB/s, tier on {what}: staged / direct", ratio(took, theirs), round(target, 3), note=against(took, theirs))
            say(f"its drain, tier on {what}: rate / rate of a plain copy (4 MiB writes)", ratio(copied, drained), 0.9, note=f"{against(drained, copied)}; cp, once, {ms(by_cp)}", least=True)


def figure_link():
    size, names = 128 * MIB, [f"{n}.pt" for n in range(4)]
    with World(SLOW) as world, world.job() as job:
        took = []
        for _ in range(a.turns):
            first = min(job.ask("save", f"{world.root}/{name}", size)[1] for name in names)
            took.append(world.wait_published(*names) - first)
            whole = sum(os.path.getsize(f"{world.published}/{name}") for name in names)
            job.ask("remove", *(f"{world.root}/{name}" for name in names))
        say("drain of four files of 128 MiB: rate / bandwidth of the link", whole / LINK / statistics.median(took), 0.95, note=f"{ms(whole / LINK)} / {ms(statistics.median(took))}", least=True)


def figure_calls():
    with World() as world, world.job() as job, world.bare() as bare:
        for what, count, size, one_by_one in (("1,000 files of 4 KiB at once", 1000, 4096, False), ("50 files of 4 KiB, each alone", 50, 4096, True), ("4 files of 64 MiB, each alone", 4, BLOCK, True)):

            def write(worker, top):
                before = world.counters()
                if not one_by_one:
                    worker.ask("small", f"{world.root}/{top}", count, size, False, 4)
                    world.wait_drained()
                else:
                    os.makedirs(f"{world.published}/{top}/c", exist_ok=True)
                    for n in range(count):
                        if size < BLOCK:
                            worker.ask("small", f"{world.root}/{top}/{n}", 1, size, False, 1)
                            world.wait_published(f"{top}/{n}/c/0/0")
                        else:
                            worker.ask("save", f"{world.root}/{top}/{n}.pt", size)
                            world.wait_published(f"{top}/{n}.pt")
                # (The directory is synced after the rename; an idle drain makes no calls.)
                time.sleep(1.5)
                return world.since(before)

            key = what.replace(" ", "-").replace(",", "")
            theirs, ours = write(bare, f"direct-{key}"), write(job, f"staged-{key}")
            waits = lambda of: sum(n for name, n in of.items() if name not in FREE)
            say(f"bytes written, {what}: / direct", ours["bytes_written"] / theirs["bytes_written"], 1.0, note=f"bytes read {ours['bytes_read']}")
            added = {name: round((ours[name] - theirs[name]) / count, 2) for name in ours if name not in FREE and abs(ours[name] - theirs[name]) / count >= 0.05}
            per = [waits(of) / count for of in (ours, theirs)]
            say(f"calls for each file, {what}: beyond direct", per[0] - per[1], 3, "", f"{per[0]:.1f} / {per[1]:.1f}: {added}")


def hold_drain(world):
    """The PFS answers no write of a part file, until `clear`."""
    world.ctl("fault", "kind=stall", "ops=write", "path=**.monarch-part-*")


def figure_small():
    count = 100
    for what, renames in (("in place", False), ("and renamed", True)):
        with World(("--meta-latency", "2ms")) as world, world.job() as job, world.bare() as bare:
            turn, at_pfs = iter(range(1000)), []

            def write(worker, top, is_held=False):
                if is_held:
                    hold_drain(world)
                before = world.counters()
                took = worker.ask("small", f"{top}/{next(turn)}", count, 4096, renames, 1)
                if is_held or worker is bare and top is world.root:
                    at_pfs.append((is_held, world.since(before)))
                world.ctl("clear")
                world.wait_drained()
                return took

            held, ours, pfs, beside = turns(lambda: write(job, world.root, True), lambda: write(job, world.root), lambda: write(bare, world.root), lambda: write(bare, world.beside))
            each = lambda of, *names: [sum(one[name] for name in names) / count for one in of]
            us = lambda of, *names: statistics.median(each(of, *names)) * 1e6
            calls = ("open", "write", "close") + ("rename",) * renames
            for how, of in (("drain held", held), ("drain beside it", ours)):
                of_all = f"{us(of, *calls) / 1000:.2f} / {us(pfs, *calls) / 1000:.2f} ms a file; tier's directory {us(beside, *calls):.0f} us"
                say(f"4 KiB files {what}, {how}: all calls staged / direct", ratio(each(of, *calls), each(pfs, *calls)), 1.0, note=of_all)
                for call in calls:
                    other, name = (pfs, "direct") if call in ("open", "rename") else (beside, "tier's directory")
                    note = f"staged {us(of, call):.0f}, direct {us(pfs, call):.0f}, tier's directory {us(beside, call):.1f} us"
                    say(f"4 KiB files {what}, {how}: {call} staged / {name}", ratio(each(of, call), each(other, call)), None, note=note)
            for is_held, name in ((True, "staged"), (False, "direct")):
                of = [since for was_held, since in at_pfs if was_held == is_held]
                mix = {op: round(statistics.median(since[op] for since in of) / count, 2) for op in of[0] if op not in FREE}
                say(f"4 KiB files {what}: metadata calls of the job itself for each, {name}", sum(n for op, n in mix.items() if op not in DATA), None, "", f"{ {op: n for op, n in mix.items() if n >= 0.02} }")


def figure_many():
    with World() as world, world.job() as job:
        hold_drain(world)
        job.ask("small", f"{world.root}/many", a.files, 4096, False, 16)
        world.ctl("set", "meta_latency=2ms")
        left, before, began = world.left(), world.counters(), time.monotonic()
        world.ctl("clear")
        if not world.wait_drained():
            print("outputs: the drain took more than 170 s: what it did until then", file=sys.stderr)
        took, now = time.monotonic() - began, world.since(before)
        done = max(left - world.left(), 1)
        waited = sum(n for name, n in now.items() if name not in FREE + DATA)
        mix = {name: round(n / done, 2) for name, n in now.items() if name not in FREE and n / done >= 0.02}
        say(f"drain of {left:,} files of 4 KiB, 2 ms: metadata calls in flight", waited * META / took, 16, "", f"{done / took:.0f} files/s, {took:.1f} s; calls a file {mix}", least=True)


def figure_restart():
    with World() as world:
        with world.job() as job:
            job.ask("save", f"{world.root}/save.pt", BLOCK)
        before = world.counters()
        with world.job() as job:
            job.ask("read", f"{world.root}/save.pt")
            now = world.since(before)
        with world.bare() as bare:
            before = world.counters()
            bare.ask("read", f"{world.root}/save.pt")
            note = f"direct {world.since(before)['bytes_read']}"
        say("read of 64 MiB by the next job: bytes from the PFS", now["bytes_read"], 0, "B", note)


def figure_through():
    top = tempfile.mkdtemp(prefix="monarch-outputs-", dir="/dev/shm")
    try:
        for name in ("data", "out", "beside"):
            os.mkdir(f"{top}/{name}")
            for file in ("one.bin", "one.log"):
                with open(f"{top}/{name}/{file}", "w") as f:
                    f.write("x")
        bench.MICRO, bench.TURNS, writer = f"{top}/micro", a.turns, f"{top}/writer"
        bench.build()
        subprocess.run(["gcc", "-O2", "-w", "-x", "c", "-", "-o", writer], input=WRITER, text=True, check=True)
        output = ("--output", f"{top}/out", "--set", "outputs.0.volatile=true")
        with bench.World(f"{top}/data", f"{top}/tier:64MiB", f"{top}/run", extra=output) as ours, \
                bench.World(f"{top}/data", f"{top}/tier2:64MiB", f"{top}/run2") as without:

            def lines(words, env):
                said = subprocess.run(words, env=dict(ENVIRONMENT, **env), capture_output=True, text=True, check=True).stdout
                return min(float(line) for line in said.split())

            def figure(what, words, target):
                bare, plain, staged = [], [], []
                for _ in range(bench.TURNS):
                    for of, env in ((bare, {}), (plain, without.env), (staged, ours.env)):
                        of.append(lines(words, env))
                bare, plain, staged = map(statistics.median, (bare, plain, staged))
                say(f"{what}: added", (staged - plain) / 1000, target, "us", f"bare {bare:.0f}, no output root {plain:.0f}, with {staged:.0f} ns")

            # What the writer looks at first: the shim maps the state of an output root at its first use.
            cases = [("outside", "beside", "/", 0.1), ("outside, used before", "beside", f"{top}/out/one.bin", 0.1), ("through", "out", "/", 2),
                     ("outside, a clean copy there", "beside", f"{top}/out/one.bin", 0.1)]
            figure("a published file, whose name does not go through, open (append) + write + close", [writer, "append", f"{top}/out/one.bin", "2", "/"], 2)
            for where, at, first, target in cases:
                log = f"{top}/{at}/one.log"
                if where.endswith("there"):
                    subprocess.run(["sh", "-c", f"echo x >{top}/out/clean"], env=dict(ENVIRONMENT, **ours.env), check=True)
                    time.sleep(2)
                write = lambda how: [writer, how, log.replace(".log", ".db") if how == "exclusive" else log, "2", first]
                figure(f"{where}, open (append) + write + close", write("append"), target)
                figure(f"{where}, open (truncate) + write + close", write("trunc"), target)
                figure(f"{where}, open (exclusive) + close + unlink", write("exclusive"), target)
                figure(f"{where}, stat of a missing name", write("missing"), target)
                if first == "/":
                    listed = bench.write_list(f"{top}/{at}.list", [log])
                    figure(f"{where}, open + close to read", [bench.MICRO, "openonly", listed, "2"], target)
                    figure(f"{where}, stat", [bench.MICRO, "stat", listed, "2"], target)
                    figure(f"{where}, read", [bench.MICRO, "read", log, "2"], target)
                    figure(f"{where}, pwrite", write("write"), target)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def figure_start():
    for what, pfs in (("0 ms", ()), ("2 ms", ("--meta-latency", "2ms"))):
        with World(pfs, size="256MiB") as world:
            numbers, kept = iter(range(1000)), {}

            def words(staged, number, *command):
                out = ["--output", world.root, "--set", "outputs.0.volatile=true"] if staged else []
                at = f"{world.shm}/{'staged' if staged else 'plain'}{number}"
                os.makedirs(f"{at}/run", 0o700, exist_ok=True)
                env = world.env | {"MONARCH_RUNTIME_DIR": f"{at}/run"}
                return [f"{BIN}/monarch", "run", "--quiet", "--root", f"{world.work}/data", "--tier", f"{at}/tier:256MiB", *out,
                        "--set", f"runtime_dir={at}/run", "--set", "dataset.min_file_age=0s", "--", *command], env

            def run(staged):
                # (An agent without jobs lingers: each run without a kept one has directories of its own.)
                line, env = words(staged, 0 if kept else next(numbers) + 1, "true")
                began = time.monotonic()
                subprocess.run(line, env=env, check=True)
                return time.monotonic() - began

            for agent in ("starts an agent", "the agent is there"):
                if agent == "the agent is there":
                    for staged in (True, False):
                        line, env = words(staged, 0, "cat")
                        kept[staged] = subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
                    time.sleep(1)
                ways = (lambda: run(True), lambda: run(False))
                [way() for way in ways]
                both = [turns(*ways) for _ in range(3)]
                before = world.counters()
                ways[0]()
                calls = sum(n for name, n in world.since(before).items() if name not in FREE)
                ours, theirs = [t for of in both for t in of[0]], [t for of in both for t in of[1]]
                note = f"{against(ours, theirs)}; {calls} calls of the PFS"
                say(f"run with an output root, {what}, {agent}: added", (statistics.median(ours) - statistics.median(theirs)) * 1000, 20, "ms", note)
            for holder in kept.values():
                holder.stdin.close()
                holder.wait()
            while world.agent_pids():
                time.sleep(0.1)


def figure_recover():
    for what, latency in (("0 ms", "0"), ("2 ms", "2ms")):
        first, whole, entries = [], [], 0
        for _ in range(3):
            with World() as world:
                job = world.job()
                hold_drain(world)
                job.ask("small", f"{world.root}/many", a.files, 4096, False, 4)
                agents = world.agent_pids()
                os.killpg(job.process.pid, signal.SIGKILL)
                for pid in agents:
                    os.kill(pid, signal.SIGKILL)
                job.process.wait()
                while world.agent_pids():
                    time.sleep(0.02)
                entries = world.left()
                world.ctl("set", f"meta_latency={latency}")
                world.ctl("clear")
                began = time.monotonic()
                recovering = subprocess.Popen([f"{BIN}/monarch", "recover", "--quiet", "--tier", world.tier], env=world.env, stdout=subprocess.DEVNULL)
                while not any(not name.startswith(".monarch-") for _, _, files in os.walk(f"{world.published}/many") for name in files):
                    time.sleep(0.002)
                first.append(time.monotonic() - began)
                if latency == "0":
                    if recovering.wait():
                        sys.exit(f"outputs: recover ended with {recovering.returncode}")
                    whole.append(time.monotonic() - began)
                else:
                    recovering.send_signal(signal.SIGINT)
                    recovering.wait()
        note = f"{ms(min(first))} to {ms(max(first))}" + (f"; all after {ms(statistics.median(whole))}" if whole else "")
        say(f"recover of {entries:,} entries, {what}: first publication", statistics.median(first), 2, "s", note)


def figure_stall():
    size = 256 * MIB
    with World() as world, world.job() as job, world.bare() as bare:
        stalled, free = [], []
        for turn in range(2 * a.turns):
            path, is_stalled = f"{world.root}/{turn}.pt", turn % 2
            job.ask("hold", path)
            began = time.monotonic()
            if is_stalled:
                world.ctl("fault", "kind=stall")
                time.sleep(0.2)
            spent = job.ask("finish", path, size)
            if is_stalled and turn == 2 * a.turns - 1:
                # A change of a name asks the PFS, and so does the next create.
                healed = threading.Timer(20 - (time.monotonic() - began), lambda: world.ctl("clear"))
                healed.start()
                lost = job.ask("rename", path, f"{path}2")
                healed.join()
                world.ctl("fault", "kind=stall:5s", "ops=create")
                created = job.ask("save", f"{world.root}/next.pt", BLOCK)[0]
            world.ctl("clear")
            (stalled if is_stalled else free).append(spent)
            world.wait_drained()
            if turn < 2 * a.turns - 1:
                job.ask("remove", path)
        total = lambda of: [one["write"] + one["close"] for one in of]
        say("write and close of 256 MiB while the PFS stalls: / while it does not", ratio(total(stalled), total(free)), 1.1, note=against(total(stalled), total(free)))
        for name in ("open to read", "stat"):
            say(f"{name} of a pending file while the PFS stalls", max(one[name] for one in stalled), None, "s", f"{ms(max(one[name] for one in free))} while it does not")
        say("stalled for 20 s: rename of a pending file waits", lost, 0, "s")
        say("creates stalled for 5 s: the next save waits", created, None, "s")


FIGURES = {name[7:]: call for name, call in list(globals().items()) if name.startswith("figure_")}


def interpreter():
    for name in ("torch2", "torch"):
        found = subprocess.run([f"{ROOT}/tests/venvs.sh", "--python", name], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.strip()
    return sys.executable


def main():
    global a
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME")
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--save", type=int, default=1024, help="MiB of a save (1024)")
    p.add_argument("--files", type=int, default=10_000, help="files of `many` and `recover` (10,000)")
    p.add_argument("--python", help="the job's interpreter")
    p.add_argument("--memory", default="/dev/shm", help="where the PFS lies")
    p.add_argument("--disk", default=tempfile.gettempdir(), help="where the tier on a disk lies")
    p.add_argument("--json", help="write the figures to this file")
    a = p.parse_args()
    if set(a.names) - set(FIGURES):
        p.error(f"names: {' '.join(FIGURES)}")
    a.save, a.python, tempfile.tempdir = a.save * MIB, a.python or interpreter(), a.memory
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in a.names or FIGURES:
        FIGURES[name]()
    if a.json:
        with open(a.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--worker"] else main()
