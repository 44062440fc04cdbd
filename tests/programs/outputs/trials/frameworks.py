"""Frameworks that save: direct and staged, to the end and killed at a random moment and resumed."""
import argparse, os, random, re, shutil, signal, subprocess, sys, time

from place import PROGRAMS, ROOT, Place

# Entries whose bytes hold times, random names or addresses, and so differ from run to run.
RANDOM = re.compile(r"\.pt$|\.ckpt$|\.bin$|training_args|events|\.db|journal\.log|distcp$|\.metadata$|ocdbt|\.keras$|\.h5$|saved_model|\.data-\d|fingerprint|index|checkpoint$|METADATA|commit_success|"
                    r"\.npz$|\.pkl$|scheduler|manifest|/d/|safetensors|joblib|parquet|feather|zarr|json$|_sharding|array_metadatas")


class Row:
    """A program in an environment of tests/venvs.sh; `steps` of a full run; seconds in which a kill
    falls, from the moment when it has begun to train; whether a kill may have a step done twice, as
    the framework writes weights first and the number of the step to another file then."""

    def __init__(self, name, venv, program, env=(), steps=6, within=2.0, resumes=True, path="", repeats=False):
        self.name, self.venv, self.program, self.env, self.steps, self.within = name, venv, program, dict(env), steps, within
        self.resumes, self.path, self.repeats = resumes, path, repeats


ROWS = [
    Row("torch", "torch2", "torch_plain.py", within=0.6),
    *[Row(f"dcp_{mode}", "torch2", "torch_dcp.py", {"MODE": mode}, within=1.5) for mode in ("sync", "thread", "process")],
    Row("safetensors_0.8", "torch2", "safe.py", within=0.1),
    Row("safetensors_0.7", "outputs", "safe.py", within=0.1),
    *[Row(how, "outputs", "arrays.py", {"HOW": how}, within=0.3) for how in ("npy", "npz", "memmap", "h5py", "zarr", "pyarrow", "joblib")],
    *[Row(f"orbax_{how}", "outputs", "orbax_job.py", {"HOW": how}) for how in ("sync", "async")],
    Row("optuna_tensorboard", "outputs", "studies.py"),
    *[Row(f"tf_{how}", "tf", "keras_job.py", {"HOW": how}, repeats=how == "backup") for how in ("manager", "saved_model", "keras", "weights", "backup")],
    *[Row(how, "torch2", "trainers.py", {"HOW": how}, path="recipes", steps=5) for how in ("trainer", "accelerate", "lightning")],
]


def interpreter(venv):
    found = subprocess.run([f"{ROOT}/tests/venvs.sh", "--python", venv], capture_output=True, text=True)
    if found.returncode:
        sys.exit(found.stderr.strip())
    return found.stdout.strip()


def tree(top):
    """Names, kinds, modes and sizes; and bytes where they are the same in each run."""
    found = {}
    for at, dirs, files in os.walk(top):
        for name in dirs + files:
            path = os.path.join(at, name)
            rel = re.sub(r"events\.out\.tfevents\S*", "EVENTS", os.path.relpath(path, top))
            rel = re.sub(r"/[0-9a-f]{32}$", "/HASH", rel)
            st = os.lstat(path)
            kind = oct(st.st_mode)
            if os.path.islink(path):
                found[rel] = f"{kind} {os.readlink(path)}"
            elif os.path.isfile(path) and not RANDOM.search(rel):
                with open(path, "rb") as f:
                    found[rel] = f"{kind} {st.st_size} {hash(f.read())}"
            else:
                found[rel] = kind
    return found


class Trial:
    def __init__(self, row, place):
        self.row, self.place = row, place
        self.command = self.with_steps(row.steps)
        self.env = place.env | row.env | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "HOME": f"{place.work}/home"}
        if row.path:
            self.env["PYTHONPATH"] = f"{os.path.dirname(os.path.dirname(interpreter(row.path)))}/lib/python3.11/site-packages"
        os.makedirs(f"{place.work}/home", exist_ok=True)

    def with_steps(self, steps):
        return [interpreter(self.row.venv), f"{PROGRAMS}/frameworks/{self.row.program}", str(steps)]

    def run(self, staged, command=None):
        command = self.place.staged(*self.command) if staged else command or self.command
        done = subprocess.run(command, cwd=self.place.root, env=self.env, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout, done.stderr

    def clear(self):
        subprocess.run(["find", self.place.root, "-mindepth", "1", "-delete"], check=True)

    def killed(self, staged, rng):
        """Starts it, and kills all of it at a moment after it has begun."""
        command = self.place.staged(*self.command) if staged else self.command
        job = subprocess.Popen(command, cwd=self.place.root, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        for line in job.stderr:
            if line.startswith("begins"):
                break
        time.sleep(rng.random() * self.row.within)
        agents = self.place.agent_pids() if staged and rng.random() < 0.5 else []
        try:
            os.killpg(job.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
        job.communicate()
        return bool(agents)


def trial(row, kills, seed):
    rng, wrong = random.Random(seed), []
    with Place(("--meta-latency", "1ms", "--bandwidth", "100MB/s")) as place:
        t = Trial(row, place)
        began = time.time()
        status, said, errors = t.run(False)
        bare = time.time() - began
        if status or "## end" not in said:
            return [f"direct it fails: {status} {said[-500:]}{errors[-1500:]}"], bare, 0
        left = tree(place.published)
        t.clear()
        began = time.time()
        status, ours, errors = t.run(True)
        took = time.time() - began
        if (status, ours) != (0, said):
            wrong.append(f"staged it says {status} {ours!r}, not {said!r}: {errors[-1500:]}")
        now = tree(place.published)
        differ = sorted(n for n in left.keys() | now.keys() if left.get(n) != now.get(n))
        if differ:
            wrong.append(f"another tree: {[(n, left.get(n), now.get(n)) for n in differ[:5]]}")
        right = [said]
        if row.repeats:
            t.clear()
            right.append(t.run(False, t.with_steps(row.steps + 1))[1])
        for _ in range(kills if row.resumes else 0):
            t.clear()
            with_agent = t.killed(True, rng)
            if with_agent:
                recovered = place.monarch("recover")
                if recovered.returncode:
                    wrong.append(f"recover: {recovered.returncode} {recovered.stdout[-300:]}{recovered.stderr[-300:]}")
            status, ours, errors = t.run(True)
            if status or ours not in right:
                wrong.append(f"resumed after a kill{' with its agent' if with_agent else ''}: {status} {ours!r}, not {right!r}: {errors[-1500:]}")
    return wrong, bare, took


def main(words):
    p = argparse.ArgumentParser(prog="tests/outputs.py frameworks")
    p.add_argument("--kills", type=int, default=3, help="times that each is killed and resumed")
    p.add_argument("--seed", type=int, default=random.randrange(10**6))
    p.add_argument("names", nargs="*", help=" ".join(r.name for r in ROWS))
    a = p.parse_args(words)
    rows = [r for r in ROWS if not a.names or r.name in a.names]
    if unknown := set(a.names) - {r.name for r in ROWS}:
        sys.exit(f"outputs: there is no {' '.join(unknown)}; there are: {' '.join(r.name for r in ROWS)}")
    failed = 0
    for row in rows:
        wrong, bare, took = trial(row, a.kills, a.seed)
        print(f"{'FAILED' if wrong else 'ok':7}{row.name:22}{bare:6.1f} s direct {took:6.1f} s staged, killed and resumed {a.kills if row.resumes else 0} times", flush=True)
        for line in wrong:
            print(f"    {line[:3000]}", flush=True)
        failed += bool(wrong)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return failed > 0
