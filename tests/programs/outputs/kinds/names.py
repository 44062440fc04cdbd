"""Calls on names."""
import errno, glob, os, re, shutil, socket, subprocess, sys, tempfile

from kinds.choices import *
from see import data, told


def opened(name, how):
    """As `open`; a pipe blocks nothing."""
    return open(name, how, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK, 0o666))


@calls
def put_whole():
    name = path()
    yield f"put {short(name)}"
    with opened(name, rng.choice(("wb", "ab", "wb", "xb", "r+b"))) as f:
        f.write(data((SEED, rng.random()), size()))
    yield told(os.stat(name))


@calls
def in_a_child():
    name, how = path(), rng.choice(("wb", "ab", "xb"))
    content = data((SEED, rng.random()), size())
    yield f"put {short(name)} {how} in a child"
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        status = 0
        try:
            with opened(name, how) as f:
                f.write(content)
        except OSError as e:
            status = e.errno
        os._exit(status)
    yield os.waitpid(child, 0)[1] >> 8


@calls
def run_there():
    if rng.random() < 0.3:
        name = directory()
        yield f"run in {short(name)}"
        yield known(subprocess.run("pwd; ls -A; [ -p four.tmp ] || echo x > four.tmp; [ -p one ] || cat one", shell=True, cwd=name, capture_output=True, text=True, errors="replace").stdout)[:300].replace("\n", " ")


@calls
def rename():
    old, new = any_name(), any_name()
    yield f"rename {short(old)} {short(new)}"
    os.rename(old, new)
    yield told(os.lstat(new))


@calls
def rename_flags():
    old, new, flags = any_name(), any_name(), rng.choice((1, 2, 2, 8))
    yield f"renameat2 {short(old)} {short(new)} {flags}"
    if flags == 2 and any(is_being_written(n) for n in (old, new)):
        # (docs/OUTPUTS.md, known gaps.)
        return
    checked(libc.renameat2(-100, old.encode(), -100, new.encode(), flags))
    yield told(os.lstat(new)).replace(" x2", " x1")


@calls
def link():
    old, new, follow = path(), path(), rng.random() < 0.5
    yield f"link {short(old)} {short(new)}"
    try:
        os.link(old, new, follow_symlinks=follow)
    except OSError as e:
        # (Of a file that is being written: docs/OUTPUTS.md, known gaps.)
        if e.errno != errno.EXDEV or not is_being_written(old):
            raise
        os.open("not linked", os.O_WRONLY)
    if is_being_written(old):
        os.unlink(new)
        os.open("not linked", os.O_WRONLY)
    yield told(os.lstat(new))


@calls
def symlink():
    to, name = rng.choice((re.sub("^/(proc|dev)/.*/", "", short(path())), rng.choice(NAMES), "../" + rng.choice(NAMES), "nowhere", "a", "b", "..", "../a", ".", f"{OUT}/d", f"{OUT}/one", "../../sibling/d", "../sibling/d", f"{TOP_PATH}/a", f"{OUT}/back")), path()
    yield f"symlink {known(to)} {short(name)}"
    os.symlink(to, name)
    yield known(os.readlink(name))


@calls
def unlink():
    name = any_name()
    yield f"unlink {short(name)}"
    os.unlink(name)
    yield "done"


@calls
def mkdir():
    name = any_name() if rng.random() < 0.05 else directory()
    yield f"mkdir {short(name)}"
    os.mkdir(name, rng.choice((0o777, 0o700)))
    yield told(os.stat(name))


@calls
def rmdir():
    name = any_name()
    yield f"rmdir {short(name)}"
    os.rmdir(name)
    yield "done"


@calls
def remove_all():
    if rng.random() < 0.3:
        name = directory()
        yield f"remove all of {short(name)}"
        shutil.rmtree(name)
        yield "done"


@calls
def change():
    name, how = any_name(), rng.randrange(7)
    yield f"change {short(name)} {how}"
    if how == 0:
        os.chmod(name, rng.choice((0o755, 0o700, 0o775)))
    elif how == 1:
        if os.path.isdir(name) and is_any_written():
            # (The file's publication changes that time: docs/OUTPUTS.md, known gaps.)
            return
        os.utime(name, (1_500_000_000, 1_400_000_000 + rng.randrange(1000)), follow_symlinks=rng.random() < 0.5)
    elif how == 2:
        os.truncate(name, size())
    elif how == 3:
        os.chown(name, *owner(), follow_symlinks=rng.random() < 0.5)
    elif how == 4:
        os.removexattr(name, "user.mark")
    else:
        os.setxattr(name, "user.mark", b"%d" % rng.randrange(9))
        yield os.getxattr(name, "user.mark")
    yield told(os.lstat(name))


@calls
def other_kinds():
    name, how = path(), rng.randrange(2)
    yield f"make {short(name)} {how}"
    if how:
        os.mkfifo(name)
    else:
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(name)
    yield told(os.lstat(name))


@calls
def copy():
    old, new = path(), path()
    how = rng.choice((shutil.copyfile, shutil.copy2, shutil.move))
    yield f"{how.__name__} {short(old)} {short(new)}"
    # (What is special would block.)
    if os.path.exists(old) and not os.path.isfile(old) or os.path.exists(new) and not os.path.isfile(new):
        return
    how(old, new)
    yield told(os.lstat(new))


@calls
def without_name():
    name = directory() if rng.random() < 0.8 else "."
    yield f"O_TMPFILE {short(name)}"
    fd = os.open(name, os.O_TMPFILE | rng.choice((os.O_RDWR, os.O_WRONLY)), 0o640)
    try:
        yield os.write(fd, data((SEED, rng.random()), size()))
        yield told_open(fd)
        to, how = path(), rng.randrange(3)
        yield f"linked as {short(to)} {how}"
        if how == 0:
            os.link(f"/proc/self/fd/{fd}", to, follow_symlinks=True)
        elif how == 1:
            checked(libc.linkat(fd, b"", -100, to.encode(), 0x1000))
        else:
            checked(libc.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, to.encode(), 0x400))
        yield told_open(fd)
        yield os.write(fd, b"more")
    finally:
        os.close(fd)
    yield told(os.lstat(to))


@calls
def temporary():
    name, how = directory(), rng.randrange(4)
    yield f"temporary in {short(name)} {how}"
    if how == 0:
        fd, it = tempfile.mkstemp(dir=name)
        os.write(fd, b"temporary")
        os.close(fd)
        to = path()
        yield short(to)
        try:
            os.replace(it, to)
        except OSError:
            os.unlink(it)
            raise
    elif how == 1:
        with tempfile.TemporaryFile(dir=name) as f:
            f.write(b"x" * size())
            f.flush()
            yield told_open(f.fileno())
    elif how == 2:
        with tempfile.TemporaryDirectory(dir=name) as d:
            with open(f"{d}/in", "w") as f:
                f.write("in")
            yield os.listdir(d)
    else:
        with tempfile.NamedTemporaryFile(dir=name) as f:
            f.write(b"x" * size())
            f.flush()
            yield told(os.stat(f.name))
    yield "done"


@calls
def globbed():
    pattern = rng.choice(("*", "a/*", "*/*", "a/b/../*"))
    yield f"glob {pattern}"
    yield " ".join(sorted(n for n in glob.glob(pattern, recursive=True)))


@calls
def real():
    name = any_name()
    yield f"realpath {short(name)}"
    yield known(os.path.realpath(name, strict=rng.random() < 0.5))
