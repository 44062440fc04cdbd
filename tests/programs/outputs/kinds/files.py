"""Calls on files that are open, and opens."""
import ctypes, errno, fcntl, mmap, os, stat

from kinds.choices import *
from see import data, digest, told


@calls
def open_one():
    flags = rng.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR))
    for flag, share in ((os.O_CREAT, 0.7), (os.O_EXCL, 0.15), (os.O_TRUNC, 0.4), (os.O_APPEND, 0.2), (os.O_NOFOLLOW, 0.1)):
        if rng.random() < share:
            flags |= flag
    # (A truncation for reading only, O_EXCL without O_CREAT: undefined.)
    if not flags & (os.O_WRONLY | os.O_RDWR):
        flags &= ~os.O_TRUNC
    if not flags & os.O_CREAT:
        flags &= ~os.O_EXCL
    name, mode = any_name(), rng.choice((0o666, 0o600, 0o755))
    yield f"open {short(name)} {words(flags)} {mode:o}"
    fd = os.open(name, flags | os.O_NONBLOCK, mode)
    yield told(os.fstat(fd))
    if not flags & (os.O_WRONLY | os.O_RDWR):
        # (It does not see later writes: docs/OUTPUTS.md, known gaps.)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            yield digest(os.read(fd, 1 << 20))
        return os.close(fd)
    if len(open_files) == MAX_OPEN:
        os.close(open_files.pop(rng.randrange(MAX_OPEN))[0])
    open_files.append((fd, flags))


@with_file
def write(fd, flags):
    content = data((SEED, rng.random()), size())
    yield os.write(fd, content)


@with_file
def pwrite(fd, flags):
    yield os.pwrite(fd, data((SEED, rng.random()), size()), size())


@with_file
def vectored(fd, flags):
    yield os.pwritev(fd, [b"a" * 10, b"b" * 5000], size())
    yield told_open(fd)


@with_file
def read(fd, flags):
    yield digest(os.read(fd, size()))


@with_file
def pread(fd, flags):
    yield digest(os.pread(fd, size(), size()))


@with_file
def seek(fd, flags):
    yield os.lseek(fd, size() if rng.random() < 0.6 else 0, rng.choice((os.SEEK_SET, os.SEEK_END, os.SEEK_CUR)))


@with_file
def truncate_open(fd, flags):
    os.ftruncate(fd, size())
    yield told_open(fd)


@with_file
def punch(fd, flags):
    how = rng.choice((1, 3))
    yield how
    checked(libc.fallocate(fd, how, ctypes.c_long(size()), ctypes.c_long(size() + 1)))
    yield told_open(fd)


@with_file
def sync(fd, flags):
    rng.choice((os.fsync, os.fdatasync))(fd)
    yield "done"


@with_file
def allocate(fd, flags):
    os.posix_fallocate(fd, size(), size() + 1)
    yield told_open(fd)


@with_file
def look_open(fd, flags):
    yield told_open(fd)
    yield oct(fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND))


@with_file
def change_open(fd, flags):
    how = rng.randrange(4)
    if how == 0:
        os.fchmod(fd, rng.choice((0o644, 0o600, 0o444)))
    elif how == 1 and flags & (os.O_WRONLY | os.O_RDWR):
        os.fchown(fd, *owner())
    elif how == 2 and flags & (os.O_WRONLY | os.O_RDWR):
        os.setxattr(fd, "user.open", b"%d" % rng.randrange(9))
    else:
        os.utime(fd, (1_500_000_000, 1_400_000_000 + rng.randrange(1000)))
    yield told_open(fd)


@with_file
def set_flags(fd, flags):
    if flags & os.O_APPEND:
        # (slowfs opens its own file with that flag, and the descriptor there keeps it.)
        return
    now = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, now ^ os.O_APPEND)
    yield oct(fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND))


@with_file
def duplicate(fd, flags):
    if len(open_files) < MAX_OPEN:
        open_files.append((os.dup(fd), flags))
        yield "done"


@with_file
def map_it(fd, flags):
    length = os.fstat(fd).st_size
    if not stat.S_ISREG(os.fstat(fd).st_mode) or not length or flags & os.O_WRONLY:
        return
    writes = flags & os.O_RDWR and not flags & os.O_APPEND and rng.random() < 0.7
    with mmap.mmap(fd, length, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)) as m:
        if writes:
            m[:1] = b"M"
            m[-1:] = b"W"
        yield digest(m[:])


@with_file
def lock(fd, flags):
    fcntl.flock(fd, rng.choice((fcntl.LOCK_SH, fcntl.LOCK_UN)))
    yield "done"


@with_file
def copy_range(fd, flags):
    to, _ = rng.choice(open_files)
    n, at, there = size(), size(), size()
    yield f"{n} {at} {there}"
    if number(os.fstat(fd)) == number(os.fstat(to)):
        return
    how = rng.randrange(2)
    try:
        yield os.copy_file_range(fd, to, n, at, there) if how else os.sendfile(to, fd, at, n)
    except OSError as e:
        if e.errno != errno.EXDEV:
            raise
        yield os.pwrite(to, os.pread(fd, n, at), there)
    yield told_open(to)


@with_file
def where_file(fd, flags):
    yield os.path.samestat(os.stat(f"/proc/self/fd/{fd}"), os.fstat(fd))


@with_file
def reopened(fd, flags):
    how = rng.choice((os.O_RDONLY, os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_TRUNC))
    yield words(how)
    it = os.open(f"/proc/self/fd/{fd}", how | os.O_NONBLOCK)
    try:
        if how & (os.O_WRONLY | os.O_RDWR):
            yield os.write(it, b"again")
        elif stat.S_ISREG(os.fstat(it).st_mode):
            yield digest(os.read(it, 1 << 20))
        yield told_open(it)
    finally:
        os.close(it)


@with_file
def named(fd, flags):
    to = path()
    yield f"as {short(to)}"
    try:
        os.link(f"/proc/self/fd/{fd}", to, follow_symlinks=True)
    except OSError as e:
        # (Of a file that is being written: docs/OUTPUTS.md, known gaps.)
        if e.errno in (errno.EEXIST, errno.ENOTDIR):
            raise
        os.open("not linked", os.O_WRONLY)
    os.unlink(to)
    os.open("not linked", os.O_WRONLY)


@with_file
def close(fd, flags):
    open_files.remove((fd, flags))
    os.close(fd)
    yield "done"
