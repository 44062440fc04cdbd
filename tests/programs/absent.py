#!/usr/bin/env python3
"""Asks for names that are not there, and for some that are, by every call that may be answered from
a listing; prints a line for each: the call, the path below ROOT, the result.

    absent.py ROOT            all calls about all paths
    absent.py ROOT --import N asks N times for each name that an import would try
    absent.py ROOT --make     makes names in many ways, and asks before and after
"""
import ctypes, errno, os, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)
for name in ("opendir", "fopen", "fopen64"):
    getattr(libc, name).restype = ctypes.c_void_p
libc.readlink.restype = libc.readlinkat.restype = ctypes.c_ssize_t
libc.closedir.argtypes = libc.fclose.argtypes = [ctypes.c_void_p]
AT_FDCWD, AT_SYMLINK_NOFOLLOW, AT_EACCESS = -100, 0x100, 0x200
root = os.path.abspath(sys.argv[1])
buf = ctypes.create_string_buffer(4096)


def close(fd):
    return os.close(fd) or 0


def calls(path):
    """Each call with its name, and what is printed of a success."""
    p = os.fsencode(path)
    for name in ("stat", "stat64", "lstat", "lstat64"):
        if hasattr(libc, name):
            yield name, lambda: getattr(libc, name)(p, buf)
    for name in ("__xstat", "__lxstat", "__xstat64"):
        yield name, lambda: getattr(libc, name)(1, p, buf)
    for flags in (0, AT_SYMLINK_NOFOLLOW):
        yield f"fstatat {flags}", lambda: libc.fstatat(AT_FDCWD, p, buf, flags)
        yield f"statx {flags}", lambda: libc.statx(AT_FDCWD, p, flags, 0x7FF, buf)
        yield f"statx {flags} sync", lambda: libc.statx(AT_FDCWD, p, flags | 0x2000, 0x7FF, buf)
    for mode in (0, 1, 2, 4, 7, 8, -1):
        yield f"access {mode}", lambda: libc.access(p, mode)
        yield f"faccessat {mode}", lambda: libc.faccessat(AT_FDCWD, p, mode, AT_EACCESS)
    yield "euidaccess", lambda: libc.euidaccess(p, 4)
    for flags in (0, os.O_CLOEXEC, os.O_NOFOLLOW, os.O_DIRECTORY, os.O_PATH, os.O_NONBLOCK, os.O_RDONLY | os.O_SYNC, os.O_DIRECTORY | os.O_NOFOLLOW, os.O_TMPFILE & ~os.O_DIRECTORY, os.O_NOATIME):
        for name in ("open", "open64"):
            yield f"{name} {flags:o}", lambda: then(getattr(libc, name)(p, flags, 0), close)
        yield f"openat {flags:o}", lambda: then(libc.openat(AT_FDCWD, p, flags, 0), close)
        yield f"__open_2 {flags:o}", lambda: then(libc.__open_2(p, flags), close)
    for mode in (b"r", b"rb", b"re"):
        yield f"fopen {mode}", lambda: stream(libc.fopen(p, mode), libc.fclose)
        yield f"fopen64 {mode}", lambda: stream(libc.fopen64(p, mode), libc.fclose)
    yield "opendir", lambda: stream(libc.opendir(p), libc.closedir)
    yield "scandir", lambda: len(os.listdir(path))
    for room in (1, 3, 100):
        yield f"readlink {room}", lambda: link(libc.readlink(p, buf, ctypes.c_size_t(room)))
        yield f"readlinkat {room}", lambda: link(libc.readlinkat(AT_FDCWD, p, buf, ctypes.c_size_t(room)))
    yield "readlink 0", lambda: libc.readlink(p, buf, ctypes.c_size_t(0))
    yield "realpath", lambda: os.path.realpath(path, strict=True).replace(root, "ROOT")


def then(result, what):
    return what(result) if result >= 0 else result


def stream(result, end):
    return end(result) if result else -1


def link(n):
    return f"{n} {buf.raw[:n]}" if n >= 0 else n


def said(what):
    # What lies behind the result of readlink must not be touched.
    ctypes.memset(buf, 0x55, len(buf))
    ctypes.set_errno(0)
    try:
        result = what()
    except OSError as e:
        return errno.errorcode[e.errno]
    return errno.errorcode[ctypes.get_errno()] if result == -1 else result


def everything():
    base = ("env", "env/lib", "env/lib/empty", "env/link", "env/abs", "env/outside", "data")
    paths = [f"{b}/{n}" for b in base for n in ("no", "no/deeper/x", "no/", "no/.", "no/..", "./no", "../no", "sub/../no", "/no", "no//x", ".snapshot", ".snapshot/x", "lost+found", "x" * 200, "x" * 300)]
    paths += ["env/pyvenv.cfg/x", "env/pyvenv.cfg/", "env/pyvenv.cfg/.", "env/pyvenv.cfg/..", "env/filelink/x", "env/filelink/", "env/dangling", "env/dangling/x", "env/loop", "env/loop/x", "env/pyvenv.cfg", "env", "env/link", "env/filelink", "env/pipe/x", "no", "no/x"]
    for path in paths:
        for name, call in calls(f"{root}/{path}"):
            print(path[:60], name, said(call))
    os.chdir(f"{root}/env/lib")
    fd = os.open(f"{root}/env", os.O_RDONLY)
    for path in ("no", "../no", "./no", "empty/no", "../link/no", "..", "../pyvenv.cfg/x"):
        for name, call in calls(path):
            print("from env/lib:", path, name, said(call))
        p = path.encode()
        print("at env:", path, said(lambda: libc.fstatat(fd, p, buf, 0)), said(lambda: libc.faccessat(fd, p, 0, 0)), said(lambda: then(libc.openat(fd, p, 0, 0), close)), said(lambda: link(libc.readlinkat(fd, p, buf, ctypes.c_size_t(9)))))


def imports(n):
    for _ in range(n):
        for d in ("env", "env/lib", "env/lib/empty"):
            for name in ("m.so", "m.abi3.so", "m.py", "m.pyc", "m/__init__.py"):
                assert said(lambda: libc.stat(os.fsencode(f"{root}/{d}/{name}"), buf)) == "ENOENT"


def makers():
    """What makes a name, given the directory and the name."""
    def rename_in(d, n):
        with open(f"{root}/data/tmp", "w") as f:
            f.write("1")
        os.rename(f"{root}/data/tmp", f"{d}/{n}")

    yield "create", lambda d, n: open(f"{d}/{n}", "w").close()
    yield "exclusive", lambda d, n: os.close(os.open(f"{d}/{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    yield "rename", rename_in
    yield "mkdir", lambda d, n: os.mkdir(f"{d}/{n}")
    yield "makedirs", lambda d, n: os.makedirs(f"{d}/{n}/x/y")
    yield "symlink", lambda d, n: os.symlink("/", f"{d}/{n}")
    yield "link", lambda d, n: os.link(f"{root}/data/1", f"{d}/{n}")
    yield "mknod", lambda d, n: os.mkfifo(f"{d}/{n}")
    yield "child", lambda d, n: subprocess.run(["touch", f"{d}/{n}"], check=True)
    yield "shell", lambda d, n: subprocess.run(["sh", "-c", f"exec mkdir -p {d}/{n}/z"], check=True)


def make():
    for number, (how, maker) in enumerate(makers()):
        d, name = f"{root}/env/made{number}", f"new{number}"
        path = f"{d}/{name}"
        def there(p):
            return [said(call) for word, call in calls(p) if word in ("lstat", "lstat64", "access 0", "readlink 100")]
        before = there(path), there(f"{path}/x/y")
        assert before[0][:2] == ["ENOENT"] * 2, before
        maker(d, name)
        assert there(path)[:2] == [0, 0], (how, there(path))
        print(how, before, there(path), there(f"{path}/x/y"))
        subprocess.run(["rm", "-rf", path], check=True)
        assert there(path)[:2] == ["ENOENT"] * 2, (how, there(path))


if sys.argv[2:3] == ["--import"]:
    imports(int(sys.argv[3]))
elif sys.argv[2:3] == ["--make"]:
    make()
else:
    everything()
