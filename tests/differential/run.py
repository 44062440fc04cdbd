#!/usr/bin/python3
"""Runs the cases of `cases/*.cases` bare (twice) and under `monarch run`, and compares them.

A case is a shell script. Each run of it gets a fresh image of one data set, mounted at the same
path, an empty scratch directory as its working directory, and these variables:

    ROOT     the data set (PFS/set)
    OUTSIDE  a directory beside it, on the same file system
    OUT      the scratch directory
    BIN      the compiled C cases (src/*.c), on PATH as well
    PYIO     a Python with numpy and h5py
    RUN      in `outer` cases: what stands before the command; STAGE: what copies all files

Compared are exit status, standard output, standard error, the data set and the scratch directory
afterwards, and the data set as the job itself sees it at its end (src/view.c, through the shim).
Lines that differ between the two bare runs are not compared. docs/DIFFERENTIAL.md says more.
"""

import argparse, ctypes, difflib, fcntl, hashlib, json, multiprocessing, os, re, shutil, signal
import subprocess, sys, time, traceback
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
PLACE = "/mnt"  # a tmpfs of our own mount namespace
# (What jobs find their programs in.)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER = 1234
CACHE = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")) + "/monarch"
PYIO = CACHE + "/venv-io/bin/python"
# Settings, where the tier lies, and whether all files are copied before the case begins.
MODES = {
    "immutable": ([], "disk", True),
    "close-to-open": (
        ["dataset.consistency=close-to-open", "dataset.revalidate=0s"],
        "memory",
        True,
    ),
    "verify": (["dataset.verify_on_open=true"], "disk", True),
    # (Nothing is fetched ahead, so that reads meet chunks that are missing.)
    "chunks": (
        ["source.chunk_threshold=4KiB", "source.chunk_size=4KiB", "prefetch.enabled=false"],
        "memory",
        False,
    ),
    # Beside the four that a run takes by itself:
    "chunks-staged": (["source.chunk_threshold=4KiB", "source.chunk_size=4KiB"], "disk", True),
    "cold": ([], "memory", False),
    "memory": ([], "memory", True),
}
DEFAULT = ["immutable", "close-to-open", "verify", "chunks"]
PARTS = ["status", "stdout", "stderr", "state", "view", "integrity"]


@dataclass
class Case:
    family: str
    name: str
    body: str
    options: dict = field(default_factory=dict)

    @property
    def full(self):
        return f"{self.family}/{self.name}"


def read_cases():
    found = []
    for file in sorted(os.listdir(HERE + "/cases")):
        if not file.endswith(".cases"):
            continue
        family, case = file[:-6], None
        for line in open(f"{HERE}/cases/{file}", encoding="utf-8"):
            head = re.match(r"^\[([A-Za-z0-9_.-]+)\](.*)$", line)
            if head:
                options = {}
                for word in head[2].split():
                    key, _, value = word.partition(":")
                    options[key] = value.split(",") if value else []
                case = Case(family, head[1], "", options)
                found.append(case)
            elif case:
                case.body += line
    names = [c.full for c in found]
    double = {n for n in names if names.count(n) > 1}
    if double:
        sys.exit(f"differential: two cases of one name: {', '.join(sorted(double))}")
    return found


@dataclass
class Expected:
    case: str
    modes: str
    parts: str
    section: str
    why: str
    used: bool = False


def read_expected(cases):
    """expected.tsv: case, modes, parts (see `listed`), section of docs/SEMANTICS.md, reason."""
    sections = set()
    for line in open(REPOSITORY + "/docs/SEMANTICS.md", encoding="utf-8"):
        if line.startswith("#"):
            sections.add(line.lstrip("#").strip())
    found, wrong = [], []
    names = {c.full for c in cases}
    for number, line in enumerate(open(HERE + "/expected.tsv", encoding="utf-8"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.rstrip("\n").split("\t")
        if len(parts) != 5:
            wrong.append(f"expected.tsv:{number}: five columns are wanted")
            continue
        entry = Expected(*parts)
        if entry.case not in names:
            wrong.append(f"expected.tsv:{number}: no case {entry.case}")
        if entry.section not in sections:
            wrong.append(
                f"expected.tsv:{number}: docs/SEMANTICS.md has no section {entry.section!r}"
            )
        found.append(entry)
    if wrong:
        sys.exit("differential: " + "\n".join(wrong))
    return found


def missing(case):
    """Why a case cannot run here, or None."""
    for tool in case.options.get("needs", []):
        kind, _, name = tool.partition("=")
        if kind == "python" and name:
            if subprocess.run(
                ["/usr/bin/python3", "-c", f"import {name}"], capture_output=True
            ).returncode:
                return f"python module {name} is missing"
        elif kind == "pyio":
            if not os.access(PYIO, os.X_OK):
                return "the environment of `tests/venvs.sh io` is missing"
        elif not shutil.which(tool, path=PATH):
            return f"{tool} is missing"
    return None


# --- the machine: processes, images


def descendants():
    """Processes below this one, children first."""
    parents = {}
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                stat = open(f"/proc/{pid}/stat", "rb").read().rpartition(b")")[2].split()
            except OSError:
                continue
            parents[int(pid)] = int(stat[1])
    mine, found = {os.getpid()}, []
    grew = True
    while grew:
        grew = False
        for pid, parent in parents.items():
            if parent in mine and pid not in mine:
                mine.add(pid)
                found.append(pid)
                grew = True
    return found


def end_all():
    """Ends what a run left behind: all processes below this one, which is their subreaper."""
    for _ in range(200):
        left = descendants()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if not left:
                return
        time.sleep(0.005)


def quiet(*words):
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)


class Slot:
    """A place for runs: PLACE/s, which each worker sees as its own, with pfs (the image) and more."""

    def __init__(self, number):
        self.top = f"{PLACE}/s"
        os.makedirs(f"{PLACE}/{number}")
        if ctypes.CDLL(None, use_errno=True).unshare(0x20000):  # CLONE_NEWNS
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["mount", "--bind", f"{PLACE}/{number}", self.top], check=True)
        self.pfs, self.out = self.top + "/pfs", self.top + "/out"
        self.root = self.pfs + "/set"
        self.disk = f"{self.top}/disk"
        # Loop devices of its own, so that st_dev is the same in each run.
        self.loops = []
        with open("/dev/loop-control") as control:
            for n in range(200 + int.from_bytes(os.urandom(1), "little") * 16, 9000):
                try:
                    fcntl.ioctl(control, 0x4C80, n)  # LOOP_CTL_ADD
                except FileExistsError:
                    continue
                self.loops.append(n)
                if len(self.loops) == 2:
                    break
        for _ in range(200):
            if all(os.path.exists(f"/dev/loop{n}") for n in self.loops):
                break
            time.sleep(0.01)
        for d in (self.pfs, self.disk):
            os.makedirs(d, exist_ok=True)

    DIRS = ("out", "home", "memory", "run", "files")

    def mount(self, image, where, device, options):
        """Mounts a fresh copy of an image."""
        copy = f"{self.top}/{image}"
        subprocess.run(["cp", "--sparse=always", f"{PLACE}/{image}", copy], check=True)
        # (A process that is still ending may hold the one before it.)
        for attempt in range(300):
            mounted = quiet("mount", "-o", f"loop=/dev/loop{device},{options}", copy, where)
            if not mounted.returncode:
                return
            time.sleep(0.02)
            if attempt % 50 == 49:
                os.unlink(copy)
                quiet("losetup", "-d", f"/dev/loop{device}")
                subprocess.run(["cp", "--sparse=always", f"{PLACE}/{image}", copy], check=True)
        raise OSError(f"mount: {mounted.stderr.decode()}")

    def fresh(self, owner, disk):
        self.clear()
        self.mount("image", self.pfs, self.loops[0], "relatime")
        if disk:
            # (A tier that forbids programs and devices, as local disks often do.)
            self.mount("tier", self.disk, self.loops[1], "noexec,nosuid,nodev,discard")
            os.mkdir(self.disk + "/tier")
            os.chown(self.disk + "/tier", owner, owner)
        for d in self.DIRS:
            os.mkdir(f"{self.top}/{d}")
            os.chown(f"{self.top}/{d}", owner, owner)

    def gone(self):
        self.clear()
        with open("/dev/loop-control") as control:
            for n in self.loops:
                try:
                    fcntl.ioctl(control, 0x4C81, n)  # LOOP_CTL_REMOVE
                except OSError:
                    pass

    def clear(self):
        end_all()
        mounts = [
            re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4])
            for line in open("/proc/self/mountinfo")
        ]
        for mount in reversed(mounts):
            if mount.startswith(self.top + "/"):
                if quiet("umount", mount).returncode:
                    quiet("umount", "-l", mount)
        for d in (f"{self.top}/{d}" for d in self.DIRS):
            shutil.rmtree(d, ignore_errors=True)
            if os.path.lexists(
                d
            ):  # (A case may have made files immutable that it should not have reached.)
                quiet("chattr", "-R", "-f", "-i", "-a", d)
                shutil.rmtree(d)


DRIVER = """
if [ -n "$DIFF_STAGE" ]; then
  MONARCH_DISABLE=1 $DIFF_STAGE >"$DIFF_FILES/stage" 2>&1 </dev/null
fi
files=$DIFF_FILES; unset DIFF_STAGE DIFF_FILES
sh "$files/body"; status=$?
cd /
"$BIN/view" "$ROOT" >"$files/view" 2>&1 </dev/null
exit $status
"""
PRELUDE = """
t() { "$@"; echo "rc=$?"; }
cd "$OUT" || exit 98
"""


def run_once(slot, case, mode, options):
    """Runs a case once; `mode` None is bare. Returns what is compared, and notes."""
    user = USER if "user" in case.options else 0
    outer = "outer" in case.options
    slot.fresh(user, mode and MODES[mode][1] == "disk")
    files = slot.top + "/files"
    binaries = options.bin
    env = {
        "PATH": f"{binaries}:{PATH}",
        "HOME": slot.top + "/home",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "ROOT": slot.root,
        "OUT": slot.out,
        "OUTSIDE": slot.pfs + "/outside",
        "BIN": binaries,
        "PYIO": PYIO,
        "PYTHONDONTWRITEBYTECODE": "1",
        "USER": "u",
        "LOGNAME": "u",
        "SLOT": slot.top,
        "GIT_CONFIG_NOSYSTEM": "1",
        "RUN": "",
        "STAGE": "",
    }
    with open(files + "/body", "w") as f:
        f.write(PRELUDE + case.body)
    with open(files + "/driver", "w") as f:
        f.write(DRIVER)
    os.chown(files + "/body", user, user)
    words = ["sh", files + "/driver"]
    if mode:
        sets, place, staged = MODES[mode]
        tier = slot.disk + "/tier" if place == "disk" else slot.top + "/memory"
        size = (case.options.get("tier") or ["64MiB"])[0]
        common = ["--root", slot.root, "--tier", f"{tier}:{size}"]
        for s in [f"runtime_dir={slot.top}/run", "dataset.min_file_age=0s", *sets]:
            common += ["--set", s]
        monarch = options.monarch
        # Without copies the job begins when the roots have been scanned; until then all would be
        # the PFS's.
        stage = " ".join(
            [
                monarch,
                "stage",
                *([] if staged and "cold" not in case.options else ["--dry-run"]),
                "--quiet",
                *common,
            ]
        )
        if outer:
            env["RUN"] = " ".join([monarch, "run", "--quiet", *common, "--"])
            env["STAGE"] = stage or "true"
        else:
            env["DIFF_STAGE"] = stage
            words = [
                monarch,
                "run",
                "--quiet",
                "--report",
                files + "/report.json",
                *common,
                "--",
            ] + words
    if outer:
        env["STAGE"] = env["STAGE"] or "true"
        words = ["sh", files + "/body"]
    env["DIFF_FILES"] = files
    limit = float((case.options.get("timeout") or ["20"])[0]) * options.patience
    begun = time.time()
    with open(files + "/stdout", "wb") as out, open(files + "/stderr", "wb") as err:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=env,
            cwd="/",
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[],
            umask=0o022,
        )
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            status = "timeout"
            child.kill()
    seconds = time.time() - begun
    end_all()
    # Mounts that the case left (in the job's own namespace, which is ours) are part of what it did;
    # they go now.
    mounts = [line.split()[4] for line in open("/proc/self/mountinfo")]
    for mount in reversed(mounts):
        if mount.startswith(slot.pfs + "/"):
            quiet("umount", "-l", mount)
    get = lambda name: (
        open(f"{files}/{name}", "rb").read().decode("utf-8", "backslashreplace")
        if os.path.exists(f"{files}/{name}")
        else ""
    )
    errors, notes = [], []
    for line in get("stderr").splitlines(keepends=True):
        (notes if mode and line.startswith("monarch: ") else errors).append(line)
    result = {
        "status": f"{status}\n",
        "stdout": get("stdout"),
        "stderr": "".join(errors),
        "state": "".join(
            quiet(binaries + "/view", "--state", d).stdout.decode("utf-8", "backslashreplace")
            for d in (slot.root, slot.pfs + "/outside", slot.out)
        ),
        "view": get("view"),
    }
    extra = {"seconds": seconds, "notes": notes, "stage": get("stage"), "hits": None}
    if mode and not outer:
        try:
            report = json.loads(get("report.json"))
            extra["hits"] = (
                report["opens_local"]
                + report["counters"]["chunk_reads"]
                + report["counters"]["stats"]
            )
            extra["counters"] = {k: v for k, v in report["counters"].items() if v}
            damaged = report["agent"]["damaged"]
        except (ValueError, KeyError) as e:
            notes.append(f"no report: {e!r}\n")
            damaged = 0
        result["integrity"] = "".join(integrity(tier, mode, slot.root, damaged))
    else:
        result["integrity"] = ""
    if options.keep and mode:
        kept = f"{options.keep}/{case.full.replace('/', '.')}.{mode}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(files, kept)
    return result, extra


def integrity(tier, mode, root, damaged):
    """What is wrong with the copies: each must have the bytes of a file of the data set."""

    if damaged:
        yield f"the agent found {damaged} damaged copies\n"
    known = integrity.known
    for here, _, names in os.walk(tier):
        if (
            os.path.basename(os.path.dirname(here)) != "copies"
            and os.path.basename(here) != "copies"
            and "/copies/" not in here + "/"
        ):
            continue
        for n in names:
            try:
                data = open(os.path.join(here, n), "rb").read()
            except OSError:
                continue
            if hashlib.sha256(data).digest() not in known:
                yield f"a copy of {len(data)} bytes is that of no file of the data set\n"


# --- comparing


def masked(a, b):
    """Lines that two bare runs have differently, or None where their numbers of lines differ."""
    x, y = a.splitlines(), b.splitlines()
    if len(x) != len(y):
        return None
    return {i for i, (p, q) in enumerate(zip(x, y)) if p != q}


def compare(first, second, ours):
    """Parts that differ, with a diff; and parts in which the bare runs differ themselves."""
    differences, flaky = {}, []
    for part in PARTS:
        a, b, c = first[part], second[part], ours[part]
        mask = masked(a, b)
        if a == b:
            same = c == a
        elif mask is None:
            flaky.append(part)
            same = True
        else:
            flaky.append(part)
            x, z = a.splitlines(), c.splitlines()
            same = len(x) == len(z) and all(
                p == q for i, (p, q) in enumerate(zip(x, z)) if i not in mask
            )
        if not same:
            lines = difflib.unified_diff(
                a.splitlines(), c.splitlines(), "bare", "monarch", lineterm="", n=0
            )
            differences[part] = [
                line for line in lines if not line.startswith(("---", "+++", "@@"))
            ][:3000]
    return differences, flaky


def work_on(number, queue, results, options):
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    slot = Slot(number)
    while True:
        case = queue.get()
        if case is None:
            break
        answer = {"case": case.full, "modes": {}, "skip": missing(case), "seconds": 0}
        if not answer["skip"]:
            begun = time.time()
            try:
                first, extra = run_once(slot, case, None, options)
                second, _ = run_once(slot, case, None, options)
                answer["bare"] = first
                answer["bare_seconds"] = extra["seconds"]
                wanted = [m for m in options.mode if m in case.options.get("modes", options.mode)]
                for mode in wanted:
                    for _ in range(options.repeat):
                        ours, extra = run_once(slot, case, mode, options)
                        differences, flaky = compare(first, second, ours)
                        answer["flaky"] = flaky
                        answer["modes"][mode] = {"differs": differences, **extra}
                        if differences:
                            break
            except Exception as e:

                answer["error"] = traceback.format_exc() + repr(e)
            answer["seconds"] = time.time() - begun
        results.put(answer)
    slot.gone()
    results.put(None)


def compile_all(options):
    os.makedirs(options.bin, exist_ok=True)
    header = os.path.getmtime(HERE + "/src/d.h")
    running = []
    for source in sorted(os.listdir(HERE + "/src")):
        name, ext = os.path.splitext(source)
        path, out = f"{HERE}/src/{source}", f"{options.bin}/{name}"
        if ext != ".c" or (
            os.path.exists(out) and os.path.getmtime(out) > max(os.path.getmtime(path), header)
        ):
            continue
        words = ["gcc", "-O1", "-g", "-w", "-pthread", "-o", out, path, "-ldl", "-lrt"]
        first = open(path).readline()
        if first.startswith("// gcc: "):
            words += first[8:].split()
        running.append((source, subprocess.Popen(words)))
    failed = [source for source, p in running if p.wait()]
    if failed:
        sys.exit(f"differential: gcc failed on {', '.join(failed)}")


def listed(expected, case, mode, part, lines):
    """The entry that allows a difference. `stdout~REGEX` allows lines that match, `stdout` all."""
    for e in expected:
        if e.case == case and (e.modes == "*" or mode in e.modes.split(",")):
            for allowed in e.parts.split(","):
                name, _, pattern = allowed.partition("~")
                if name in ("*", part) and (
                    not pattern or all(re.search(pattern, line[1:]) for line in lines)
                ):
                    e.used = True
                    return e
    return None


def main():
    p = argparse.ArgumentParser(
        prog="tests/differential.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "filter",
        nargs="*",
        help="only cases whose FAMILY/NAME contains one of these; `=NAME` is exact, `!NAME` leaves out",
    )
    p.add_argument("--list", action="store_true", help="names of the cases and what they need")
    p.add_argument(
        "--mode",
        action="append",
        choices=list(MODES),
        help=f"may be given several times (default: {', '.join(DEFAULT)})",
    )
    p.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count(),
        help="cases at a time (default: one per processor)",
    )
    p.add_argument(
        "--repeat",
        type=int,
        default=1,
        help="runs under Monarch per mode, to find what fails sometimes",
    )
    p.add_argument("--json", metavar="FILE", help="write all results to this file")
    p.add_argument(
        "--keep", metavar="DIR", help="keep scripts, output, views and reports of the runs here"
    )
    p.add_argument(
        "--bin",
        default=os.environ.get("MONARCH_E2E_BIN", REPOSITORY + "/target/release"),
        metavar="DIR",
        help="where monarch and libmonarch_shim.so are (default: target/release)",
    )
    p.add_argument(
        "--patience", type=float, default=1.0, help="factor for time limits on a busy machine"
    )
    p.add_argument(
        "--verbose",
        action="store_true",
        help="print differences that are listed, and notes, as well",
    )
    options = p.parse_args()
    cases = read_cases()
    if options.filter:
        takes = [f for f in options.filter if not f.startswith("!")]
        leaves = [f[1:] for f in options.filter if f.startswith("!")]
        match = lambda f, c: c.full == f[1:] if f.startswith("=") else f in c.full
        cases = [
            c
            for c in cases
            if (not takes or any(match(f, c) for f in takes))
            and not any(match(f, c) for f in leaves)
        ]
    if options.list:
        for c in cases:
            print(c.full, *(f"{k}{':' if v else ''}{','.join(v)}" for k, v in c.options.items()))
        return 0
    expected = read_expected(read_cases())
    options.mode = options.mode or DEFAULT
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "mode=755,size=4g", "differential", PLACE], check=True
    )
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "mode=1777,size=2g", "shm", "/dev/shm"], check=True
    )
    os.makedirs(PLACE + "/bin")
    for name in ("monarch", "libmonarch_shim.so"):
        shutil.copy(f"{options.bin}/{name}", f"{PLACE}/bin/{name}")
    options.monarch = PLACE + "/bin/monarch"
    options.bin = CACHE + "/differential"
    if options.keep:
        options.keep = os.path.abspath(options.keep)
        os.makedirs(options.keep, exist_ok=True)
    compile_all(options)
    global PATH
    if shutil.which("rustc"):
        PATH += (
            ":"
            + subprocess.run(
                ["rustc", "--print", "sysroot"], capture_output=True, text=True
            ).stdout.strip()
            + "/bin"
        )
    shutil.copytree(
        options.bin, PLACE + "/cases"
    )  # (other users cannot reach a cache in root's home)
    options.bin = PLACE + "/cases"
    with open(f"{PLACE}/image", "wb") as f:
        f.truncate(96 << 20)
    subprocess.run(
        [
            "mkfs.ext4",
            "-q",
            "-O",
            "^has_journal",
            "-E",
            "hash_seed=12345678-1234-1234-1234-123456789abc",
            "-b",
            "4096",
            "-m",
            "0",
            "-I",
            "256",
            f"{PLACE}/image",
        ],
        check=True,
    )
    # The image is filled at the path at which it is seen later, for its absolute links.
    os.makedirs(PLACE + "/s/pfs")
    subprocess.run(["mount", "-o", "loop", f"{PLACE}/image", PLACE + "/s/pfs"], check=True)
    subprocess.run([sys.executable, HERE + "/make_set.py", PLACE + "/s/pfs"], check=True)

    integrity.known = set()
    for here, _, names in os.walk(os.fsencode(PLACE + "/s/pfs")):
        for n in names:
            path = os.path.join(here, n)
            if not os.path.islink(path):
                integrity.known.add(hashlib.sha256(open(path, "rb").read()).digest())
    subprocess.run(["umount", PLACE + "/s/pfs"], check=True)
    with open(f"{PLACE}/tier", "wb") as f:
        f.truncate(96 << 20)
    subprocess.run(
        [
            "mkfs.ext4",
            "-q",
            "-O",
            "^has_journal",
            "-b",
            "4096",
            "-m",
            "0",
            "-N",
            "2000",
            f"{PLACE}/tier",
        ],
        check=True,
    )

    # Slow cases first. (A context of forks: workers inherit what was prepared.)
    context = multiprocessing.get_context("fork")
    queue, results = context.Queue(), context.Queue()
    order = sorted(cases, key=lambda c: -float((c.options.get("timeout") or ["20"])[0]))
    for c in order:
        queue.put(c)
    workers = []
    for n in range(options.jobs):
        queue.put(None)
        w = context.Process(target=work_on, args=(n, queue, results, options))
        w.start()
        workers.append(w)
    begun, answers, left = time.time(), [], len(workers)
    progress = sys.stderr.isatty()
    while left:
        answer = results.get()
        if answer is None:
            left -= 1
            continue
        answers.append(answer)
        if progress:
            print(f"\r{len(answers)}/{len(cases)} {answer['case']:60.60}", end="", file=sys.stderr)
    if progress:
        print("\r" + " " * 80 + "\r", end="", file=sys.stderr)
    for w in workers:
        w.join()
    answers.sort(key=lambda a: a["case"])
    return report(cases, answers, expected, options, time.time() - begun)


def report(cases, answers, expected, options, seconds):
    count = {m: {"equal": 0, "listed": 0, "differs": 0} for m in options.mode}
    skipped, flaky, errors, cold = [], [], [], []
    new = 0
    for a in answers:
        if a["skip"]:
            skipped.append(f"{a['case']}: {a['skip']}")
            continue
        if a.get("error"):
            errors.append(f"{a['case']}: {a['error']}")
        if a.get("flaky"):
            flaky.append(f"{a['case']} ({', '.join(a['flaky'])})")
        shown = {}
        for mode, result in a["modes"].items():
            reasons = {
                part: listed(expected, a["case"], mode, part, lines)
                for part, lines in result["differs"].items()
            }
            result["listed"] = {part: e.section for part, e in reasons.items() if e}
            unlisted = [part for part, e in reasons.items() if not e]
            kind = "differs" if unlisted else "listed" if reasons else "equal"
            count[mode][kind] += 1
            new += bool(unlisted)
            if unlisted or (options.verbose and (reasons or result["notes"])):
                text = [
                    f"    {part}: {line[:200]}"
                    for part in result["differs"]
                    if part in unlisted or options.verbose
                    for line in result["differs"][part][:14]
                ]
                text += [f"    note: {line.rstrip()}" for line in result["notes"][:4]]
                shown.setdefault((kind, "\n".join(text)), []).append(mode)
            if result["hits"] == 0:
                cold.append(f"{a['case']} [{mode}]")
        for (kind, text), modes in shown.items():
            print(f"{kind.upper():8} {a['case']} [{', '.join(modes)}]\n{text}")
    for title, lines in (
        ("skipped", skipped),
        ("bare runs differ from each other (those lines are not compared)", flaky),
        ("without a single answer from Monarch", cold),
        ("could not be run", errors),
    ):
        if lines:
            print(f"{title}: {len(lines)}")
            for line in lines:
                print(f"    {line}")
    if not options.filter:
        for e in expected:
            if not e.used:
                print(f"listed but equal: {e.case} ({e.modes}; {e.parts})")
    print(f"\n{'mode':16}{'equal':>8}{'listed':>8}{'differ':>8}")
    for mode, c in count.items():
        print(f"{mode:16}{c['equal']:8}{c['listed']:8}{c['differs']:8}")
    print(f"{len(answers) - len(skipped)} cases, {len(skipped)} skipped, {seconds:.0f} s")
    if options.json:
        with open(options.json, "w") as f:
            json.dump({"seconds": seconds, "modes": count, "cases": answers}, f, indent=1)
    return 1 if new or errors else 0


if __name__ == "__main__":
    sys.exit(main())
