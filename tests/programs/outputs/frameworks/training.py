"""A training job that can be killed: `train` loads the newest checkpoint that its framework finds,
goes on from there, saves after each step, and prints the last losses and what the checkpoint holds.

    PROGRAM STEPS [PAUSE]      in the output root

A program gives three functions: `fresh()` makes the state of step 0; `advance(state, step)` changes
it and returns the loss; `save(state, step)` and `load()`, which returns (state, step) or None.
"""
import hashlib, os, sys, time


def digest(data):
    return hashlib.sha256(bytes(data)).hexdigest()[:16]


def train(fresh, advance, save, load, describe=None):
    steps = int(sys.argv[1])
    pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0
    state, at = load() or (fresh(), 0)
    print(f"begins at {at}", file=sys.stderr, flush=True)
    loss = None
    for step in range(at + 1, steps + 1):
        loss = advance(state, step)
        save(state, step)
        print(f"step {step}", file=sys.stderr, flush=True)
        time.sleep(pause)
    found, last = load()
    print(f"at step {last}: loss {advance(found, last + 1):.10f}")
    if describe:
        print(describe(found))
    print("## end", flush=True)
