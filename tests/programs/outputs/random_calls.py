"""`random_calls.py SEED COUNT PROCESSES [N,N...]`: calls at random on few names below the present
directory, or those of them with these numbers, by processes that take turns. Each prints its result
in words that are the same wherever it runs, and so does a look at all names now and then. The first
process says the names as they are, the second one through the link BEYOND, which `run` can see, the
third one in full. Links may lead to SIBLING, a directory beside the output root. After every twelfth
call nothing may change for STEADY seconds.
"""
import errno, os, re, shutil, stat, sys, time

from kinds import directories, files, names, steady
from kinds.choices import *
from see import digest, say, told


@calls
def pause():
    if rng.random() < 0.3:
        time.sleep(rng.random() * 0.05)
    # (All is published then.)
    elif rng.random() < 0.05:
        time.sleep(0.2)
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
        return re.sub(" [0-9]+ B", "", line) + f" -> {known(os.readlink(name))} {os.path.exists(name)}"
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
    here = os.open(".", os.O_PATH)
    os.fchdir(TOP)
    for at, dirs, files in os.walk(OUT):
        dirs.sort()
        say("   ", known(at), *sorted(dirs + files))
    for at, dirs, files in os.walk("."):
        dirs.sort()
        # (The agent removes a part file a moment later: docs/OUTPUTS.md, known gaps.)
        say("   ", at, *sorted(name for name in dirs + files if not name.startswith(".monarch-part-")))
    for d in DIRS:
        for name in NAMES:
            say("   ", d + name, state(d + name))
    os.fchdir(here)
    os.close(here)


def steps(function):
    said = []
    try:
        for step in function():
            said.append(step)
    except OSError as e:
        name = errno.errorcode.get(e.errno, type(e).__name__)
        # (Behind a link to a pending file: docs/OUTPUTS.md, known gaps. Of two such names, and of
        # what is made by a descriptor of a removed directory, either error.)
        either = said and (re.search("^(rename|link|D)|(one|two|Lone|tmp)/", str(said[0])) or str(said[-1]).endswith("/"))
        if either and name in ("ENOENT", "ENOTDIR", *(["EEXIST"] if str(said[0]).startswith("link") else [])):
            name = "ENOENT or ENOTDIR"
        said.append(name)
    except shutil.Error as e:
        said.append(type(e).__name__)
    return said


# What makes most states is called more often.
KINDS += [files.open_one] * 4 + [names.put_whole, names.rename, names.unlink, names.mkdir] * 2


def turn(n):
    # (What differs once must not change all later choices.)
    rng.seed(f"{SEED} {n}")
    said = steps(rng.choice(KINDS)) if n in ONLY else ()
    if said:
        say(n, *([f"({process.me})"] if PROCESSES > 1 else []), *said)
    if n % 12 == 11 and STEADY:
        steady.look(n, STEADY)
    if n % 25 == 24 and ONLY == range(COUNT):
        look_at_all()
    sys.stdout.flush()
    say_open(process.me)


def begin(number, others):
    """A process that makes the calls whose numbers it reads: two pipes to it."""
    (asks, ask), (answers, answer) = os.pipe(), os.pipe()
    if child := os.fork():
        os.close(asks)
        os.close(answer)
        return child, ask, answers
    for fd in (ask, answers, *(fd for _, *pipes in others for fd in pipes)):
        os.close(fd)
    process.me, process.before = number, ("", f"{os.environ['BEYOND']}/", f"{os.getcwd()}/")[number % 3]
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
    for at in range(PROCESSES):
        others.append(begin(at, others))
    for n in range(COUNT):
        rng.seed(f"whose {SEED} {n}")
        at, ends = rng.randrange(PROCESSES), rng.random() < 0.03
        child, ask, answers = others[at]
        os.write(ask, n.to_bytes(8, "little"))
        if not os.read(answers, 1):
            say("no answer of", at)
        if ends:
            end(*others[at])
            NUMBERS.pack_into(said_open, at * NUMBERS.size, *[0] * (1 + 2 * MAX_OPEN))
            others[at] = None
            others[at] = begin(at, filter(None, others))
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
