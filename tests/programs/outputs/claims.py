"""Two processes take, or make, the same name at the same moment, while what they make is being
published, or nothing: one of them does, and the other is refused. `claims.py ROUNDS` in the directory where they
go; prints how often another number of them did.
"""
import ctypes, errno, os, random, shutil, struct, sys, time

from see import put

ROUNDS = int(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)
REFUSED = (errno.ENOENT, errno.EEXIST, errno.EISDIR)


def create(name, _):
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def write(name, own):
    with open(name, "x") as f:
        f.write(own)


def without_replacing(name, own):
    put(f"own-{own}", own.encode())
    if LIBC.renameat2(-100, f"own-{own}".encode(), -100, name.encode(), 1):
        raise OSError(ctypes.get_errno(), name)


def append(flags):
    def appended(name, own):
        fd = os.open(name, os.O_CREAT | os.O_APPEND | os.O_WRONLY | flags)
        os.write(fd, own.encode())
        os.close(fd)

    return appended


def first_or_other(first, second):
    return lambda name, own: (first if own == "0" else second)(name, own)


def directory(name, _):
    os.mkdir(name)


def to_nothing(name, own):
    os.symlink(f"nothing-{own}", name)


def linked(name):
    put(name, b"data")
    os.symlink(name, f"{name}.link")


def data(name):
    put(name, b"data")


def removed_directory(name):
    os.mkdir(name)
    os.rmdir(name)


def replace(name, own):
    put(name, own.encode())


# What both do, and what is made before.
WAYS = {
    "create": (create, None),
    "write": (write, None),
    "symlink": (lambda name, own: os.symlink(name, f"{name}.link"), data),
    "link": (lambda name, own: os.link(name, f"{name}.link"), data),
    "rename without replacing": (without_replacing, None),
    "rename": (lambda name, own: os.rename(name, f"{name}.{own}"), data),
    "rename to the same": (lambda name, own: os.rename(name, f"{name}.new"), data),
    "remove": (lambda name, own: os.unlink(name), data),
    "rename or remove": (lambda name, own: os.rename(name, f"{name}.new") if own == "0" else os.unlink(name), data),
    "rename a link": (lambda name, own: os.rename(f"{name}.link", f"{name}.link.{own}"), linked),
    "remove a link": (lambda name, own: os.unlink(f"{name}.link"), linked),
    "rename or remove a link": (
        lambda name, own: os.rename(f"{name}.link", f"{name}.new") if own == "0" else os.unlink(f"{name}.link"),
        linked,
    ),
    "create or make a directory": (first_or_other(create, directory), None),
    "create or make a link": (first_or_other(create, to_nothing), None),
    "rename or make a directory": (first_or_other(without_replacing, directory), None),
    "rename or make a link": (first_or_other(without_replacing, to_nothing), None),
    "write or make a directory where one was removed": (first_or_other(replace, directory), removed_directory),
    "rename or create": (first_or_other(without_replacing, create), None),
}


# What both append to, if the exclusive create does not come second. What is written stays.
APPENDING = {
    "append or append to a new file": first_or_other(append(0), append(os.O_EXCL)),
    "append": append(0),
    "append or write": first_or_other(append(0), append(os.O_TRUNC)),
}


def one_of_them(_, done):
    return done.count(b"1") == 1


def all_that_was_written(name, done):
    with open(name) as f:
        there = f.read()
    # (A file that is truncated loses what was there.)
    return there.startswith("1") or len(there) == done.count(b"1")


def other(way, own, go, answers):
    for n in range(ROUNDS):
        at = time.perf_counter() + struct.unpack("d", os.read(go, 8))[0]
        while time.perf_counter() < at:
            pass
        try:
            way(f"name-{n}", own)
            done = b"1"
        except OSError as e:
            done = b"0" if e.errno in REFUSED else b"!"
        os.write(answers, done)


def race(way, before, is_right=one_of_them):
    rng, wrong = random.Random(7), 0
    answers, to_answer = os.pipe()
    ways_in, children = [], []
    for own in "01":
        go, to_go = os.pipe()
        child = os.fork()
        if not child:
            other(way, own, go, to_answer)
            os._exit(0)
        ways_in.append(to_go)
        children.append(child)
    for n in range(ROUNDS):
        if before:
            before(f"name-{n}")
        pause = rng.choice([0, 0, rng.uniform(0, 0.003)])
        for to_go in ways_in:
            os.write(to_go, struct.pack("d", pause + rng.choice([0, rng.uniform(0, 0.003)])))
        done = b"".join(os.read(answers, 1) for _ in children)
        wrong += b"!" in done or not is_right(f"name-{n}", done)
    for child in children:
        os.waitpid(child, 0)
    return wrong


ALL = [(name, *how, one_of_them) for name, how in WAYS.items()]
ALL += [(name, way, None, all_that_was_written) for name, way in APPENDING.items()]
for name, way, before, is_right in ALL:
    os.mkdir("claims")
    os.chdir("claims")
    wrong = race(way, before, is_right)
    os.chdir("..")
    shutil.rmtree("claims")
    print(f"{name}: {wrong}")

# Here the first waits, as the name that it gives is that of a directory whose removal is pending.
# The other takes the file meanwhile.
for name, way in {"rename": lambda: os.rename("file", "new"), "remove": lambda: os.unlink("file")}.items():
    wrong = 0
    for _ in range(max(1, ROUNDS // 40)):
        os.mkdir("directory")
        put("directory/file", b"")
        put("file", b"data")
        shutil.rmtree("directory")
        child = os.fork()
        if not child:
            try:
                os.rename("file", "directory")
                os._exit(1)
            except FileNotFoundError:
                os._exit(0)
        time.sleep(0.01)
        try:
            way()
            done = 1
        except FileNotFoundError:
            done = 0
        wrong += done + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 1
        for left in ("directory", "new"):
            if os.path.exists(left):
                os.unlink(left)
    print(f"{name} meanwhile: {wrong}")
