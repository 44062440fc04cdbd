#!/usr/bin/env python3
"""Runs real training jobs on a real distributed file system, with Monarch and without.

    cargo build --release --workspace
    sudo ./evaluate                      all workloads; continues where it was
    sudo ./evaluate --quick pictures     less data and one run, as a check: minutes, not an hour
    sudo ./evaluate --pfs ceph pictures  the same on a CephFS
    ./evaluate --document                writes docs/EVALUATION.md from benches/results/

The file system is a GlusterFS in a network namespace, behind a link with a bandwidth limit. Its
client keeps no data, as that of a parallel file system does once the data set is larger than
memory, and keeps names and attributes. Its server counts calls and bytes (`volume profile`); the
counters are read between the epochs, while no job runs. (With --pfs ceph: a CephFS, ceph-fuse, the
counters of its OSD and metadata server. `latency`: slowfs, in which each call takes a fixed time.)
Each job runs

    direct   on the file system
    copy     on a copy that `cp -r` makes first; its time and calls are included
    cold     under `monarch run`, with empty tiers
    warm     under `monarch run` once more, with the copies of the run before

one after the other, several times (--runs). Local copies and tiers are in memory. Needs root,
glusterd, glusterfs and the environments of tests/venvs.sh (torch2, tf, dlio). Results are written
to benches/results/NAME.json after each run; existing results are kept (--again measures them
again).
"""
import argparse, glob, json, os, platform, shutil, subprocess, sys, time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "cluster")]
import document
import ceph, gluster, slow
import net as nodes

FILE_SYSTEMS = {"gluster": (gluster, gluster.Gluster, "glusterfs-server glusterfs-client"),
                "ceph": (ceph, ceph.Ceph, "ceph-mon ceph-mgr ceph-osd ceph-mds ceph-fuse ceph-common")}
SLOW = ("slowfs", slow.Slow)

RESULTS = f"{ROOT}/benches/results"
MODES = ("direct", "copy", "cold", "warm")

# Of each workload: data, link (or time of a call, and what the client keeps), tier (a share of the
# data) and cases. A case has a name, arguments of the job, and changes of the plan. `passes` are
# the epochs of a job that reads several in one step.
WORKLOADS = {
    "records": dict(about="TensorFlow, TFRecord shards of 1 MB, interleaved", job="records.py", venv="tf", files=2048, size=1_000_000, link=1000, tier=0.55,
                    epochs=3, cases={"LeNet-like (2 ms a batch)": ["--compute", "2"], "AlexNet-like (15 ms a batch)": ["--compute", "15"],
                                     "ResNet-like (40 ms a batch)": ["--compute", "40"],
                                     "LeNet-like, a tier for all": (["--compute", "2"], dict(tier=1.05))}),
    # (Chunks of 4 MiB, the default, are for tiers larger than this one: docs/SEMANTICS.md, "Large
    # files".)
    "shards": dict(about="TensorFlow, TFRecord shards of 32 MB, chunks of 1 MiB", job="records.py", venv="tf", files=64, size=32_000_000, link=1000, tier=0.55, epochs=3,
                   cases={"LeNet-like (2 ms a batch)": (["--compute", "2"], dict(set=["source.chunk_size=1MiB"])),
                          document.NOT_IN_CHUNKS: (["--compute", "2"], dict(set=["source.chunk_threshold=1TiB"]))}),
    "shards-latency": dict(about="TensorFlow, TFRecord shards of 32 MB, chunks of 1 MiB, a fixed time for each call", job="records.py", venv="tf", files=64, size=32_000_000,
                           tier=0.55, epochs=3, slow=True,
                           cases={f"{ms} ms a call": (["--compute", "2"], dict(slow=(ms, "direct"), set=["source.chunk_size=1MiB"])) for ms in (1, 5)}),
    "pictures": dict(about="PyTorch, ImageFolder of JPEG files, DataLoader", job="pictures.py", venv="torch2", files=3000, link=200, tier=0.55, epochs=3,
                     cases={"2 workers": ["--workers", "2"], "4 workers": ["--workers", "4"],
                            "2 workers, bound by computation": ["--workers", "2", "--compute", "350"],
                            "2 workers, a tier for all": (["--workers", "2"], dict(tier=1.05))}),
    "pairs": dict(about="PyTorch, pairs of large and small images (super-resolution)", job="pairs.py", venv="torch2", files=400, link=200, tier=0.55, epochs=3,
                  cases={"2 workers": ["--workers", "2"], "2 workers, bound by computation": ["--workers", "2", "--compute", "650"]}),
    "text": dict(about="PyTorch, many text files, a recurrent network, a tier with lz4", job="text.py", venv="torch2", files=4000, size=100_000, link=100,
                 tier=0.40, compression="lz4", epochs=3,
                 cases={"2 workers": ["--workers", "2"], "2 workers, bound by computation": ["--workers", "2", "--compute", "320"]}),
    **{f"dlio-{model}": dict(about=f"DLIO, {model}, two ranks", job="dlio.py", make=["--model", model], venv=venv, beside=["dlio", "tf"], files=files, link=1000,
                             tier=1.1, epochs=1, passes=3, cases={"2 ranks": ["--model", model, "--files", str(files)]})
       # (DLIO imports TensorFlow for every reader.)
       for model, venv, files in (("unet3d", "torch2", 128), ("cosmoflow", "tf", 384), ("resnet50", "tf", 128), ("jpeg", "torch2", 3200))},
    "latency": dict(about="PyTorch, small text files, a fixed time for each call", job="text.py", venv="torch2", files=2000, size=20_000, tier=0.55,
                    epochs=3, slow=True,
                    cases={**{f"{ms} ms a call": (["--workers", "2"], dict(slow=(ms, "direct"))) for ms in (0.2, 1, 5)},
                           "1 ms a call, the client keeps data": (["--workers", "2"], dict(slow=(1, "keep")))}),
    "scaling": dict(about="1 to 16 nodes that share copies", kind="scaling", files=200, size=100_000, link=1000, epochs=3, pause=15),
}
QUICK = {"records": dict(files=100), "shards": dict(files=16), "shards-latency": dict(files=16), "pictures": dict(files=400), "pairs": dict(files=40), "text": dict(files=200), "latency": dict(files=200), "scaling": dict(files=40),
         **{f"dlio-{model}": dict(files=files, cases={"2 ranks": ["--model", model, "--files", str(files)]})
            for model, files in (("unet3d", 32), ("cosmoflow", 32), ("resnet50", 16), ("jpeg", 256))}}


def say(text):
    print(text, flush=True)


class Evaluation:
    """One workload on one file system."""

    def __init__(self, name, a):
        self.name, self.a, self.plan = name, a, dict(WORKLOADS[name], **(QUICK[name] if a.quick else {}))
        self.kind, self.file_system = SLOW if "slow" in self.plan else (a.pfs, FILE_SYSTEMS[a.pfs][1])
        self.path = f"{a.results}/{name}{'-ceph' if self.kind == 'ceph' else ''}{'-quick' if a.quick else ''}.json"
        self.told = dict(name=os.path.basename(self.path)[:-len(".json")], about=self.plan["about"], pfs=self.kind, plan={k: self.plan[k] for k in ("files", "size", "link", "tier", "compression", "epochs", "passes", "pause") if k in self.plan},
                         machine=machine(), runs=[])
        if os.path.exists(self.path) and not a.again:
            with open(self.path) as f:
                old = json.load(f)
            if old["plan"] == self.told["plan"]:
                self.told["runs"] = old["runs"]
                self.told["bytes"] = old.get("bytes")

    def missing(self):
        """Cases with missing runs, in turns."""
        done = {(r["case"], r["run"]) for r in self.told["runs"] if r["mode"] == MODES[-1]}
        return [(case, run) for run in range(1, self.a.runs + 1) for case in self.plan["cases"] if (case, run) not in done]

    def run(self):
        todo = self.missing()
        if not todo:
            return say(f"{self.name}: measured already ({self.path}); --again measures it again")
        self.python = python_of(self.name, self.plan["venv"])
        os.environ.pop("PYTHONPATH", None)
        # Packages in addition to those of the environment.
        beside = [subprocess.run([python_of(self.name, venv), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True).stdout.strip()
                  for venv in self.plan.get("beside", ())]
        if beside:
            os.environ["PYTHONPATH"] = ":".join(beside)
        with nodes.Net(2) as net, nodes.World(net, 1, alone=True) as w, self.file_system(net, 1, f"{w.disk}/{self.kind}") as pfs:
            self.w, self.pfs = w, pfs
            pfs.mount(w, 0)
            say(f"{self.name}: making {self.plan['files']} files")
            size = ["--size", str(self.plan["size"])] if self.plan.get("size") else []
            self.inside([self.python, f"{HERE}/{self.plan['job']}", "make", w.root, "--files", str(self.plan["files"]), *size, *self.plan.get("make", [])])
            sizes = subprocess.run([*w.enter[0], "find", w.root, "-type", "f", "-printf", "%s\\n"], capture_output=True, text=True, check=True).stdout
            sizes = [int(size) for size in sizes.split()]
            self.told["bytes"] = sum(sizes)
            # (Blocks and names count, too.)
            room = sum(-(-size // 4096) * 4096 + 128 for size in sizes)
            self.told["machine"]["pfs"] = pfs.version()
            if "link" in self.plan:
                net.rate(1, self.plan["link"])
            for number, (case, run) in enumerate(todo, 1):
                say(f"{self.name}: {case}, run {run} ({number} of {len(todo)})")
                self.told["runs"] = [r for r in self.told["runs"] if (r["case"], r["run"]) != (case, run)]
                share = int(self.case(case)[1]["tier"] * room)
                w.capacity, w.second = f"{share}B, persist: node", None
                if "compression" in self.plan:
                    # A tenth of the space is for decompressed copies.
                    first = max(share // 10, 2 << 20)
                    w.capacity, w.second = f"{first}B, decompression_share: 100%", f"{share - first}B, persist: node, compression: {self.plan['compression']}"
                w.settings = self.case(case)[1].get("set", [])
                w.configure(0)
                shutil.rmtree(f"{w.tier(0)}2", ignore_errors=True)
                shutil.rmtree(w.tier(0), ignore_errors=True)
                if "slow" in self.plan:
                    pfs.set(*self.case(case)[1]["slow"])
                for mode in MODES:
                    self.measure(case, run, mode)
                self.save()

    def case(self, name):
        """Arguments of the job, and the plan."""
        words = self.plan["cases"][name]
        words, other = words if isinstance(words, tuple) else (words, {})
        return words, dict(self.plan, **other)

    def inside(self, words):
        subprocess.run([*self.w.enter[0], *words], check=True)

    def save(self):
        os.makedirs(self.a.results, exist_ok=True)
        with open(f"{self.path}.new", "w") as f:
            json.dump(self.told, f, indent=1)
        os.rename(f"{self.path}.new", self.path)

    def measure(self, case, run, mode):
        self.pfs.count()
        root, copied = self.w.root, None
        start = time.perf_counter()
        if mode == "copy":
            root = f"{self.w.shm}/copy"
            self.inside(["cp", "-r", self.w.root, root])
            copied = dict(seconds=time.perf_counter() - start, counts=self.pfs.counts())
        words = [self.python, f"{HERE}/{self.plan['job']}", root, "--epochs", str(self.plan["epochs"]), *self.case(case)[0]]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        job = self.w.start(0, words, bare=mode in ("direct", "copy"), **pipes)
        self.line(job, "ready")
        ready, before, epochs = time.perf_counter() - start, self.pfs.counts(), []
        starting = before
        for _ in range(self.plan["epochs"]):
            job.stdin.write("\n")
            job.stdin.flush()
            told = self.line(job, "epoch")
            now = self.pfs.counts()
            status = self.w.status(0) if mode in ("cold", "warm") else None
            told["counts"] = {k: n - before.get(k, 0) for k, n in now.items() if n != before.get(k, 0)}
            if status:
                told["tier"] = sum(t["used"] for t in status["tiers"]) / max(1, sum(t["capacity"] for t in status["tiers"]))
            epochs.append(told)
            before = now
        job.stdin.close()
        if job.wait(60):
            raise SystemExit(f"{self.name}, {case}, {mode}: the job ended with {job.returncode}: {job.stderr.read()[-2000:]}")
        nodes.when("the agent's end", lambda: self.w.agent(0) is None, 60)
        shutil.rmtree(f"{self.w.shm}/copy", ignore_errors=True)
        self.told["runs"].append(dict(**VERSION, case=case, tier=self.case(case)[1]["tier"], settings=self.w.settings, run=run, mode=mode, copied=copied, starting=dict(seconds=ready, counts=starting), epochs=epochs))
        total = sum(e["seconds"] for e in epochs) + (copied or dict(seconds=0))["seconds"]
        say(f"  {mode:7} {total:8.1f} s   epochs {', '.join(format(e['seconds'], '.1f') for e in epochs)}; from the server {before['bytes'] / self.told['bytes']:.2f} data sets")

    def line(self, job, key):
        for line in job.stdout:
            if line.startswith("{") and key in (told := json.loads(line)):
                return told
        raise SystemExit(f"{self.name}: the job ended early, with {job.wait()}: {job.stderr.read()[-2000:]}")


def python_of(name, venv):
    found = subprocess.run([f"{ROOT}/tests/venvs.sh", "--python", venv], capture_output=True, text=True).stdout.strip()
    if not found:
        raise SystemExit(f"{name}: the environment is not there; make it: tests/venvs.sh {venv}")
    return found


class Scaling(Evaluation):
    """The same job on more and more nodes: each reads its part of every epoch, and sleeps between
    files."""

    NODES = (1, 2, 4, 8, 16)

    def missing(self):
        done = {(r["kind"], r["nodes"], r["run"]) for r in self.told["runs"] if r["mode"] == "shared"}
        nodes_of = (1, 4) if self.a.quick else self.NODES
        return [t for run in range(1, self.a.runs + 1) for kind in ("weak", "strong") for n in nodes_of for t in [(kind, n, run)] if t not in done]

    def run(self):
        todo = self.missing()
        for number, (kind, n, run) in enumerate(todo, 1):
            say(f"{self.name}: {kind}, {n} nodes, run {run} ({number} of {len(todo)})")
            files = self.plan["files"] * (n if kind == "weak" else max(self.NODES))
            self.told["runs"] = [r for r in self.told["runs"] if (r["kind"], r["nodes"], r["run"]) != (kind, n, run)]
            cluster = ["placement: hybrid"]
            with nodes.Net(n + 1) as net, nodes.World(net, n, capacity="1GiB", cluster=cluster, alone=n == 1) as w, self.file_system(net, n, f"{w.disk}/{self.a.pfs}") as pfs:
                for i in range(n):
                    pfs.mount(w, i)
                subprocess.run([*w.enter[0], nodes.PYTHON, nodes.NODES_PY, "make", w.root, "--files", str(files), "--size", str(self.plan["size"]), "--exact"], check=True)
                net.rate(n, self.plan["link"])
                self.told["machine"]["pfs"] = pfs.version()
                for mode in ("direct", "shared"):
                    self.measure_nodes(w, pfs, kind, n, run, mode, files)
            self.save()
        self.simulate()
        self.save()

    def simulate(self):
        """Efficiency of later epochs in weak scaling of the same job on more nodes, by `monarch
        simulate`. Its nodes share nothing; when each reads its own part in every epoch
        (shuffle=local), they read as little from the file system as nodes that share."""
        per_node, size, pause = self.plan["files"], self.plan["size"], self.plan["pause"]
        wire = f"{self.plan['link'] * 119 // 1000}MB/s"
        self.told["simulator"] = (f"monarch simulate --synthetic files={per_node}xN,size={size}B,epochs=3,shuffle=local,ranks=1,workers=1,batch=1,ahead=1 --compute {pause}ms "
                                  "--sync off --prefetch off --policy first_epoch --nodes N --capacity C --pfs-bandwidth B")
        self.told["servers"] = f"{wire} (as here) and 10 GB/s"
        self.told["simulated"] = {}
        for name, capacity, bandwidth in ((f"direct, {wire}", 1000, wire), ("direct, 10 GB/s", 1000, "10GB/s"), (f"monarch, {wire}", 2 * per_node * size, wire)):
            times = {n: self.simulated(n, capacity, bandwidth) for n in (*self.NODES, 64, 256, 512, 1024, 4096)}
            self.told["simulated"][name] = {n: times[1] / t for n, t in times.items()}

    def simulated(self, n, capacity, bandwidth):
        spec = f"files={self.plan['files'] * n},size={self.plan['size']}B,epochs=3,shuffle=local,ranks=1,workers=1,batch=1,ahead=1"
        words = ["--quiet", "--json", "--synthetic", spec, "--compute", f"{self.plan['pause']}ms", "--sync", "off", "--prefetch", "off", "--policy", "first_epoch", "--nodes", str(n),
                 "--capacity", f"{capacity}B", "--pfs-bandwidth", bandwidth]
        done = subprocess.run([f"{nodes.BIN}/monarch", "simulate", *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{self.name}: monarch simulate: {done.stderr}")
        return json.loads(done.stdout)["rows"][0]["later"]["time_s"]

    def measure_nodes(self, w, pfs, kind, n, run, mode, files):
        pfs.count()
        barrier = f"{w.disk}/barrier-{mode}"
        os.mkdir(barrier)
        words = ["--seed", "", "--exact", "--part", "--pause", self.plan["pause"], "--epochs", self.plan["epochs"], "--barrier", barrier, "--patience", 600]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        jobs = [w.start(i, nodes.reading(w.root, i, n, files, self.plan["size"], *words), bare=mode == "direct", **pipes) for i in range(n)]
        ranks = []
        for job in jobs:
            out, err = job.communicate(timeout=1800)
            if job.returncode:
                raise SystemExit(f"{self.name}: a job ended with {job.returncode}: {out[-500:]}{err[-1000:]}")
            ranks.append([json.loads(line)["seconds"] for line in out.splitlines() if line.startswith('{"epoch"')])
        nodes.when("the agents' end", lambda: all(w.agent(i) is None for i in range(n)), 60)
        seconds, counts = [max(rank[e] for rank in ranks) for e in range(self.plan["epochs"])], pfs.counts()
        self.told["runs"].append(dict(**VERSION, kind=kind, nodes=n, run=run, mode=mode, files=files, seconds=seconds, counts=counts))
        say(f"  {mode:7} epochs {', '.join(format(s, '.2f') for s in seconds)} s; from the server {counts['bytes'] / (files * self.plan['size']):.2f} data sets")


def machine():
    with open("/proc/cpuinfo") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown")
    with open("/proc/meminfo") as f:
        memory = int(f.readline().split()[1]) << 10
    return dict(processors=os.cpu_count(), model=model, memory=memory, kernel=platform.release(), **VERSION)


def version():
    """Version of Monarch that is measured. Each run keeps its own, since later runs may have
    another."""
    git = lambda *words: subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()
    parts = [name for name in ("src", "Cargo.toml", "Cargo.lock", "policies", "slowfs") if os.path.exists(f"{ROOT}/{name}")] + glob.glob("monarch-*", root_dir=ROOT)
    changed = "-dirty" if git("status", "--porcelain", "--", *parts) else ""
    return dict(commit=git("rev-parse", "--short", "HEAD") + changed, date=time.strftime("%Y-%m-%d"))


def check_binaries():
    """Checks that the binaries exist and are newer than their sources, which Cargo lists beside
    them."""
    for name, made_of in (("monarch", "monarch"), ("libmonarch_shim.so", "libmonarch_shim"), ("slowfs", "slowfs")):
        path = f"{nodes.BIN}/{name}"
        if not os.path.exists(path) or not os.path.exists(f"{nodes.BIN}/{made_of}.d"):
            raise SystemExit(f"evaluate: {path} is not there; cargo build --release --workspace")
        with open(f"{nodes.BIN}/{made_of}.d") as f:
            sources = [source for source in f.read().split()[1:] if os.path.exists(source)]
        newest = max(sources, key=os.path.getmtime)
        if os.path.getmtime(newest) > os.path.getmtime(path):
            raise SystemExit(f"evaluate: {newest} is newer than {path}; cargo build --release --workspace")


VERSION = version()


def main():
    p = argparse.ArgumentParser(prog="evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="WORKLOAD", help=f"of {' '.join(WORKLOADS)}; default: all")
    p.add_argument("--quick", action="store_true", help="less data, one run; its results are in files of their own and in no document")
    p.add_argument("--runs", type=int, metavar="N", help="of each case (default: 5; with --quick 1)")
    p.add_argument("--pfs", choices=FILE_SYSTEMS, default="gluster", help="the file system (default: gluster)")
    p.add_argument("--again", action="store_true", help="measure again what has been measured")
    p.add_argument("--document", action="store_true", help="only write docs/EVALUATION.md from what has been measured")
    p.add_argument("--results", default=RESULTS, metavar="DIR", help="where results are kept (default: benches/results)")
    a = p.parse_args()
    a.runs = a.runs or (1 if a.quick else 5)
    if wrong := [name for name in a.names if name not in WORKLOADS]:
        p.error(f"no workload is called {wrong[0]}; there are: {' '.join(WORKLOADS)}")
    if not a.document:
        if os.geteuid():
            raise SystemExit("evaluate: network namespaces and GlusterFS need root")
        module, _, packages = FILE_SYSTEMS[a.pfs]
        lacking = [tool for tool in module.TOOLS if not shutil.which(tool)]
        if lacking and any("slow" not in WORKLOADS[name] for name in a.names or WORKLOADS):
            raise SystemExit(f"evaluate: {lacking[0]} is not installed (Debian: apt install --no-install-recommends {packages})")
        if any("dlio" in name for name in a.names or WORKLOADS) and not shutil.which("mpirun"):
            raise SystemExit("evaluate: DLIO needs mpirun (Debian: apt install openmpi-bin)")
        # Checked now: their turn may be hours later.
        for name in a.names or WORKLOADS:
            for venv in {WORKLOADS[name].get("venv"), *WORKLOADS[name].get("beside", ())} - {None}:
                python_of(name, venv)
        check_binaries()
        with nodes.WarmMemory():
            for name in a.names or WORKLOADS:
                (Scaling if WORKLOADS[name].get("kind") else Evaluation)(name, a).run()
    # (The document of results in another directory is written there.)
    if not a.quick:
        docs = f"{ROOT}/docs" if os.path.realpath(a.results) == os.path.realpath(RESULTS) else a.results
        document.write(a.results, docs, WORKLOADS)
        say(f"{os.path.relpath(docs, ROOT) if docs.startswith(ROOT) else docs}/EVALUATION.md is written")


if __name__ == "__main__":
    main()
