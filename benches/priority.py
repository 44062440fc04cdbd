#!/usr/bin/env python3
"""What a lower priority of prefetch would give a job that keeps every processor busy, and cost it.

    cargo build --release --workspace
    benches/priority.py [--turns N] [--files N] [--reads N] [--json FILE] [SETTING...]

As many processes as processors compute, and one more process reads files that are being prefetched,
in shuffled order, with half a millisecond of work after each. Prefetch runs on rings only, demands
on copiers, so this script can change the priority of prefetch alone, from outside: that of the
rings, before any file is copied (the kernel's workers inherit it). Settings take turns in an order
by chance; figures are medians over the turns.

Processes that no control group of processors holds are scheduled by session, where the kernel does
that (`sched_autogroup_enabled`). The agent has a session of its own, and its nice value would count
among its own threads only. So the script makes a control group, which needs root.
"""
import argparse, json, os, random, shutil, signal, statistics, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench import make_files
from engine import SHM, Agent

BYTES, WORK = 50000, 0.0005
SETTINGS = {
    "usual": lambda tid: None,
    "SCHED_BATCH": lambda tid: os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0)),
    "nice 5": lambda tid: os.setpriority(os.PRIO_PROCESS, tid, 5),
    "nice 10": lambda tid: os.setpriority(os.PRIO_PROCESS, tid, 10),
    "nice 19": lambda tid: os.setpriority(os.PRIO_PROCESS, tid, 19),
}


def compute():
    x = 0
    while True:
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF


def cpu_of(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read(root, reads):
    """The job: waits for its input, reads, and writes what it has seen."""
    names = [os.path.join(d, name) for d, _, files in os.walk(root) for name in files]
    random.Random(7).shuffle(names)
    print("ready", flush=True)
    sys.stdin.readline()
    busy = []
    for _ in range(os.cpu_count()):
        pid = os.fork()
        if pid == 0:
            compute()
        busy.append(pid)
    took, start = [], time.time()
    for name in names[:reads]:
        begun = time.time()
        with open(name, "rb") as f:
            f.read()
        took.append(time.time() - begun)
        until = time.time() + WORK
        while time.time() < until:
            pass
    seconds = time.time() - start
    computed = sum(cpu_of(pid) for pid in busy)
    for pid in busy:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    took.sort()
    print(json.dumps(dict(seconds=seconds, stall=sum(took), median_us=took[len(took) // 2] * 1e6,
                          p99_ms=took[len(took) * 99 // 100] * 1e3, worst_ms=took[-1] * 1e3,
                          computed=computed / seconds)), flush=True)
    sys.stdin.read()


def turn(root, reads, change):
    job = (sys.executable, os.path.abspath(__file__), "--reads", str(reads), "--reader", root)
    with Agent(root, ["io.engine=uring"], job=job, output=subprocess.PIPE) as agent:
        tasks = f"/proc/{agent.pid}/task"
        rings = [int(tid) for tid in os.listdir(tasks) if open(f"{tasks}/{tid}/comm").read().startswith("ring-")]
        assert rings, "no rings: is io_uring allowed here?"
        for tid in rings:
            change(tid)
        assert agent.job.stdout.readline() == b"ready\n"
        before = agent.cpu()
        agent.ask({"op": "prefetch", "ranges": [{"segment": 0, "from": 0, "end": agent.entries + 1}]})
        agent.job.stdin.write(b"\n")
        agent.job.stdin.flush()
        seen = json.loads(agent.job.stdout.readline())
        seen["agent_cpu"] = agent.cpu() - before
        seen["copied_ahead"] = agent.status()["agent"]["copied_ahead"]
        return seen


def join_group():
    """Leaves the session's scheduling group, for one that the agent shares."""
    for top in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup"):
        try:
            group = f"{top}/monarch-bench-{os.getpid()}"
            os.mkdir(group)
            open(f"{group}/cgroup.procs", "w").write(str(os.getpid()))
            return group
        except OSError:
            continue
    print("no control group can be made: nice values may count among the agent's threads only", file=sys.stderr)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--files", type=int, default=24000)
    parser.add_argument("--reads", type=int, default=2500)
    parser.add_argument("--json")
    parser.add_argument("settings", nargs="*", default=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reader:
        return read(args.reader, args.reads)
    group, root = join_group(), tempfile.mkdtemp(prefix="monarch-bench-", dir="/var/tmp")
    try:
        make_files(root, args.files, BYTES)
        seen = {name: [] for name in args.settings}
        for _ in range(args.turns):
            for name in random.sample(args.settings, len(args.settings)):
                seen[name].append(turn(root, args.reads, SETTINGS[name]))
        medians = {name: {k: statistics.median(s[k] for s in of) for k in of[0]} for name, of in seen.items()}
        for name, m in medians.items():
            print(f"{name:12}", "  ".join(f"{k} {v:.2f}" for k, v in m.items()))
        if args.json:
            json.dump(medians, open(args.json, "w"), indent=1)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        if group:
            open(f"{os.path.dirname(group)}/cgroup.procs", "w").write(str(os.getpid()))
            os.rmdir(group)


if __name__ == "__main__":
    main()
