"""A process changes a file by its name, which another one gives to a pending file at that moment:
the file of that name ends on the PFS as the job sees it. `changed.py ROUNDS PUBLISHED` in the
directory where the files go, PUBLISHED being that directory past the client; prints how many differ.
"""
import os, random, struct, sys, time

ROUNDS, PUBLISHED = int(sys.argv[1]), sys.argv[2]
# The time in which what is pending is published.
PATIENCE = 10


def renamed(name):
    os.rename(f"{name}.new", name)


CHANGES = {
    "truncate": lambda name: os.truncate(name, 1),
    "chmod": lambda name: os.chmod(name, 0o604),
    "set an attribute": lambda name: os.setxattr(name, "user.one", b"1"),
    "open to truncate": lambda name: os.close(os.open(name, os.O_WRONLY | os.O_TRUNC)),
}


def write(name, text):
    with open(name, "w") as f:
        f.write(text)


def process(call, answers):
    """A process that makes the call for each name; where to say when."""
    go, to_go = os.pipe()
    if os.fork():
        os.close(go)
        return to_go
    os.close(to_go)
    while said := os.read(go, 12):
        n, pause = struct.unpack("=id", said)
        at = time.perf_counter() + pause
        while time.perf_counter() < at:
            pass
        try:
            call(f"file-{n}")
        except FileNotFoundError:
            pass
        os.write(answers, b"x")
    os._exit(0)


def there(directory, n):
    name = f"{directory}/file-{n}"
    with open(name) as f:
        return f.read(), os.stat(name).st_mode, os.stat(name).st_size, "user.one" in os.listxattr(name)


def differ():
    return sum(there(".", n) != there(PUBLISHED, n) for n in range(ROUNDS) if os.path.exists(f"file-{n}"))


for what, call in CHANGES.items():
    rng = random.Random(7)
    answers, to_answer = os.pipe()
    ways_in = [process(call, to_answer)]
    # (The second does not keep the first's end.)
    ways_in.append(process(renamed, to_answer))
    for n in range(ROUNDS):
        # The other name had one before, or nothing.
        if n % 2:
            write(f"file-{n}", "before")
            time.sleep(0.003)
        write(f"file-{n}.new", "all of it")
        time.sleep(rng.choice([0, 0, rng.uniform(0, 0.02)]))
        base = rng.choice([0, 0, rng.uniform(0, 0.003)])
        for to_go in ways_in:
            os.write(to_go, struct.pack("=id", n, base + rng.choice([0, rng.uniform(0, 0.003)])))
        for _ in ways_in:
            os.read(answers, 1)
    end = time.monotonic() + PATIENCE
    while True:
        try:
            wrong = differ()
        except FileNotFoundError:
            wrong = -1
        if wrong == 0 or time.monotonic() > end:
            break
        time.sleep(0.05)
    print(f"{what}: {wrong}", flush=True)
    for n in range(ROUNDS):
        os.unlink(f"file-{n}")
    for to_go in reversed(ways_in):
        os.close(to_go)
    for _ in ways_in:
        os.wait()
