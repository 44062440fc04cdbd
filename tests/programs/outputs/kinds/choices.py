"""What calls at random are about: names and the ways to them, sizes, flags, and the descriptors that
a process keeps. Shared by the kinds of calls beside this file."""
import ctypes, mmap, os, random, re, struct, sys

from see import told

SEED, COUNT, PROCESSES = map(int, sys.argv[1:4])
STEADY = float(os.environ.get("STEADY", 0))
ONLY = {int(n) for n in sys.argv[4].split(",")} if sys.argv[4:] else range(COUNT)
rng = random.Random(SEED)
DIRS = ["", "a/", "a/b/", "c/"]
# (The overlay says of a link to "one" what once was a path to "Lone".)
NAMES = ["one", "two", "Lone", "four.tmp"]
# Most descriptors of files, and of directories, that a process keeps.
MAX_OPEN, MAX_OPEN_DIRS = 6, 4
open_files, open_dirs = [], []
# The directory in which all begin, and one beside the output root.
TOP, TOP_PATH, OUT = os.open(".", os.O_PATH), os.getcwd(), os.environ["SIBLING"]
# Ways to a name that go about, or through what may be a link or a file.
ROUTES = ["./", "a/../", "a/b/../../", "one/", "two/", "Lone/", "a/one/", ".//", "c/two/../", "/proc/self/cwd/", "one/../"]
libc = ctypes.CDLL(None, use_errno=True)
KINDS = []


class Process:
    """The present process: its number, and what stands before the names that it says."""
    me, before = 0, ""


process = Process()


def route():
    if rng.random() < 0.7:
        return ""
    if open_dirs and rng.random() < 0.5:
        return f"{rng.choice(('/proc/self/fd', '/dev/fd', f'/proc/{os.getpid()}/fd'))}/{rng.choice(open_dirs)}/"
    return rng.choice(ROUTES)


def path():
    way = route()
    name = (way if way.startswith("/") else process.before + way) + rng.choice(DIRS) + rng.choice(NAMES)
    return name + "/" if rng.random() < 0.02 else name


def directory():
    way = route()
    return (way if way.startswith("/") else process.before + way) + rng.choice(DIRS[1:]).rstrip("/")


def short(name):
    name = name.removeprefix(process.before)
    if m := re.match("(/proc/self|/dev|/proc/[0-9]+)(/fd)?/([0-9]+)/", name):
        name = f"{m[1].replace(str(os.getpid()), 'PID')}/D{open_dirs.index(int(m[3])) if int(m[3]) in open_dirs else '?'}/{name[m.end():]}"
    return name


def known(name):
    """Paths in words that are the same for both."""
    return name.replace(TOP_PATH, "TOP").replace(OUT, "OUT").replace(os.path.dirname(TOP_PATH), "ROOT")


def checked(got):
    if got < 0:
        raise OSError(ctypes.get_errno(), "")
    return got


def any_name():
    return directory() if rng.random() < 0.1 else path()


def size():
    return rng.choice((0, 1, 100, 4096, 5000, 70_000, 300_000))


def words(flags):
    names = ("O_CREAT", "O_EXCL", "O_TRUNC", "O_APPEND", "O_WRONLY", "O_RDWR", "O_NOFOLLOW", "O_DIRECTORY")
    return "|".join(n for n in names if flags & getattr(os, n)) or "O_RDONLY"


def calls(function):
    """Adds a kind of call."""
    KINDS.append(function)
    return function


def with_file(function):
    """A call on one of the open files."""
    def on_one():
        if not open_files:
            return
        at = rng.randrange(len(open_files))
        yield f"#{at} {function.__name__}"
        yield from function(*open_files[at])
    return calls(on_one)


def with_dir(function):
    def on_one():
        if not open_dirs:
            return
        at = rng.randrange(len(open_dirs))
        yield f"D{at} {function.__name__}"
        yield from function(open_dirs[at])
    return calls(on_one)


def told_open(fd):
    """As `told`. (The agent removes what has no name any more, and second names of what it publishes, later.)"""
    return re.sub(r" x[012]\b", "", told(os.fstat(fd)))


def owner():
    return rng.choice(((77, -1), (-1, 4321), (77, 4321), (0, 0)))


# What each process has open for writing, as it says to the others: a count, and numbers of files.
NUMBERS = struct.Struct(f"{1 + 2 * MAX_OPEN}Q")
said_open = mmap.mmap(-1, NUMBERS.size * PROCESSES)


def number(st):
    return st.st_dev, st.st_ino


def say_open(at):
    # (The number of a file without a name may be another one's.)
    files = [number(st) for st in (os.fstat(fd) for fd, _ in open_files) if st.st_nlink]
    fields = [len(files), *(n for file in files for n in file)]
    NUMBERS.pack_into(said_open, at * NUMBERS.size, *fields, *[0] * (1 + 2 * MAX_OPEN - len(fields)))


def is_being_written(name):
    say_open(process.me)
    writers = set()
    for at in range(PROCESSES):
        count, *fields = NUMBERS.unpack_from(said_open, at * NUMBERS.size)
        writers |= {tuple(fields[2 * n:2 * n + 2]) for n in range(count)}
    return os.path.exists(name) and number(os.stat(name)) in writers


def is_any_written():
    say_open(process.me)
    return any(NUMBERS.unpack_from(said_open, at * NUMBERS.size)[0] for at in range(PROCESSES))
