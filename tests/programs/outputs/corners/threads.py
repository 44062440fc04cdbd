"""Threads that create, rename and remove in one directory, at random with fixed seeds.
`threads.py [--no-barriers] [NAME...]` in the directory where they go.
"""
import errno, os, random, sys, threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import C, RW, T, W, X, data, digest, get, main, put, replay, say

THREADS = 20


def change(rng, names, tag):
    """One change at random of these names; says what came of it."""
    a, b = rng.choice(names), rng.choice(names)
    kind = rng.choices(["create", "exclusive", "rename", "unlink", "read", "append", "open"], [30, 8, 25, 18, 8, 5, 6])[0]
    try:
        if kind == "create":
            put(a, data(tag, rng.choice([0, 100, 20_000])), W | C | T)
        elif kind == "exclusive":
            put(a, data(tag, 500), W | C | X)
        elif kind == "rename":
            os.rename(a, b)
        elif kind == "unlink":
            os.unlink(a)
        elif kind == "read":
            return f"{kind} {a} {digest(get(a))}"
        elif kind == "append":
            put(a, b"more", W | os.O_APPEND)
        else:
            fd = os.open(a, RW | C | T)
            os.write(fd, data(tag, 300))
            os.rename(a, b)
            os.write(fd, b"after the rename")
            os.close(fd)
    except OSError as e:
        return f"{kind} {a} {b} {errno.errorcode[e.errno]}"
    return f"{kind} {a} {b} ok"


def run(work):
    said = [[] for _ in range(THREADS)]
    threads = [threading.Thread(target=work, args=(n, said[n])) for n in range(THREADS)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    for n, lines in enumerate(said):
        say(n, len(lines), digest("\n".join(lines).encode()))
        say("\n".join(lines))
    for name in sorted(os.listdir()):
        say(name, digest(get(name)))


@replay(barrier=True)
def each_with_names_of_its_own():
    def work(n, said):
        rng = random.Random(n)
        names = [f"{n}.{k}" for k in "abcd"]
        for k in range(40):
            said.append(change(rng, names, f"{n} {k}"))
    run(work)


@replay(barrier=True)
def names_that_go_from_hand_to_hand():
    """In each round every thread has two names, which another had in the round before."""
    rounds, meet = 20, threading.Barrier(THREADS)

    def work(n, said):
        for k in range(rounds):
            names = [f"f{m}" for m in range(2 * THREADS)]
            random.Random(1000 + k).shuffle(names)
            rng = random.Random(f"{n} {k}")
            for m in range(2):
                said.append(change(rng, names[2 * n:2 * n + 2], f"{n} {k} {m}"))
            meet.wait()
    run(work)


@replay
def all_over_one_name():
    """Whichever comes last: it is whole at all times, and then the one that is written last of all."""
    def get_latest():
        # (Direct: an open that renames overtake twice is ESTALE on a network file system.)
        while True:
            try:
                return get("latest")
            except OSError as e:
                if e.errno != errno.ESTALE:
                    raise

    def work(n, said):
        mine = [digest(data(f"{m} {k}", 5000)) for m in range(THREADS) for k in range(15)]
        for k in range(15):
            put(f"{n}.tmp", data(f"{n} {k}", 5000))
            os.rename(f"{n}.tmp", "latest")
            seen = digest(get_latest())
            if seen not in mine:
                said.append(f"torn: {seen}")
    put("latest", data("0 0", 5000))
    threads_said = []
    threads = [threading.Thread(target=work, args=(n, threads_said)) for n in range(THREADS)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    say(threads_said)
    put("last.tmp", b"the last one")
    os.rename("last.tmp", "latest")
    say(sorted(os.listdir()))


if __name__ == "__main__":
    main()
