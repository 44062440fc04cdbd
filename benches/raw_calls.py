#!/usr/bin/env python3
"""What `run.raw_calls: seccomp` costs: a changing call, and the calls that are never asked about.

A small program makes raw system calls outside of the roots, in tmpfs; bare and under the filter in
turns, under one `monarch run`; medians. Below an output root a rename is timed, too.

    cargo build --release --workspace
    make -C tests/programs OUT=$PWD/target/programs raw-calls
    benches/raw_calls.py [--rounds 5] [--count 20000]
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile

HOUSE = pathlib.Path(__file__).resolve().parent.parent
MONARCH = HOUSE / "target/release/monarch"
PROGRAM = HOUSE / "target/programs/raw-calls"


def figures(command, env):
    """Microseconds of each kind of call."""
    said = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    return {name: float(us) for name, us in (line.split() for line in said.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
        top = pathlib.Path(top)
        for name in ("out", "tier", "run", "beside"):
            (top / name).mkdir()
        env = dict(os.environ, MONARCH_RUNTIME_DIR=str(top / "run"))
        settings = [f"runtime_dir={top}/run", "outputs.0.volatile=true"]
        under = [MONARCH, "run", "--quiet", "--output", top / "out", "--tier", f"{top}/tier:64MiB"]
        under += [word for setting in settings for word in ("--set", setting)]

        def bench(where, count):
            return [str(PROGRAM), "bench", str(count), str(top / where)]

        ways = {
            "bare": bench("beside", args.count),
            "off": [*under, "--", *bench("beside", args.count)],
            "seccomp": [*under, "--raw-calls", "seccomp", "--", *bench("beside", args.count)],
            "below an output root": [*under, "--raw-calls", "seccomp", "--", *bench("out", args.count // 10)],
        }
        took = {way: [] for way in ways}
        for turn in range(args.rounds):
            for way in list(ways) if turn % 2 else reversed(list(ways)):
                took[way].append(figures([str(word) for word in ways[way]], env))
    for call in took["bare"][0]:
        of = {way: statistics.median(one[call] for one in all_of) for way, all_of in took.items()}
        added = of["seccomp"] - of["off"]
        print(f"{call}: {', '.join(f'{way} {us:.3f} us' for way, us in of.items())}; added {added:.3f} us")


if __name__ == "__main__":
    main()
