#!/usr/bin/env python3
"""The recipes of docs/PYTHON.md: training programs of frameworks that bring their own launcher, and
a notebook, each bare and under `monarch run`.

    tests/recipes.py [NAME...]      names: lightning accelerate trainer hub snapshot shards ray notebook; default: all. 4 minutes.

Needs FUSE, a release build (MONARCH_E2E_BIN names another directory), and the environments torch2
and recipes of tests/venvs.sh. Beside the everyday suite. Data, model and texts are made here and
lie on slowfs, which counts. Each program must print the same losses bare and under Monarch, and
under Monarch the file system must see each data file opened at most once. Ends with 1 when a recipe
does not do what the page says. MONARCH_TRIAL_KEEP=1 keeps the directory.
"""
import json, os, shutil, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("MONARCH_E2E_BIN", f"{ROOT}/target/release")
PROGRAMS = f"{ROOT}/tests/programs/recipes"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("MONARCH_")}


def interpreter(venv):
    found = subprocess.run([f"{ROOT}/tests/venvs.sh", "--python", venv], capture_output=True, text=True)
    if found.returncode:
        sys.exit(found.stderr.strip())
    return found.stdout.strip()


# A model in the hub's cache.
HUB = "hub/models--org--tiny"


class Pfs:
    """A mount of slowfs over the data: `with Pfs(source, at) as pfs:`"""

    def __init__(self, source, at):
        self.at, self.socket = at, f"{at}.sock"
        os.makedirs(at, exist_ok=True)
        self.server = subprocess.Popen([f"{BIN}/slowfs", "--until-stdin-closes", "--meta-latency", "1ms", "--cache", "direct",
                                        "--control", self.socket, source, at], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        while not os.path.ismount(at):
            if self.server.poll() is not None:
                sys.exit("recipes: slowfs did not start")
            time.sleep(0.05)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stdin.close()
        self.server.wait()

    def opens(self):
        """Opens by file, of the files of the data set (not of directories)."""
        return {path: counts["opens"] for path, counts in self.paths().items() if counts["opens"]}

    def paths(self):
        said = subprocess.run([f"{BIN}/slowfs", "ctl", self.socket, "paths"], capture_output=True, text=True, check=True)
        return json.loads(said.stdout)["paths"]


class Recipe:
    def __init__(self, name, command, lines, roots=("",), outside=(), tier="64MiB", mapped=None):
        # How many lines the program prints, so that one that prints nothing is no success. Roots
        # are directories of the data; files outside of them are opened as without Monarch. Of a
        # file with the suffix `mapped`, which the program maps while its copy is being made, the
        # PFS sends each byte once, to two that open it.
        self.name, self.command, self.lines, self.roots, self.outside = name, command, lines, roots, outside
        self.tier, self.mapped = tier, mapped


def recipes(python, kernel):
    job = lambda name: f"{PROGRAMS}/{name}.py"
    launch = [python, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no",
              "--dynamo_backend", "no"]
    return [
        Recipe("lightning", lambda root: [python, job("lightning_job"), root], 3),
        Recipe("accelerate", lambda root: [*launch, job("accelerate_job"), root], 3),
        Recipe("trainer", lambda root: [python, job("trainer_job"), root], 3),
        Recipe("hub", lambda root: [python, job("hub_job"), root], 3, (HUB, "datasets")),
        # (The links of a snapshot lead out of it, to blobs/.)
        Recipe("snapshot", lambda root: [python, job("hub_job"), root], 3, (f"{HUB}/snapshots/{'b' * 40}", "datasets"), (f"{HUB}/refs/main",)),
        Recipe("shards", lambda root: [python, job("shards_job"), root], 3, ("large",), tier="1GiB", mapped=".safetensors"),
        Recipe("ray", lambda root: [python, job("ray_job"), root], 3),
        Recipe("notebook", lambda root: [python, job("notebook"), kernel, root], 4),
    ]


def run(command, env, log):
    with open(log, "w") as err:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=err, text=True, env=env, timeout=600)
    if done.returncode:
        sys.exit(f"recipes: {' '.join(command)} ended with {done.returncode}; its standard error:\n{open(log).read()[-3000:]}")
    return done.stdout


def main(names):
    python = interpreter("torch2")
    site = f"{os.path.dirname(os.path.dirname(interpreter('recipes')))}/lib/python3.11/site-packages"
    work = tempfile.mkdtemp(prefix="monarch-recipes-")
    # Ray's sockets must have short paths.
    short = tempfile.mkdtemp(prefix="r", dir="/tmp")
    env = ENVIRONMENT | {"PYTHONPATH": site, "HOME": f"{work}/home", "TMPDIR": short, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                         "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": short, "MONARCH_RUNTIME_DIR": f"{work}/run",
                         "JUPYTER_PLATFORM_DIRS": "1", "TOKENIZERS_PARALLELISM": "false"}
    for directory in ("home", "run"):
        os.makedirs(f"{work}/{directory}", 0o700)
    failed = []
    try:
        run([python, f"{PROGRAMS}/data.py", f"{work}/data"], env, f"{work}/data.log")
        # Files that changed in the last 10 seconds are not copied yet (`dataset.min_file_age`).
        time.sleep(11)
        settings = lambda at, recipe: [w for root in recipe.roots for w in ("--root", os.path.join(at, root).rstrip("/"))] + \
            ["--tier", f"{work}/tier:{recipe.tier}"]
        kernels = {False: "bare", True: "monarch"}
        wanted = [r.name for r in recipes(python, "")]
        for name in set(names) - set(wanted):
            sys.exit(f"recipes: there is no {name} ({' '.join(wanted)})")
        for name in names or wanted:
            said, opens, twice = {}, {}, {}
            for ours in (False, True):
                with Pfs(f"{work}/data", f"{work}/pfs") as pfs:
                    recipe = next(r for r in recipes(python, kernels[ours]) if r.name == name)
                    command = recipe.command(pfs.at)
                    if name == "notebook":
                        # The kernel runs under Monarch, not Jupyter's client.
                        install = [f"{BIN}/monarch", "kernel", "install", "--python", python, *settings(pfs.at, recipe)] if ours else \
                            [python, "-m", "ipykernel", "install", "--user", "--name", "bare"]
                        run(install, env, f"{work}/install.log")
                    elif ours:
                        command = [f"{BIN}/monarch", "run", "--report", f"{work}/{name}.json", *settings(pfs.at, recipe), "--", *command]
                    started = time.monotonic()
                    said[ours] = run(command, env, f"{work}/{name}.{kernels[ours]}.log")
                    took = time.monotonic() - started
                    opens[ours] = pfs.opens()
                    if ours and recipe.mapped:
                        sent = {path: of["bytes_read"] / os.path.getsize(f"{work}/data/{path}") for path, of in pfs.paths().items() if path.endswith(recipe.mapped)}
                        twice = {path: times for path, times in sent.items() if times > 1.02}
                        opens[True] = {path: n if path not in sent else min(n, 1) for path, n in opens[True].items()}
                    print(f"recipes: {name:10} {kernels[ours]:8} {took:5.1f} s, {sum(opens[ours].values())} opens of {len(opens[ours])} files", flush=True)
                    shutil.rmtree(f"{work}/tier", ignore_errors=True)
            wrong = []
            if len(said[False].splitlines()) != recipe.lines:
                wrong.append(f"bare it printed {said[False]!r}")
            if said[True] != said[False]:
                wrong.append(f"printed {said[True]!r}\n   instead of {said[False]!r}")
            often = {path: n for path, n in opens[True].items() if n > 1 and path not in recipe.outside}
            if often:
                wrong.append(f"{len(often)} files were opened more than once, such as {next(iter(often.items()))}")
            if twice:
                wrong.append(f"bytes were sent more than once, such as {next(iter(twice.items()))}")
            # The prefetch also reads files that this program does not open.
            ours, bare = (sum(opens[under].get(path, 0) for path in opens[False]) for under in (True, False))
            if ours >= bare:
                wrong.append(f"{ours} opens of the files it reads under Monarch, {bare} without")
            print(f"recipes: {name:10} {'ok' if not wrong else 'FAILED: ' + '; '.join(wrong)}", flush=True)
            failed += [name] * bool(wrong)
    finally:
        if os.environ.get("MONARCH_TRIAL_KEEP"):
            print(f"recipes: kept {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(short, ignore_errors=True)
    print("recipes: ok" if not failed else f"recipes: FAILED: {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    if "-h" in sys.argv or "--help" in sys.argv:
        print(__doc__.strip())
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
