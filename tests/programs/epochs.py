#!/usr/bin/env python3
"""Reads a tree for N shuffled epochs in one of Python's ways and prints one digest line per epoch
and mode.

    epoch E mode M files F bytes B content SHA stat SHA list SHA

content: (path, bytes) in sorted order; stat: size, mode, nlink, ino, mtime, ctime; list: names as
listed. The lines do not depend on the order of reading, on workers or on mode, so any two runs over
one tree may be compared. With --verify the bytes are also checked against the rule of mkdata.py
(names that contain their size); exit 1 if wrong.
"""
import argparse, hashlib, mmap, multiprocessing, os, pathlib, random, sys, threading
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mkdata


def open_read(path):
    with open(path, "rb") as f:
        return f.read(), os.fstat(f.fileno())


def open_unbuffered(path):
    with open(path, "rb", buffering=0) as f:
        return f.readall(), os.fstat(f.fileno())


def open_seek(path):
    """As PIL and zip readers do: tell, seek to the end and back, pieces."""
    with open(path, "rb") as f:
        head = f.read(16)
        f.seek(0, os.SEEK_END)
        size = f.tell()
        f.seek(len(head))
        parts = [head]
        while part := f.read(5000):
            parts.append(part)
        data = b"".join(parts)
        assert len(data) == size, path
        return data, os.fstat(f.fileno())


def readinto(path):
    with open(path, "rb") as f:
        out = bytearray(os.stat(path).st_size)
        n = f.readinto(out)
        return bytes(out[:n]), os.fstat(f.fileno())


def os_read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(fd, 4096):
            parts.append(part)
        return b"".join(parts), os.fstat(fd)
    finally:
        os.close(fd)


def os_pread(path):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        st, parts, at = os.fstat(fd), [], 0
        while part := os.pread(fd, 256 * 1024, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts), st
    finally:
        os.close(fd)


def by_mmap(path):
    with open(path, "rb") as f:
        st = os.fstat(f.fileno())
        if st.st_size == 0:
            return b"", st
        with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
            return bytes(m), st


def dup_fdopen(path):
    """As np.load does: duplicate the descriptor, a second buffered reader on it."""
    with open(path, "rb", buffering=0) as f:
        with os.fdopen(os.dup(f.fileno()), "rb") as g:
            return g.read(), os.fstat(g.fileno())


def sendfile(path):
    r, w = os.pipe()
    parts = []
    t = threading.Thread(target=lambda: parts.extend(iter(lambda: os.read(r, 65536), b"")))
    t.start()
    fd = os.open(path, os.O_RDONLY)
    try:
        st, at = os.fstat(fd), 0
        while n := os.sendfile(w, fd, at, 1 << 20):
            at += n
        return b"", st
    finally:
        os.close(fd)
        os.close(w)
        t.join()
        os.close(r)
        sendfile.data = b"".join(parts)


def sendfile_mode(path):
    _, st = sendfile(path)
    return sendfile.data, st


def dir_fd(path):
    d = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = os.open(os.path.basename(path), os.O_RDONLY, dir_fd=d)
        with os.fdopen(fd, "rb") as f:
            return f.read(), os.stat(os.path.basename(path), dir_fd=d)
    finally:
        os.close(d)


def path_bytes(path):
    p = pathlib.Path(os.fsdecode(path))
    return p.read_bytes(), p.stat()


READ = {"open_read": open_read, "open_unbuffered": open_unbuffered, "open_seek": open_seek, "readinto": readinto,
        "os_read": os_read, "os_pread": os_pread, "mmap": by_mmap, "dup_fdopen": dup_fdopen, "sendfile": sendfile_mode,
        "dir_fd": dir_fd, "path_bytes": path_bytes}


def list_listdir(root):
    """Regular files below root, by listdir and lstat."""
    found, todo = [], [root]
    while todo:
        d = todo.pop()
        for name in os.listdir(d):
            p = os.path.join(d, name)
            if os.path.isdir(p) and not os.path.islink(p):
                todo.append(p)
            elif os.path.isfile(p) and not os.path.islink(p):
                found.append(p)
    return found


def list_scandir(root):
    found, todo = [], [root]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for e in entries:
                if e.is_dir(follow_symlinks=False):
                    todo.append(e.path)
                elif e.is_file(follow_symlinks=False):
                    st = e.stat(follow_symlinks=False)
                    assert st.st_ino == e.inode(), e.path
                    found.append(e.path)
    return found


def list_walk(root):
    return [os.path.join(d, f) for d, _, files in os.walk(root) for f in files if not os.path.islink(os.path.join(d, f))
            and os.path.isfile(os.path.join(d, f))]


def list_rglob(root):
    return [os.fsencode(str(p)) for p in pathlib.Path(os.fsdecode(root)).rglob("*") if p.is_file() and not p.is_symlink()]


LIST = {"listdir": list_listdir, "scandir": list_scandir, "walk": list_walk, "rglob": list_rglob}


def stat_key(st):
    return (st.st_size, st.st_mode, st.st_nlink, st.st_uid, st.st_gid, st.st_ino, st.st_mtime_ns, st.st_ctime_ns)


def read_some(job):
    mode, root, paths, verify, seed = job
    out = []
    for p in paths:
        rel = os.path.relpath(p, root)
        try:
            data, st = READ[mode](p)
            assert stat_key(st) == stat_key(os.stat(p)), f"fstat and stat disagree: {rel!r}"
            good = not (verify and mkdata.size_in_name(rel) >= 0 and not rel.startswith(b"repo/")
                        and data != mkdata.expected(rel, seed))
            out.append((rel, len(data), hashlib.blake2b(data, digest_size=16).digest(), stat_key(st), good))
        except OSError as e:
            out.append((rel, 0, str(e.errno).encode(), (), True))
    return out


def epoch(a, root, mode, order, pool):
    shares = [(mode, root, order[i::a.workers or 1], a.verify, a.data_seed) for i in range(a.workers or 1)]
    parts = pool.map(read_some, shares) if pool else map(read_some, shares)
    return sorted(x for part in parts for x in part)


def digest(items):
    h = hashlib.sha256()
    for i in items:
        h.update(repr(i).encode())
    return h.hexdigest()[:24]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("root")
    p.add_argument("--epochs", type=int, default=3, metavar="N")
    p.add_argument("--mode", default="all", help="all or a comma list of: " + " ".join(READ))
    p.add_argument("--list", default="all", help="all or a comma list of: " + " ".join(LIST))
    p.add_argument("--seed", type=int, default=7, help="of the shuffling")
    p.add_argument("--data-seed", type=int, default=1, help="that mkdata.py was given")
    p.add_argument("--workers", type=int, default=0, metavar="W")
    p.add_argument("--start", choices=("fork", "spawn", "forkserver", "thread"), default="fork")
    p.add_argument("--verify", action="store_true")
    p.add_argument("--only", default="", metavar="DIR", help="subdirectory to read")
    a = p.parse_args()
    root = os.path.join(os.fsencode(os.path.abspath(a.root)), os.fsencode(a.only)).rstrip(b"/")
    base = os.fsencode(os.path.abspath(a.root))
    modes = list(READ) if a.mode == "all" else a.mode.split(",")
    listers = list(LIST) if a.list == "all" else a.list.split(",")
    pool = None
    if a.workers and a.start == "thread":
        pool = ThreadPoolExecutor(a.workers)
    elif a.workers:
        pool = multiprocessing.get_context(a.start).Pool(a.workers)
    rng, bad = random.Random(a.seed), 0
    for e in range(a.epochs):
        for k, mode in enumerate(modes):
            if mode == "sendfile" and a.start == "thread" and a.workers:
                mode = "os_pread"  # its buffer is one per process
            names = sorted(LIST[listers[(e + k) % len(listers)]](root))
            order = names[:]
            rng.shuffle(order)
            rows = epoch(a, base, mode, order, pool)
            for rel, *_, good in rows:
                if not good:
                    bad += 1
                    print(f"FAIL epoch {e} mode {mode} {rel!r}: wrong bytes", flush=True)
            # One write, so that lines of several processes stay whole.
            os.write(1, (f"epoch {e} mode {mode} files {len(rows)} bytes {sum(r[1] for r in rows)} content "
                         f"{digest(r[:3] for r in rows)} stat {digest((r[0], r[3]) for r in rows)} "
                         f"list {digest(os.path.relpath(n, base) for n in names)}\n").encode())
    if isinstance(pool, ThreadPoolExecutor):
        pool.shutdown()
    elif pool:
        pool.close()
        pool.join()
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
