"""All pairs of calls about one name by two processes at once, staged: what they get and see is that
of one of their orders, and what they saw is what the PFS gets."""
import argparse, json, os, subprocess, sys, time

from place import PROGRAMS, Place
from see import names_in


def names(text):
    return [name.strip() for name in text.split(",")] if text else []


def published_otherwise(place):
    """Where the PFS has something else than there was after both calls."""
    wrong = {}
    with open(f"{place.tmp}/reference.seen") as seen:
        for line in seen:
            d, a, b, before, there = json.loads(line)
            try:
                now = names_in(f"{place.published}/work/{d}")
            except OSError as e:
                now = str(e)
            if now != there:
                wrong.setdefault(f"{a} | {b} | {before}", []).append((there, now))
    return wrong


def main(words):
    options = argparse.ArgumentParser(prog="outputs.py pairs")
    options.add_argument("--rounds", type=int, default=20, help="of each pair")
    options.add_argument("--seconds", type=int, default=300, help="how long new pairs are begun, in random order")
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--latency", default="0", help="of a call of the PFS, such as 1ms")
    options.add_argument("--settle", type=float, default=0.05, help="seconds until what is published is published")
    options.add_argument("--first", type=names, default=[], metavar="CALL,...", help="only these (pairs.py has them all)")
    options.add_argument("--second", type=names, default=[], metavar="CALL,...")
    options.add_argument("--before", type=names, default=[], metavar="WHAT,...", help="what has the name before")
    options = options.parse_args(words)
    with Place(pfs=("--meta-latency", options.latency)) as place:
        os.mkdir(f"{place.root}/work")
        command = [sys.executable, f"{PROGRAMS}/pairs.py", f"{place.tmp}/reference", json.dumps(vars(options))]
        ended = subprocess.run(place.staged(*command), cwd=f"{place.root}/work", env=place.env, stdin=subprocess.DEVNULL)
        if ended.returncode == 2:  # It has said what is wrong with these words.
            return 2
        wrong = published_otherwise(place)
        for pair, odd in wrong.items():
            print(f"{pair}: the PFS has something else {len(odd)} times, such as {odd[0]}")
    print(f"pairs: seed {options.seed} at {options.latency} a call, {len(wrong)} pairs published otherwise than seen, status {ended.returncode}")
    return ended.returncode != 0 or bool(wrong)
