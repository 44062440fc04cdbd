"""Calls by descriptors of directories that a process keeps, and in directories to which it goes."""
import fcntl, os, re, stat

from kinds.choices import *
from see import data, digest, told

W_C = os.O_WRONLY | os.O_CREAT


def rest():
    return rng.choice(("", "", "b/", "../", "../c/", "one/")) + rng.choice(NAMES)


@calls
def keep_dir():
    name = directory() if rng.random() < 0.8 else path()
    flags = rng.choice((os.O_RDONLY | os.O_DIRECTORY, os.O_PATH | os.O_DIRECTORY))
    yield f"keep {short(name)} {flags:o}"
    fd = os.open(name, flags)
    if len(open_dirs) == MAX_OPEN_DIRS:
        os.close(open_dirs.pop(rng.randrange(MAX_OPEN_DIRS)))
    at = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300)
    os.close(fd)
    open_dirs.append(at)
    yield told(os.fstat(at))


@with_dir
def list_dir(fd):
    yield " ".join(sorted(n for n in os.listdir(fd) if not n.startswith(".monarch-part-")))


@with_dir
def scan_dir(fd):
    with os.scandir(fd) as entries:
        found = []
        for e in entries:
            if not e.name.startswith(".monarch-part-"):
                found.append(f"{e.name}{'/' if e.is_dir(follow_symlinks=False) else '@' if e.is_symlink() else ''} {re.sub(r' x[0-9]+', '', told(e.stat(follow_symlinks=False)))}")
    yield ", ".join(sorted(found))


@with_dir
def where_dir(fd):
    yield known(os.readlink(f"/proc/self/fd/{fd}"))


@with_dir
def stat_dir(fd):
    yield told(os.fstat(fd))
    name = rest()
    yield name
    yield told(os.stat(name, dir_fd=fd, follow_symlinks=rng.random() < 0.5)).replace(" x2", " x1")


@with_dir
def open_at(fd):
    name, flags = rest(), rng.choice((W_C, W_C | os.O_EXCL, os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
    yield f"{name} {words(flags)}"
    it = os.open(name, flags | os.O_NONBLOCK, 0o644, dir_fd=fd)
    try:
        if flags & os.O_WRONLY:
            yield os.write(it, data((SEED, rng.random()), size()))
        elif stat.S_ISREG(os.fstat(it).st_mode):
            yield digest(os.read(it, 1 << 20))
    finally:
        os.close(it)


@with_dir
def make_at(fd):
    name, how = rest(), rng.randrange(3)
    yield f"{name} {how}"
    if how == 0:
        os.mkdir(name, dir_fd=fd)
    elif how == 1:
        os.symlink(rng.choice(("one", "../two", "b", "nowhere")), name, dir_fd=fd)
    else:
        os.mkfifo(name, dir_fd=fd)
    yield told(os.stat(name, dir_fd=fd, follow_symlinks=False))


@with_dir
def remove_at(fd):
    name, how = rest(), rng.randrange(3)
    yield f"{name} {how}"
    (os.rmdir if how == 0 else os.unlink)(name, dir_fd=fd)
    yield "done"


@with_dir
def rename_at(fd):
    old, new, to = rest(), rest(), rng.choice(open_dirs)
    yield f"{old} {new} D{open_dirs.index(to)}"
    os.rename(old, new, src_dir_fd=fd, dst_dir_fd=to)
    yield told(os.stat(new, dir_fd=to, follow_symlinks=False)).replace(" x2", " x1")


@with_dir
def change_at(fd):
    name, how = rest(), rng.randrange(4)
    yield f"{name} {how}"
    if how == 0:
        os.chmod(name, rng.choice((0o755, 0o700, 0o775)), dir_fd=fd)
    elif how == 1:
        if is_any_written():
            return
        os.utime(name, (1_500_000_000, 1_400_000_000 + rng.randrange(1000)), dir_fd=fd, follow_symlinks=rng.random() < 0.5)
    elif how == 2:
        os.chown(name, *owner(), dir_fd=fd, follow_symlinks=rng.random() < 0.5)
    else:
        yield os.access(name, os.R_OK, dir_fd=fd)
    yield told(os.stat(name, dir_fd=fd, follow_symlinks=False)).replace(" x2", " x1")


@with_dir
def sync_dir(fd):
    os.fsync(fd)
    yield "done"


@with_dir
def change_dir_itself(fd):
    how = rng.randrange(3)
    yield how
    if how == 0:
        os.fchmod(fd, rng.choice((0o755, 0o700, 0o775)))
    elif how == 1:
        os.setxattr(fd, "user.dir", b"d")
        yield os.listxattr(fd)
    else:
        os.chmod(f"/proc/self/fd/{fd}", 0o750)
    yield told(os.fstat(fd))


@with_dir
def go_there(fd):
    os.fchdir(fd)
    yield known(os.getcwd())


@calls
def go():
    if rng.random() < 0.5:
        os.fchdir(TOP)
        yield "go back"
        return
    name = directory()
    yield f"go {short(name)}"
    os.chdir(name)
    yield known(os.getcwd())


@calls
def where():
    yield "where"
    yield known(os.readlink("/proc/self/cwd"))
    yield known(os.getcwd())
    yield told(os.stat("."))
    yield " ".join(sorted(n for n in os.listdir(".") if not n.startswith(".monarch-part-")))
    yield told(os.stat(".."))
