"""`random_calls.py SEED COUNT PROCESSES [N,N...]`: calls at random on few names below the present
directory, or those of them with these numbers, by processes that take turns. Each prints its result
in words that are the same wherever it runs, and so does a look at all names now and then. The first
process says the names as they are, the second one through the link BEYOND, which `run` can see, the
third one in full.
"""
import errno, fcntl, mmap, os, random, re, shutil, socket, stat, struct, sys, time

from see import data, digest, say, told

SEED, COUNT, PROCESSES = map(int, sys.argv[1:4])
ONLY = {int(n) for n in sys.argv[4].split(",")} if sys.argv[4:] else range(COUNT)
rng = random.Random(SEED)
# What stands before the names that this process says.
before = ""
DIRS = ["", "a/", "a/b/", "c/"]
NAMES = ["one", "two", "three", "four.tmp"]
# The process keeps so many descriptors at most.
MAX_OPEN = 6
open_files = []


def path():
    return before + rng.choice(DIRS) + rng.choice(NAMES)


def directory():
    return before + rng.choice(DIRS[1:]).rstrip("/")


def short(name):
    return name.removeprefix(before)


def any_name():
    return directory() if rng.random() < 0.1 else path()


def size():
    return rng.choice((0, 1, 100, 4096, 5000, 70_000, 300_000))


def opened(name, how):
    """As `open`; a pipe blocks nothing."""
    return open(name, how, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK, 0o666))


def words(flags):
    names = ("O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_WRONLY", "O_RDWR", "O_NOFOLLOW", "O_DIRECTORY")
    return "|".join(n for n in names if flags & getattr(os, n)) or "O_RDONLY"


KINDS = []


def calls(function):
    """Adds a kind of call."""
    KINDS.append(function)
    return function


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


def told_open(fd):
    """As `told`. (The agent removes what has no name any more, and second names of what it publishes, later.)"""
    return re.sub(r" x[012]\b", "", told(os.fstat(fd)))


def with_file(function):
    """A call on one of the open files."""
    def on_one():
        if not open_files:
            return
        at = rng.randrange(len(open_files))
        yield f"#{at} {function.__name__}"
        yield from function(*open_files[at])
    return calls(on_one)


@with_file
def write(fd, flags):
    content = data((SEED, rng.random()), size())
    yield os.write(fd, content)


@with_file
def pwrite(fd, flags):
    yield os.pwrite(fd, data((SEED, rng.random()), size()), size())


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
def close(fd, flags):
    open_files.remove((fd, flags))
    os.close(fd)
    yield "done"


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
def rename():
    old, new = any_name(), any_name()
    yield f"rename {short(old)} {short(new)}"
    os.rename(old, new)
    yield told(os.lstat(new))


# What each process has open for writing, as it says to the others: a count, and numbers of files.
NUMBERS = struct.Struct(f"{1 + 2 * MAX_OPEN}Q")
said_open = mmap.mmap(-1, NUMBERS.size * PROCESSES)


def number(st):
    return st.st_dev, st.st_ino


def say_open(process):
    # (The number of a file without a name may be another one's.)
    files = [number(st) for st in (os.fstat(fd) for fd, _ in open_files) if st.st_nlink]
    fields = [len(files), *(n for file in files for n in file)]
    NUMBERS.pack_into(said_open, process * NUMBERS.size, *fields, *[0] * (1 + 2 * MAX_OPEN - len(fields)))


def is_being_written(name):
    say_open(me)
    writers = set()
    for process in range(PROCESSES):
        count, *fields = NUMBERS.unpack_from(said_open, process * NUMBERS.size)
        writers |= {tuple(fields[2 * n:2 * n + 2]) for n in range(count)}
    return os.path.exists(name) and number(os.stat(name)) in writers


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
    to, name = rng.choice((short(path()), rng.choice(NAMES), "../" + rng.choice(NAMES), "nowhere")), path()
    yield f"symlink {to} {short(name)}"
    os.symlink(to, name)
    yield os.readlink(name)


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


def owner():
    return rng.choice(((77, -1), (-1, 4321), (77, 4321), (0, 0)))


@calls
def change():
    name, how = any_name(), rng.randrange(7)
    yield f"change {short(name)} {how}"
    if how == 0:
        os.chmod(name, rng.choice((0o755, 0o700, 0o775)))
    elif how == 1:
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
def pause():
    if rng.random() < 0.3:
        time.sleep(rng.random() * 0.05)
    yield "pause"


def state(name):
    try:
        st = os.lstat(name)
    except OSError as e:
        return errno.errorcode[e.errno]
    line = told(st)
    if stat.S_ISREG(st.st_mode):
        # (docs/OUTPUTS.md, known gaps: one of its other names may just be replaced.)
        line = re.sub(r" x\d+\b", "", line)
    if stat.S_ISLNK(st.st_mode):
        return f"{line} -> {os.readlink(name)} {os.path.exists(name)}"
    if stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode):
        marks = [f"{mark[5:]}={os.getxattr(name, mark).decode()}" for mark in sorted(os.listxattr(name))]
        line = " ".join([line, *marks])
    if stat.S_ISREG(st.st_mode):
        try:
            with open(name, "rb") as f:
                return f"{line} {digest(f.read())}"
        except OSError as e:
            return f"{line} {errno.errorcode[e.errno]}"
    return line


def look_at_all():
    for at, dirs, files in os.walk("."):
        dirs.sort()
        # (The agent removes a part file a moment later: docs/OUTPUTS.md, known gaps.)
        say("   ", at, *sorted(name for name in dirs + files if not name.startswith(".monarch-part-")))
    for d in DIRS:
        for name in NAMES:
            say("   ", d + name, state(d + name))


def steps(function):
    said = []
    try:
        for step in function():
            said.append(step)
    except OSError as e:
        said.append(errno.errorcode.get(e.errno, type(e).__name__))
    except shutil.Error as e:
        said.append(type(e).__name__)
    return said


# What makes most states is called more often.
KINDS += [open_one] * 4 + [put_whole, rename, unlink, mkdir] * 2
me = 0


def turn(n):
    # (What differs once must not change all later choices.)
    rng.seed(f"{SEED} {n}")
    said = steps(rng.choice(KINDS)) if n in ONLY else ()
    if said:
        say(n, *([f"({me})"] if PROCESSES > 1 else []), *said)
    if n % 25 == 24 and ONLY == range(COUNT):
        look_at_all()
    sys.stdout.flush()
    say_open(me)


def begin(process, others):
    """A process that makes the calls whose numbers it reads: two pipes to it."""
    global me, before
    (asks, ask), (answers, answer) = os.pipe(), os.pipe()
    if child := os.fork():
        os.close(asks)
        os.close(answer)
        return child, ask, answers
    for fd in (ask, answers, *(fd for _, *pipes in others for fd in pipes)):
        os.close(fd)
    me, before = process, ("", f"{os.environ['BEYOND']}/", f"{os.getcwd()}/")[process % 3]
    while said := os.read(asks, 8):
        turn(int.from_bytes(said, "little"))
        os.write(answer, b".")
    os._exit(0)


def end(child, ask, answers):
    """(What it has open, it closes by its end.)"""
    os.close(ask)
    os.close(answers)
    if status := os.waitpid(child, 0)[1]:
        say("ended with", status)


def take_turns():
    others = []
    for process in range(PROCESSES):
        others.append(begin(process, others))
    for n in range(COUNT):
        rng.seed(f"whose {SEED} {n}")
        process, ends = rng.randrange(PROCESSES), rng.random() < 0.03
        child, ask, answers = others[process]
        os.write(ask, n.to_bytes(8, "little"))
        if not os.read(answers, 1):
            say("no answer of", process)
        if ends:
            end(*others[process])
            NUMBERS.pack_into(said_open, process * NUMBERS.size, *[0] * (1 + 2 * MAX_OPEN))
            others[process] = None
            others[process] = begin(process, filter(None, others))
    for other in others:
        end(*other)


for d in DIRS[1:]:
    os.mkdir(d)
sys.stdout.flush()
if PROCESSES > 1:
    take_turns()
else:
    for n in range(COUNT):
        turn(n)
    for fd, _ in open_files:
        os.close(fd)
look_at_all()
