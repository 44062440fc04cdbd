#!/usr/bin/env python3
"""Benchmark of large shards that do not fit: later epochs of readers that go through them in order.

    cargo build --release --workspace
    benches/streaming.py [--turns N] [--ms 1,5] [--shards N] [--base DIR] [--json FILE]

32 shards of 32 MB behind slowfs, chunks of 1 MiB, a tier in memory for 55 %. A program of four
streams reads all shards in an order of its own in each epoch, 256 KiB at a time, and compares the
sum of each with that of the original. The first epoch fills the tier. Later ones count:

* `direct`: the program at the mount.
* `ideal`: at the mount, with four reads of 1 MiB ahead in each stream; shards that would fit in the
  tier are read from memory.
* `monarch`, and with `--base DIR` the binaries of another build as `base`.

The modes take turns; figures are medians of all later epochs. Processor time is that of the agent,
divided by the bytes that the PFS served.
"""
import argparse, json, os, random, shutil, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench
from chunks import Slowfs

SIZE, TIER, STREAMS = 32_000_000, 0.55, 4
PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
/* STREAMS AHEAD: reads lines "PATH SUM AHEAD" from standard input; each stream takes the next one. With AHEAD reads of 1 MiB under way, or with 0 by reads of 256 KiB. */
enum { PIECE = 1 << 20, READ = 256 << 10, MAX = 4096 };
static struct { char path[512]; uint64_t sum; int ahead; } files[MAX];
static int count, next_file, wrong;
static uint64_t sum_of(const char *b, size_t n) { uint64_t s = 0; for (size_t i = 0; i + 8 <= n; i += 8) { uint64_t w; memcpy(&w, b + i, 8); s += w; } for (size_t i = n & ~7ul; i < n; i++) s += (unsigned char)b[i]; return s; }
struct ahead { int fd, n, done; char *ring; ssize_t got[16]; pthread_t thread[16]; struct piece { struct ahead *a; off_t off; int at; } piece[16]; };
static void *fetch(void *v) { struct piece *p = v; p->a->got[p->at] = pread(p->a->fd, p->a->ring + (size_t)p->at * PIECE, PIECE, p->off); return 0; }
static uint64_t read_ahead(int fd, int n, off_t size) {
    static __thread struct ahead a; static __thread char *ring;
    uint64_t sum = 0; off_t asked = 0, off = 0;
    if (!ring) ring = aligned_alloc(4096, 16 * PIECE);
    a.fd = fd; a.ring = ring;
    while (off < size) {
        for (; asked < size && asked < off + (off_t)n * PIECE + PIECE; asked += PIECE) {
            int at = asked / PIECE % (n + 1);
            a.piece[at] = (struct piece){ &a, asked, at };
            pthread_create(&a.thread[at], 0, fetch, &a.piece[at]);
        }
        int at = off / PIECE % (n + 1);
        pthread_join(a.thread[at], 0);
        if (a.got[at] <= 0) return 0;
        sum += sum_of(ring + (size_t)at * PIECE, a.got[at]);
        off += PIECE;
    }
    return sum;
}
static void *stream(void *v) {
    char *b = aligned_alloc(4096, READ);
    for (;;) {
        int i = __atomic_fetch_add(&next_file, 1, __ATOMIC_RELAXED);
        if (i >= count) return 0;
        int fd = open(files[i].path, O_RDONLY);
        if (fd < 0) { perror(files[i].path); exit(1); }
        uint64_t sum = 0; ssize_t n;
        if (files[i].ahead) sum = read_ahead(fd, files[i].ahead, lseek(fd, 0, SEEK_END));
        else while ((n = read(fd, b, READ)) > 0) sum += sum_of(b, n);
        if (sum != files[i].sum) { fprintf(stderr, "wrong bytes in %s\n", files[i].path); __atomic_store_n(&wrong, 1, __ATOMIC_RELAXED); }
        close(fd);
    }
}
int main(int c, char **v) {
    int streams = atoi(v[1]); pthread_t t[64]; struct timespec a, b;
    while (count < MAX && scanf("%511s %lu %d", files[count].path, &files[count].sum, &files[count].ahead) == 3) count++;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < streams; i++) pthread_create(&t[i], 0, stream, 0);
    for (int i = 0; i < streams; i++) pthread_join(t[i], 0);
    clock_gettime(CLOCK_MONOTONIC, &b);
    printf("%.6f\n", (b.tv_sec - a.tv_sec) + (b.tv_nsec - a.tv_nsec) * 1e-9);
    return wrong;
}
"""
results = []


def say(name, value, target=None, unit="", note=""):
    ok = "" if target is None else "ok" if value <= target else "MISSED"
    results.append(dict(name=name, value=value, target=target, unit=unit, note=note))
    print(f"{name:58} {value:9.3f} {unit:7} {'-' if target is None else f'<= {target}':>9} {ok:6} {note}", flush=True)


def cpu(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make(root, shards):
    os.makedirs(root)
    sums = []
    for i in range(shards):
        data = os.urandom(SIZE)
        with open(f"{root}/s{i:03}", "wb") as f:
            f.write(data)
        os.utime(f"{root}/s{i:03}", (1_700_000_000, 1_700_000_000))
        words = memoryview(data[: len(data) & ~7]).cast("Q")
        sums.append((sum(words) + sum(data[len(data) & ~7 :])) % (1 << 64))
    return sums


class Epochs:
    """One mode: epochs of the program, and what they cost."""

    def __init__(self, prog, sums, pfs, mount, seed):
        self.prog, self.sums, self.pfs, self.mount = prog, sums, pfs, mount
        self.order, self.all = random.Random(seed), []

    def epoch(self, env, pids, where=lambda i, mount: (f"{mount}/s{i:03}", 0)):
        order = list(range(len(self.sums)))
        self.order.shuffle(order)
        lines = "".join("{} {} {}\n".format(where(i, self.mount)[0], self.sums[i], where(i, self.mount)[1]) for i in order)
        self.pfs.ctl("reset")
        before = [cpu(pid) for pid in pids]
        out = subprocess.run([self.prog, str(STREAMS)], input=lines, capture_output=True, text=True, env=env)
        if out.returncode:
            raise SystemExit(f"{out.stderr}")
        used = [cpu(pid) - was for pid, was in zip(pids, before)]
        c = self.pfs.counters()
        return dict(time=float(out.stdout), bytes=c["bytes_read"], reads=c["read"], cpu=used)


def under_monarch(binaries, run, shm, later, chunk):
    size = len(run.sums) * SIZE
    bench.BIN = binaries
    extra = ["--set", f"source.chunk_size={chunk}", "--set", "prefetch.ahead=all"]
    with bench.World(run.mount, f"{shm}/t:{int(size * TIER) >> 10}KiB", f"{shm}/run", extra=extra) as w:
        while w.status()["roots"][0]["state"] != "ready":
            time.sleep(0.02)
        env, pid = dict(os.environ, **w.env), w.status()["pid"]
        run.epoch(env, [])
        # Until prefetch has filled the tier.
        used = -1
        while (now := sum(t["used"] for t in w.status()["tiers"])) != used:
            used = now
            time.sleep(1)
        return [run.epoch(env, [pid, run.pfs.p.pid]) for _ in range(later)]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--turns", type=int, default=2)
    p.add_argument("--later", type=int, default=3)
    p.add_argument("--ms", default="1,5")
    p.add_argument("--shards", type=int, default=32)
    p.add_argument("--chunk", default="1MiB")
    p.add_argument("--base")
    p.add_argument("--json")
    a = p.parse_args()
    ours = bench.BIN
    with tempfile.TemporaryDirectory(prefix="monarch-bench-") as tmp:
        sums = make(f"{tmp}/data", a.shards)
        prog = f"{tmp}/streams"
        subprocess.run(["gcc", "-O2", "-w", "-pthread", "-x", "c", "-o", prog, "-"], input=PROGRAM, text=True, check=True)
        fits = int(a.shards * TIER)
        bound = (a.shards - a.shards * TIER) * SIZE
        for ms in a.ms.split(","):
            modes = {"direct": [], "ideal": [], "monarch": []} | ({"base": []} if a.base else {})
            for turn in range(a.turns):
                for mode, epochs in modes.items():
                    mount = f"{tmp}/{mode}{ms}{turn}"
                    pfs = Slowfs(f"{tmp}/data", mount, f"{ms}ms", "--cache", "direct")
                    run = Epochs(prog, sums, pfs, mount, turn)
                    shm = tempfile.mkdtemp(prefix="monarch-bench-", dir="/dev/shm")
                    try:
                        if mode == "direct":
                            epochs += [run.epoch(dict(os.environ), [pfs.p.pid]) for _ in range(1)]
                        elif mode == "ideal":
                            for i in range(fits):
                                shutil.copy(f"{tmp}/data/s{i:03}", shm)
                            where = lambda i, m: (f"{shm}/s{i:03}", 0) if i < fits else (f"{m}/s{i:03}", 4)
                            epochs += [run.epoch(dict(os.environ), [pfs.p.pid], where) for _ in range(a.later)]
                        else:
                            epochs += under_monarch(ours if mode == "monarch" else a.base, run, shm, a.later, a.chunk)
                    finally:
                        shutil.rmtree(shm, ignore_errors=True)
                        pfs.end()
            med = lambda mode, what: statistics.median(e[what] for e in modes[mode])
            for mode in modes:
                agent = f", agent {statistics.median(e['cpu'][0] for e in modes[mode]):.2f} CPU-s" if mode in ("monarch", "base") else ""
                server = statistics.median(e["cpu"][-1] for e in modes[mode])
                print(f"  {ms} ms, {mode}: {med(mode, 'time'):.2f} s {[round(e['time'], 2) for e in modes[mode]]}, {med(mode, 'bytes') / 1e6:.0f} MB in "
                      f"{med(mode, 'reads'):.0f} reads, slowfs {server:.2f} CPU-s{agent}", flush=True)
            for mode in [m for m in ("base", "monarch") if m in modes]:
                say(f"{ms} ms a call, {mode}: later epochs / direct", med(mode, "time") / med("direct", "time"), 0.35, "x")
                say(f"{ms} ms a call, {mode}: later epochs / ideal client", med(mode, "time") / med("ideal", "time"), 1.10, "x")
                say(f"{ms} ms a call, {mode}: bytes / what does not fit", med(mode, "bytes") / bound, None, "x")
                say(f"{ms} ms a call, {mode}: read calls / direct", med(mode, "reads") / med("direct", "reads"), None, "x")
                per = statistics.median(e["cpu"][0] * 1000 / (e["bytes"] / (1 << 20)) for e in modes[mode])
                say(f"{ms} ms a call, {mode}: agent's processor time", per, 0.4, "ms/MiB")
    if a.json:
        json.dump(results, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
