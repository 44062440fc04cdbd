#!/usr/bin/env python3
"""Environments of Python below a root: what makes, changes and imports them, bare and under `monarch run`.

    tests/environments.py [--everyday] [NAME...]     names: see SCENARIOS; 10 minutes, 1 with --everyday

Each scenario makes a tree of its own twice, runs the same program in it bare and under Monarch
(`dataset.absent: checked` for all directories, so that names that appear are the risk), and compares
what the program says, and the trees that it leaves. `--everyday` leaves out what needs PyPI or takes
minutes. Beside the everyday suite; `environments::` of tests/e2e runs `--everyday`. Needs a release
build (MONARCH_E2E_BIN names another directory), git, and Debian's python3-venv. Ends with 1 when a scenario differs.
"""
import hashlib, json, os, shutil, signal, subprocess, sys, tempfile, textwrap, time, zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("MONARCH_E2E_BIN", f"{ROOT}/target/release")
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("MONARCH_", "PYTHON", "PIP_"))}
ENVIRONMENT |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "HOME": "/nonexistent", "LC_ALL": "C"}
ABSENT = os.environ.get("MONARCH_TRIAL_ABSENT", "checked")


class Place:
    """A root of its own with a way to run programs in it."""

    def __init__(self, work, monarch):
        # The same path length bare and under Monarch, as scripts hold it.
        self.work = os.path.join(work, "ours" if monarch else "bare")
        self.root, self.monarch = f"{self.work}/set", monarch
        os.makedirs(self.root)
        os.mkdir(f"{self.work}/run", 0o700)

    def command(self, *words):
        ours = [f"{BIN}/monarch", "run", "--quiet", "--root", self.root, "--tier", f"{self.work}/tier:2GiB",
                "--set", f"dataset.absent={ABSENT}", "--set", "dataset.min_file_age=0s", "--set", "dataset.revalidate=1s",
                "--set", f"runtime_dir={self.work}/run", "--"]
        return [*(ours if self.monarch else []), *words]

    def environment(self, **more):
        return ENVIRONMENT | {"ROOT": self.root, "WHEELS": f"{self.root}/../wheels", "MONARCH_RUNTIME_DIR": f"{self.work}/run"} | more

    def run(self, script, timeout=1200, **more):
        """A script of bash in the root; its status, output and errors, without the place's own path."""
        done = subprocess.run(self.command("bash", "-euc", script), cwd=self.root, env=self.environment(**more),
                              capture_output=True, text=True, errors="replace", timeout=timeout)
        return self.plain(done.returncode, done.stdout, done.stderr)

    def plain(self, *what):
        return tuple(w.replace(self.work, "PLACE") if isinstance(w, str) else w for w in what)

    def start(self, script, **more):
        return subprocess.Popen(self.command("bash", "-euc", script), cwd=self.root, env=self.environment(**more),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)

    def tree(self, leave_out=(".pyc", "RECORD", "INSTALLER", ".git/index", ".git/logs", "REQUESTED", "direct_url.json", ".mtimes")):
        """Names, kinds and contents of all that is there; compiled files hold times, records their sums."""
        found = {}
        for top, dirs, files in os.walk(self.root):
            for name in dirs + files:
                path = os.path.join(top, name)
                rel = os.path.relpath(path, self.root)
                if rel.startswith("tmp") or any(rel.endswith(end) or f"/{end}" in rel for end in leave_out):
                    continue
                if os.path.islink(path):
                    found[rel] = self.plain("->" + os.readlink(path))[0]
                elif os.path.isdir(path):
                    found[rel] = "dir"
                elif os.path.isfile(path):
                    with open(path, "rb") as f:
                        found[rel] = hashlib.sha256(f.read().replace(self.work.encode(), b"PLACE")).hexdigest()
                else:
                    found[rel] = "special"
        return found


def wheel(at, name, version, modules):
    """A wheel of pure Python, made here."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(f"{at}/{name}-{version}-py3-none-any.whl", "w") as z:
        for path, text in modules.items():
            z.writestr(path, text)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: here\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "".join(f"{p},,\n" for p in [*modules, f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]))


def wheels(place):
    at = f"{place.work}/wheels"
    os.makedirs(at, exist_ok=True)
    for version in ("1.0", "2.0"):
        modules = {f"alpha/m{i}.py": f"from . import m{i + 1}\nV = {version!r}\n" if i < 60 else f"V = {version!r}\n" for i in range(61)}
        modules["alpha/__init__.py"] = f"__version__ = {version!r}\nfrom . import m0\n"
        if version == "2.0":
            modules["alpha/only_in_two.py"] = "X = 2\n"
        wheel(at, "alpha", version, modules)
    wheel(at, "beta", "1.0", {"beta.py": "import alpha\nprint('beta on', alpha.__version__)\n"})


VENV = "/usr/bin/python3 -m venv venv >/dev/null"
# Asks for a module until it can be imported; prints each different outcome once, in order.
WAITS = textwrap.dedent("""
    import subprocess, sys, time
    last, until = None, time.time() + 120
    while time.time() < until:
        code = "import alpha, importlib.util as u; print(alpha.__version__, bool(u.find_spec('alpha.only_in_two')))"
        done = subprocess.run([sys.argv[1], "-c", code], capture_output=True, text=True)
        said = done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
        if said != last and (done.returncode == 0 or "ModuleNotFoundError" in said):
            print(said, flush=True)
            last = said
        if said == sys.argv[2]:
            sys.exit(0)
    sys.exit("it never came: " + str(last))
""")


def venv(place):
    """`python -m venv`, pip from local wheels, imports, upgrade, removal."""
    wheels(place)
    pip = "venv/bin/python -m pip -q --no-cache-dir install --no-index --find-links $WHEELS"
    return place.run(f"""{VENV}
        venv/bin/python -c 'import alpha' 2>&1 | tail -n 1
        {pip} alpha==1.0; venv/bin/python -c 'import alpha; print(alpha.__version__, alpha.m0.V)'
        venv/bin/python -c 'import beta' 2>&1 | tail -n 1
        {pip} beta; venv/bin/python -c 'import beta'
        {pip} alpha==2.0; venv/bin/python -c 'import alpha, alpha.only_in_two as o; print(alpha.__version__, o.X)'
        venv/bin/python -m pip -q uninstall -y alpha; venv/bin/python -c 'import alpha' 2>&1 | tail -n 1
        venv/bin/python -m pip list --format=freeze""")


def while_others_import(place):
    """pip installs and upgrades while another process of the job imports what it brings."""
    wheels(place)
    place.run(VENV)
    with open(f"{place.work}/waits.py", "w") as f:
        f.write(WAITS)
    pip = "venv/bin/python -m pip -q --no-cache-dir install --no-index --find-links $WHEELS"
    said = place.run(f"""(venv/bin/python ../waits.py venv/bin/python '1.0 False'; venv/bin/python ../waits.py venv/bin/python '2.0 True') & w=$!
        sleep 1; {pip} alpha==1.0; sleep 2; {pip} alpha==2.0; wait $w""")
    # What is seen between is a matter of luck; the ends are not.
    lines = said[1].split()
    return said[0], "1.0" in lines, lines[-2:], said[2]


def from_elsewhere(place):
    """The same, installed by a program that is no part of the job: seen after `revalidate`."""
    wheels(place)
    place.run(VENV)
    with open(f"{place.work}/waits.py", "w") as f:
        f.write(WAITS)
    job = place.start("venv/bin/python ../waits.py venv/bin/python '1.0 False'")
    time.sleep(3)
    subprocess.run([f"{place.root}/venv/bin/python", "-m", "pip", "-q", "install", "--no-index", "--no-cache-dir", "--find-links", f"{place.work}/wheels", "alpha==1.0"],
                   check=True, env=place.environment())
    out, errors = job.communicate(timeout=200)
    return place.plain(job.returncode, str(out.split()[-2:]), errors)


def pyc(place):
    """Compiled files are written, used, and made again when the source changes."""
    return place.run(f"""{VENV}
        s=$(echo venv/lib/python3*/site-packages); echo 'V = 1' > $s/gamma.py
        venv/bin/python -c 'import gamma; print(gamma.V)'; ls $s/__pycache__ | grep -c gamma
        venv/bin/python -c 'import gamma; print(gamma.V, gamma.__cached__.endswith(".pyc"))'
        sleep 1.1; echo 'V = 22' > $s/gamma.py; venv/bin/python -c 'import gamma; print(gamma.V)'
        mv $s/gamma.py $s/delta.py; venv/bin/python -c 'import gamma' 2>&1 | tail -n 1; venv/bin/python -c 'import delta; print(delta.V)'
        mkdir -p $s/pack/sub; echo 'W = 3' > $s/pack/sub/m.py; venv/bin/python -c 'import pack.sub.m as m; print(m.W)'
        venv/bin/python -m compileall -q $s/pack; rm $s/pack/sub/m.py; mv $s/pack/sub/__pycache__/m.*.pyc $s/pack/sub/m.pyc
        venv/bin/python -c 'import pack.sub.m as m; print(m.W, m.__file__.endswith("m.pyc"))'""")


def git(place):
    """Branches that have other files, stash, worktrees; code that is imported in between."""
    return place.run("""export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z GIT_CONFIG_GLOBAL=/dev/null
        git init -q -b one repo; cd repo; git config user.email a@b; git config user.name n
        mkdir -p pkg/a pkg/b; for i in $(seq 40); do echo "V = $i" > pkg/a/m$i.py; done; touch pkg/__init__.py pkg/a/__init__.py
        git add .; git commit -qm one; git checkout -q -b two; git rm -q pkg/a/m1.py; mkdir -p pkg/c; echo 'V = "c"' > pkg/c/__init__.py
        echo 'V = "two"' > pkg/a/m2.py; git add .; git commit -qm two
        for n in 1 2 3; do for b in one two; do git checkout -q $b; git status --porcelain
          python3 -B -c 'import importlib.util as u, pkg.a.m2 as m; print(m.V, bool(u.find_spec("pkg.a.m1")), bool(u.find_spec("pkg.c")))'; done; done
        echo x > pkg/new; git stash -q -u; ls pkg; git stash pop -q; cat pkg/new; git worktree add -q ../other one; ls ../other/pkg; git worktree remove ../other --force
        git clean -qfd; git gc -q; git fsck 2>&1; git log --oneline | wc -l""")


def conda(place):
    """The layout of conda: packages once, environments of hard links, prefixes rewritten in files."""
    return place.run(r"""mkdir -p conda/conda-meta conda/pkgs/x-1/{bin,lib,share} conda/envs; echo '{}' > conda/conda-meta/history
        p=/placeholder/of/a/prefix/that/is/long/enough/to/be/replaced
        printf '#!/bin/sh\necho %s\n' $p > conda/pkgs/x-1/bin/x; chmod +x conda/pkgs/x-1/bin/x; printf 'A\0%s\0B' $p > conda/pkgs/x-1/lib/libx.so; echo text > conda/pkgs/x-1/share/t
        for e in one two; do d=$PWD/conda/envs/$e; test ! -e $d/lib/libx.so; mkdir -p $d/conda-meta $d/bin $d/lib $d/share
          ln conda/pkgs/x-1/share/t $d/share/t; test $d/share/t -ef conda/pkgs/x-1/share/t
          sed "s#$p#$e#" conda/pkgs/x-1/bin/x > $d/bin/x; chmod +x $d/bin/x
          python3 - conda/pkgs/x-1/lib/libx.so $d/lib/libx.so $p $e <<'P'
import sys
old, new, prefix, name = sys.argv[1:]
data = open(old, "rb").read(); short = name.encode(); long = prefix.encode()
open(new + ".tmp", "wb").write(data.replace(long, short + b"\0" * (len(long) - len(short))))
import os; os.rename(new + ".tmp", new)
P
          ln -s libx.so $d/lib/libx.so.1; cat $d/lib/libx.so.1 | tr '\0' .; echo; $d/bin/x; stat -c %h $d/share/t; done
        mv conda/envs/one conda/envs/three; test ! -e conda/envs/one/bin/x; conda/envs/three/bin/x; rm -r conda/envs/two; test ! -e conda/envs/two/lib; stat -c %h conda/pkgs/x-1/share/t""")


def outside(place):
    """A venv whose links lead out of the root, and one with the interpreter inside."""
    return place.run(f"""mkdir -p ../elsewhere; echo 'V = "out"' > ../elsewhere/out.py; {VENV}
        s=$(echo $PWD/venv/lib/python3*/site-packages); ln -s $PWD/../elsewhere/out.py $s/out.py; ln -s $PWD/../elsewhere $s/dir
        venv/bin/python -B -c 'import out, dir.out; print(out.V, dir.out.V)'; echo 'V = "later"' > ../elsewhere/later.py
        venv/bin/python -B -c 'import dir.later as l; print(l.V)'; readlink venv/bin/python3; venv/bin/python -c 'import sys; print(sys.base_prefix, sys.prefix)'
        venv/bin/python -c 'import os; print(os.path.realpath("venv/bin/python"), os.path.samefile("venv/lib64", "venv/lib") if os.path.exists("venv/lib64") else None)'""")


def together(place):
    """64 processes that import the same packages at once."""
    wheels(place)
    place.run(f"{VENV}; venv/bin/python -m pip -q --no-cache-dir install --no-index --find-links $WHEELS alpha==1.0 beta")
    return place.run("""p=; for i in $(seq 64); do venv/bin/python -c 'import beta, json, http.client, asyncio' & p="$p $!"; done; for i in $p; do wait $i; done""")


def agent_dies(place):
    """The agent is killed while processes import."""
    wheels(place)
    place.run(f"{VENV}; venv/bin/python -m pip -q --no-cache-dir install --no-index --find-links $WHEELS alpha==1.0 beta")
    job = place.start("for i in $(seq 40); do venv/bin/python -B -c 'import beta, asyncio, xml.dom.minidom; import nothing_of_that_name' 2>&1 | tail -n 1 || true; done")
    for _ in range(4):
        time.sleep(0.4)
        if place.monarch:
            kill_agents(place)
    out, errors = job.communicate(timeout=200)
    return place.plain(job.returncode, str(sorted(set(out.splitlines()))), len(out.splitlines()), errors)


def kill_agents(place):
    said = subprocess.run([f"{BIN}/monarch", "status", "--json"], env=place.environment(), capture_output=True, text=True).stdout
    for agent in json.loads(said or "[]"):
        if agent["runtime_dir"].startswith(place.work):
            os.kill(agent["pid"], signal.SIGKILL)


def interpreter(place):
    """An interpreter and its library below the root: CPython's own tests of imports, files and names."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(sys.executable)))
    shutil.copytree(home, f"{place.root}/python", symlinks=True)
    python = os.path.basename(os.path.realpath(sys.executable))
    tests = "test_import test_importlib test_zipimport test_compileall test_py_compile test_runpy test_site test_os test_posixpath test_glob test_shutil test_tempfile test_pathlib test_venv test_ensurepip test_pkgutil test_modulefinder test_sysconfig test_genericpath test_fileio test_io"
    return place.run(f"mkdir tmp; TMPDIR=$PWD/tmp python/bin/{python} -m test -j2 {tests} > ../log 2>&1 || true; "
                     "grep -E '^(test_[a-z_]+ failed|[0-9]+ tests? (OK|failed)|Result|All [0-9]+ tests OK|    test_)' ../log | sed -E 's/ \\(.*//; s/ in [0-9.]+ (sec|min).*//' | sort")


def packages(place):
    """numpy, scipy and pandas from PyPI by pip, below the root; their imports and a few of their tests."""
    return place.run(f"""{VENV}; venv/bin/python -m pip -q --no-cache-dir install 'numpy==2.4.*' scipy pandas pytest hypothesis 2>&1 | grep -v notice || true
        venv/bin/python -c 'import numpy, scipy.linalg, pandas; print(numpy.__version__, pandas.DataFrame(dict(a=[1, 2])).sum().tolist(), scipy.linalg.det([[1, 2], [3, 4]]))'
        venv/bin/python -m pytest -q -p no:cacheprovider --pyargs numpy.lib.tests.test_io numpy._core.tests.test_memmap 2>&1 | tail -n 1 | sed -E 's/ in .*//'""", HOME=place.work)


def uv(place):
    """uv (its own binary) makes an environment below the root and installs into it."""
    return place.run(f"""{VENV}; venv/bin/python -m pip -q --no-cache-dir install uv 2>&1 | grep -v notice || true
        export UV_CACHE_DIR=$PWD/tmp-uv UV_PYTHON_DOWNLOADS=never
        venv/bin/uv -q venv --python /usr/bin/python3 second; venv/bin/uv -q pip install --python second/bin/python six 'numpy==2.4.*'
        second/bin/python -B -c 'import six, numpy; print(six.__version__, numpy.zeros(3).sum())'
        venv/bin/uv -q pip uninstall --python second/bin/python six; sleep 1.2; second/bin/python -B -c 'import six' 2>&1 | tail -n 1; rm -r tmp-uv""", HOME=place.work)


EVERYDAY = (venv, while_others_import, from_elsewhere, pyc, git, conda, outside, together, agent_dies)
SCENARIOS = {f.__name__: f for f in (*EVERYDAY, interpreter, packages, uv)}


def first_difference(bare, ours):
    for at in sorted(bare.keys() | ours.keys()):
        if bare.get(at) != ours.get(at):
            return f"{at}: bare {bare.get(at)}, ours {ours.get(at)}"
    return None


def trial(name, work):
    took, said, trees = [], [], []
    for monarch in (False, True):
        place = Place(work, monarch)
        began = time.time()
        said.append(SCENARIOS[name](place))
        took.append(time.time() - began)
        trees.append(place.tree())
        shutil.rmtree(place.root)
    differs = [f"bare {said[0]!r}\n    ours {said[1]!r}"] if said[0] != said[1] else []
    tree = first_difference(*trees)
    differs += [tree] if tree else []
    wrong = [] if said[0][0] in (0, True) else [f"it fails bare: {said[0]!r}"]
    print(f"{'differs' if differs else 'fails' if wrong else 'equal':8}{name:22}{took[0]:6.1f} s bare {took[1]:6.1f} s ours, {len(trees[0])} names", flush=True)
    for line in differs + wrong:
        print(f"    {line[:4000]}", flush=True)
    return not differs and not wrong


def main():
    names = [w for w in sys.argv[1:] if w != "--everyday"]
    if unknown := [n for n in names if n not in SCENARIOS]:
        sys.exit(f"environments: unknown {', '.join(unknown)}; there are: {' '.join(SCENARIOS)}")
    names = names or [f.__name__ for f in EVERYDAY] if "--everyday" in sys.argv else names or list(SCENARIOS)
    good = 0
    for name in names:
        work = tempfile.mkdtemp(prefix=f"monarch-{name}-")
        try:
            good += trial(name, work)
        finally:
            if not os.environ.get("MONARCH_TRIAL_KEEP"):
                shutil.rmtree(work, ignore_errors=True)
    print(f"{good} passed, {len(names) - good} failed")
    sys.exit(good != len(names))


if __name__ == "__main__":
    main()
