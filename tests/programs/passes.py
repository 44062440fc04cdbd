#!/usr/bin/env python3
"""Reads all files below a directory, pass after pass, and prints a digest of each pass.

    passes.py ROOT [--epochs N] [--order shuffled|same|listing] [--announce HOW] [--compute MS] [--batch N] [--times FILE]

HOW the coming order is announced: no (default), yes, half (only the first half of each epoch is
read), wrong (another order), missing (paths that are not there among them), twice (a second process
announces another order of the same files), marks (epochs only).
"""
import argparse
import ctypes
import hashlib
import json
import os
import random
import subprocess
import sys
import time


def library():
    lib = ctypes.CDLL(None)
    return lib if hasattr(lib, "monarch_announce_list") else None


def announce(lib, paths):
    if lib is None:
        return 0
    text = b"\0".join(os.fsencode(p) for p in paths)
    lib.monarch_announce_list.restype = ctypes.c_long
    return lib.monarch_announce_list(text, ctypes.c_size_t(len(text)))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("root")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--order", default="shuffled", choices=["shuffled", "same", "listing"])
    p.add_argument("--announce", default="no", choices=["no", "yes", "half", "wrong", "missing", "twice", "marks", "child"])
    p.add_argument("--compute", type=float, default=0)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--pause", type=float, default=0, help="seconds between passes")
    p.add_argument("--times")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    files = sorted(os.path.join(d, f) for d, _, names in os.walk(a.root) for f in names)
    if a.announce == "child":
        announce(library(), random.Random(99).sample(files, len(files)))
        return
    lib = library() if a.announce != "no" else None
    rng = random.Random(a.seed)
    times = []
    if a.order == "same":
        rng.shuffle(files)
    for epoch in range(a.epochs):
        order = list(files)
        if a.order == "shuffled":
            rng.shuffle(order)
        if a.announce == "marks" and lib is not None:
            lib.monarch_epoch_begin(ctypes.c_long(epoch + 1))
        elif a.announce == "wrong":
            announce(lib, random.Random(epoch).sample(order, len(order)))
        elif a.announce == "missing":
            announce(lib, [x for f in order for x in (f, f + ".missing", "/nowhere", "")])
        elif a.announce == "twice":
            announce(lib, order)
            subprocess.run([sys.executable, __file__, a.root, "--announce", "child"], check=True)
        elif a.announce in ("yes", "half"):
            announce(lib, order)
        if a.announce == "half":
            order = order[: len(order) // 2]
        digest, stall, began = 0, 0.0, time.perf_counter()
        for at in range(0, len(order), a.batch):
            t = time.perf_counter()
            for path in order[at : at + a.batch]:
                with open(path, "rb") as f:
                    digest ^= int.from_bytes(hashlib.blake2b(path.encode() + f.read(), digest_size=8).digest(), "big")
            stall += time.perf_counter() - t
            if a.compute:
                time.sleep(a.compute / 1000)
        times.append({"epoch": epoch + 1, "seconds": time.perf_counter() - began, "stall": stall, "files": len(order)})
        if a.announce == "marks" and lib is not None:
            lib.monarch_epoch_end()
        print(f"{epoch + 1} {len(order)} {digest:016x}", flush=True)
        time.sleep(a.pause)
    if a.times:
        with open(a.times, "w") as f:
            json.dump(times, f)


main()
