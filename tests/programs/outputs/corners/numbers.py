"""Questions about names by system calls that are made by number, and what is removed in odd ways."""
import ctypes
import errno
import os
import platform
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
HERE = -100
X86 = {"access": 21, "faccessat": 269, "faccessat2": 439, "readlink": 89, "readlinkat": 267, "statfs": 137,
       "getxattr": 191, "lgetxattr": 192, "listxattr": 194, "llistxattr": 195}
ARM = {"faccessat": 48, "faccessat2": 439, "readlinkat": 78, "statfs": 43,
       "getxattr": 8, "lgetxattr": 9, "listxattr": 11, "llistxattr": 12}
NUMBERS = X86 if platform.machine() == "x86_64" else ARM


def call(name, *words):
    done = LIBC.syscall(ctypes.c_long(NUMBERS[name]), *(ctypes.c_long(w) if isinstance(w, int) else w for w in words))
    return errno.errorcode[ctypes.get_errno()] if done < 0 else done


def tried(work):
    try:
        return work()
    except OSError as e:
        return errno.errorcode[e.errno]


def asked(path):
    p, room = path.encode(), ctypes.create_string_buffer(4096)
    print(" accessat", call("faccessat", HERE, p, os.R_OK), call("faccessat2", HERE, p, os.W_OK, 0x100), call("faccessat", HERE, p, os.X_OK))
    print(" readlinkat", call("readlinkat", HERE, p, room, 4096), room.value)
    if "access" in NUMBERS:
        print(" older", call("access", p, 0), call("readlink", p, room, 4096))
    print(" statfs", call("statfs", p, room))
    print(" getxattr", call("getxattr", p, b"user.x", room, 100), call("lgetxattr", p, b"user.x", room, 100))
    print(" listxattr", call("listxattr", p, room, 4096), call("llistxattr", p, room, 4096))


def questions():
    for at, name in enumerate(["f", os.path.abspath("g")]):
        with open(name, "w") as f:
            f.write("x" * 10)
        os.setxattr(name, "user.x", b"1")
        os.symlink(name, f"l{at}")
        for path in (name, f"l{at}"):
            print(os.path.basename(path))
            asked(path)
        os.unlink(name)
        print("removed")
        asked(name)


def links():
    """A link that is pending has no attributes, and takes none."""
    open("target", "w").close()
    os.symlink("target", "link")
    open("pending", "w").close()
    print("link", tried(lambda: os.chdir("pending")), os.listxattr("link", follow_symlinks=False),
          tried(lambda: os.getxattr("link", "user.x", follow_symlinks=False)),
          tried(lambda: os.setxattr("link", "user.x", b"1", follow_symlinks=False)))


def dots():
    """No directory is removed by a name that ends in a dot."""
    os.makedirs("d/e")
    for path in ("d/e/.", "d/e/./", "d/e/..", "d/e/../..", os.path.abspath("d/e") + "/.", "."):
        print("dots", path[-4:], tried(lambda: os.rmdir(path)), os.path.isdir("d/e"))
    print("dots", tried(lambda: os.rmdir("d/e/")), os.path.isdir("d/e"))


def mounts():
    """A directory at which something is mounted is not removed."""
    os.makedirs("mounted")
    os.makedirs("source")
    if subprocess.run(["mount", "--bind", "source", "mounted"], capture_output=True).returncode:
        return
    print("mounts", tried(lambda: os.rmdir("mounted")), os.path.isdir("mounted"))
    subprocess.run(["umount", "-l", os.path.abspath("mounted")])


def gone():
    """What was published and is removed is there for no call."""
    os.makedirs("gone/in")
    open("gone/in/f", "w").close()
    open("gone.txt", "w").close()
    os.link("gone.txt", "other")  # Published by now.
    os.unlink("other")
    open("later", "w").close()
    os.unlink("gone.txt")
    os.unlink("gone/in/f")
    os.rmdir("gone/in")
    for path in ("gone.txt", "gone/in/f", "gone/in", os.path.abspath("gone.txt"), os.path.abspath("gone/in")):
        found = [tried(lambda: work(path) and None) for work in (
            os.statvfs, os.listxattr, os.stat, os.lstat, os.readlink, os.listdir, os.chdir, os.utime,
            lambda path: os.getxattr(path, "user.x"), lambda path: os.chmod(path, 0o600),
            lambda path: os.truncate(path, 0), lambda path: os.execv(path, ["x"]),
            lambda path: os.path.realpath(path, strict=True), lambda path: os.pathconf(path, "PC_NAME_MAX"),
            lambda path: os.open(path, os.O_PATH), lambda path: os.open(path, os.O_RDONLY | os.O_NOFOLLOW))]
        print("gone", os.path.basename(path), found)
    asked("gone.txt")
    asked("gone/in/f")


def cut_under_a_writer():
    """A file that is cut by its name while a descriptor of this process writes it is one file."""
    a = os.open("a", os.O_CREAT | os.O_RDWR, 0o644)
    with open("a", "wb") as f:
        f.write(b"x" * 12345)
    st = os.stat("a")
    print("cut", st.st_size, os.fstat(a).st_size, os.path.samestat(st, os.fstat(a)))
    os.pwrite(a, b"y", 30000)
    print("cut", os.stat("a").st_size, os.pread(a, 5, 0))
    os.close(a)


def main():
    open("before", "w").write("pending")
    for row in (questions, links, dots, mounts, gone, cut_under_a_writer):
        print(row.__name__)
        row()
    print("## end")


sys.exit(main())
