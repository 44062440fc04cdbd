"""Several nodes on one machine, for scripts (tests/cluster-soak.py, benches/cluster.py): what
net.rs, node.rs and leftovers.rs are for tests.

A namespace for each node, one for the switch; a directory on disk and one in memory; all of them
carry the id of the process that made them, so that the next run, of a script or of the tests,
removes what a killed one has left. Needs root.
"""
import fcntl, glob, json, os, re, shutil, signal, socket, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ.get("MONARCH_E2E_BIN") or os.path.join(os.environ.get("CARGO_TARGET_DIR", f"{ROOT}/target"), "release")
NODES_PY = os.path.join(ROOT, "tests", "programs", "nodes.py")
NAMESPACE, DIRECTORY, PLACES = "mcl-", "monarch-cluster-", ("/tmp", "/dev/shm")
PYTHON = os.path.realpath(sys.executable)


def ip(words, check=True):
    done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"ip {words}: {done.stderr.strip()}")
    return done.stdout


def identity(path):
    try:
        s = os.stat(path)
        return s.st_dev, s.st_ino
    except OSError:
        return None


def processes(namespace):
    """Process ids and command lines in a namespace."""
    own = identity(f"/run/netns/{namespace}")
    for entry in filter(str.isdigit, os.listdir("/proc")):
        if own and identity(f"/proc/{entry}/ns/net") == own:
            try:
                yield int(entry), open(f"/proc/{entry}/cmdline").read().rstrip("\0").split("\0")
            except OSError:
                pass


def state(pid):
    """The letter of a process's state; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def kill(pid, sig=signal.SIGKILL):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def end(namespace):
    deadline = time.time() + 5
    while (pids := [p for p, _ in processes(namespace)]) and time.time() < deadline:
        for pid in pids:
            kill(pid)
        time.sleep(0.01)


def remove_directory(path):
    mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
    for point in [m for m in mounts if m.startswith(path + "/")][::-1]:
        subprocess.run(["umount", "-l", point], capture_output=True)
    shutil.rmtree(path, ignore_errors=True)


def is_orphan(name, prefix):
    found = re.match(re.escape(prefix) + r"(\d+)-", name)
    return bool(found) and not os.path.exists(f"/proc/{found[1]}")


def clear_leftovers():
    """The leftovers of processes that are gone."""
    for name in [n for n in os.listdir("/run/netns") if is_orphan(n, NAMESPACE)] if os.path.isdir("/run/netns") else []:
        end(name)
        ip(f"netns del {name}", check=False)
    for place in PLACES:
        for name in [n for n in os.listdir(place) if is_orphan(n, DIRECTORY)]:
            remove_directory(f"{place}/{name}")


class Net:
    """A network of `n` nodes. `with Net(8) as net:`; the last may be used as a server."""

    serial = 100

    def __init__(self, n):
        if os.geteuid():
            raise SystemExit("network namespaces need root")
        Net.serial += 1
        self.n, self.id = n, f"{NAMESPACE}{os.getpid()}-{Net.serial}-"
        self.subnet = f"10.{16 + os.getpid() % 200}.{Net.serial % 250}"

    def __enter__(self):
        with open("/tmp/monarch-cluster.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            clear_leftovers()
            ip(f"netns add {self.id}sw")
            ip(f"-n {self.id}sw link add br0 type bridge")
            ip(f"-n {self.id}sw link set br0 up")
            for i in range(self.n):
                ip(f"netns add {self.name(i)}")
                ip(f"-n {self.id}sw link add p{i} type veth peer name eth0 netns {self.name(i)}")
                ip(f"-n {self.id}sw link set p{i} master br0 up")
                ip(f"-n {self.name(i)} addr add {self.address(i)}/24 dev eth0")
                ip(f"-n {self.name(i)} link set eth0 up")
                ip(f"-n {self.name(i)} link set lo up")
        return self

    def __exit__(self, *_):
        for name in [self.name(i) for i in range(self.n)] + [f"{self.id}sw"]:
            end(name)
            ip(f"netns del {name}", check=False)

    def name(self, node):
        return f"{self.id}{node}"

    def address(self, node):
        return f"{self.subnet}.{node + 1}"

    def inside(self, node):
        return ["nsenter", f"--net=/run/netns/{self.name(node)}"]

    def rate(self, node, mbit):
        """Limits both directions of a node's link to this rate; 0: no limit."""
        for namespace, device in ((self.name(node), "eth0"), (f"{self.id}sw", f"p{node}")):
            tc = ["nsenter", f"--net=/run/netns/{namespace}", "tc", "qdisc"]
            subprocess.run([*tc, "del", "dev", device, "root"], capture_output=True)
            if mbit:
                # Not less than a packet before segmentation (64 KiB).
                burst = max(131072, mbit * 1_000_000 // 8 // 250)
                subprocess.run([*tc, *f"add dev {device} root tbf rate {mbit}mbit burst {burst} latency 20ms".split()], check=True)

    def cut(self, node):
        ip(f"-n {self.id}sw link set p{node} down")

    def join(self, node):
        ip(f"-n {self.id}sw link set p{node} up")

    def received(self, node):
        """Bytes that a node's link has brought it."""
        return json.loads(ip(f"-n {self.name(node)} -s -j link show eth0"))[0]["stats64"]["rx"]["bytes"]


class Slowfs:
    """A directory as a slow file system, with counts."""

    def __init__(self, source, mnt, *options, cache="direct"):
        os.makedirs(mnt, exist_ok=True)
        self.mnt, self.ctl = mnt, f"{mnt}.ctl"
        words = [f"{BIN}/slowfs", source, mnt, "--control", self.ctl, "--until-stdin-closes", "--allow-other", "--cache", cache,
                 "--attr-ttl", "600s", *options]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if not self.process.stdout.readline().startswith("mounted"):
            raise RuntimeError("slowfs did not mount")

    def counters(self):
        return json.loads(subprocess.run([f"{BIN}/slowfs", "ctl", self.ctl, "counters"], capture_output=True, text=True).stdout)["counters"]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            subprocess.run(["umount", "-l", self.mnt], capture_output=True)


class World:
    """Directories and configurations for `nodes` nodes of `net` that read `root`. `with World(net,
    8, ...) as w:`"""

    def __init__(self, net, nodes, root=None, capacity="64MiB", cluster=(), alone=False, settings=(), disk=False):
        self.net, self.nodes, self.capacity, self.settings = net, nodes, capacity, settings
        self.cluster, self.alone, self.disk_tiers = cluster, alone, disk
        # Capacity and options of a second tier, `tier(i)` with a 2 behind.
        self.second = None
        prefix = f"{DIRECTORY}{os.getpid()}-"
        self.disk = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
        self.shm = tempfile.mkdtemp(prefix=prefix, dir="/dev/shm")
        self.root = root or f"{self.disk}/mnt"
        self.enter = [net.inside(i) for i in range(nodes)]

    def __enter__(self):
        with open(f"{self.disk}/secret", "w") as f:
            f.write("5c" * 32 + "\n")
        os.chmod(f"{self.disk}/secret", 0o600)
        for i in range(self.nodes):
            os.makedirs(f"{self.disk}/node{i}/tmp")
            os.makedirs(f"{self.shm}/node{i}/run")
            self.configure(i)
        return self

    def __exit__(self, *_):
        for i in range(self.nodes):
            end(self.net.name(i))
        remove_directory(self.disk)
        remove_directory(self.shm)

    def tier(self, i):
        return f"{self.disk if self.disk_tiers else self.shm}/node{i}/tier"

    def runtime(self, i):
        return f"{self.shm}/node{i}/run"

    def configure(self, i):
        second = f", {{ path: {self.tier(i)}2, capacity: {self.second} }}" if self.second else ""
        lines = [f"dataset: {{ roots: [{self.root}], min_file_age: 0s }}", f"tiers: [{{ path: {self.tier(i)}, capacity: {self.capacity} }}{second}]",
                 f"runtime_dir: {self.runtime(i)}"]
        if not self.alone:
            nodes = ", ".join(self.net.address(k) for k in range(self.nodes))
            lines += ["cluster:", "  discovery: static", f"  nodes: [{nodes}]", f"  secret_file: {self.disk}/secret"]
            lines += [f"  {line}" for line in self.cluster]
        with open(f"{self.disk}/node{i}/monarch.yaml", "w") as f:
            f.write("\n".join(lines) + "\n")

    def start(self, i, words, bare=False, **popen):
        """A job on a node, under `monarch run` unless bare."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH") and k != "LD_PRELOAD"}
        env["TMPDIR"] = f"{self.disk}/node{i}/tmp"
        sets = [w for s in self.settings for w in ("--set", s)]
        ours = [] if bare else [f"{BIN}/monarch", "run", "--quiet", "--config", f"{self.disk}/node{i}/monarch.yaml", *sets, "--"]
        return subprocess.Popen([*self.enter[i], *ours, *words], env=env, text=True, start_new_session=True, **popen)

    def agent(self, i):
        """Its agent's process, also when it is stopped."""
        return next((p for p, words in processes(self.net.name(i)) if words[1:] == ["agent"] and words[0].endswith("monarch")), None)

    def status(self, i):
        """Status of its agent, or None."""
        for path in glob.glob(f"{self.runtime(i)}/**/agent.sock", recursive=True):
            try:
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(5)
                    s.connect(path)
                    s.sendall(b'{"op":"status"}\n')
                    return json.loads(s.makefile().readline())
            except (OSError, ValueError):
                pass
        return None

    def is_ready(self, i):
        roots = (self.status(i) or {}).get("roots")
        return bool(roots) and all(r["state"] == "ready" for r in roots)

    def used_by(self, i):
        """Bytes of blocks in its tier, by directory; those with copies together."""
        totals = {}
        for d, _, names in os.walk(self.tier(i)):
            rel = os.path.relpath(d, self.tier(i))
            for n in names:
                key = rel.split("/copies/")[0] + "/copies" if "/copies/" in rel else f"{rel}/{n}" if rel.count("/") == 0 else rel
                try:
                    totals[key] = totals.get(key, 0) + os.lstat(f"{d}/{n}").st_blocks * 512
                except OSError:
                    pass
        return totals

    def used(self, i):
        """Bytes of blocks in its tier."""
        return sum(self.used_by(i).values())


def when(what, done, limit=600):
    end = time.time() + limit
    while not done():
        if time.time() > end:
            raise SystemExit(f"still waiting for {what}")
        time.sleep(0.01)


class WarmMemory:
    """Memory as it is on a machine of one's own, for as long as this is open.

    A virtual machine may hand memory that is free back to its host (free page reporting: whole
    blocks, after a second), and pays for each page of it with several times what it costs to clear
    one when it is used again: 4 GB took 6.6 to 8.9 s here, for 1.3 s. So copies cost more than they
    do elsewhere. Here a part of the memory, which has been touched, is split up by one page that is
    held in each MiB: such pieces are not handed back, and are what is taken first.
    """

    def __init__(self, most=8 << 30):
        with open("/proc/meminfo") as f:
            free = next(int(line.split()[1]) for line in f if line.startswith("MemAvailable")) << 10
        self.size = min(most, free // 2) >> 20 << 20

    def __enter__(self):
        # In a process of its own, which ends with this one.
        script = f"""if True:
            import mmap, sys
            kept = mmap.mmap(-1, {self.size}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            kept.madvise(mmap.MADV_NOHUGEPAGE)
            for piece in range(0, {self.size}, 1 << 20):
                for page in range(piece, piece + (1 << 20), 4096):
                    kept[page] = 1
            for piece in range(0, {self.size}, 1 << 20):
                kept.madvise(mmap.MADV_DONTNEED, piece + 4096, (1 << 20) - 4096)
            print("ready", flush=True)
            sys.stdin.read()"""
        self.process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError(f"cannot touch {self.size >> 20} MiB of memory: {self.process.wait()}")
        return self

    def __exit__(self, *_):
        self.process.communicate()


def reading(root, rank, world, files, size, *words, dirs=4):
    """The words of a job that reads with nodes.py."""
    return [PYTHON, NODES_PY, "read", root, "--files", str(files), "--size", str(size), "--dirs", str(dirs), "--rank", str(rank),
            "--world", str(world), *map(str, words)]


def make(directory, files, size, *words, dirs=4):
    """The data set of nodes.py."""
    subprocess.run([PYTHON, NODES_PY, "make", directory, "--files", str(files), "--size", str(size), "--dirs", str(dirs), *map(str, words)],
                   check=True)
