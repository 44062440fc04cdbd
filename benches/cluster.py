#!/usr/bin/env python3
"""Benchmarks of nodes that share copies, against a real PFS, the wire, and a bare round trip. Needs
root.

    cargo build --release --workspace
    sudo benches/cluster.py [--turns N] [--json FILE] [NAME...]        names: cold later index scan remote imports weights
                                                                       broadcast batches

Nodes are network namespaces with a link each. All of them share the processors of this machine, so
that figures of many nodes are ratios to a baseline that ran on the same processors in the same
minutes, in turns. A figure is a median over the turns.

    cold     8 nodes read 100 KB files of a GlusterFS whose server has a link of 1 Gbit/s, one epoch,
             each node all files in an order of its own: `monarch run` with empty tiers, divided by the
             same job without Monarch. Each node has a mount of its own at one path. Time from the start
             of all jobs to the end of the last. Installs nothing: needs glusterd and glusterfs.
    later    epochs 2 and 3 of a sharded data set on 8 nodes with links of 100 Mbit/s, divided by the time
             that the links need for the bytes that other nodes own: seven eighths of the data set into
             every node.
    index    1.28 M files, 16 agents: from the end of the only scan until all agents have the index. 2 GB
             for the tree and about 3 GB for the indexes, in memory; MONARCH_BENCH_FILES is another number
             of files.
    scan     500 directories of ten files behind a PFS of 20 ms a call, on 4 and 16 nodes: from the
             election of the scanner until it has the index, with `index.shared_scan` divided by without.
    remote   100 KB that the other node has, minus a round trip and transfer of 100 KB over the same link
             by a bare TCP client: the cost of asking, finding, checking and keeping the copy. With pauses,
             in which processors fall asleep, and without. The reading node owns half of the files: the
             first and the third quartile of all reads are the medians of local and remote reads.

    batches  5,000 files of 4 KiB, and of 20 KiB, that one node has and another one prefetches: files a
             second and processor time of both agents, several files with a request (`cluster.batch_files`)
             divided by one with each, in turns.

    imports  8 processes on each of 8 nodes import numpy from an environment on a PFS of 1 ms a call
             (`tests/venvs.sh torch2`): opens and failed lookups that the PFS counted, of jobs without
             Monarch, with empty tiers, and again with their copies.
    weights  one file of 2 GiB that 8 nodes map at once and read whole: bytes that the PFS sent. 16 GiB
             of disk.
    broadcast  one file of 128 MiB that 16 nodes with links of 1 Gbit/s, and of 100 Mbit/s, read at once:
             time of the slowest node, divided by the time that one link needs for the file; the most
             that a node sent.

`--alone` leaves out the section `cluster`, to check this script: the ratios are then those of nodes
that do not share copies.
"""
import argparse, datetime, glob, json, os, shutil, statistics, subprocess, sys, time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "cluster"))
import net as nodes
from gluster import Gluster

results = []
QUICK = ["wait.pickup=1s"]


def say(name, value, target=None, unit="", note=""):
    ok = "" if target is None else "ok" if value <= target else "MISSED"
    results.append(dict(name=name, value=value, target=target, unit=unit, note=note))
    print(f"{name:84} {value:9.3f} {unit:5} target {'-' if target is None else f'{target:.3g}':>5} {ok:6} {note}", flush=True)


def med(rows):
    return statistics.median(rows)


def lines_of(job):
    """The epochs that a job reports; it must have succeeded."""
    out, err = job.communicate(timeout=900)
    if job.returncode:
        raise SystemExit(f"a job ended with {job.returncode}: {out[-500:]}{err[-500:]}")
    return [line for text in out.splitlines() if text.startswith('{"epoch"') for line in [json.loads(text)]]


def run_all(w, a, n, *words, bare=False):
    """The same job on all nodes: seconds until the last has ended, and their epochs."""
    start = time.perf_counter()
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    jobs = [w.start(i, nodes.reading(w.root, i, n, a.files, a.size, "--seed", "", *words), bare=bare, **pipes) for i in range(n)]
    epochs = [lines_of(job) for job in jobs]
    return time.perf_counter() - start, epochs


def indexed(w, jobs, since):
    """Waits until the agents of all jobs have the index. Returns when the first and the last had
    it, by their logs. (Polling sixteen agents would take time of the processors that they
    share.)"""
    ready, end = {}, time.time() + 900
    while len(ready) < len(jobs):
        for i in set(range(len(jobs))) - set(ready):
            if jobs[i].poll() is not None:
                raise SystemExit(f"the job of node {i} ended with {jobs[i].returncode}: {jobs[i].stderr.read()[-2000:]}")
            for path in glob.glob(f"{w.runtime(i)}/**/agent.log", recursive=True):
                with open(path) as f:
                    times = [datetime.datetime.fromisoformat(line.split()[0]).timestamp() for line in f if ": root ready" in line]
                ready.update((i, t) for t in times if t >= since)
        if time.time() > end:
            raise SystemExit(f"no index on nodes {sorted(set(range(len(jobs))) - set(ready))} after 15 minutes")
        time.sleep(0.1)
    return min(ready.values()), max(ready.values())


def settled(w, n):
    """Waits until agents have ended and their copies are gone: the next turn starts cold."""
    nodes.when("the end of the agents", lambda: all(w.agent(i) is None for i in range(n)), 60)
    for i in range(n):
        shutil.rmtree(w.tier(i), ignore_errors=True)


def cold(a):
    if not shutil.which("glusterd") or not shutil.which("glusterfs"):
        return print("cold: skipped, GlusterFS is not installed (Debian: glusterfs-server glusterfs-client)")
    n = a.nodes
    with nodes.Net(n + 1) as net, nodes.World(net, n, capacity="1GiB", cluster=[f"placement: {a.placement}"], alone=a.alone, settings=QUICK) as w:
        with Gluster(net, n, f"{w.disk}/gluster") as pfs:
            for i in range(n):
                pfs.mount(w, i)
            # Through a mount: files written to the brick itself lack the attributes that GlusterFS
            # keeps.
            subprocess.run([*w.enter[0], nodes.PYTHON, nodes.NODES_PY, "make", w.root, "--files", str(a.files), "--size", str(a.size), "--exact"], check=True)
            net.rate(n, a.server)
            direct, ours, moved = [], [], {True: [], False: []}
            for _ in range(a.turns):
                for bare, rows in ((True, direct), (False, ours)):
                    before = sent(net, n)
                    rows.append(run_all(w, a, n, "--epochs", 1, "--exact", "--workers", a.workers, bare=bare)[0])
                    moved[bare].append((sent(net, n) - before) / (a.files * a.size))
                    settled(w, n)
            note = f"{med(ours):.2f} / {med(direct):.2f} s; the server sent {med(moved[False]):.2f} / {med(moved[True]):.2f} data sets"
            say(f"cold, {n} nodes, {a.files} x {a.size // 1000} KB, GlusterFS {a.server} Mbit/s: / direct", med(ours) / med(direct), 1 / 6, "x", note)


def sent(net, node):
    return json.loads(nodes.ip(f"-n {net.name(node)} -s -j link show eth0"))[0]["stats64"]["tx"]["bytes"]


def later(a):
    n, mbit = a.nodes, a.link
    share = a.files * (a.size + 4096) // n
    # Space for the files that a node owns, unevenly spread, and an eighth for transient copies:
    # twice what its readers read at a time.
    room = max(int(share * 1.5), 16 * a.workers * (a.size + 4096))
    plan = dict(capacity=f"{max(4, room >> 20)}MiB", cluster=["placement: sharded", "peer_timeout: 20s"],
                settings=["wait.pickup=5s", "wait.stall=20s"])
    ratios, notes, opens = [], [], []
    for _ in range(a.turns):
        with nodes.Net(n) as net, nodes.World(net, n, alone=a.alone, **plan) as w:
            nodes.make(f"{w.disk}/data", a.files, a.size, "--exact")
            pfs = nodes.Slowfs(f"{w.disk}/data", w.root)
            for i in range(n):
                net.rate(i, mbit)
            os.mkdir(f"{w.disk}/barrier")
            try:
                _, epochs = run_all(w, a, n, "--epochs", 3, "--exact", "--workers", a.workers, "--barrier", f"{w.disk}/barrier", "--patience", 600)
                opens.append(pfs.counters()["open"] / a.files)
            finally:
                for i in range(n):
                    nodes.end(net.name(i))
                pfs.close()
            took = statistics.mean(max(rank[e]["seconds"] for rank in epochs) for e in (1, 2))
            limit = a.files * a.size * (n - 1) / n * 8 / (mbit * 1e6)
            ratios.append(took / limit)
            notes.append((took, limit))
    say(f"later epochs, {n} nodes, sharded, {mbit} Mbit/s: / wire", med(ratios), 1 / 0.9, "x",
        f"{med([t for t, _ in notes]):.2f} / {med([limit for _, limit in notes]):.2f} s; PFS opens {med(opens):.2f} per file")


def tree(directory, files):
    """Files of few bytes, a thousand in a directory."""
    for d in range(files // 1000):
        os.makedirs(f"{directory}/{d:05}")
        for i in range(1000):
            with open(f"{directory}/{d:05}/{i:04}.bin", "wb"):
                pass


def index(a):
    n, files = 16, int(os.environ.get("MONARCH_BENCH_FILES", 1_280_000))
    sets = ["prefetch.enabled=false", "index.max_memory=2GiB"]
    took, scans, whole = [], [], []
    with nodes.Net(n) as net, nodes.World(net, n, alone=a.alone, settings=sets) as w:
        # In memory, behind slowfs: the scan is slow, but only counted; the figure does not include
        # it.
        data = f"{w.shm}/data"
        tree(data, files)
        for _ in range(a.turns):
            pfs = nodes.Slowfs(data, w.root)
            try:
                start = time.time()
                pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                jobs = [w.start(i, ["cat"], **pipes) for i in range(n)]
                first, last = indexed(w, jobs, start)
                took.append(last - first)
                whole.append(last - start)
                scans.append(pfs.counters()["opendir"] / (files // 1000 + 1))
                for job in jobs:
                    job.stdin.close()
                    job.wait()
                settled(w, n)
            finally:
                for i in range(n):
                    nodes.end(net.name(i))
                pfs.close()
    say(f"index of {files:,} files, scan's end to {n} agents ready", med(took), 5, "s", f"from the start {med(whole):.1f} s")
    say("  scans of the PFS", med(scans), 1.1, "", "agents look at the root itself, too")


def scan(a):
    dirs, files, threads = int(os.environ.get("MONARCH_BENCH_DIRS", 500)), 10, 8
    every = dirs + -(-dirs // 20) + 1
    for n in (4, 16):
        took, listed, helped = {True: [], False: []}, [], []
        for _ in range(a.turns):
            for shared in (False, True):
                sets = ["prefetch.enabled=false", f"index.scan_threads={threads}", f"index.shared_scan={str(shared).lower()}"]
                with nodes.Net(n) as net, nodes.World(net, n, alone=a.alone, settings=sets) as w:
                    for d in range(dirs):
                        at = f"{w.shm}/data/{d // 20:03}/{d % 20:02}"
                        os.makedirs(at)
                        for i in range(files):
                            open(f"{at}/{i:04}.bin", "wb").close()
                    # (A call for each name.)
                    pfs = nodes.Slowfs(f"{w.shm}/data", w.root, "--meta-latency", "20ms", "--no-readdirplus")
                    try:
                        start = time.time()
                        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                        jobs = [w.start(i, ["cat"], **pipes) for i in range(n)]
                        indexed(w, jobs, start)
                        opened = pfs.counters()["opendir"]
                        seconds, by_others = scanned(w, n)
                        took[shared].append(seconds)
                        if shared:
                            listed.append((opened - 4 * n) / every)
                            helped.append(by_others / every)
                        for job in jobs:
                            job.stdin.close()
                            job.wait()
                    finally:
                        for i in range(n):
                            nodes.end(net.name(i))
                        pfs.close()
        say(f"scan of {dirs:,} directories x {files}, 20 ms a call, {threads} threads, {n} nodes: shared / one", med(took[True]) / med(took[False]), None, "x",
            f"{med(took[True]):.2f} / {med(took[False]):.2f} s; {med(helped):.0%} by others")
        say("  each directory listed, at most", med(listed), 1.01, "", "agents look at the root itself, too")


def scanned(w, n):
    """Seconds of the scan, and the directories of it that other nodes have read, by the log of the
    node that scanned."""
    for i in range(n):
        for path in glob.glob(f"{w.runtime(i)}/**/agent.log", recursive=True):
            with open(path) as f:
                text = f.read()
            if "index of another node" not in text:
                line = next(line for line in text.splitlines() if ": root ready" in line)
                fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
                return float(fields["seconds"]), int(fields["helped"])
    raise SystemExit("no node has scanned")


def numbers(pfs, before):
    after = pfs.counters()
    return {k: after[k] - before.get(k, 0) for k in after}


def together(w, n, words, bare=False):
    """The same command on all nodes: seconds until the last has ended."""
    start = time.perf_counter()
    jobs = [w.start(i, words, bare=bare, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for i in range(n)]
    for job in jobs:
        _, err = job.communicate(timeout=900)
        if job.returncode:
            raise SystemExit(f"a job ended with {job.returncode}: {err[-1000:]}")
    return time.perf_counter() - start


def kept(w, n):
    """A job on each node that keeps its agent, once all have the index."""
    start = time.time()
    jobs = [w.start(i, ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for i in range(n)]
    indexed(w, jobs, start)
    return jobs


def imports(a):
    n, each = a.nodes, 8
    venv = os.path.expanduser("~/.cache/monarch/venv-torch2")
    if not os.path.exists(f"{venv}/bin/python"):
        return print("imports: skipped, there is no environment (tests/venvs.sh torch2)")
    script = f'for i in $(seq {each}); do "$1" -c "import numpy" & done; wait'
    with nodes.Net(n) as net, nodes.World(net, n, capacity="1GiB", cluster=["placement: hybrid"], alone=a.alone, settings=["wait.pickup=5s", "wait.stall=20s"]) as w:
        words = ["sh", "-c", script, "sh", f"{w.root}/bin/python"]
        seen = {}
        for mode in ("direct", "cold", "warm"):
            if mode != "warm":
                pfs = nodes.Slowfs(venv, w.root, "--meta-latency", "1ms", "--data-latency", "1ms", cache="keep")
            try:
                keepers = kept(w, n) if mode == "cold" else []
                before = pfs.counters()
                took = together(w, n, words, bare=mode == "direct")
                seen[mode] = dict(numbers(pfs, before), seconds=took)
            finally:
                if mode != "cold":
                    for i in range(n):
                        nodes.end(net.name(i))
                    pfs.close()
        files = seen["direct"]["open"] / (n * each)
        for mode in ("cold", "warm"):
            of, direct = seen[mode], seen["direct"]
            note = f"{of['open']} opens, {of['errors']} failed lookups, {of['lookup'] + of['getattr']} lookups and getattrs, {of['seconds']:.1f} s; direct {direct['open']}, {direct['errors']}, {direct['lookup'] + direct['getattr']}, {direct['seconds']:.1f} s"
            say(f"imports of numpy, {n * each} processes on {n} nodes, {mode}: PFS opens per file that one opens", of["open"] / files, 1, "x", note)
            say("  failed lookups / direct", of["errors"] / direct["errors"], 0.01, "x")


def model(w, size, **how):
    """A PFS with one file of random bytes, `model.safetensors`."""
    os.mkdir(f"{w.disk}/data")
    with open(f"{w.disk}/data/model.safetensors", "wb") as f:
        for _ in range(size >> 20):
            f.write(os.urandom(1 << 20))
    return nodes.Slowfs(f"{w.disk}/data", w.root, **how)


def weights(a):
    n, size = a.nodes, 2 << 30
    code = "import mmap,os,sys; f=os.open(sys.argv[1],os.O_RDONLY); m=mmap.mmap(f,0,prot=mmap.PROT_READ); print(sum(m[i] for i in range(0,len(m),4096)))"
    with nodes.Net(n) as net, nodes.World(net, n, capacity="3GiB", cluster=["placement: hybrid", "peer_timeout: 20s"], alone=a.alone, disk=True,
                                          settings=["wait.pickup=5s", "wait.stall=20s", "wait.map=10m"]) as w:
        pfs = model(w, size, cache="keep")
        try:
            keepers = kept(w, n)
            before = pfs.counters()
            took = together(w, n, [nodes.PYTHON, "-c", code, f"{w.root}/model.safetensors"])
            of = numbers(pfs, before)
            for keeper in keepers:
                keeper.stdin.close()
        finally:
            for i in range(n):
                nodes.end(net.name(i))
            pfs.close()
    say(f"2 GiB that {n} nodes map and read whole at once: bytes from the PFS", of["bytes_read"] / size, 1, "x", f"{took:.1f} s, {of['open']} opens")


def sent(net, node):
    """Bytes that a node has sent over its link."""
    return json.loads(nodes.ip(f"-n {net.name(node)} -s -j link show eth0"))[0]["stats64"]["tx"]["bytes"]


def broadcast(a):
    for mbit in (1000, 100):
        broadcast_over(a, mbit)


def broadcast_over(a, mbit):
    n, size = 16, 128 << 20
    code = "import hashlib,sys; print(hashlib.file_digest(open(sys.argv[1],'rb'),'sha1').hexdigest())"
    wire, ratios, most, once = size * 8 / mbit / 1e6, [], [], []
    for _ in range(a.turns):
        with nodes.Net(n) as net, nodes.World(net, n, capacity="256MiB", cluster=["placement: hybrid", "peer_timeout: 20s"], alone=a.alone,
                                              settings=["wait.pickup=5s", "wait.stall=20s"]) as w:
            pfs = model(w, size)
            try:
                keepers = kept(w, n)
                for node in range(n):
                    net.rate(node, mbit)
                before, links = pfs.counters(), [sent(net, node) for node in range(n)]
                ratios.append(together(w, n, [nodes.PYTHON, "-c", code, f"{w.root}/model.safetensors"]) / wire)
                most.append(max(sent(net, node) - links[node] for node in range(n)) / size)
                once.append(numbers(pfs, before)["bytes_read"] / size)
                for keeper in keepers:
                    keeper.stdin.close()
            finally:
                for i in range(n):
                    nodes.end(net.name(i))
                pfs.close()
    say(f"128 MiB that {n} nodes read at once over {mbit} Mbit/s: time / the wire's", med(ratios), 1.5, "x", f"{med(ratios) * wire:.1f} / {wire:.1f} s")
    say("  most that a node sent / the file", med(most), 1.2, "x")
    say("  bytes from the PFS / the file", med(once), 1, "x")


SERVER = """import socket, sys
s, block = socket.create_server((sys.argv[1], 7001)), bytes(int(sys.argv[2])); print('ready', flush=True)
c = s.accept()[0]; c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while c.recv(100): c.sendall(block)"""
CLIENT = """import socket, sys, time
c = socket.create_connection((sys.argv[1], 7001)); c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
size, buf, out = int(sys.argv[2]), bytearray(1 << 20), []
for _ in range(500):
    t, n = time.perf_counter(), 0
    c.sendall(b'x' * 100)
    while n < size: n += c.recv_into(buf)
    out.append(time.perf_counter() - t)
    if sys.argv[3] != '0': time.sleep(int(sys.argv[3]) / 1000)
out.sort(); print(out[len(out) // 2] * 1000)"""


def bare_transfer(net, size, pause):
    """Median milliseconds of 500 requests, each answered with `size` bytes, over an open
    connection."""
    server = subprocess.Popen([*net.inside(1), nodes.PYTHON, "-c", SERVER, net.address(1), str(size)], stdout=subprocess.PIPE, text=True)
    server.stdout.readline()
    client = subprocess.run([*net.inside(0), nodes.PYTHON, "-c", CLIENT, net.address(1), str(size), str(pause)], capture_output=True, text=True, check=True)
    server.wait()
    return float(client.stdout)


def remote(a):
    files, size = 1200, 100_000
    # Space for the files that a node owns; each epoch fetches most of the others again.
    plan = dict(cluster=["placement: sharded"], capacity="128MiB", settings=["prefetch.enabled=false", "wait.pickup=1s"])
    rows = {pause: [] for pause in (2, 0)}
    for _ in range(a.turns):
        with nodes.Net(2) as net, nodes.World(net, 2, alone=a.alone, **plan) as w:
            nodes.make(f"{w.disk}/data", files, size, "--exact")
            pfs = nodes.Slowfs(f"{w.disk}/data", w.root)
            read = lambda i, pause, epochs: w.start(i, ["sh", "-c", 'read -r line; exec "$@"', "sh", *nodes.reading(
                w.root, i, 2, files, size, "--exact", "--seed", "", "--epochs", epochs, "--pause", pause)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

            def go(job):
                job.stdin.write("\n")
                job.stdin.flush()
                return lines_of(job)

            try:
                start = time.time()
                jobs = {(1, 0): read(1, 0, 1), (0, 2): read(0, 2, 2), (0, 0): read(0, 0, 3)}
                indexed(w, [jobs[0, 2], jobs[1, 0]], start)
                keeper = read(1, 0, 1)
                # Node 1 reads everything: now every owner has its files.
                go(jobs[1, 0])
                for pause in rows:
                    before, bare = pfs.counters()["open"], bare_transfer(net, size, pause)
                    local, _, far = go(jobs[0, pause])[-1]["quartiles_ms"]
                    rows[pause].append((far - bare, far, bare, local, (pfs.counters()["open"] - before) / files))
                go(keeper)
            finally:
                for i in range(2):
                    nodes.end(net.name(i))
                pfs.close()
    for pause, seen in rows.items():
        added, far, bare, local, opens = (med(column) for column in zip(*seen))
        how = "2 ms between reads" if pause else "one read after the other"
        say(f"remote hit of 100 KB, added to round trip and transfer; {how}", added, 0.15, "ms",
            f"{far:.3f} - {bare:.3f} ms, local {local:.3f} ms; PFS opens {opens:.2f} per file")


def copies(w, i):
    """When the first and the last of a node's copies got its name, and how many there are."""
    times = [e.stat(follow_symlinks=False).st_ctime for d in glob.glob(f"{w.tier(i)}/*/copies/*") for e in os.scandir(d)]
    return (min(times), max(times), len(times)) if times else (0, 0, 0)


def processor_s(pid):
    """Processor time that a process has had, user and system."""
    with open(f"/proc/{pid}/stat") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def prefetched(size, files, batch):
    """Seconds in which a node gets all files of another one, and the processor time of both agents:
    that of the one that has them, and that of the other one since it has the index."""
    cluster = ["placement: replicated", f"batch_files: {batch}"]
    with nodes.Net(2) as net, nodes.World(net, 2, capacity="1GiB", cluster=cluster, settings=["prefetch.ahead=all"]) as w:
        nodes.make(f"{w.disk}/data", files, size, "--exact")
        w.root = f"{w.disk}/data"
        for i in range(2):
            w.configure(i)
        keep = lambda i: w.start(i, ["sh", "-c", "read -r line"], stdin=subprocess.PIPE)
        has_all = lambda i: lambda: (w.status(i) or {}).get("tiers", [{}])[0].get("files") == files
        try:
            keepers = [keep(0)]
            nodes.when("the first node's copies", has_all(0))
            before = processor_s(w.agent(0))
            keepers.append(keep(1))
            nodes.when("the second node's copies", has_all(1))
            first, last, number = copies(w, 1)
            assert number == files, number
            used = processor_s(w.agent(0)) - before, processor_s(w.agent(1))
            for keeper in keepers:
                keeper.stdin.close()
            return last - first, *used
        finally:
            for i in range(2):
                nodes.end(net.name(i))


def batches(a):
    files = 5000
    for size in (4096, 20480):
        rows = {batch: [] for batch in (64, 1)}
        for _ in range(a.turns):
            for batch, seen in rows.items():
                seen.append(prefetched(size, files, batch))
        (took, owner, asker), (took1, owner1, asker1) = ([med(column) for column in zip(*rows[batch])] for batch in (64, 1))
        say(f"{files:,} files of {size >> 10} KiB from another node, in batches / one by one: files a second", took1 / took, None, "x",
            f"{files / took:.0f} / {files / took1:.0f}")
        say("  processor time of the agent that sends them", owner / owner1, None, "x", f"{owner:.2f} / {owner1:.2f} s")
        say("  processor time of the agent that gets them", asker / asker1, None, "x", f"{asker:.2f} / {asker1:.2f} s")


def main():
    everything = dict(cold=cold, later=later, index=index, scan=scan, remote=remote, imports=imports, weights=weights, broadcast=broadcast,
                      batches=batches)
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("--nodes", type=int, default=8, help="of cold and later")
    p.add_argument("--files", type=int, default=1000, help="of cold and later")
    p.add_argument("--size", type=int, default=100_000, help="bytes of each")
    p.add_argument("--server", type=int, default=1000, metavar="MBIT", help="link of the server of GlusterFS, of cold; with less, fewer processors do")
    p.add_argument("--link", type=int, default=100, metavar="MBIT", help="links of the nodes, of later")
    p.add_argument("--workers", type=int, default=4, help="threads that read on each node")
    p.add_argument("--placement", default="hybrid", choices=("sharded", "replicated", "hybrid"), help="of cold")
    p.add_argument("--alone", action="store_true")
    p.add_argument("--json", metavar="FILE")
    p.add_argument("names", nargs="*", metavar="NAME", help=f"of {' '.join(everything)}; default: all")
    a = p.parse_args()
    if wrong := [name for name in a.names if name not in everything]:
        p.error(f"no benchmark is called {wrong[0]}; there are: {' '.join(everything)}")
    with nodes.WarmMemory():
        for name in a.names or everything:
            everything[name](a)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
