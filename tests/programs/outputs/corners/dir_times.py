"""The time of a directory is that of the last change of its names, published or not; modules that a
job writes are found because of it."""
import importlib
import os
import subprocess
import sys

PAST = 1_500_000_000_123_456_789
waits = "--no-barriers" not in sys.argv


def quiet(name):
    """A new directory, whose time is long ago."""
    os.makedirs(name)
    os.utime(name, ns=(PAST, PAST))
    return name


def file(name, text="x"):
    with open(name, "w") as f:
        f.write(text)


def times(name):
    fd = os.open(name, os.O_RDONLY)
    try:
        seen = {os.stat(name).st_mtime_ns, os.fstat(fd).st_mtime_ns, os.stat(".", dir_fd=fd).st_mtime_ns}
    finally:
        os.close(fd)
    return seen


def moved(name):
    """Whether all ways to ask say that names were changed there."""
    return {t > PAST for t in times(name)}, {t == PAST for t in times(name)}


def changes():
    d, other, deep = quiet("d"), quiet("other"), quiet("above/of/deep")
    for above in ("above/of", "above"):
        os.utime(above, ns=(PAST, PAST))
    file(f"{d}/made")
    print("create", moved(d), moved(other))
    file(f"{deep}/made")
    print("below", moved(deep), moved("above/of"), moved("above"))
    a, b = quiet("a"), quiet("b")
    os.rename(f"{d}/made", f"{a}/made")
    print("rename", moved(a), moved(b))
    os.symlink("made", f"{b}/link")
    print("link", moved(b), moved(other))


def removals():
    d = quiet("removals")
    file(f"{d}/one")
    file(f"{d}/two")
    if waits:
        os.utime(d, ns=(PAST, PAST))
        print("set", moved(d))
    before = min(times(d))
    os.unlink(f"{d}/one")
    print("unlink", min(times(d)) > before if waits else True)
    os.mkdir(f"{d}/sub")
    file(f"{d}/sub/f")
    if waits:
        os.utime(d, ns=(PAST, PAST))
    os.unlink(f"{d}/sub/f")
    print("below", moved(d) if waits else None)
    os.rmdir(f"{d}/sub")
    print("rmdir", moved(d))


def by_descriptor():
    d = quiet("by_descriptor")
    file(f"{d}/f")
    fd = os.open(d, os.O_RDONLY)
    os.utime(fd, ns=(PAST, PAST))
    print("set", moved(d))
    file("beside")
    print("kept", moved(d))
    os.utime(".", ns=(PAST, PAST))
    print("root", moved("."))
    os.close(fd)


def published_before():
    """What is published before the times are set is not what was changed after that."""
    seen = set()
    for n in range(12):
        d = quiet(f"before{n}")
        file(f"{d}/f")
        fd = os.open(d, os.O_RDONLY)
        os.utime(fd if n % 2 else d, ns=(PAST, PAST))
        file(f"beside{n}")
        seen.add(str(moved(d)))
        os.close(fd)
    print("before", seen)


def others_look():
    d = quiet("others")
    file(f"{d}/f")
    out = subprocess.run(["stat", "-c", "%Y", d], capture_output=True, text=True).stdout
    print("stat", int(out) > PAST // 10**9)
    print("find", subprocess.run(["find", "others", "-maxdepth", "0", "-newermt", "2020-01-01"],
                                 capture_output=True, text=True).stdout)


def modules():
    """The finder lists a directory again when its time has changed."""
    sys.path.insert(0, os.getcwd())
    os.mkdir("written")
    sys.path.insert(0, os.path.abspath("written"))
    os.utime("written", ns=(PAST, PAST))
    for n in range(3):
        file(f"written/m{n}.py", f"x = {n}")
        print("module", importlib.import_module(f"m{n}").x)


rows = [changes, removals, others_look, modules]
for row in rows + [by_descriptor, published_before] * waits:
    row()
print("## end")
