"""Extended attributes, access lists and times: set while a file is published, and kept by what is written anew."""
import os
import sys
import time

ACL = "system.posix_acl_access"
# user::rw-, user:1:r--, group::r--, mask::r--, other::---
ACCESS = b"\x02\x00\x00\x00" + b"".join(
    tag.to_bytes(2, "little") + perm.to_bytes(2, "little") + who.to_bytes(4, "little", signed=False)
    for tag, perm, who in [(1, 6, 2**32 - 1), (2, 4, 1), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1)])


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
for row in (set_meanwhile, removed_meanwhile, kept, large, times, times_of_a_large_file):
    if not rows or row.__name__ in rows:
        row()
print("## end")
