#!/usr/bin/env python3
"""Benchmarks of large files: the first pass while copies are made, and reads of resident chunks.

    cargo build --release --workspace
    benches/chunks.py [--turns N] [--json FILE] [NAME...]     names: shards resident

`shards`: 8 x 64 MiB behind slowfs (1 ms a call), read once with preads of 256 KiB by a program that
starts when the index exists and nothing was copied. Direct and Monarch take turns; the calls are
those that the PFS counted. `resident`: one file of 64 MiB, hot, a tier in memory. Under Monarch the
program's descriptor is always that of the PFS. `plain` is the same program on a file in the tier's
file system. Figures are medians over the turns.
"""
import argparse, json, os, shutil, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import BIN, ROOT, World

results = []
PASS = """
import os, sys, time
root, t = sys.argv[1], time.monotonic()
for name in sorted(os.listdir(root)):
    fd, off = os.open(f"{root}/{name}", os.O_RDONLY), 0
    while b := os.pread(fd, 262144, off):
        off += len(b)
    os.close(fd)
print(time.monotonic() - t)
"""


def say(name, value, target=None, unit="x", note=""):
    ok = "" if target is None else "ok" if value <= target else "MISSED"
    results.append(dict(name=name, value=value, target=target, unit=unit, note=note))
    print(f"{name:66} {value:9.3f} {unit:3} {'-' if target is None else f'<= {target}':>8} {ok:6} {note}", flush=True)


class Slowfs:
    def __init__(self, source, mount, latency, *options):
        os.makedirs(mount)
        self.p = subprocess.Popen([f"{BIN}/slowfs", "--meta-latency", latency, "--data-latency", latency, *options, source, mount],
                                  stdout=subprocess.PIPE, text=True)
        self.socket = self.p.stdout.readline().split()[-1]

    def ctl(self, *words):
        out = subprocess.run([f"{BIN}/slowfs", "ctl", self.socket, *words], capture_output=True, text=True, check=True).stdout
        return json.loads(out or "null")

    def counters(self):
        c = self.ctl("counters")
        return c.get("counters", c)

    def end(self):
        self.ctl("unmount")
        self.p.wait()


def make(root, files, size):
    os.makedirs(root)
    for i in range(files):
        with open(f"{root}/s{i}", "wb") as f:
            f.write(os.urandom(size))
        os.utime(f"{root}/s{i}", (1_700_000_000, 1_700_000_000))


def wait_ready(w):
    while w.status()["roots"][0]["state"] != "ready":
        time.sleep(0.02)


def shards(turns):
    with tempfile.TemporaryDirectory(prefix="monarch-bench-") as tmp:
        make(f"{tmp}/data", 8, 64 << 20)
        runs = {"direct": [], "on demand": [], "prefetch": []}
        for turn in range(turns):
            for how in runs:
                pfs = Slowfs(f"{tmp}/data", f"{tmp}/pfs{turn}{how[0:2]}", "1ms")
                mount, cmd = f"{tmp}/pfs{turn}{how[0:2]}", [sys.executable, "-c", PASS]
                shm = tempfile.mkdtemp(prefix="monarch-bench-", dir="/dev/shm")
                extra = ["--set", f"prefetch.enabled={'true' if how == 'prefetch' else 'false'}"]
                if how == "direct":
                    pfs.ctl("reset")
                    took = float(subprocess.run([*cmd, mount], capture_output=True, text=True, check=True).stdout)
                    runs[how].append((took, pfs.counters()))
                else:
                    with World(mount, f"{shm}/t:2GiB", f"{shm}/run", extra=extra) as w:
                        pfs.ctl("reset")
                        if how != "prefetch":
                            wait_ready(w)
                        env = dict(os.environ, **w.env)
                        took = float(subprocess.run([*cmd, mount], capture_output=True, text=True, check=True, env=env).stdout)
                        runs[how].append((took, pfs.counters()))
                pfs.end()
                shutil.rmtree(shm)
        med = lambda how: statistics.median(r[0] for r in runs[how])
        reads = lambda how: statistics.median(r[1]["read"] for r in runs[how])
        size = 8 * (64 << 20)
        for how in ("on demand", "prefetch"):
            say(f"8 x 64 MiB, first pass, {how}: time / direct", med(how) / med("direct"), 0.6, "x", f"{med(how):.2f} / {med('direct'):.2f} s")
            got = max(r[1]["bytes_read"] for r in runs[how]) / size
            say(f"8 x 64 MiB, first pass, {how}: bytes from the PFS / size", got, 1.0 if how == "on demand" else None)
            say(f"8 x 64 MiB, first pass, {how}: read calls / direct", reads(how) / reads("direct"), 0.125, "x",
                f"{reads(how):.0f} / {reads('direct'):.0f}")


SMALL = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
/* FILE SIZE COUNT LEAVE: median over 15 rounds of the time of a pread, at places all over the file but its last LEAVE bytes. */
int main(int c, char **v) {
    size_t n = atol(v[2]), leave = atol(v[4]);
    int k = atoi(v[3]), fd = open(v[1], O_RDONLY);
    size_t slots = (lseek(fd, 0, SEEK_END) - leave) / n;
    char *b = malloc(n);
    double best[15];
    for (size_t i = 0; i < slots; i++) if (pread(fd, b, n, i * n) != (ssize_t)n) return 1;
    usleep(300000);
    for (int r = 0; r < 15; r++) {
        double t = now();
        for (int i = 0; i < k; i++) if (pread(fd, b, n, (size_t)i * 7919 % slots * n) != (ssize_t)n) return 2;
        best[r] = (now() - t) / k;
    }
    for (int i = 0; i < 15; i++) for (int j = i; j < 15; j++) if (best[j] < best[i]) { double x = best[i]; best[i] = best[j]; best[j] = x; }
    printf("%.9f\n", best[7]);
}
"""


def resident(turns):
    with tempfile.TemporaryDirectory(prefix="monarch-bench-") as tmp, tempfile.TemporaryDirectory(prefix="monarch-bench-", dir="/dev/shm") as shm:
        make(f"{tmp}/data", 1, 64 << 20)
        shutil.copy(f"{tmp}/data/s0", f"{shm}/plain")
        prog = f"{tmp}/small"
        subprocess.run(["gcc", "-O2", "-w", "-x", "c", "-o", prog, "-"], input=SMALL, text=True, check=True)
        pfs = Slowfs(f"{tmp}/data", f"{tmp}/pfs", "0")
        run = lambda path, n, leave, env={}: float(subprocess.run([prog, path, str(n), str(400 if n > 65536 else 20000), str(leave)], capture_output=True,
                                                                 text=True, check=True, env=dict(os.environ, **env)).stdout)
        times = {}
        for turn in range(turns):
            for n in (262144, 512):
                times.setdefault(("plain", n), []).append(run(f"{shm}/plain", n, 0))
                for what, leave in (("partial copy", 32 << 20), ("complete copy", 0)):
                    with World(f"{tmp}/pfs", f"{shm}/t:1GiB", f"{shm}/run", extra=["--set", "prefetch.enabled=false"]) as w:
                        wait_ready(w)
                        pfs.ctl("reset")
                        times.setdefault((what, n), []).append(run(f"{tmp}/pfs/s0", n, leave, w.env))
                        c = pfs.counters()
                        # Some chunks are fetched ahead of a sequential reader.
                        assert c["bytes_read"] == 64 << 20 if leave == 0 else c["bytes_read"] <= 56 << 20, c
                    subprocess.run([f"{BIN}/monarch", "stop"], env=dict(os.environ, MONARCH_RUNTIME_DIR=f"{shm}/run"), capture_output=True)
                    shutil.rmtree(f"{shm}/t", ignore_errors=True)
                    shutil.rmtree(f"{shm}/run", ignore_errors=True)
        pfs.end()
        med = {k: statistics.median(v) * 1e6 for k, v in times.items()}
        for what in ("partial copy", "complete copy"):
            a, b = med[what, 262144], med["plain", 262144]
            say(f"pread of 256 KiB, {what} / plain local", a / b, 1.10, "x", f"{a:.1f} / {b:.1f} us")
            a, b = med[what, 512], med["plain", 512]
            say(f"pread of 512 B, {what} - plain local", a - b, 2.0, "us", f"{a:.2f} - {b:.2f} us")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--json")
    p.add_argument("names", nargs="*")
    a = p.parse_args()
    for name in a.names or ["shards", "resident"]:
        dict(shards=shards, resident=resident)[name](a.turns)
    if a.json:
        json.dump(results, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
