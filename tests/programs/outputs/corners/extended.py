"""Extended attributes, access lists and times: set while a file is published, and kept by what is written anew."""
import ctypes
import os
import platform
import subprocess
import sys
import time

ACL = "system.posix_acl_access"
# user::rw-, user:1:r--, group::r--, mask::r--, other::---
NO_ONE = 2**32 - 1
access_list = lambda *entries: b"\x02\x00\x00\x00" + b"".join(
    tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + who.to_bytes(4, "little", signed=False) for tag, perm, who in entries)
ACCESS = access_list((1, 6, NO_ONE), (2, 4, 1), (4, 4, NO_ONE), (16, 4, NO_ONE), (32, 0, NO_ONE))
DEFAULT = access_list((1, 7, NO_ONE), (2, 6, 5), (4, 5, NO_ONE), (16, 7, NO_ONE), (32, 1, NO_ONE))


def write(name, text="text\n"):
    with open(name, "w") as f:
        f.write(text)


def attributes(name):
    return {n: os.getxattr(name, n) for n in sorted(os.listxattr(name)) if n.startswith("user.")}


def set_meanwhile():
    """Set a moment after the close, when the copy may be made, or have its name already."""
    wrong = []
    for at in range(120):
        name = f"meanwhile{at}"
        write(name)
        time.sleep(at % 12 / 4000)
        os.setxattr(name, "user.one", b"1")
        os.setxattr(name, "user.two", b"2" * at)
        time.sleep(at % 7 / 2000)
        if attributes(name) != {"user.one": b"1", "user.two": b"2" * at}:
            wrong.append((at, attributes(name)))
    print("meanwhile", wrong)


def removed_meanwhile():
    for at in range(40):
        name = f"removed{at}"
        write(name)
        os.setxattr(name, "user.one", b"1")
        os.setxattr(name, "user.two", b"2")
        time.sleep(at % 12 / 4000)
        os.removexattr(name, "user.one")
    print("removed", sum(attributes(f"removed{at}") != {"user.two": b"2"} for at in range(40)))


def by_number():
    """By the numbers of the calls, as libraries without a function for them make them."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    first = {"x86_64": 188, "aarch64": 5}[platform.machine()]
    SET, SET_LINK, SET_OPEN, REMOVE, REMOVE_LINK, REMOVE_OPEN = *range(first, first + 3), *range(first + 9, first + 12)
    if platform.machine() == "aarch64":
        REMOVE, REMOVE_LINK, REMOVE_OPEN = 14, 15, 16
    wrong = 0

    def made(number, what, *rest):
        if call(number, what, *rest):
            raise OSError(ctypes.get_errno(), what)

    for at in range(40):
        name = f"number{at}"
        write(name)
        time.sleep(at % 12 / 4000)
        for key in (b"user.one", b"user.two"):
            made(SET, name.encode(), key, key, len(key), 0)
        made(SET_LINK, name.encode(), b"user.three", b"3", 1, 0)
        time.sleep(at % 7 / 2000)
        made(REMOVE, name.encode(), b"user.one")
        with open(name, "r+") as f:
            made(SET_OPEN, f.fileno(), b"user.four", b"4", 1, 0)
            made(REMOVE_OPEN, f.fileno(), b"user.two")
        made(REMOVE_LINK, name.encode(), b"user.three")
        wrong += attributes(name) != {"user.four": b"4"}
    print("by number", wrong)


def told(*names):
    for name in names:
        try:
            print(name, oct(os.stat(name).st_mode), os.listxattr(name), os.getxattr(name, ACL).hex())
        except OSError as e:
            print(name, oct(os.stat(name).st_mode), os.listxattr(name), e.strerror)


def from_the_directory():
    """New files get an access list from their directory, which they have while they are pending."""
    os.makedirs("inherits/in")
    write("inherits/none")
    how = "import os, sys; os.setxattr(sys.argv[1], 'system.posix_acl_default', bytes.fromhex(sys.argv[2]))"
    # By another process, after a file was made there.
    if subprocess.run([sys.executable, "-c", how, "inherits", DEFAULT.hex()], stderr=subprocess.DEVNULL).returncode:
        return print("no access lists here")
    for name in ("a", "b", "c", "d", "in/a"):
        write(f"inherits/{name}")
    os.mkdir("inherits/later")
    write("inherits/later/e")
    os.chmod("inherits/b", 0o770)
    with open("inherits/open", "w") as f:
        os.fchmod(f.fileno(), 0o606)
        told("inherits/open")
    os.removexattr("inherits/c", ACL)
    os.rename("inherits/d", "moved")
    subprocess.run(["cp", "-a", "inherits/a", "copied"])
    for again in range(2):
        told("inherits/none", *(f"inherits/{name}" for name in ("a", "b", "c", "in/a", "later/e", "open")), "moved", "copied")
        if not again:
            os.link("moved", "link")  # Published by now.
            os.unlink("link")
    os.removexattr("inherits", "system.posix_acl_default")
    write("inherits/after")
    told("inherits/after")


def kept():
    """A file that is truncated keeps what it has: pending, published, and by another process."""
    write("kept")
    os.setxattr("kept", "user.note", b"of the first version")
    try:
        os.setxattr("kept", ACL, ACCESS)
    except OSError:
        print("no access lists here")
    for at in range(4):
        if at % 2:
            os.link("kept", f"link{at}")  # Published by now.
            os.unlink(f"link{at}")
        write("kept", f"version {at}\n")
        print(at, attributes("kept"), oct(os.stat("kept").st_mode), ACL in os.listxattr("kept"), open("kept").read().strip())
    if os.fork() == 0:
        write("kept", "by a child\n")
        os._exit(0)
    os.wait()
    print(attributes("kept"), open("kept").read().strip())
    # A new file of the name has none.
    os.unlink("kept")
    write("kept", "new\n")
    print(attributes("kept"))


def large():
    """What the PFS does not take is an error of the call, by path and by descriptor, and nothing waits for it."""
    for size in (3000, 20000, 70000):
        name = f"large{size}"
        write(name)
        tried = []
        for attempt in (lambda: os.setxattr(name, "user.large", b"x" * size), lambda: by_descriptor(name, size)):
            try:
                tried.append(attempt())
            except OSError as e:
                tried.append(e.errno)
        print(name, tried, {n: len(v) for n, v in attributes(name).items()})
        os.link(name, "link")
        os.unlink("link")
        write(name, "again\n")
        print(name, {n: len(v) for n, v in attributes(name).items()}, open(name).read().strip())


def by_descriptor(name, size):
    with open(name, "r+") as f:
        os.setxattr(f.fileno(), "user.also", b"y" * (size // 3))
        return sorted(n for n in os.listxattr(f.fileno()) if n.startswith("user."))


def times():
    """The access time is the one that was set, though the copy reads the file."""
    wrong = 0
    for at in range(40):
        name = f"times{at}"
        write(name)
        os.utime(name, ns=(1002003000, 4005006000))
        time.sleep(at % 12 / 4000)
        wrong += (os.stat(name).st_atime_ns, os.stat(name).st_mtime_ns) != (1002003000, 4005006000)
    print("times", wrong)


def times_of_a_large_file():
    """Set on the descriptor, as cp, tar and rsync do, while the agent makes room ahead of the writer."""
    wrong = 0
    for at in range(12):
        with open(f"large_times{at}", "wb", buffering=0) as f:
            for _ in range(5):
                f.write(bytes(1 << 20))
                time.sleep(at % 4 / 200)
            os.utime(f.fileno(), ns=(1002003000, 4005006000))
            time.sleep(at % 3 / 40)
            wrong += os.fstat(f.fileno()).st_mtime_ns != 4005006000
        wrong += os.stat(f"large_times{at}").st_mtime_ns != 4005006000
    print("times of large files", wrong)


rows = [word for word in sys.argv[1:] if not word.startswith("-")]
for row in (set_meanwhile, removed_meanwhile, by_number, kept, from_the_directory, large, times, times_of_a_large_file):
    if not rows or row.__name__ in rows:
        row()
print("## end")
