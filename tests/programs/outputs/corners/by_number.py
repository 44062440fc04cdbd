"""What a name of a descriptor (`/proc/self/fd/N`) leads to is what is open: pending files, and
directories that the job has removed; and paths through `..` behind what was removed."""
import ctypes
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from see import main, put, replay, say

libc = ctypes.CDLL(None, use_errno=True)
libc.realpath.restype = ctypes.c_char_p


def tried(call):
    try:
        return call()
    except OSError as e:
        return f"errno {e.errno}"


def what(path):
    back = os.open(".", os.O_PATH | os.O_DIRECTORY)
    stat = lambda s: (s.st_mode, s.st_size if s.st_mode & 0o100000 else s.st_nlink == 0)
    found = [tried(lambda: stat(os.stat(path))), [os.access(path, m) for m in (os.F_OK, os.W_OK, os.X_OK)]]
    found += [tried(lambda: os.close(os.open(path, os.O_RDONLY))), tried(lambda: sorted(os.listdir(path)))]
    found += [tried(lambda: sorted((e.name, e.is_dir()) for e in os.scandir(path))), tried(lambda: os.listxattr(path))]
    found += [tried(lambda: os.truncate(path, 4)), tried(lambda: os.chdir(path))]
    os.fchdir(back)
    os.close(back)
    return found


@replay
def directories_that_were_removed():
    for name in ("removed", "kept", "parent/child"):
        os.makedirs(name)
    all = {name: os.open(name, os.O_RDONLY) for name in ("removed", "kept", "parent/child")}
    put("pending", b"holds all up")
    put("removed/in", b"one")
    put("kept/in", b"two")
    os.unlink("removed/in")
    for name in ("removed", "parent/child", "parent"):
        os.rmdir(name)
    for name, fd in all.items():
        for path in (f"/proc/self/fd/{fd}", f"/dev/fd/{fd}/", f"/proc/thread-self/fd/{fd}/.", f"/proc/self/task/../fd/{fd}", f"/proc/self/fd/{fd}/in"):
            say(name, path.split("/")[4:], what(path))
        say(name, "number", tried(lambda: sorted(os.listdir(fd))), [tried(lambda: os.stat(n, dir_fd=fd).st_size) for n in ("in", "x")])
    os.chdir(all["removed"])
    say("here", what("."), tried(lambda: os.chdir("..")), sorted(os.listdir(".")))


@replay
def paths_above_what_was_removed():
    for name in ("removed", "kept"):
        os.mkdir(name)
    put("pending", b"holds all up")
    os.rmdir("removed")
    for link, target in (("to", "removed"), ("above", "removed/.."), ("over", "pending/.."), ("real", "kept/..")):
        os.symlink(target, link)
    for path in ("removed/..", "removed/../kept", "to/..", "above", "above/kept", "over", "pending/..", "none/..", "kept/..", "real"):
        for path in (path, f"/proc/self/cwd/{path}", f"{os.getcwd()}/{path}"):
            child = os.fork()
            if child == 0:
                real = libc.realpath(path.encode(), None)
                os._exit(1 if real else ctypes.get_errno())
            ended = os.waitpid(child, 0)[1]
            is_dir = [tried(lambda: os.stat(path).st_mode), tried(lambda: os.truncate(path, 0)), os.access(path, os.W_OK)]
            say(path.split("/")[-2:], ended, is_dir, tried(lambda: sorted(os.listdir(path))))


@replay
def files_that_are_pending():
    def same(label, fd):
        of = os.fstat(fd)
        for path in (f"/proc/self/fd/{fd}", f"/dev/fd/{fd}"):
            s = os.stat(path)
            say(label, oct(s.st_mode), s.st_size, (s.st_dev, s.st_ino) == (of.st_dev, of.st_ino), os.access(path, os.R_OK))
            with open(path, "rb") as f:
                say(f.read())

    for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND):
        for change in ("kept", "removed", "replaced", "renamed"):
            name = f"{change}{flags}"
            put(name, name.encode())
            fd = os.open(name, flags)
            same("before", fd)
            if change == "removed":
                os.unlink(name)
            elif change == "replaced":
                put("new", b"another one")
                os.rename("new", name)
            elif change == "renamed":
                os.rename(name, f"{name}.new")
            same(change, fd)
            os.close(fd)


@replay
def creates_by_a_link_above_what_was_removed():
    """The agent removes the directory between two looks at the way."""
    for n in range(100):
        os.makedirs(f"in{n}/removed")
    made = 0
    for n in range(100):
        put(f"in{n}/other", b"pending")
        os.rmdir(f"in{n}/removed")
        os.symlink("removed/..", f"in{n}/above")
        for call in (lambda: os.open(f"in{n}/above/x", os.O_CREAT | os.O_EXCL), lambda: os.open(f"in{n}/above/other", os.O_RDONLY)):
            made += not isinstance(tried(call), str)
    say("made", made)


main()
