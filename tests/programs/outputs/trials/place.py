"""A PFS with an output root on it, and jobs that write there, for the scripts beside the suite."""
import json, os, shutil, signal, subprocess, sys, tempfile, time

ROOT = os.path.abspath(f"{os.path.dirname(__file__)}/../../../..")
BIN = os.environ.get("MONARCH_E2E_BIN", f"{ROOT}/target/release")
PROGRAMS = f"{ROOT}/tests/programs/outputs"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_") and k not in ("LD_PRELOAD", "LD_AUDIT")}


class Place:
    """The output root is `root`; `published` is the same directory behind slowfs."""

    def __init__(self, pfs=("--meta-latency", "0"), tier="2GiB", memory=True, settings=()):
        self.work = tempfile.mkdtemp(prefix="monarch-outputs-")
        self.shm = tempfile.mkdtemp(prefix="monarch-outputs-", dir="/dev/shm")
        self.mount, self.socket = f"{self.work}/pfs", f"{self.work}/pfs.sock"
        self.root, self.published = f"{self.mount}/out", f"{self.work}/backing/out"
        self.tmp = f"{self.work}/tmp"
        for d in (self.mount, self.published, self.tmp, f"{self.work}/data"):
            os.makedirs(d)
        os.mkdir(f"{self.shm}/run", 0o700)
        with open(f"{self.work}/data/one", "w") as f:
            f.write("a data set")
        options = ["--until-stdin-closes", "--allow-other", "--attr-ttl", "0", "--control", self.socket, *pfs]
        self.server = subprocess.Popen([f"{BIN}/slowfs", *options, f"{self.work}/backing", self.mount], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        while not os.path.ismount(self.mount):
            if self.server.poll() is not None:
                sys.exit("outputs: slowfs did not start")
            time.sleep(0.02)
        self.tier = f"{self.shm if memory else self.work}/tier"
        self.words = ["--root", f"{self.work}/data", "--tier", f"{self.tier}:{tier}", "--output", self.root]
        for setting in (f"runtime_dir={self.shm}/run", "dataset.min_file_age=0s", *(["outputs.0.volatile=true"] if memory else []), *settings):
            self.words += ["--set", setting]
        self.env = ENVIRONMENT | {"TMPDIR": self.tmp, "MONARCH_RUNTIME_DIR": f"{self.shm}/run", "PYTHONDONTWRITEBYTECODE": "1"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.agents():
            os.kill(pid, signal.SIGTERM)
        end = time.time() + 5
        while self.agents() and time.time() < end:
            time.sleep(0.05)
        self.server.stdin.close()
        self.server.wait()
        if os.environ.get("MONARCH_TRIAL_KEEP"):
            print(f"outputs: kept {self.work} {self.shm}")
            return
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)

    def ctl(self, *words):
        said = subprocess.run([f"{BIN}/slowfs", "ctl", self.socket, *words], capture_output=True, text=True, check=True)
        return json.loads(said.stdout)

    def staged(self, *command, **more):
        return [f"{BIN}/monarch", "run", "--quiet", *self.words, *more.get("options", ()), "--", *command]

    def monarch(self, command, *words):
        return subprocess.run([f"{BIN}/monarch", command, *words, "--tier", self.tier], env=self.env, capture_output=True, text=True, timeout=300)

    def agents(self):
        said = subprocess.run([f"{BIN}/monarch", "status", "--json"], env=self.env, capture_output=True, text=True).stdout
        try:
            return [agent["pid"] for agent in json.loads(said or "[]") if agent["runtime_dir"].startswith(self.shm)]
        except json.JSONDecodeError:
            return []

    def agent_pids(self):
        """The same without asking the agents, from the list of processes: for a kill at a moment."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
                with open(f"/proc/{pid}/environ", "rb") as f:
                    ours = self.shm.encode() in f.read()
            except OSError:
                continue
            if words[1:2] == [b"agent"] and (ours or any(self.shm.encode() in w for w in words)):
                found.append(int(pid))
        return found
