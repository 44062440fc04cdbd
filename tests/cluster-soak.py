#!/usr/bin/env python3
"""Eight nodes under random failures for as long as you like: every byte right, no job fails,
nothing grows.

    cargo build --release --workspace
    sudo tests/cluster-soak.py [MINUTES] [--seed S] [--nodes N] [--placement P]          default: 30 minutes

Beside the everyday suite. Agents are killed, stopped and woken, links are cut, slowed and joined,
jobs end and come back, at random but seeded moments; meanwhile a job on every node reads the whole
data set again and again and compares every byte. All links are whole and all agents awake at the
end; then everything must be shared again. Prints one object of JSON:

    actions           how often what was done
    bad               what the jobs found wrong, and jobs that did not end well: must be empty
    over_quota        tiers that were seen beyond their capacity: must be empty
    memory_kib        of the agents, resident: in the first tenth, in the last tenth, at most
    descriptors       of the agents: the same
    slowest_ms        slowest open, read and close of all jobs
    pfs               opens and bytes that the PFS saw, and how many data sets that is
    calm              opens that the PFS saw in each epoch since nothing fails any more: the last one must be 0

Status 0 when nothing was wrong, 1 otherwise. --alone leaves out the section `cluster`: a trial of
this script itself.
"""
import argparse, collections, json, os, random, signal, statistics, subprocess, sys, threading, time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "cluster"))
import net as nodes

SAMPLE = 2.0
MAX_CALM_EPOCHS = 20  # epochs until all must have settled


class Job:
    """The job of a node, which reads until it is ended."""

    def __init__(self, soak, i):
        self.soak, self.i, self.lines = soak, i, []
        soak.jobs_started += 1
        self.until = f"{soak.w.disk}/over.{soak.jobs_started}"
        a = soak.a
        words = nodes.reading(soak.w.root, i, a.nodes, a.files, a.size, "--until", self.until, "--pause", a.pause, "--order-seed", soak.jobs_started)
        self.process = soak.w.start(i, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.readers = [threading.Thread(target=self.drain, args=(f,), daemon=True) for f in (self.process.stdout, self.process.stderr)]
        for t in self.readers:
            t.start()

    def drain(self, stream):
        for line in stream:
            self.lines.append(line.rstrip())

    def epochs(self):
        return sum(line.startswith('{"epoch"') for line in list(self.lines))

    def end(self):
        """Tells it to end; what was wrong with it."""
        open(self.until, "w").close()
        try:
            status = self.process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            status = "none: it hung"
        for t in self.readers:
            t.join(5)
        self.soak.finished.append(self)
        said = [json.loads(line) for line in self.lines if line.startswith("{")]
        bad = [f"node {self.i}: {text}" for line in said for text in line.get("bad", [])]
        self.slowest = max((line["slowest_ms"] for line in said), default=0)
        if status:
            bad.append(f"node {self.i}: the job ended with {status}: " + " | ".join(t for t in self.lines if not t.startswith("{"))[-500:])
        return bad


class Watch(threading.Thread):
    """Memory, descriptors and tiers, every two seconds."""

    def __init__(self, soak):
        super().__init__(daemon=True)
        self.soak, self.rows, self.over_quota, self.done = soak, [], [], threading.Event()

    def look(self, i):
        pid = self.soak.w.agent(i)
        if self.soak.w.used(i) > self.soak.capacity:
            self.look_closely(i, pid)
        try:
            resident = next(int(line.split()[1]) for line in open(f"/proc/{pid}/status") if line.startswith("VmRSS"))
            return resident, len(os.listdir(f"/proc/{pid}/fd"))
        except (OSError, StopIteration):
            return None

    def look_closely(self, i, pid):
        """A walk sees copies that come and go: it counts only what is there while the agent does
        nothing."""
        was_stopped = pid is None or nodes.state(pid) == "T"
        if not was_stopped:
            nodes.kill(pid, signal.SIGSTOP)
        until = time.time() + 1
        while pid and nodes.state(pid) not in ("T", None) and time.time() < until:
            time.sleep(0.001)
        used, parts = self.soak.w.used(i), self.soak.w.used_by(i)
        if not was_stopped:
            nodes.kill(pid, signal.SIGCONT)
        if used > self.soak.capacity:
            self.over_quota.append(dict(node=i, at=round(self.soak.clock(), 1), used=used, parts=parts))

    def run(self):
        while not self.done.wait(SAMPLE):
            seen = [row for i in range(self.soak.a.nodes) if (row := self.look(i))]
            if seen:
                self.rows.append(seen)

    def figures(self, column):
        """Median in the first and the last tenth, and the greatest."""
        rows = [[row[column] for row in seen] for seen in self.rows]
        tenth = max(1, len(rows) // 10)
        part = lambda some: round(statistics.median(v for row in some for v in row)) if some else 0
        return dict(first=part(rows[:tenth]), last=part(rows[-tenth:]), most=max((v for row in rows for v in row), default=0))


class Soak:
    def __init__(self, a):
        self.a, self.rng = a, random.Random(a.seed)
        self.capacity = a.tier << 20
        self.jobs_started, self.finished, self.bad = 0, [], []
        self.actions, self.undo = collections.Counter(), []
        self.begun = time.monotonic()

    def clock(self):
        return time.monotonic() - self.begun

    def run(self):
        a = self.a
        lines = [f"placement: {a.placement}", "peer_timeout: 1s", "join_timeout: 5s"]
        with nodes.Net(a.nodes) as self.net, nodes.World(self.net, a.nodes, capacity=f"{a.tier}MiB", cluster=lines, alone=a.alone,
                                                         settings=a.set) as self.w:
            data = f"{self.w.disk}/data"
            nodes.make(data, a.files, a.size)
            self.data_bytes = sum(os.path.getsize(f"{d}/{f}") for d, _, fs in os.walk(data) for f in fs)
            self.pfs = nodes.Slowfs(data, self.w.root)
            try:
                return self.soak()
            finally:
                for i in range(a.nodes):
                    nodes.end(self.net.name(i))
                self.pfs.close()

    def soak(self):
        self.jobs = [Job(self, i) for i in range(self.a.nodes)]
        self.epochs(1, 600)
        watch = Watch(self)
        watch.start()
        until = self.clock() + self.a.minutes * 60
        # A job that ends by itself is reported at the end: continuing gains nothing.
        while self.clock() < until and all(job.process.poll() is None for job in self.jobs):
            time.sleep(self.rng.uniform(0.5, 3))
            self.undo_due()
            self.act()
        self.undo_due(everything=True)
        calm = self.calm()
        for job in self.jobs:
            self.bad += job.end()
        watch.done.set()
        watch.join()
        return self.report(watch, calm)

    def act(self):
        i, now = self.rng.randrange(self.a.nodes), self.clock()
        what = self.rng.choices(["kill", "stop", "cut", "slow", "job"], [4, 3, 3, 2, 2])[0]
        # One thing at a time on a node.
        if any(node == i for _, node, _ in self.undo):
            return
        self.actions[what] += 1
        if self.a.verbose:
            print(f"{now:8.1f} {what} {i}", file=sys.stderr, flush=True)
        if what in ("kill", "stop"):
            pid = self.w.agent(i)
            if pid is None:
                return
            nodes.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            if what == "stop":
                self.undo.append((now + self.rng.uniform(0.5, 10), i, lambda: nodes.kill(pid, signal.SIGCONT)))
        elif what == "cut":
            self.net.cut(i)
            self.undo.append((now + self.rng.uniform(0.5, 15), i, lambda: self.net.join(i)))
        elif what == "slow":
            self.net.rate(i, self.rng.choice([1, 5, 20]))
            self.undo.append((now + self.rng.uniform(2, 15), i, lambda: self.net.rate(i, 0)))
        else:
            self.bad += self.jobs[i].end()
            self.jobs[i] = Job(self, i)

    def undo_due(self, everything=False):
        due = [entry for entry in self.undo if everything or entry[0] <= self.clock()]
        self.undo = [entry for entry in self.undo if entry not in due]
        for _, _, back in due:
            back()

    def calm(self):
        """What the PFS sees of each epoch until it sees nothing of one, and of a few more at most."""
        opens, before = [], self.pfs.counters()["open"]
        while len(opens) < MAX_CALM_EPOCHS and (len(opens) < 3 or opens[-1]):
            after = self.epochs(1)["open"]
            opens.append(after - before)
            before = after
        if opens[-1]:
            self.bad.append(f"the PFS was still asked for {opens[-1]} files {len(opens)} epochs after the last failure")
        return opens

    def epochs(self, n, limit=180):
        """Waits until every job has read so many more epochs; what the PFS has counted then."""
        want = [job.epochs() + n for job in self.jobs]
        deadline = time.monotonic() + limit
        while any(job.epochs() < k for job, k in zip(self.jobs, want)):
            if any(job.process.poll() is not None for job in self.jobs):
                break
            if time.monotonic() > deadline:
                self.bad.append(f"no progress for {limit} s while nothing failed")
                break
            time.sleep(0.05)
        return self.pfs.counters()

    def report(self, watch, calm):
        pfs = self.pfs.counters()
        shares = round(pfs["bytes_read"] / self.data_bytes, 2)
        return dict(minutes=self.a.minutes, seed=self.a.seed, nodes=self.a.nodes, placement="alone" if self.a.alone else self.a.placement,
                    actions=dict(self.actions), jobs=self.jobs_started, epochs=sum(job.epochs() for job in self.finished), bad=self.bad[:50],
                    over_quota=watch.over_quota[:20], capacity=self.capacity, memory_kib=watch.figures(0), descriptors=watch.figures(1),
                    slowest_ms=max(job.slowest for job in self.finished), calm=calm,
                    pfs=dict(opens=pfs["open"], bytes=pfs["bytes_read"], data_sets=shares))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("minutes", type=float, nargs="?", default=30)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--nodes", type=int, default=8)
    p.add_argument("--placement", default="hybrid", choices=("sharded", "replicated", "hybrid"))
    p.add_argument("--files", type=int, default=400)
    p.add_argument("--size", type=int, default=40_000, help="mean size of a file")
    p.add_argument("--tier", type=int, default=12, metavar="MIB", help="capacity of each node's tier (the data set has 16 MB)")
    p.add_argument("--pause", type=float, default=5, metavar="MS", help="after each read of a job")
    p.add_argument("--alone", action="store_true")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of Monarch")
    p.add_argument("--verbose", action="store_true", help="say what is done when, on standard error")
    a = p.parse_args()
    # Ended from outside, everything is still cleared away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    figures = Soak(a).run()
    print(json.dumps(figures, indent=1))
    return 1 if figures["bad"] or figures["over_quota"] else 0


if __name__ == "__main__":
    sys.exit(main())
