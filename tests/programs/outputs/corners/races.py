"""Processes that create, rename and link in a directory which others remove or rename meanwhile.
`races.py CALL,CALL... ROUNDS [SECONDS]` in the directory where they go: each round makes these
calls at once, each within SECONDS; says `BAD` where the calls of a round cannot have come one after
the other, and `saw` for each name at the end. The rounds are random with a fixed seed.
"""
import os, random, sys, time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from see import put, say

CALLS, ROUNDS = sys.argv[1].split(","), int(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 0.02
rng = random.Random(1)


def make(path, pause):
    with open(path, "w") as f:
        f.write("be")
        f.flush()
        time.sleep(pause)
        f.write("gun")


def call(name, n, pause):
    d = f"d{n}"
    if name == "create":
        make(f"{d}/create", pause if n % 2 else 0)
    elif name == "another":
        put(f"{d}/another", b"at once")
    elif name == "move":
        os.rename(f"file{n}", f"{d}/move")
    elif name == "link":
        os.symlink(f"../keep{n}", f"{d}/link")
    elif name == "rmdir":
        os.rmdir(d)
    elif name == "rename":
        os.rename(d, f"e{n}")


def start(name, n):
    delay, pause = rng.random() * SECONDS, rng.random() * SECONDS
    pid = os.fork()
    if pid == 0:
        time.sleep(delay)
        try:
            call(name, n, pause)
            os._exit(0)
        except OSError as e:
            os._exit(e.errno)
    return pid


for n in range(ROUNDS):
    os.mkdir(f"d{n}")
    put(f"keep{n}", b"keep")
    put(f"file{n}", b"file")
    # Now and then nothing is pending.
    time.sleep(rng.random() * 0.1 if n % 3 == 0 else 0)
    pids = {name: start(name, n) for name in CALLS}
    ends = {name: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for name, pid in pids.items()}
    made = sorted(name for name in ends if name not in ("rmdir", "rename") and ends[name] == 0)
    there = {d: sorted(os.listdir(d)) for d in (f"d{n}", f"e{n}") if os.path.isdir(d)}
    last = f"e{n}" if ends.get("rename") == 0 else f"d{n}"
    if there != ({} if ends.get("rmdir") == 0 else {last: made}) or ends.get("rmdir") == 0 and made:
        say("BAD", n, ends, there)
put("marker", b"all")
for top, dirs, files in sorted(os.walk(".")):
    for name in dirs + files:
        say("saw", os.path.relpath(os.path.join(top, name)))
say("## end")
