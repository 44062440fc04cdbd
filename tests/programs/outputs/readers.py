#!/usr/bin/env python3
"""Two ranks on two nodes: what one has written, the other finds after a barrier, whatever it calls.

readers.py RANK OUT BARRIERS [CASE...]

Each case is a pair: one rank prepares it, the other looks, and then the first looks at what the second
has done. Both ranks take both parts. What they see is printed: the same as when both write directly.
"""
import glob
import os
import shutil
import subprocess
import sys
import time

rank = int(sys.argv[1])
out, barriers = sys.argv[2:4]


def meet(name):
    """Waits for the other rank."""
    open(f"{barriers}/{name}.{rank}", "w").close()
    deadline = time.monotonic() + 120
    while not os.path.exists(f"{barriers}/{name}.{1 - rank}"):
        if time.monotonic() > deadline:
            sys.exit(f"rank {rank}: nobody else at {name}")
        time.sleep(0.001)


def write(path, text="text\n"):
    with open(path, "w") as f:
        f.write(text)


def read(path):
    with open(path) as f:
        return f.read()


def several(d):
    for at in range(6):
        write(f"{d}/f{at}", "x" * at)


def steps(d):
    os.mkdir(f"{d}/step1")
    write(f"{d}/step1/model")
    os.symlink("step1", f"{d}/latest")


def last(d):
    write(f"{d}/model")
    os.symlink("model", f"{d}/last")


def moved(d):
    write(f"{d}/model.tmp")
    os.rename(f"{d}/model.tmp", f"{d}/model")


def module(d):
    write(f"{d}/made_by_another_node.py", "value = 7\n")


def imported(d):
    sys.path.insert(0, d)
    import made_by_another_node as made
    sys.path.pop(0)
    del sys.modules["made_by_another_node"]
    return made.value


def appended(d):
    with open(f"{d}/model", "r+") as f:
        f.seek(0, os.SEEK_END)
        f.write("more\n")


def by_tools(d):
    command = "cat model; ls; test -f model && cp model copy && cat copy; stat -c %s model"
    return subprocess.run(["sh", "-c", command], cwd=d, capture_output=True, text=True).stdout


def missing(d):
    began = time.monotonic()
    found = [name for name in map(str, range(30)) if os.path.exists(f"{d}/{name}")]
    return found, time.monotonic() - began < 20


def mode(d):
    return oct(os.stat(f"{d}/model").st_mode)


def names(d):
    return sorted(os.listdir(d))


def below(d):
    os.mkdir(f"{d}/x")
    several(f"{d}/x")


def emptied(d):
    below(d)
    shutil.rmtree(f"{d}/x")


def made_again(d):
    os.makedirs(f"{d}/x", exist_ok=True)
    write(f"{d}/x/new")


def made_by_tool(d):
    subprocess.run(["mkdir", "-p", f"{d}/x"], check=True)
    write(f"{d}/x/new")


def script(d):
    write(f"{d}/script", "#!/bin/sh\necho ran\n")
    os.chmod(f"{d}/script", 0o755)


def added(d):
    with open(f"{d}/model", "a") as f:
        f.write("more\n")


def replaced_by_log(d):
    write(f"{d}/through.log", "a log\n")
    os.rename(f"{d}/through.log", f"{d}/model")


def attributes(d):
    os.chmod(f"{d}/x", 0o700)
    os.utime(f"{d}/x", (1, 4))


one = lambda d: write(f"{d}/model")
# Name, what is prepared, what the other does or sees, what the first sees then.
CASES = [
    ("open", one, lambda d: read(f"{d}/model"), None),
    ("open_renamed", moved, lambda d: read(f"{d}/model"), None),
    ("stat", one, lambda d: os.stat(f"{d}/model").st_size, None),
    ("lstat", one, lambda d: os.lstat(f"{d}/model").st_size, None),
    ("exists", one, lambda d: os.path.exists(f"{d}/model"), None),
    ("access", one, lambda d: os.access(f"{d}/model", os.R_OK), None),
    ("readlink", last, lambda d: os.readlink(f"{d}/last"), None),
    ("realpath", one, lambda d: os.path.relpath(os.path.realpath(f"{d}/model", strict=True), os.path.realpath(d)), None),
    ("link_to_directory", steps, lambda d: read(f"{d}/latest/model"), None),
    ("link_to_file", last, lambda d: read(f"{d}/last"), None),
    ("names", several, names, None),
    ("scandir", several, lambda d: sorted((e.name, e.stat().st_size) for e in os.scandir(d)), None),
    ("glob", several, lambda d: len(glob.glob(f"{d}/f*")), None),
    ("descriptor", one, lambda d: sorted(os.listdir(os.open(d, os.O_RDONLY))), None),
    ("import", module, imported, None),
    ("tools", one, by_tools, names),
    ("append", one, appended, lambda d: read(f"{d}/model")),
    ("rename", one, lambda d: os.rename(f"{d}/model", f"{d}/other"), lambda d: (names(d), read(f"{d}/other"))),
    ("replace", several, lambda d: os.replace(f"{d}/f3", f"{d}/f1"), lambda d: (names(d), read(f"{d}/f1"))),
    ("unlink", one, lambda d: os.unlink(f"{d}/model"), lambda d: os.path.exists(f"{d}/model")),
    ("rmtree", several, lambda d: shutil.rmtree(d), lambda d: os.path.exists(d)),
    ("chmod", one, lambda d: os.chmod(f"{d}/model", 0o600), mode),
    ("truncate", one, lambda d: os.truncate(f"{d}/model", 2), lambda d: os.stat(f"{d}/model").st_size),
    ("link", one, lambda d: os.link(f"{d}/model", f"{d}/other"), lambda d: (names(d), os.stat(f"{d}/other").st_nlink)),
    ("again", one, lambda d: write(f"{d}/model", "a new text\n"), lambda d: read(f"{d}/model")),
    ("makedirs", emptied, made_again, lambda d: names(f"{d}/x")),
    ("mkdir", emptied, made_by_tool, lambda d: names(f"{d}/x")),
    ("rename_directory", below, lambda d: os.rename(f"{d}/x", f"{d}/final"), lambda d: (names(d), names(f"{d}/final"))),
    ("add", one, added, lambda d: read(f"{d}/model")),
    ("replaced_by_log", one, replaced_by_log, lambda d: (names(d), read(f"{d}/model"))),
    ("symlink_over", one, lambda d: os.symlink("x", f"{d}/model"), names),
    ("exec", script, lambda d: subprocess.run([f"{d}/script"], capture_output=True, text=True).stdout, None),
    ("directory_attributes", below, attributes, lambda d: (oct(os.stat(f"{d}/x").st_mode), os.stat(f"{d}/x").st_mtime)),
    ("missing", one, missing, None),
    ("enoent", one, lambda d: os.stat(f"{d}/model/below"), None),
]


def tried(part, d):
    try:
        return repr(part(d))
    except OSError as e:
        return f"{type(e).__name__} {e.errno}"


only = sys.argv[4:]
for turn in range(2):
    for name, prepare, other, then in CASES:
        if only and name not in only:
            continue
        d, began = f"{out}/{name}{turn}", time.monotonic()
        if rank == turn:
            os.mkdir(d)
            prepare(d)
        meet(f"prepared.{name}{turn}")
        if rank != turn:
            print(f"{name}{turn}: {tried(other, d)}", flush=True)
        meet(f"done.{name}{turn}")
        if rank == turn and then:
            print(f"{name}{turn}, then: {tried(then, d)}", flush=True)
        meet(f"over.{name}{turn}")
        print(f"{name}{turn} {time.monotonic() - began:.3f}", file=sys.stderr)
print("done", flush=True)
