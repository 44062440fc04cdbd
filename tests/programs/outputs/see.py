"""What a replayed program sees and says, in words that are the same wherever it runs: no inode
numbers, no times of today, no paths above the output root.

A replay is a function with `@replay` that works below the present directory. `barrier=True` says
that it makes calls that have to wait until what is pending is published (directory renames, hard
links, executing): such a replay cannot run while the PFS takes nothing. `needs` names a command
without which it is left out.
"""
import errno, glob, hashlib, os, shutil, stat, subprocess, sys, time

REPLAYS = {}
W, RW, C, T, X, A = os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_EXCL, os.O_APPEND
# Times that are set explicitly lie long ago; others are those of today and are not compared.
LONG_AGO = 1_500_000_000


def replay(function=None, *, barrier=False, needs=()):
    def add(f):
        f.barrier, f.needs = barrier, needs
        REPLAYS[f.__name__] = f
        return f
    return add(function) if function else add


def data(tag, size):
    """Bytes that belong to this tag."""
    return hashlib.shake_128(str(tag).encode()).digest(size)


def say(*words):
    print(*words, flush=True)


def digest(content):
    return hashlib.sha256(content).hexdigest()[:12]


def put(path, content, flags=W | C | T, mode=0o666):
    """One open, one write, one close, as most writers do."""
    fd = os.open(path, flags, mode)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view):]
    finally:
        os.close(fd)


def get(path):
    with open(path, "rb") as f:
        return f.read()


KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}


def told(st):
    """What stat says, but numbers of devices and inodes, times of today, and sizes of directories."""
    kind = KINDS.get(stat.S_IFMT(st.st_mode), "?")
    size = "" if kind == "dir" else f" {st.st_size} B"
    links = "" if kind == "dir" else f" x{st.st_nlink}"
    when = f" at {st.st_mtime_ns}" if st.st_mtime < time.time() - 40_000_000 else ""
    return f"{kind} {stat.S_IMODE(st.st_mode):04o} {st.st_uid}:{st.st_gid}{size}{links}{when}"


def look(*paths):
    """All that can be asked of names; the answers of different calls must agree."""
    for path in paths:
        try:
            st = os.lstat(path)
        except OSError as e:
            answers = [os.path.lexists(path), os.access(path, os.F_OK), in_listing(path)]
            say(f"{path}: {errno.errorcode[e.errno]}", "" if not any(answers) else f"DISAGREES {answers}")
            continue
        line = f"{path}: {told(st)}"
        if stat.S_ISLNK(st.st_mode):
            line += f" -> {os.readlink(path)} ({'there' if os.path.exists(path) else 'dangling'})"
        elif stat.S_ISREG(st.st_mode):
            content = get(path)
            line += f" {digest(content)}" + ("" if len(content) == st.st_size else f" DISAGREES: read {len(content)}")
            with open(path, "rb") as f:
                line += same(st, os.fstat(f.fileno()), "fstat")
        elif stat.S_ISDIR(st.st_mode):
            line += f" [{' '.join(sorted(os.listdir(path)))}]"
        line += same(st, os.stat(path, follow_symlinks=False), "stat") + ("" if in_listing(path) else " DISAGREES: not listed")
        say(line)


def same(a, b, what):
    """Tools compare these to know whether two names are one file."""
    if stat.S_ISDIR(a.st_mode):
        # (Its time goes on when something is published there.)
        return "" if (a.st_dev, a.st_ino, a.st_mode) == (b.st_dev, b.st_ino, b.st_mode) else f" DISAGREES: {what}"
    # (A pending link gets another inode with its publication, which may happen in between.)
    ids = () if stat.S_ISLNK(a.st_mode) else ("st_dev", "st_ino", "st_mtime_ns")
    fields = [f for f in (*ids, "st_mode", "st_size", "st_nlink", "st_uid", "st_gid") if getattr(a, f) != getattr(b, f)]
    return f" DISAGREES: {what} in {','.join(fields)} {[(getattr(a, f), getattr(b, f)) for f in fields]}" if fields else ""


def in_listing(path):
    top, name = os.path.split(path.rstrip("/"))
    try:
        return name in os.listdir(top or ".")
    except OSError:
        return False


def tree(top="."):
    """Listings by every way that Python has; they must agree."""
    walked, scanned = [], []
    for at, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(dirs + files):
            walked.append(os.path.relpath(os.path.join(at, name), top))

    def scan(at):
        with os.scandir(at) as entries:
            for e in entries:
                rel = os.path.relpath(e.path, top)
                st = e.stat(follow_symlinks=False)
                kind = "d" if e.is_dir(follow_symlinks=False) else "l" if e.is_symlink() else "f"
                # (A pending link gets another inode with its publication, which may happen in between.)
                agrees = (kind == "l" or e.inode() == st.st_ino) and kind == {"dir": "d", "link": "l"}.get(KINDS.get(stat.S_IFMT(st.st_mode)), "f")
                scanned.append(f"{rel} {kind}" + ("" if agrees else f" DISAGREES: entry {e.inode()}, stat {st.st_ino}"))
                if kind == "d":
                    scan(e.path)
    scan(top)
    globbed = (os.path.relpath(p, top) for p in glob.glob(f"{glob.escape(top)}/**", recursive=True, include_hidden=True))
    # (It follows links to directories.)
    globbed = sorted(p for p in globbed if p != "." and not any(os.path.islink(f"{top}/{a}") for a in parents(p)))
    say("tree:", "  ".join(sorted(scanned)))
    for how, names in (("walk", sorted(walked)), ("glob", globbed), ("listdir", sorted(walked))):
        if [s.split(" ")[0] for s in sorted(scanned)] != names and not any(" " in n for n in names):
            say(f"DISAGREES: {how}: {names}")


def parents(path):
    while path := os.path.dirname(path):
        yield path


def fails(what, f, *args, **more):
    """Says how a call ends: the name of its error, or what it gave."""
    try:
        given = f(*args, **more)
    except OSError as e:
        say(f"{what}: {errno.errorcode.get(e.errno, e.errno)}")
    except Exception as e:
        say(f"{what}: {type(e).__name__}")
    else:
        say(f"{what}: ok{'' if given is None or isinstance(given, int) else f' {given!r}'}")


def tool(*words, **more):
    """A command, with what it says."""
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", **more)
    text = done.stdout + done.stderr
    say(f"{' '.join(os.path.basename(w) if w.startswith('/') else w for w in words)}: {done.returncode} {text.strip()!r}")


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def main():
    words = sys.argv[1:]
    held = "--no-barriers" in words
    left_out = [w.removeprefix("--but=") for w in words if w.startswith("--but=")]
    names = [w for w in words if not w.startswith("--")] or [w for w in REPLAYS if w not in left_out]
    top = os.getcwd()
    os.umask(0o022)
    for name in names:
        f = REPLAYS[name]
        missing = [n for n in f.needs if not shutil.which(n)]
        if missing or held and f.barrier:
            continue
        os.mkdir(name)
        os.chdir(name)
        say(f"## {name}")
        f()
        tree()
        os.chdir(top)
    say("## end")


def names_in(directory):
    """The names in a directory, each with its kind, what it holds, and what was set of it."""
    def set_of(path, st):
        mode, usual = stat.S_IMODE(st.st_mode), 0o777 if stat.S_ISDIR(st.st_mode) else 0o666
        yield f" {mode:o}" if mode != usual & ~0o022 else ""
        yield f" of {st.st_uid}" if st.st_uid != os.geteuid() else ""
        yield f" at {st.st_mtime_ns}" if stat.S_ISREG(st.st_mode) and st.st_mtime < time.time() - 40_000_000 else ""
        yield "".join(f" {key}={os.getxattr(path, key).decode()}" for key in os.listxattr(path) if key.startswith("user."))

    seen = []
    for name in sorted(os.listdir(directory)):
        st = os.lstat(f"{directory}/{name}")
        kind, more = stat.S_IFMT(st.st_mode), ""
        if kind == stat.S_IFREG:
            with open(f"{directory}/{name}") as f:
                more = f"{f.read()} x{st.st_nlink}"
        elif kind == stat.S_IFLNK:
            more = os.readlink(f"{directory}/{name}")
        if kind in (stat.S_IFREG, stat.S_IFDIR):
            more += "".join(set_of(f"{directory}/{name}", st))
        seen.append([name, kind, more])
    return seen
