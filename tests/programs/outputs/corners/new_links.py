"""What is written through a symbolic link that was made a moment ago, to a file or a directory that
was written a moment before, is there, while both are being published."""
import os
import random
import sys
import time

ROUNDS = int(sys.argv[1])
rng = random.Random(3)


def put(name, content, how="wb"):
    with open(name, how) as f:
        f.write(content)


def get(name):
    with open(name, "rb") as f:
        return f.read()


def pause():
    end = time.perf_counter() + rng.choice((0, rng.uniform(0, 0.002)))
    while time.perf_counter() < end:
        pass


def nothing(name):
    pass


def removed_file(name):
    put(name, b"before")
    os.unlink(name)


def removed_link(name):
    os.symlink("nowhere", name)
    os.unlink(name)


WAYS = {
    "append": lambda name: put(name, b"new", "ab"),
    "append, reading": lambda name: put(name, b"new", "a+b"),
    "write": lambda name: put(name, b"NEW", "r+b"),
    "truncate": lambda name: os.truncate(name, 1),
    "cut": lambda name: put(name, b"whole"),
    "mode": lambda name: os.chmod(name, 0o600),
}


def seen(name):
    return get(name), os.stat(name).st_mode


def by_link(before, way):
    """How often something else became of it than of the same directly."""
    wrong = 0
    put("same", b"own-" * 20)
    way("same")
    for n in range(ROUNDS):
        name, target = f"link{n}", f"file{n}"
        before(name)
        put(target, b"own-" * 20)
        os.symlink(target, name)
        pause()
        try:
            way(name)
        except FileNotFoundError:
            wrong += 1
            continue
        wrong += not os.path.islink(name) or seen(name) != seen("same") or seen(target) != seen("same")
    for n in range(ROUNDS):
        wrong += seen(f"file{n}") != seen("same")
        os.unlink(f"link{n}")
        os.unlink(f"file{n}")
    os.unlink("same")
    return wrong


def by_directory(how):
    """Through a link to the latest of several directories."""
    wrong = 0
    for n in range(ROUNDS):
        os.mkdir(f"run{n}")
        put(f"run{n}/f", b"own-" * 20)
        if n:
            os.unlink("latest")
        os.symlink(f"run{n}", "latest")
        pause()
        try:
            put("latest/f", b"new", how)
        except FileNotFoundError:
            wrong += 1
    for n in range(ROUNDS):
        wrong += get(f"run{n}/f") != (b"own-" * 20 + b"new" if how == "ab" else b"new" + (b"own-" * 20)[3:])
    return wrong


for before in (nothing, removed_file, removed_link):
    for way, call in WAYS.items():
        print(f"{before.__name__}, {way}: {by_link(before, call)}")
for how in ("ab", "r+b"):
    os.mkdir(how)
    os.chdir(how)
    print(f"directory, {how}: {by_directory(how)}")
    os.chdir("..")
print("## end")
