#!/usr/bin/env python3
"""A rank of a job on several nodes: saves shards, and one rank the marker that says that all are there.

ranks.py RANK RANKS ROUNDS OUT BARRIERS

Ranks meet by files in BARRIERS, which is no output root. In each round every rank writes a shard, each in
another way, and after a barrier one of them writes the marker.
"""
import os
import subprocess
import sys
import time

rank, ranks, rounds = map(int, sys.argv[1:4])
out, barriers = sys.argv[4:6]


def meet(name):
    """Waits for all ranks."""
    open(f"{barriers}/{name}.{rank}", "w").close()
    deadline = time.monotonic() + 120
    while not all(os.path.exists(f"{barriers}/{name}.{other}") for other in range(ranks)):
        if time.monotonic() > deadline:
            sys.exit(f"rank {rank}: nobody else at {name}")
        time.sleep(0.001)


def shard(round_, data):
    name = f"{out}/round{round_}/shard{rank}"
    way = (round_ + rank) % 4
    if way == 0:
        with open(name, "wb") as f:
            f.write(data)
    elif way == 1:
        with open(name + ".tmp", "wb") as f:
            f.write(data)
        os.replace(name + ".tmp", name)
    elif way == 2:
        # Closed by the end of a process, which no call of this one tells of.
        child = "import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)\n" \
                "os.write(fd, sys.stdin.buffer.read()); os._exit(0)"
        subprocess.run([sys.executable, "-c", child, name], input=data, check=True)
    else:
        # A link that is replaced, and a file that is removed.
        with open(name + ".0", "wb") as f:
            f.write(data)
        with open(name + ".old", "wb") as f:
            f.write(data)
        os.symlink(os.path.basename(name) + ".0", name)
        os.unlink(name + ".old")


for round_ in range(rounds):
    if rank == 0:
        os.mkdir(f"{out}/round{round_}")
    meet(f"begun{round_}")
    shard(round_, bytes([rank]) * (1 << 16))
    meet(f"saved{round_}")
    if rank == round_ % ranks:
        with open(f"{out}/latest.tmp", "w") as f:
            f.write(str(round_))
        os.replace(f"{out}/latest.tmp", f"{out}/latest")
    meet(f"marked{round_}")
print("done", flush=True)
