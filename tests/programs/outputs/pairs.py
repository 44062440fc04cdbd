"""Two processes make a call each about one name at the same moment: what they get, and what is there
afterwards, has to be what one of the two orders of the calls gives. `pairs.py REFERENCE OPTIONS`:
a directory outside of the output root, where the orders are tried, and options as JSON. Prints
what no order gives, and in REFERENCE.seen what each pair has left.
"""
import ctypes, errno, json, os, random, select, shutil, stat, struct, sys, time

from see import LONG_AGO, names_in, put

REFERENCE, OPTIONS = sys.argv[1], json.loads(sys.argv[2])
ROUNDS, SECONDS = OPTIONS["rounds"], OPTIONS["seconds"]
# How far apart the two calls are at most, and how long one is waited for.
APART, PATIENCE = 0.003, 15
LIBC = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE = 1, 2
rng = random.Random(OPTIONS["seed"])


def written(name, flags, own):
    fd = os.open(name, flags | os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, own.encode())
    os.close(fd)


def updated(name, own):
    fd = os.open(name, os.O_WRONLY)
    os.write(fd, own.encode())
    os.close(fd)


def renamed(old, new, flags):
    if LIBC.renameat2(-100, old.encode(), -100, new.encode(), flags):
        raise OSError(ctypes.get_errno(), new)


def removed(name):
    if LIBC.remove(name.encode()):
        raise OSError(ctypes.get_errno(), name)


# Each gets the directory and A or B. What has another name of its own: see `prepare`.
CALLS = {
    "exclusive": lambda d, own: written(d + "n", os.O_EXCL, own),
    "write": lambda d, own: written(d + "n", os.O_TRUNC, own),
    "append": lambda d, own: written(d + "n", os.O_APPEND, own),
    "update": lambda d, own: updated(d + "n", own),
    "mkdir": lambda d, own: os.mkdir(d + "n"),
    "mkfifo": lambda d, own: os.mkfifo(d + "n"),
    "symlink": lambda d, own: os.symlink("nothing" + own, d + "n"),
    "symlink to a file": lambda d, own: os.symlink("file" + own, d + "n"),
    "link": lambda d, own: os.link(d + "file" + own, d + "n"),
    "rename to": lambda d, own: os.rename(d + "file" + own, d + "n"),
    "rename published to": lambda d, own: os.rename(d + "published" + own, d + "n"),
    "rename to nothing": lambda d, own: renamed(d + "file" + own, d + "n", NOREPLACE),
    "rename published to nothing": lambda d, own: renamed(d + "published" + own, d + "n", NOREPLACE),
    "rename a link to": lambda d, own: os.rename(d + "link" + own, d + "n"),
    "exchange": lambda d, own: renamed(d + "published" + own, d + "n", EXCHANGE),
    "unlink": lambda d, own: os.unlink(d + "n"),
    "rmdir": lambda d, own: os.rmdir(d + "n"),
    "remove": lambda d, own: removed(d + "n"),
    "rename": lambda d, own: os.rename(d + "n", d + "moved" + own),
    "rename to the same": lambda d, own: os.rename(d + "n", d + "moved"),
    "link of it": lambda d, own: os.link(d + "n", d + "other", follow_symlinks=False),
    "truncate": lambda d, own: os.truncate(d + "n", 1),
    "chmod": lambda d, own: os.chmod(d + "n", 0o640),
    "chown": lambda d, own: os.chown(d + "n", 1 + (own == "B"), -1),
    "utime": lambda d, own: os.utime(d + "n", (LONG_AGO, LONG_AGO)),
    "setxattr": lambda d, own: os.setxattr(d + "n", "user.pair", own.encode()),
}
# What has the name before: (made a while before, made just before).
BEFORE = {
    "nothing": (None, None),
    "pending": (None, lambda d: put(d + "n", b"old")),
    "published": (lambda d: put(d + "n", b"old"), None),
    "directory": (None, lambda d: os.mkdir(d + "n")),
    "link": (None, lambda d: os.symlink("nothing", d + "n")),
    "link to a file": (None, lambda d: (put(d + "target", b"target"), os.symlink("target", d + "n"))),
    "removed": (None, lambda d: (put(d + "n", b"old"), os.unlink(d + "n"))),
    "published and removed": (lambda d: put(d + "n", b"old"), lambda d: os.unlink(d + "n")),
    "directory and removed": (None, lambda d: (os.mkdir(d + "n"), os.rmdir(d + "n"))),
}


def prepare_published(d, pair, before):
    os.mkdir(d)
    for own, call in zip("AB", pair):
        if "published" in call or call == "exchange":
            put(f"{d}/published{own}", b"published" + own.encode())
    if before[0]:
        before[0](d + "/")


def prepare(d, pair, before):
    for own, call in zip("AB", pair):
        if call in ("symlink to a file", "link", "rename to", "rename to nothing"):
            put(f"{d}/file{own}", b"file" + own.encode())
        if call == "rename a link to":
            os.symlink("nowhere" + own, f"{d}/link{own}")
    if before[1]:
        before[1](d + "/")


def result(call, d, own):
    try:
        CALLS[call](d + "/", own)
        return 0
    except OSError as e:
        return e.errno


def allowed(pair, before):
    """What the two orders give."""
    def outcome(order, of_others=0):
        shutil.rmtree(REFERENCE, ignore_errors=True)
        prepare_published(REFERENCE, pair, before)
        prepare(REFERENCE, pair, before)
        got = [of_others, of_others]
        for one in order:
            got[one] = result(pair[one], REFERENCE, "AB"[one])
        return [*got, names_in(REFERENCE)]

    outcomes = [outcome((0, 1)), outcome((1, 0))]
    if set(pair) == {"append", "exclusive"} and outcomes[pair.index("exclusive")][:2] == [0, 0]:
        # (Created, opened to append, appended to; then the first bytes are written.)
        outcomes.append([0, 0, [["n", stat.S_IFREG, f"{'AB'[pair.index('exclusive')]} x1"]]])
    if set(pair) == {"append", "truncate"}:
        # (Created, cut to one byte, and then appended to.)
        own = "AB"[pair.index("append")]
        hollow = lambda names: [[name, kind, text.replace(f"{own} x1", f"\0{own} x1")] for name, kind, text in names]
        outcomes += [[0, 0, hollow(there)] for *got, there in outcomes if errno.ENOENT in got]
    if set(pair) == {"append", "update"}:
        # (Created, opened and written to by the other one, and then appended to.)
        own, other = ("AB"[pair.index(call)] for call in ("append", "update"))
        longer = lambda names: [[name, kind, text.replace(f"{own} x1", f"{other}{own} x1")] for name, kind, text in names]
        outcomes += [[0, 0, longer(there)] for *got, there in outcomes if errno.ENOENT in got]
    if "utime" in pair and {"exclusive", "append"} & set(pair):
        # (Created, its time set, and then written to.)
        timeless = lambda names: [[name, kind, text.replace(f" at {LONG_AGO}000000000", "")] for name, kind, text in names]
        outcomes += [[0, 0, timeless(there)] for *got, there in outcomes if errno.ENOENT in got or got == [0, 0]]
    if set(pair) == {"exclusive", "update"} and outcomes[pair.index("exclusive")][:2] == [0, 0]:
        # (Created, opened and written to; then the first bytes are written.)
        outcomes.append([0, 0, [["n", stat.S_IFREG, f"{'AB'[pair.index('exclusive')]} x1"]]])
    if "link of it" in pair:
        # (The kernel makes no link of what has lost its last name since the link was looked for.)
        other = 1 - pair.index("link of it")
        refused = 0
        if pair[other].startswith("rename") and pair[other].endswith(" to"):
            refused = errno.ENOENT
        # (Of what is open for writing the overlay makes none: docs/OUTPUTS.md, Known gaps.)
        if pair[other] in ("exclusive", "write", "append", "update"):
            refused = errno.EXDEV
        if refused and (alone := outcome((other,), refused))[other] == 0:
            outcomes.append(alone)
    return outcomes


def begin(own):
    """A process that makes calls when it is told to: where to say it, where it answers."""
    (go, to_go), (answers, to_answer) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        os.close(go)
        os.close(to_answer)
        return pid, to_go, answers
    os.close(to_go)
    os.close(answers)
    while head := os.read(go, 12):
        pause, count = struct.unpack("di", head)
        call, d = os.read(go, count).decode().split("\0")
        at = time.perf_counter() + pause
        while time.perf_counter() < at:
            pass
        os.write(to_answer, struct.pack("i", result(call, d, own)))
    os._exit(0)


def race(processes, pair, d):
    """The answers of both; `None`: one of them does not come."""
    base = rng.choice((0, 0, rng.uniform(0, APART)))
    for (_, to_go, _), call in zip(processes, pair):
        text = f"{call}\0{d}".encode()
        os.write(to_go, struct.pack("di", base + rng.choice((0, rng.uniform(0, APART))), len(text)) + text)
    got = []
    for _, _, answers in processes:
        if not select.select([answers], [], [], PATIENCE)[0]:
            return None
        got.append(struct.unpack("i", os.read(answers, 4))[0])
    return got


def main():
    unknown = {*OPTIONS["first"], *OPTIONS["second"]} - CALLS.keys() | {*OPTIONS["before"]} - BEFORE.keys()
    if unknown:
        print(f"there is no {', '.join(sorted(unknown))}; calls: {', '.join(CALLS)}; before: {', '.join(BEFORE)}")
        return 2
    processes = [begin(own) for own in "AB"]
    first, second = OPTIONS["first"] or list(CALLS), OPTIONS["second"]
    pairs = [(a, b, s) for n, a in enumerate(first) for b in (second or first[n:]) for s in OPTIONS["before"] or BEFORE]
    # (A pipe keeps its opener waiting.)
    pairs = [(a, b, s) for a, b, s in pairs if not ("mkfifo" in (a, b) and {a, b} & {"write", "append", "update", "truncate"})]
    rng.shuffle(pairs)
    end, done, wrong, made = time.monotonic() + SECONDS, 0, 0, 0
    with open(REFERENCE + ".seen", "w") as seen:
        for a, b, name in pairs:
            if time.monotonic() > end:
                break
            pair, before, done = (a, b), BEFORE[name], done + 1
            right, odd, directories = allowed(pair, before), [], []
            for _ in range(ROUNDS):
                directories.append(f"r{made}")
                made += 1
                prepare_published(directories[-1], pair, before)
            time.sleep(OPTIONS["settle"])
            for d in directories:
                prepare(d, pair, before)
                if rng.random() < 0.3:
                    time.sleep(rng.uniform(0, 0.02))
                got = race(processes, pair, d)
                if got is None:
                    print(f"{a} | {b} | {name}: does not end", flush=True)
                    for pid, _, _ in processes:
                        os.kill(pid, 9)
                    return 1
                try:
                    there = names_in(d)
                except FileNotFoundError as e:
                    there = f"listed, and then {e}"
                if [*got, there] not in right:
                    odd.append([*got, there])
                print(json.dumps([d, a, b, name, there]), file=seen)
            if odd:
                wrong += 1
                print(f"{a} | {b} | {name}: {len(odd)} of {ROUNDS}, such as {odd[0]}; right: {right}", flush=True)
    print(f"{done} of {len(pairs)} pairs, {wrong} wrong", flush=True)
    return wrong > 0


sys.exit(main())
