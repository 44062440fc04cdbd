#!/usr/bin/env python3
"""Many readers of one root on one node: files a second, times of a file, and whether all readers get
their share.

    cargo build --release --workspace
    benches/readers.py [--processes 32] [--threads 8] [--files 20000] [--bytes 16000] [--seconds 5] [--turns 3]
                       [--json FILE] [NAME...]

    cold      each reader reads files of its own, of which none has a copy: each is a demand
    herd      all readers read the same files in the same order, of which none has a copy
    hot       each reader reads any file, and all have copies
    direct    as cold, without Monarch
    local     as hot, of local files without Monarch

The source is slowfs, 1 ms a call. Prefetch is off, so that each first open is a demand. A line of the
result: files a second; times of a file (median, 90th, 99th and 99.9th percentile, longest); the mean
time of a file of the slowest reader against that of the median reader, and the fewest files of a reader
against the median; processor time of the agent for each file; readers that gave up waiting and read the
PFS; of the agent, most threads at a time, most private memory, times that a thread was given a processor
for each file.

    benches/readers.py --processes 8 --threads 1 --files 24 --bytes 67108864 --seconds 600 cold     large shards
"""
import argparse, glob, json, os, random, shutil, statistics, subprocess, sys, tempfile, threading

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import BIN, HERE, Slowfs, World, make_files

TICKS = os.sysconf("SC_CLK_TCK")


def build(to):
    subprocess.run(["gcc", "-O2", "-Wall", "-pthread", "-o", to, os.path.join(HERE, "readers.c")], check=True)


def cpu(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Watch:
    """Looks at an agent every 5 ms: most threads by name, most private memory, in MiB."""

    def __init__(self, pid):
        self.pid, self.threads, self.names, self.anon, self.done = pid, 0, {}, 0, threading.Event()
        self.began = self.runs()
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def runs(self):
        def of(path):
            try:
                return int(open(path).read().split()[2])
            except (OSError, IndexError):
                return 0
        return sum(map(of, glob.glob(f"/proc/{self.pid}/task/*/schedstat")))

    def look(self):
        while not self.done.wait(0.005):
            fields = dict(line.split(":", 1) for line in open(f"/proc/{self.pid}/status"))
            self.anon = max(self.anon, int(fields["RssAnon"].split()[0]) / 1024)
            if int(fields["Threads"]) > self.threads:
                self.threads, self.names = int(fields["Threads"]), self.by_name()

    def by_name(self):
        names = {}
        for path in glob.glob(f"/proc/{self.pid}/task/*/comm"):
            try:
                name = open(path).read().strip().rstrip("0123456789").rstrip("-")
            except OSError:
                continue
            names[name] = names.get(name, 0) + 1
        return names

    def end(self):
        self.done.set()
        self.thread.join()
        return dict(threads=self.threads, thread_names=self.names, anon_mib=self.anon, runs=self.runs() - self.began)


def read(program, names, args, way, env):
    with tempfile.NamedTemporaryFile("w", suffix=".list") as listed:
        listed.write("\n".join(names) + "\n")
        listed.flush()
        words = [program, listed.name, str(args.processes), str(args.threads), str(args.seconds), way]
        job = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ, **env))
        assert job.stdout.readline() == "ready\n"
        out, _ = job.communicate("\n")
    return json.loads(out)


def flat(values, at=""):
    """The numbers of a status, by their path."""
    for k, v in values.items():
        if isinstance(v, dict):
            yield from flat(v, f"{at}{k}.")
        elif isinstance(v, (int, float)) and not isinstance(v, bool):
            yield f"{at}{k}", v


def turn(name, program, args, tmp):
    names = [os.path.join(d, f).replace(f"{tmp}/data", f"{tmp}/mnt", 1) for d, _, fs in os.walk(f"{tmp}/data") for f in fs]
    random.Random(11).shuffle(names)
    if name == "local":
        local = [n.replace(f"{tmp}/mnt", f"{tmp}/data", 1) for n in names]
        return dict(read(program, local, args, "random", {}), gave_up=0, agent_us=0.0)
    tier, runtime = (tempfile.mkdtemp(prefix="monarch-bench-", dir="/dev/shm") for _ in range(2))
    slow = ("--cache", "direct", "--attr-ttl", "600s", "--meta-latency", args.latency, "--data-latency", args.latency)
    try:
        with Slowfs(f"{tmp}/data", f"{tmp}/mnt", *slow) as fs:
            if name == "direct":
                return dict(read(program, names, args, "own", {}), gave_up=0, agent_us=0.0)
            extra = ("--set", "prefetch.enabled=false", *(w for s in args.set for w in ("--set", s)))
            with World(f"{tmp}/mnt", f"{tier}/t:8GiB", runtime, extra=extra) as w:
                while w.status()["roots"][0]["state"] != "ready":
                    pass
                if name == "hot":
                    few = argparse.Namespace(**dict(vars(args), seconds=600))
                    read(program, names, few, "own", w.env)
                if name == "herd":
                    names = names[:max(1, len(names) // 16)]
                before, pid = w.status(), w.status()["pid"]
                used, watch = cpu(pid), Watch(pid)
                try:
                    seen = read(program, names, args, dict(cold="own", herd="same", hot="random")[name], w.env)
                finally:
                    watched = watch.end()
                used, after = cpu(pid) - used, w.status()
                seen.update(watched)
                old = dict(flat(before))
                seen["changed"] = {k: v - old.get(k, 0) for k, v in flat(after) if v != old.get(k, 0)}
                seen["gave_up"] = seen["changed"].get("counters.deadline", 0)
                seen["agent_us"] = used * 1e6 / max(1, seen["files"])
                return seen
    finally:
        shutil.rmtree(tier, ignore_errors=True)
        shutil.rmtree(runtime, ignore_errors=True)


def summary(seen):
    of = [r for r in seen["by_reader"] if r[0]]
    means, files = [r[1] for r in of], [r[0] for r in seen["by_reader"]]
    return dict(rate=seen["files"] / seen["seconds"], us=seen["us"], failed=seen["failed"],
                slowest=max(means) / statistics.median(means), fewest=min(files) / max(1, statistics.median(files)),
                agent_us=seen["agent_us"], gave_up=seen["gave_up"], threads=seen.get("threads", 0),
                anon=seen.get("anon_mib", 0), runs=seen.get("runs", 0) / max(1, seen["files"]),
                names=seen.get("thread_names", {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--files", type=int, default=20000)
    parser.add_argument("--bytes", type=int, default=16000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--latency", default="1ms", help="of each call to the source")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the agent")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("names", nargs="*", default=["direct", "cold", "herd", "local", "hot"], metavar="NAME")
    args = parser.parse_args()
    tmp, all_seen = tempfile.mkdtemp(prefix="monarch-bench-"), {}
    program = f"{tmp}/readers"
    try:
        build(program)
        make_files(f"{tmp}/data", args.files, args.bytes)
        for _ in range(args.turns):
            for name in args.names:
                all_seen.setdefault(name, []).append(turn(name, program, args, tmp))
        for name, turns in all_seen.items():
            of = sorted((summary(seen) for seen in turns), key=lambda s: s["rate"])[len(turns) // 2]
            print(f"{name:8} {of['rate']:9.0f} files/s  us {' '.join(f'{u:.0f}' for u in of['us'])}  slowest reader "
                  f"{of['slowest']:.2f}  fewest files {of['fewest']:.2f}  agent {of['agent_us']:.0f} us  gave up {of['gave_up']}  failed {of['failed']}",
                  flush=True)
            if of["threads"]:
                print(f"{'':8} {of['threads']} threads  {of['anon']:.1f} MiB private  {of['runs']:.1f} runs of a thread for each file  "
                      + " ".join(f"{n}:{c}" for n, c in sorted(of["names"].items(), key=lambda x: -x[1])), flush=True)
        if args.json:
            json.dump(all_seen, open(args.json, "w"), indent=1)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


if __name__ == "__main__":
    main()
