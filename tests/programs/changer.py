#!/usr/bin/env python3
"""Changes made through Python's own ways, seen at once by this process, by processes forked or
spawned before, and by new programs (python, cat, ls).

    changer.py prepare ROOT            lays out the fodder below ROOT/changepy (before the index is made)
    changer.py run ROOT [--alias PATH] does every operation once; with an alias of ROOT: half of them through each

An operation says what every name must be afterwards (bytes, list of names, link target, absent);
each observer reports what it sees. Prints ok|FAIL lines; exit 1 if one failed. The fodder is used
up.
"""
import argparse, mmap, multiprocessing, os, pathlib, shutil, subprocess, sys, tempfile, traceback

FODDER = {"a": b"aaaa" * 700, "b": b"bbbb" * 800, "c": b"cccc" * 900, "d/x": b"xx" * 50, "d/y": b"yy" * 60}
OPS = []


def op(fn):
    OPS.append(fn)
    return fn


class Dir:
    """Expectation: a directory with these names."""
    def __init__(self, *names):
        self.names = sorted(names)


class Link:
    def __init__(self, target):
        self.target = target


def look(path):
    """What this process sees of a path, in every way that could disagree."""
    seen = {"exists": os.path.lexists(path), "access": os.access(path, os.R_OK)}
    parent, name = os.path.split(path)
    try:
        seen["listed"] = name in os.listdir(parent)
        with os.scandir(parent) as it:
            seen["scanned"] = name in {e.name for e in it}
    except OSError as e:
        seen["listed"] = seen["scanned"] = False
        seen["parent"] = e.errno
    try:
        st = os.lstat(path)
        seen["type"] = {0o100000: "f", 0o040000: "d", 0o120000: "l"}.get(st.st_mode & 0o170000, "?")
        seen["lstat"] = (st.st_size, st.st_mode, st.st_nlink, st.st_ino, st.st_mtime_ns)
        if seen["type"] == "l":
            seen["target"] = os.readlink(path)
        if seen["type"] == "d":
            seen["names"] = sorted(os.listdir(path))
        if seen["type"] == "f":
            with open(path, "rb") as f:
                seen["bytes"] = f.read()
                fst = os.fstat(f.fileno())
            seen["fstat"] = (fst.st_size, fst.st_mode, fst.st_nlink, fst.st_ino, fst.st_mtime_ns)
            seen["stat"] = os.stat(path).st_ino
    except OSError as e:
        seen["errno"] = e.errno
    return seen


def wrong(seen, expected):
    """None, or what is not as expected."""
    if expected is None:
        keys = ("exists", "access", "listed", "scanned")
        return next((f"{k} of a missing name" for k in keys if seen[k]), None) or ("type" in seen and "lstat of a missing name") or None
    if not (seen["exists"] and seen["listed"] and seen["scanned"]):
        return f"not there: {seen}"
    kind = "d" if isinstance(expected, Dir) else "l" if isinstance(expected, Link) else "f"
    if seen.get("type") != kind:
        return f"type {seen.get('type')} errno {seen.get('errno')}, not {kind}"
    if kind == "d" and seen.get("names") != expected.names:
        return f"lists {seen.get('names')}"
    if kind == "l" and seen.get("target") != expected.target:
        return f"leads to {seen.get('target')}"
    if kind == "f":
        if "errno" in seen:
            return f"errno {seen['errno']}"
        if seen["bytes"] != expected:
            return f"bytes {seen['bytes'][:20]!r}... ({len(seen['bytes'])})"
        if seen["lstat"] != seen["fstat"] or seen["lstat"][0] != len(expected):
            return f"lstat {seen['lstat']} fstat {seen['fstat']}"
    return None


def observer(pipe):
    while (path := pipe.recv()) is not None:
        pipe.send(look(path))


class Observers:
    def __init__(self):
        self.all = {}
        for start in ("fork", "spawn"):
            ctx = multiprocessing.get_context(start)
            mine, theirs = ctx.Pipe()
            p = ctx.Process(target=observer, args=(theirs,), daemon=True)
            p.start()
            self.all[start] = (p, mine)

    def look(self, path):
        yield "this process", look(path)
        for name, (_, pipe) in self.all.items():
            pipe.send(path)
            yield f"a process made by {name} before", pipe.recv()

    def stop(self):
        for p, pipe in self.all.values():
            pipe.send(None)
            p.join()


def new_program_disagrees(path, expected):
    listing = subprocess.run(["ls", "-A", os.path.dirname(path)], capture_output=True, text=True).stdout.split("\n")
    if (os.path.basename(path) in listing) != (expected is not None):
        return "ls of its directory"
    if isinstance(expected, bytes):
        r = subprocess.run(["cat", path], capture_output=True)
        if r.returncode or r.stdout != expected:
            return "cat"
        if os.path.basename(path) == "a":  # an interpreter start per operation is enough
            r = subprocess.run([sys.executable, "-c", "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())", path],
                               capture_output=True)
            if r.returncode or r.stdout != expected:
                return "a new python"
    if expected is None and subprocess.run(["cat", path], capture_output=True).returncode == 0:
        return "cat of a missing name"
    return None


def write(path, data, mode="wb"):
    with open(path, mode) as f:
        f.write(data)


@op
def open_w(d):
    write(d / "a", b"new")
    return {"a": b"new"}


@op
def open_x(d):
    write(d / "new", b"new", "xb")
    return {"new": b"new"}


@op
def open_append(d):
    write(d / "a", b"new", "ab")
    return {"a": FODDER["a"] + b"new"}


@op
def open_update(d):
    write(d / "a", b"new", "r+b")
    return {"a": b"new" + FODDER["a"][3:]}


@op
def open_text(d):
    write(d / "a", "t\u00e9xt\n", "w")
    return {"a": "t\u00e9xt\n".encode()}


@op
def unflushed_then_flushed(d):
    f = open(d / "a", "wb")
    f.write(b"half")
    assert (d / "a").read_bytes() == b""
    f.flush()
    held.append(f)  # kept open while every observer looks
    return {"a": b"half"}


@op
def os_write(d):
    fd = os.open(d / "a", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, b"one")
    os.pwrite(fd, b"two", 3)
    os.fsync(fd)
    os.close(fd)
    return {"a": b"onetwo"}


@op
def os_dir_fd(d):
    at = os.open(d, os.O_RDONLY)
    fd = os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=at)
    os.write(fd, b"n")
    os.close(fd)
    os.rename("a", "d/z", src_dir_fd=at, dst_dir_fd=at)
    os.unlink("b", dir_fd=at)
    os.mkdir("m", dir_fd=at)
    os.close(at)
    return {"new": b"n", "a": None, "d/z": FODDER["a"], "b": None, "m": Dir(), "d": Dir("x", "y", "z")}


@op
def truncate(d):
    os.truncate(d / "a", 5)
    with open(d / "b", "r+b") as f:
        f.truncate(4000)
    return {"a": FODDER["a"][:5], "b": FODDER["b"] + b"\0" * (4000 - len(FODDER["b"]))}


@op
def mapped(d):
    with open(d / "a", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[:3] = b"new"
        m.flush()
    return {"a": b"new" + FODDER["a"][3:]}


@op
def rename(d):
    os.rename(d / "a", d / "b")
    return {"a": None, "b": FODDER["a"]}


@op
def replace_atomically(d):
    fd, t = tempfile.mkstemp(dir=d)
    os.write(fd, b"new")
    os.close(fd)
    os.replace(t, d / "a")
    return {"a": b"new", os.path.basename(t): None}


@op
def rename_directory(d):
    (d / "d").rename(d / "d2")
    return {"d": None, "d/x": None, "d2": Dir("x", "y"), "d2/x": FODDER["d/x"], "d2/y": FODDER["d/y"]}


@op
def rename_directory_and_refill(d):
    os.rename(d / "d", d / "d2")
    os.mkdir(d / "d")
    write(d / "d/x", b"new")
    return {"d": Dir("x"), "d/x": b"new", "d/y": None, "d2/x": FODDER["d/x"]}


@op
def renames_and_removedirs(d):
    os.renames(d / "a", d / "p/q/a")
    os.makedirs(d / "r/s")
    os.removedirs(d / "r/s")
    return {"a": None, "p/q/a": FODDER["a"], "p": Dir("q"), "r": None}


@op
def links(d):
    os.link(d / "a", d / "hard")
    os.symlink("b", d / "soft")
    write(d / "hard", b"new", "r+b")
    return {"hard": b"new" + FODDER["a"][3:], "a": b"new" + FODDER["a"][3:], "soft": Link("b")}


@op
def unlink_and_recreate(d):
    os.unlink(d / "a")
    assert not (d / "a").exists()
    (d / "a").write_bytes(b"again")
    os.remove(d / "b")
    return {"a": b"again", "b": None}


@op
def pathlib_ways(d):
    (d / "new").touch()
    (d / "a").write_text("text")
    (d / "m").mkdir()
    (d / "m/n").write_bytes(b"deep")
    (d / "b").replace(d / "c")
    (d / "e").rmdir()
    return {"new": b"", "a": b"text", "m": Dir("n"), "m/n": b"deep", "b": None, "c": FODDER["b"], "e": None}


@op
def shutil_ways(d):
    shutil.copyfile(d / "a", d / "b")
    shutil.copy2(d / "a", d / "new")
    shutil.copytree(d / "d", d / "d2")
    shutil.move(d / "c", d / "e")
    shutil.rmtree(d / "d")
    return {"b": FODDER["a"], "new": FODDER["a"], "d2": Dir("x", "y"), "d2/x": FODDER["d/x"], "c": None, "e/c": FODDER["c"],
            "d": None, "d/x": None}


@op
def metadata(d):
    os.chmod(d / "a", 0o600)
    os.utime(d / "a", ns=(10**18, 10**18 + 7))
    os.chown(d / "b", os.getuid(), -1)
    assert os.stat(d / "a").st_mtime_ns == 10**18 + 7 and os.stat(d / "a").st_mode & 0o777 == 0o600
    fd = os.open(d / "c", os.O_RDONLY)
    os.fchmod(fd, 0o640)
    os.utime(fd, ns=(10**18, 10**18 + 9))
    assert os.fstat(fd).st_mtime_ns == 10**18 + 9 == os.stat(d / "c").st_mtime_ns
    assert os.fstat(fd).st_mode & 0o777 == 0o640 == os.stat(d / "c").st_mode & 0o777
    os.close(fd)
    return {"a": FODDER["a"], "b": FODDER["b"], "c": FODDER["c"]}


@op
def temporaries(d):
    with tempfile.TemporaryDirectory(dir=d) as t:
        write(os.path.join(t, "f"), b"x")
        assert os.listdir(t) == ["f"]
    with tempfile.NamedTemporaryFile(dir=d) as f:
        f.write(b"x")
        f.flush()
        assert pathlib.Path(f.name).read_bytes() == b"x"
    with tempfile.TemporaryFile(dir=d) as unnamed:
        unnamed.write(b"x")
    return {os.path.basename(t): None, os.path.basename(f.name): None}


@op
def relative(d):
    home = os.getcwd()
    os.chdir(d)
    try:
        write("a", b"new")
        os.rename("b", "d/../d/z")
        os.remove("./c")
    finally:
        os.chdir(home)
    return {"a": b"new", "b": None, "d/z": FODDER["b"], "c": None}


@op
def by_subprocess(d):
    subprocess.run(["sh", "-c", "echo x >> a; mv b d/z; rm c; mkdir m; cp a new"], cwd=d, check=True)
    return {"a": FODDER["a"] + b"x\n", "b": None, "d/z": FODDER["b"], "c": None, "m": Dir(), "new": FODDER["a"] + b"x\n"}


@op
def by_forked_child(d):
    pid = os.fork()
    if pid == 0:
        write(d / "a", b"child")
        os.unlink(d / "b")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    return {"a": b"child", "b": None}


@op
def by_pool(d):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap(write, [(d / f"p{i}", b"pool") for i in range(8)])
    return {f"p{i}": b"pool" for i in range(8)}


@op
def back_and_forth(d):
    for i in range(50):
        write(d / "a", b"%d" % i)
        assert (d / "a").read_bytes() == b"%d" % i
        os.rename(d / "a", d / "b")
        assert not os.path.exists(d / "a") and (d / "b").read_bytes() == b"%d" % i
        os.rename(d / "b", d / "a")
    return {"a": b"49", "b": None}


held = []


def prepare(root):
    top = pathlib.Path(root, "changepy")
    shutil.rmtree(top, ignore_errors=True)
    for fn in OPS:
        d = top / fn.__name__
        (d / "d").mkdir(parents=True)
        (d / "e").mkdir()
        for name, data in FODDER.items():
            (d / name).write_bytes(data)
            os.utime(d / name, ns=(1_600_000_000 * 10**9, 1_600_000_000 * 10**9 + 5))


def run_one(fn, act_root, check_roots, observers):
    name = fn.__name__
    for r in check_roots:  # every observer has read everything before
        for f in FODDER:
            for who, seen in observers.look(os.path.join(r, "changepy", name, f)):
                if seen.get("bytes") != FODDER[f]:
                    return f"{who} before the change: {f} (run prepare)"
    before = open(os.path.join(act_root, "changepy", name, "a"), "rb", buffering=0)
    expected = fn(pathlib.Path(act_root, "changepy", name))
    for r in check_roots:
        for rel, want in {**{k: v for k, v in FODDER.items() if k not in expected and os.path.dirname(k) not in expected}, **expected}.items():
            path = os.path.join(r, "changepy", name, rel)
            for who, seen in observers.look(path):
                if why := wrong(seen, want):
                    return f"{who}: {path}: {why}"
            if why := new_program_disagrees(path, want):
                return f"a new program: {path}: {why}"
    os.pread(before.fileno(), 100, 0)
    before.close()
    return None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("prepare", "run"))
    p.add_argument("root")
    p.add_argument("--alias", metavar="PATH")
    p.add_argument("--only", metavar="NAME", action="append")
    a = p.parse_args()
    os.umask(0o022)
    root = os.path.abspath(a.root)
    if a.what == "prepare":
        return prepare(root)
    alias = os.path.abspath(a.alias) if a.alias else root
    observers, bad = Observers(), 0
    for i, fn in enumerate(OPS):
        if a.only and fn.__name__ not in a.only:
            continue
        try:
            why = run_one(fn, [root, alias][i % 2], sorted({root, alias}), observers)
        except Exception:
            why = traceback.format_exc()
        bad += why is not None
        print(f"ok {fn.__name__}" if why is None else f"FAIL {fn.__name__} {why}", flush=True)
    observers.stop()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
